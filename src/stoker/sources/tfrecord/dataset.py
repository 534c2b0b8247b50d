"""TFRecord files as a dataset by index."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import CompressedFileError, FileChangedError, RecordError
from stoker.sources.lines.opened_text import compression_of
from stoker.sources.per_process import OpenFiles
from stoker.sources.places import Place
from stoker.sources.storage_of import source_files
from stoker.sources.tfrecord.records import HEAD, ExampleDecoder, checksum, data_of, length_of, record_offsets
from stoker.sources.urls import hub_fingerprint


class TFRecordDataset(Dataset[Any]):
    """Records of TFRecord files, by index: with a length, a true shuffle, exact resume. TensorFlow is not needed.

    A sample is a dict of the features of the record, a `tf.train.Example`: int64 arrays, float32 arrays, lists of
    `bytes`; each holds all values of its feature, also where there is one. With `decode=False` it is the record's
    bytes.

    An index of the records is made once and kept beside each file (`file.tfrecord.records.index`); in a folder that
    cannot be written, it lives in memory. It is made anew when the file has changed. Memory: 8 bytes for each record.
    Each process opens files when it first needs them, at most 64 at once. Thread safe. Needs `stoker[tfrecord]` for the
    checksums of the records, unless `check=False`.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these,
            not compressed.
        columns: the features to keep, in the order of the sample. None for all.
        scalars: features that have exactly one value in each record: the sample holds the value itself, as `int`,
            `float` or `bytes`.
        decode: False for the bytes of the records, which may be of any kind.
        check: whether to compare the checksums of each record.
        transform: a function of the dict or the bytes, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no files, no records or no columns, or `columns` or `scalars` are given with
            `decode=False`.
        CompressedFileError: a file is compressed.
        MissingExtraError: `google-crc32c` is not installed.
        ShardError: a file is truncated or damaged, or no TFRecord file.
        FileChangedError: a file was written to while it was indexed.
        TypeError: `columns` or `scalars` is a single text, or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    At each access:
        IndexError: the index is out of range.
        ShardError: the checksum of the record is wrong.
        RecordError: the record is no Example, lacks a feature, or has not one value of a scalar.
        FileChangedError: the file was changed since the dataset was made.
    """

    stoker_protocol = True

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        scalars: Sequence[str] = (),
        decode: bool = True,
        check: bool = True,
        transform: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        self._decoder = decoder_of(columns, scalars, decode, transform)
        self._transform = transform
        self._check = check
        crc = checksum() if check else None
        source = source_files(files, storage_options, cache, cache_size)
        self.files = source.names
        self._places = source.places
        self._open = OpenFiles(source.storage)
        self._versions = []
        offsets = []
        for path, place, file in zip(source.names, source.places, source.opened(), strict=True):
            if (compression := compression_of(file.read(0, 4))) is not None:
                raise CompressedFileError(
                    f"{path} is compressed with {compression}, so its records cannot be read by index. Read it with "
                    "stoker.TFRecordStream, which decompresses in sequence, or decompress it once."
                )
            self._versions.append(file.version)
            offsets.append(record_offsets(place, file, source.storage, crc))
        self._ends: list[int] = np.cumsum([len(column) - 1 for column in offsets]).tolist()
        if not self._ends[-1]:
            raise ValueError(f"there is no record in {len(self.files)} files: {self.files[:3]}")
        # one column for all files: record r of all, in file f, is at r + f
        self._offsets = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.files)

    def __len__(self) -> int:
        """Returns the number of records in all files."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        """Returns the record at `index`; a negative index counts from the end."""
        number = absolute(index, len(self))
        data = self._data(number)
        try:
            sample = data if self._decoder is None else self._decoder(data)
        except RecordError as error:
            raise RecordError(f"{self.describe(number)}: {error}") from error.__cause__
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """Returns the file and the byte of the sample at `index`."""
        number = absolute(index, len(self))
        file, begin, _ = self._place(number)
        return f"sample {number}: the record at byte {begin} of {self.files[file]}"

    def _data(self, number: int) -> bytes:
        file, begin, end = self._place(number)
        path = self.files[file]
        opened = self._open.get(self._places[file], self._versions[file])
        record = opened.read(begin, end - begin)
        if opened.version != self._versions[file] or len(record) != end - begin:
            self._open.close()
            raise FileChangedError(
                f"{path} was changed since the dataset was made, so byte {begin} is no longer where a record begins. "
                "Make the dataset anew, and give new data another name."
            )
        crc = checksum() if self._check else None
        length = length_of(record[:HEAD], path, begin, crc)
        return data_of(record[HEAD:], length, path, begin, crc)

    def _place(self, number: int) -> tuple[int, int, int]:
        """Returns the file of a record, and the bytes at which it begins and ends."""
        file = bisect.bisect_right(self._ends, number)
        begin, end = self._offsets[number + file : number + file + 2].tolist()
        return file, begin, end


def decoder_of(
    columns: Sequence[str] | None, scalars: Sequence[str], decode: bool, transform: Any
) -> ExampleDecoder | None:
    """Returns the decoder of records, or None for their bytes."""
    if transform is not None and not callable(transform):
        raise TypeError(f"transform is a {type(transform).__name__}, expected a function of the sample")
    for name, value in (("columns", columns), ("scalars", scalars)):
        if isinstance(value, str):
            raise TypeError(f"{name} is a text, {value!r}, expected a list of names: [{value!r}]")
    if columns is not None and not columns:
        raise ValueError("columns is an empty list: name at least one, or leave it out to read all")
    if columns is not None and (strange := [name for name in scalars if name not in columns]):
        raise ValueError(f"scalars names {strange[0]!r}, which columns does not")
    if not decode:
        if columns is not None or scalars:
            raise ValueError("columns and scalars are of decoded records, but decode=False")
        return None
    return ExampleDecoder(None if columns is None else list(dict.fromkeys(columns)), list(scalars))
