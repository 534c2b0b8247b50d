"""All exceptions and warnings of Stoker.

    StokerError
    ├── BatchError (RuntimeError)              samples that do not make a batch
    │   ├── IntegerSizeError (ValueError)      an integer of more than 64 bits
    │   ├── LeafTypeError (TypeError)          a field without a collate function, or of differing types
    │   └── MissingFieldError (KeyError)       a key that one sample has and another has not
    ├── CannotSendError (TypeError)            an object that cannot be sent to a clean worker
    ├── ClipLengthError (ValueError)           an audio or video file that is shorter than a clip of it
    ├── CompressedFileError (ValueError)       a compressed file whose records are to be read by index
    ├── DataFileError (OSError)                a file of data that is truncated, damaged, or of another format
    │   ├── ArrayFileError                     an array file that is truncated, damaged, or of an unknown format
    │   ├── HDF5Error                          an HDF5 file that cannot be opened, or is damaged
    │   │   └── HDF5ValueError (ValueError, TypeError)   a row without an equivalent in Python
    │   ├── ImageError                         an image that cannot be read or decoded
    │   │   ├── ImageFormatError               a file that is no image, or of an unknown format
    │   │   └── ImageTooLargeError             an image of more pixels than Pillow's limit
    │   ├── MediaFileError                     an audio or video file that is truncated, damaged, or none
    │   ├── ParquetFileError                   a Parquet file that is truncated, damaged, or none
    │   │   └── ParquetValueError (ValueError, OverflowError)   a date beyond Python's, or a text that is no UTF-8
    │   └── ShardError                         a shard that is truncated or damaged
    ├── DatabaseConnectionError (ConnectionError)   a database that cannot be reached, or ends the connection
    ├── DeviceError (RuntimeError)             a device that is not there, or a batch that cannot be copied to it
    ├── DeviceInWorkerError (RuntimeError)     a tensor of an accelerator in a worker's batch
    ├── DuplicateKeyError (ValueError)         two samples of a shard with one key
    ├── EmptyBatchError (RuntimeError)         a batch without samples that other ranks count on
    ├── ErrorBudgetError (RuntimeError)        more failed samples than allowed
    ├── ErrorPolicyError (RuntimeError)        an `on_error` that raised or returned no decision
    ├── EventLoopError (RuntimeError)          samples to be awaited where an event loop runs already
    ├── FileChangedError (OSError)             a file that was changed since the dataset was made
    ├── FolderError (OSError)                  an image folder that cannot be listed
    │   ├── EmptyFolderError (FileNotFoundError)    a folder without classes, or a class without images
    │   ├── MissingFolderError (FileNotFoundError)  a folder that does not exist
    │   ├── NotAFolderError (NotADirectoryError)    a file in the place of a folder
    │   └── UnreadableFolderError (PermissionError, FileNotFoundError)   a folder that this user may not read
    ├── FolderOwnerError (PermissionError)     a folder of another user, for files that only this user may write
    ├── ForkDeadlockError (RuntimeError)       forked workers that hang in their first samples, twice
    ├── FrameworkVersionError (ImportError)    a framework that is older than what Stoker's integration needs
    ├── GradientInWorkerError (RuntimeError)   a tensor made by autograd in a worker's batch
    ├── ImageArgumentError (ValueError)        a crop outside the image, a size of 0, an `out` of another shape
    ├── InstallError (RuntimeError)            an `install()` in a worker, or beside code that it would disturb
    ├── IteratorBusyError (RuntimeError)       `next()` during another `next()` of the same iterator
    ├── IteratorClosedError (RuntimeError)     `next()` of a closed iterator
    ├── KafkaError (OSError)                   a Kafka broker that does not answer, or records that it no longer has
    ├── LabelCountError (ValueError)           fewer or more labels than images
    ├── LoaderTimeoutError (RuntimeError)      no batch within `timeout`
    ├── MemoryLimitError (MemoryError, RuntimeError)   a batch that the memory cannot hold
    ├── MissingColumnError (ValueError, KeyError)   a column that a file does not have
    ├── MissingExtraError (ImportError)        an optional package that is not installed
    ├── MissingKeyError (KeyError)             a key that is not in its file
    ├── ObjectStoreError (OSError)             an object store that cannot be reached, or answers with errors
    ├── PackError (ValueError)                 a dataset or folder that cannot be packed
    ├── PlaylistError (ValueError)             a playlist of shards that names a host or folder which is not allowed
    ├── PreviewError (RuntimeError)            a batch that cannot be shown
    ├── ProgramFailedError (RuntimeError)      a program that a command measures failed, or used no loader
    ├── QuarantineError (OSError)              a quarantine file that cannot be opened
    ├── QueryError (ValueError)                an SQL query that cannot run, or selects no rows
    ├── RecordError (ValueError)               a record that cannot be read, in a file that can
    ├── SamplerError (ValueError, RuntimeError)   a sampler that yields no list, or too few indices
    ├── SchemaMismatchError (ValueError)       two files of one dataset with different columns
    ├── ShardIndexError (ValueError)           an index that does not belong to its shard
    ├── ShardingError (RuntimeError)           a stream that shards itself although samples are lost or repeated by it
    ├── StalledError (RuntimeError)            a batch that takes too long, with stall_action="raise"
    ├── StateError (ValueError)                a state that cannot be loaded
    │   ├── StateFormatError                   a state that is damaged, not Stoker's, or of a newer format
    │   └── StateMismatchError                 a state of another dataset, or of another order
    ├── StreamLostError (RuntimeError)         a stream that cannot continue after its worker died or it raised
    ├── TargetError (ValueError)               a place or `module:object` of which no dataset can be made
    ├── WorkerDiedError (RuntimeError)         a worker that was killed or exited
    └── WorkerStartError (RuntimeError)        a worker that could not be started

Each is also a subclass of the exception that torch or Python would raise. A message states the event (worker, sample,
numbers), the likely cause, and the remedy. The message of an exception that was raised in a worker has its traceback
there, without Stoker's frames (the environment variable `STOKER_TRACEBACK=full` shows them). A `WorkerTraceback` is
such a traceback as the `__cause__` of another error. `SkipSample` is not an error: a dataset raises it to leave out a
sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StokerError(Exception):
    """Root of all errors that Stoker raises."""


class DataFileError(StokerError, OSError):
    """A file of data is truncated, damaged or of another format: the message names the file, and the place in it.

    The base of the classes for single formats. Of LMDB it is the class itself: a file that is no LMDB, is damaged, or
    has no database of the given name. A file that was changed is a `FileChangedError`, one that is not there a
    `FileNotFoundError`.
    """


class ArrayFileError(DataFileError):
    """A file of arrays is empty, truncated, damaged or of an unknown format: the message names file and array."""


class BatchError(StokerError, RuntimeError):
    """Samples do not make a batch: the message names the field, the samples and their shapes, dtypes or keys.

    Attributes:
        path: the field, as in code: `["image"]`, `[1].boxes`; None for the sample itself.
        places: positions in the batch of the samples that differ from most others; may be empty.
    """

    def __init__(self, message: str, path: str | None = None, places: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.places = tuple(places)

    def __str__(self) -> str:
        return str(self.args[0]) if self.path is None else f"sample{self.path}: {self.args[0]}"


class IntegerSizeError(BatchError, ValueError):
    """A field holds an integer of more than 64 bits."""


class LeafTypeError(BatchError, TypeError):
    """A field holds a type without a collate function, or another type than in the other samples."""


class MissingFieldError(BatchError, KeyError):
    """A sample lacks a key, or a dataclass a field, that the first sample of the batch has."""


class CannotSendError(StokerError, TypeError):
    """An object cannot be sent to a clean interpreter, or from a worker: the message names it by its path."""


class ClipLengthError(StokerError, ValueError):
    """An audio or video file is shorter than a clip of it: the message names the file and both lengths."""


class CompressedFileError(StokerError, ValueError):
    """A file is compressed, so its records cannot be read by index: the message names the stream that reads it."""


class DatabaseConnectionError(StokerError, ConnectionError):
    """A database cannot be opened or reached, or ends the connection: the message names it, but neither user nor
    password."""


class DeviceError(StokerError, RuntimeError):
    """A device of `device=` is not there or cannot be used now, or the batch lacks a named field. The batch is not
    lost: the next `next()` tries again.
    """


class DeviceInWorkerError(StokerError, RuntimeError):
    """A worker's batch holds a tensor on an accelerator: workers can only send memory of the CPU."""


class DuplicateKeyError(StokerError, ValueError):
    """Two samples of a shard have the same key, or one sample has two members of one extension."""


class EmptyBatchError(StokerError, RuntimeError):
    """Every sample of a batch was left out, and other ranks count on this batch."""


class ErrorBudgetError(StokerError, RuntimeError):
    """More samples failed than `max_errors` or `max_error_rate` allow. The first failure is the `__cause__`."""


class ErrorPolicyError(StokerError, RuntimeError):
    """An `on_error` callable raised, or returned neither "raise", "skip" nor "replace"."""


class EventLoopError(StokerError, RuntimeError):
    """Samples are to be awaited in a thread that runs an event loop already, as a notebook does."""


class FileChangedError(StokerError, OSError):
    """A file was changed since the dataset was made, which knows the places of its samples."""


class FolderError(StokerError, OSError):
    """An image folder cannot be listed. `filename` is its path, `errno` the reason in the system's numbers.

    The base of the classes for single reasons. Of a link to a folder that holds it, where the listing would not end, it
    is the class itself.
    """


class EmptyFolderError(FolderError, FileNotFoundError):
    """A folder has no class folder, or a class folder has no image: the message names the extensions that count."""


class MissingFolderError(FolderError, FileNotFoundError):
    """An image folder does not exist, or was removed while it was listed."""


class NotAFolderError(FolderError, NotADirectoryError):
    """The root of an image folder is a file."""


class UnreadableFolderError(FolderError, PermissionError, FileNotFoundError):
    """An image folder, or a folder in it, exists and may not be read by this user."""


class FolderOwnerError(StokerError, PermissionError):
    """A folder or file belongs to another user, and what is read from it could run that user's code."""


class FrameworkVersionError(StokerError, ImportError):
    """A framework is older than what Stoker's integration needs: the message names both versions."""


class GradientInWorkerError(StokerError, RuntimeError):
    """A worker's batch holds a tensor made by autograd: its graph stays in the worker and cannot be sent."""


class HDF5Error(DataFileError):
    """An HDF5 file cannot be opened, is locked, or a row of it cannot be read: the message names file, key and row."""


class HDF5ValueError(HDF5Error, ValueError, TypeError):
    """A row of an HDF5 file has no equivalent in Python: a type that NumPy lacks, a reference that leads to no dataset,
    a text that is no UTF-8. The message names file, key and row."""


class ImageArgumentError(StokerError, ValueError):
    """An argument does not fit the image or the other arguments: the message states both."""


class ImageError(DataFileError):
    """An image is truncated, damaged or unreadable: the message names the file and what Pillow says."""


class ImageFormatError(ImageError):
    """A file holds no image, or one of a format that Pillow does not know.

    What `stoker.images` raises is also Pillow's `UnidentifiedImageError`.
    """


class ImageTooLargeError(ImageError):
    """An image has more pixels than twice `PIL.Image.MAX_IMAGE_PIXELS`: it may have been made to exhaust memory.

    What `stoker.images` raises is also Pillow's `DecompressionBombError`.
    """


class InstallError(StokerError, RuntimeError):
    """`stoker.install()` cannot install: in a worker, with other arguments than before, or beside a script's patch."""


class IteratorBusyError(StokerError, RuntimeError):
    """`next()` was called while another `next()` of the same iterator ran: in another thread, or by `on_event`."""


class IteratorClosedError(StokerError, RuntimeError):
    """`next()` was called on a closed iterator."""


class KafkaError(StokerError, OSError):
    """A Kafka broker does not answer or refuses, or has no such topic, or no longer has the next records: the message
    names the brokers, the partition and the offset."""


class LabelCountError(StokerError, ValueError):
    """The number of labels differs from the number of images: the message states both."""


class LoaderTimeoutError(StokerError, RuntimeError):
    """No batch arrived within the loader's `timeout`."""


class MediaFileError(DataFileError):
    """An audio or video file is empty, truncated, damaged or none: the message names the file, and the second if one
    frame is damaged."""


class MemoryLimitError(StokerError, MemoryError, RuntimeError):
    """The memory of the machine or container cannot hold a request: the message states need, availability and limit."""


class MissingColumnError(StokerError, ValueError, KeyError):
    """A file has no column of this name: the message names similar ones."""

    __str__ = Exception.__str__  # KeyError's would quote the message


class MissingExtraError(StokerError, ImportError):
    """An optional package is missing: the message names the extra that installs it."""


class MissingKeyError(StokerError, KeyError):
    """A file has no record of this key: the message names key and file."""

    __str__ = Exception.__str__  # KeyError's would quote the message


class PackError(StokerError, ValueError):
    """A dataset cannot be packed: its samples do not fit the format, the folder holds something else, or what was read
    back differs."""


class ObjectStoreError(StokerError, OSError):
    """An object store cannot be reached, or answers with errors: the message names the URL, and what was tried."""


class ParquetFileError(DataFileError):
    """A Parquet file is truncated, damaged, or no Parquet file: the message names the file, and the row group if one is
    damaged."""


class ParquetValueError(ParquetFileError, ValueError, OverflowError):
    """A value of a Parquet file has no equivalent in Python: a date beyond its calendar, a text that is no UTF-8. The
    message names file, row and column."""


class PlaylistError(StokerError, ValueError):
    """A playlist of shards names a place on a host, or in a folder, that its user has not allowed."""


class PreviewError(StokerError, RuntimeError):
    """A batch cannot be shown: it holds no images, or the process that made it died or took too long."""


class ProgramFailedError(StokerError, RuntimeError):
    """A program that a command measures, or a loader that it makes, failed, or no loader was iterated over."""


class QuarantineError(StokerError, OSError):
    """A quarantine file cannot be opened for writing."""


class QueryError(StokerError, ValueError):
    """An SQL query cannot run, selects no rows, two columns of one name, or a key that is not unique."""


class RecordError(StokerError, ValueError):
    """A record cannot be read, though its file can: a line is no JSON value, a row of a CSV file has other fields than
    it should, its header does not name the columns, or a decoder refuses the member of a shard or a Kafka record.

    The message names the place: file, line and byte; shard, key and extension; topic, partition and offset. Or a file
    holds no records of its kind.
    """


class SamplerError(StokerError, ValueError, RuntimeError):
    """A batch sampler yielded something other than a list of indices, a sampler cannot draw the requested number, or
    `distributed=` cannot divide its indices among ranks.

    For an index outside the dataset, the dataset's own error is raised. A `SamplerError` is then its `__cause__`, or
    appears in the worker's traceback.
    """


class SchemaMismatchError(StokerError, ValueError):
    """Files of one dataset have different columns, or one column has different types: the message names both files."""


class ShardError(DataFileError):
    """A shard (tar, TFRecord, MDS) is truncated or damaged, or holds a member that cannot be read: the message names it
    and the byte."""


class ShardIndexError(StokerError, ValueError):
    """An index does not belong to its shard: the shard has changed since, or the index is another shard's."""


class ShardingError(StokerError, RuntimeError):
    """A stream asked for its worker although this loses or repeats samples: after the loader began to shard it, beside
    streams that do not ask, or in a cache."""


class ForkDeadlockError(StokerError, RuntimeError):
    """Workers hung in their first samples, also after they were started again: a lock was held during the fork."""


class StalledError(StokerError, RuntimeError):
    """A batch, or a worker's part of one, took longer than `stall_warning`, and `stall_action="raise"`.

    With `"restart"`: a sample hung twice, and `on_error="raise"`.
    """


class StateError(StokerError, ValueError):
    """A state cannot be loaded. The state loaded before stays in force."""


class StateFormatError(StateError):
    """A state is damaged, truncated, not Stoker's, or of an unknown format."""


class StateMismatchError(StateError):
    """A state belongs to another dataset or another order: the message names each difference."""


class StreamLostError(StokerError, RuntimeError):
    """A stream cannot continue: its worker died and the stream cannot be reopened at its position, or it is a generator
    that raised an error to be left out."""


class TargetError(StokerError, ValueError):
    """A place holds nothing that `stoker.open_dataset` can open. Or a `module:object` given to a command names no
    dataset, no loader, and nothing that makes one."""


class WorkerDiedError(StokerError, RuntimeError):
    """A worker process was killed by a signal or exited."""


class WorkerStartError(StokerError, RuntimeError):
    """A worker process could not be started, or could not unpickle the objects sent to it."""


class WorkerTraceback(StokerError):
    """The traceback of a worker, as the `__cause__` of an exception whose message does not have it: an
    `ErrorBudgetError`, a `WorkerStartError`, what `DataLoader.preview` raises."""

    def __str__(self) -> str:
        return "\n" + "".join(map(str, self.args))


class SkipSample(Exception):
    """Raised by a dataset to leave a sample out: counted apart from errors, without using the error budget.

    With `on_error="replace"` another sample takes its place. The arguments state the reason.
    """


class StokerWarning(UserWarning):
    """Root of the warnings that Stoker issues."""


# Names of classes that are one with the base of their family, in programs and pickles.

CSVHeaderError = RecordError
FolderLoopError = FolderError
LMDBError = DataFileError
MemberDecodeError = RecordError
RecordDecodeError = RecordError
