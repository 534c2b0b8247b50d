"""Every exception and warning of Stoker.

    StokerError
    ├── BatchError (RuntimeError)              samples that do not make a batch
    │   ├── IntegerSizeError (ValueError)      an integer of more than 64 bits
    │   ├── LeafTypeError (TypeError)          a field that no collator knows, or whose type differs among samples
    │   └── MissingFieldError (KeyError)       a key that one sample has and another has not
    ├── CannotSendError (TypeError)            an object that a clean worker cannot be sent
    ├── DeviceInWorkerError (RuntimeError)     a tensor of an accelerator in a worker's batch
    ├── EmptyBatchError (RuntimeError)         a batch of which every sample was left out, where ranks count on it
    ├── ErrorBudgetError (RuntimeError)        more bad samples than were allowed
    ├── ErrorPolicyError (RuntimeError)        an `on_error` that raised, or returned what is no decision
    ├── GradientInWorkerError (RuntimeError)   a worker's batch with a tensor that autograd made
    ├── IteratorBusyError (RuntimeError)       a batch asked of an iterator that makes one for somebody else
    ├── IteratorClosedError (RuntimeError)     a batch asked of an iterator that was closed
    ├── LoaderTimeoutError (RuntimeError)      no batch within `timeout`
    ├── MemoryLimitError (MemoryError, RuntimeError)   a batch that the memory cannot hold
    ├── MissingExtraError (ImportError)        an optional package that is not installed
    ├── QuarantineError (OSError)              a quarantine file that cannot be opened
    ├── SamplerError (ValueError, RuntimeError)   a sampler that yields no list as a batch, or cannot yield so many
    ├── ShardingError (RuntimeError)           a stream that shards itself where it must not
    ├── SickBirthError (RuntimeError)          workers that hang in their first samples, twice
    ├── StalledError (RuntimeError)            a batch that takes too long, with stall_action="raise"
    ├── StateError (ValueError)                a state that cannot be loaded
    │   ├── StateFormatError                   a state that is damaged, not Stoker's, or of a newer format
    │   └── StateMismatchError                 a state of another dataset, or of another order
    ├── StreamLostError (RuntimeError)         a stream that cannot go on where its worker died, or it raised
    ├── WorkerDiedError (RuntimeError)         a worker that was killed or exited
    └── WorkerStartError (RuntimeError)        a worker that could not be started

Each is also a subclass of the exception that torch or Python would raise. A message says what happened (worker, sample,
numbers), the likely cause, and what to change. `WorkerTraceback` is the `__cause__` of an exception that came from a
worker. `SkipSample` is not an error: a dataset raises it to have a sample left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StokerError(Exception):
    """Root of all errors that Stoker itself raises."""


class BatchError(StokerError, RuntimeError):
    """Samples do not make a batch: the message names the field, the samples and their shapes, dtypes or keys.

    Attributes:
        path: where in a sample, as in code: `["image"]`, `[1].boxes`; None for the sample itself.
        places: of the samples in the batch that differ from most of it, where there are such.
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
    """A field holds a type that no collator knows, or another type than in the other samples."""


class MissingFieldError(BatchError, KeyError):
    """A sample lacks a key, or a dataclass a field, that the first sample of the batch has."""


class CannotSendError(StokerError, TypeError):
    """An object cannot be sent to a clean interpreter: the message names it by its path."""


class DeviceInWorkerError(StokerError, RuntimeError):
    """A worker's batch holds a tensor on an accelerator: workers hand over memory of the CPU."""


class EmptyBatchError(StokerError, RuntimeError):
    """Every sample of a batch was left out, and other ranks count on a batch in this place."""


class ErrorBudgetError(StokerError, RuntimeError):
    """More samples failed than `max_errors` or `max_error_rate` allow. The first of them is the `__cause__`."""


class ErrorPolicyError(StokerError, RuntimeError):
    """An `on_error` callable raised, or returned neither "raise", "skip" nor "replace"."""


class GradientInWorkerError(StokerError, RuntimeError):
    """A worker's batch holds a tensor that autograd made: its graph is the worker's, and cannot be handed over."""


class IteratorBusyError(StokerError, RuntimeError):
    """`next()` was called while another `next()` of the same iterator ran: in another thread, or by `on_event`."""


class IteratorClosedError(StokerError, RuntimeError):
    """A batch was asked of an iterator after it was closed."""


class LoaderTimeoutError(StokerError, RuntimeError):
    """No batch arrived within the loader's `timeout`."""


class MemoryLimitError(StokerError, MemoryError, RuntimeError):
    """The machine's or the container's memory cannot hold what was asked for: needed, available and limit are named."""


class MissingExtraError(StokerError, ImportError):
    """An optional package is missing: the message names the extra that brings it."""


class QuarantineError(StokerError, OSError):
    """A quarantine file cannot be opened for writing."""


class SamplerError(StokerError, ValueError, RuntimeError):
    """A batch sampler yielded something other than a list of indices, or a sampler cannot draw as many as it should, or
    `distributed=` cannot share it out.

    For an index that is not the dataset's, the dataset's own error is raised. A `SamplerError` is then its `__cause__`,
    or appears in the worker's traceback.
    """


class ShardingError(StokerError, RuntimeError):
    """A stream asked which worker it is in where that loses or repeats samples: after the loader had begun to share it
    out, beside streams that do not ask, or in a cache."""


class SickBirthError(StokerError, RuntimeError):
    """Workers hung in their first samples, also after they were started again: a lock was held during the fork."""


class StalledError(StokerError, RuntimeError):
    """A batch, or a worker's part of one, took longer than `stall_warning`, and `stall_action="raise"`.

    With `"restart"`: a sample hung twice, and `on_error="raise"`.
    """


class StateError(StokerError, ValueError):
    """A state cannot be loaded. What was loaded before stays."""


class StateFormatError(StateError):
    """A state is damaged, truncated, not Stoker's, or of a format that this version does not know."""


class StateMismatchError(StateError):
    """A state belongs to another dataset or another order: the message names each difference."""


class StreamLostError(StokerError, RuntimeError):
    """A stream cannot go on: its worker died and it cannot be opened where it stood, or it is a generator that raised
    what was to be left out."""


class WorkerDiedError(StokerError, RuntimeError):
    """A worker process was killed by a signal or exited."""


class WorkerStartError(StokerError, RuntimeError):
    """A worker process could not be started, or could not read what it was sent."""


class WorkerTraceback(StokerError):
    """The traceback of a worker, as the `__cause__` of the exception that it raised."""

    def __str__(self) -> str:
        return "\n" + "".join(map(str, self.args))


class SkipSample(Exception):
    """Raised by a dataset for a sample that is to be left out: counted apart from errors, at no cost to the budget.

    With `on_error="replace"` another sample takes its place. The arguments are the reason.
    """


class StokerWarning(UserWarning):
    """Root of the warnings that Stoker itself gives."""
