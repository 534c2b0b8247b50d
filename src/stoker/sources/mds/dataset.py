"""MDS folders as a dataset by index, and the decoding of each column."""

from __future__ import annotations

import bisect
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import RecordError, SchemaMismatchError
from stoker.sources.lines.parsing import missing_column
from stoker.sources.mds.folder import MDSFolder, ShardReader, shards_in
from stoker.sources.urls import hub_fingerprint


class MDSDataset(Dataset[Any]):
    """Samples of a folder of MDS shards, as MosaicML Streaming writes them, by index. Its package is not needed.

    A sample is a dict by column: `int`, `str`, `bytes`, `Decimal`, NumPy scalars and arrays, and what JSON holds, as
    the column's encoding says. Images (jpeg, png, pil, …) and pickles stay `bytes`: a transform decodes them
    (`stoker.images.decode`). Samples are in the order of the shards.

    Shards are read where they lie, by the places that each of them states; nothing is downloaded or unpacked to the
    disk, unless `cache=` is given. A shard of which there is only the compressed file (zstd, gz, bz2) is read and
    decompressed as a whole for one sample; each process keeps up to 256 MiB of them. So a complete shuffle of more than
    that is slow: decompress the shards beside the compressed ones, or shuffle by shards with
    `RowGroupSampler(dataset.shard_sizes)`. Each process opens shards when it first needs them, at most 64 at once.
    Thread safe.

    By URL, a sample is one request; that of a shard's first sample also reads the places of all others, 4 bytes each,
    of which each process keeps 64 MiB. Making the dataset asks for the version of each shard.

    Args:
        folder: with `index.json` and the shards: a path, or a URL of an object store or a web server.
        columns: the columns to keep, in the order of the sample. None for all.
        transform: a function of the dict, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: there is no `index.json`, or a shard is missing.
        OSError: the store cannot be reached or refuses, see the guide on object storage.
        ShardError: `index.json` is damaged, or a shard is truncated.
        SchemaMismatchError: two shards have different columns or encodings.
        MissingColumnError: there is no such column.
        MissingExtraError: a shard is compressed with zstd, and `backports.zstd` is not installed (`stoker[zstd]`).
        ValueError: there are no samples or no columns, a shard is compressed in a way that cannot be read, or a pattern
            leads to several folders.
        TypeError: `columns` is a single text, or `transform` cannot be called.

    Attributes:
        folder: the path of the folder, or its URL without secrets.
        columns: the names of the columns of a sample.

    At each access:
        IndexError: the index is out of range.
        RecordError: the sample does not fit its columns: the shard is damaged.
        ShardError: a compressed shard is damaged.
        OSError: a shard cannot be read.
        FileChangedError: the shard was changed since the dataset was made.
    """

    stoker_protocol = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of the sample")
        if isinstance(columns, str):
            raise TypeError(f"columns is a text, {columns!r}, expected a list of names: [{columns!r}]")
        if columns is not None and not columns:
            raise ValueError("columns is an empty list: name at least one, or leave it out to read all")
        self._transform = transform
        mds = MDSFolder(folder, storage_options, cache, cache_size)
        self.folder = mds.path
        self._shards = shards_in(mds)
        self._ends: list[int] = np.cumsum([shard.samples for shard in self._shards]).tolist()
        if not self._ends or not self._ends[-1]:
            raise ValueError(f"there is no sample in {self.folder}")
        first = self._shards[0]
        for shard in self._shards:
            if (shard.names, shard.encodings, shard.sizes) != (first.names, first.encodings, first.sizes):
                raise SchemaMismatchError(
                    f"{shard.path} has the columns {dict(zip(shard.names, shard.encodings, strict=True))}, but "
                    f"{first.path} has {dict(zip(first.names, first.encodings, strict=True))}"
                )
        self.columns = list(first.names if columns is None else dict.fromkeys(columns))
        if missing := [name for name in self.columns if name not in first.names]:
            raise missing_column(missing[0], first.names, "columns names")
        self._layout = SampleLayout(first.names, first.encodings, first.sizes, self.columns)
        self._reader = ShardReader(mds.storage)

    @property
    def fingerprint(self) -> str | None:
        """The commit of a folder on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint([self.folder])

    @property
    def shard_sizes(self) -> list[int]:
        """The number of samples in each shard: the argument of `RowGroupSampler`."""
        return [shard.samples for shard in self._shards]

    def __len__(self) -> int:
        """Returns the number of samples in all shards."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        """Returns the sample at `index`; a negative index counts from the end."""
        number = absolute(index, len(self))
        shard, place = self._place(number)
        try:
            sample = self._layout(self._reader.sample(self._shards[shard], place))
        except RecordError as error:
            raise RecordError(f"{self.describe(number)}: {error}") from error.__cause__
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """Returns the shard of the sample at `index`, and its number in it, counted from 0."""
        number = absolute(index, len(self))
        shard, place = self._place(number)
        return f"sample {number}: sample {place} of {self._shards[shard].path}"

    def _place(self, number: int) -> tuple[int, int]:
        shard = bisect.bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)


# Values of an MDS sample, from the bytes of each column's encoding.
#
# A sample is the sizes of its columns of variable size (uint32 each), and the bytes of all columns, one after the
# other.


Value = Callable[[bytes], Any]

_DTYPES = {
    **{8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"},
    **{9: "int8", 17: "int16", 33: "int32", 65: "int64"},
    **{18: "float16", 34: "float32", 66: "float64"},
}
"""The dtypes of arrays, by the byte that stands for each."""
_SIZES = ("<u1", "<u2", "<u4", "<u8")
"""The dtypes of shapes of arrays."""


class SampleLayout:
    """The columns of a shard's samples.

    Args:
        encodings: of all columns, as texts.
        sizes: of all columns in bytes; None where each sample states it.
        columns: the columns to decode, in the order of the sample.
    """

    def __init__(self, names: list[str], encodings: list[str], sizes: list[int | None], columns: list[str]) -> None:
        self._sizes = sizes
        self._stated = sum(not size for size in sizes)
        self._columns = columns
        self._wanted = [(name, names.index(name), value_of(encodings[names.index(name)])) for name in columns]

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Returns a sample by column."""
        place = 4 * self._stated
        stated = iter(np.frombuffer(data[:place], "<u4").tolist())
        begins = [place]
        try:
            for size in self._sizes:
                place += size or next(stated)
                begins.append(place)
        except StopIteration:
            place = -1
        if place != len(data):
            raise RecordError(f"{len(data)} bytes do not fit the sizes of its {len(self._sizes)} columns")
        sample = {}
        for name, number, value in self._wanted:
            try:
                sample[name] = value(data[begins[number] : begins[number + 1]])
            except (ValueError, IndexError, KeyError, ArithmeticError, RecursionError) as error:
                raise RecordError(f"the column {name!r} does not fit its encoding: {error!r}") from error
        return sample


def value_of(encoding: str) -> Value:
    """Returns the function that makes a value of a column's bytes.

    Images, pickles and encodings that are not known stay `bytes`: a transform decodes them.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        dtype, _, shape = rest.partition(":")
        sizes = tuple(map(int, shape.split(","))) if shape else None
        return functools.partial(_array, np.dtype(dtype).newbyteorder("<") if dtype else None, sizes)
    if kind in _DTYPES.values():
        return functools.partial(_scalar, np.dtype(kind).newbyteorder("<"))
    return _VALUES.get(kind, bytes)


def _scalar(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype, 1)[0]


def _array(dtype: Any, shape: tuple[int, ...] | None, data: bytes) -> Any:
    place = 0
    if dtype is None:
        dtype = np.dtype(_DTYPES[data[0]]).newbyteorder("<")
        place = 1
    if shape is None:
        dimensions, size = data[place] >> 2, np.dtype(_SIZES[data[place] & 3])
        shape = tuple(np.frombuffer(data, size, dimensions, place + 1).tolist())
        place += 1 + dimensions * size.itemsize
    if len(data) - place != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - place} bytes for an array of {shape}")
    return np.frombuffer(data, dtype, offset=place).reshape(shape).astype(dtype.newbyteorder("="))


def _integer(data: bytes) -> int:
    return int(_scalar(np.dtype("<i8"), data))


def _text(data: bytes) -> str:
    return data.decode()


def _of_text(kind: Callable[[str], Any], data: bytes) -> Any:
    return kind(data.decode())


_VALUES: dict[str, Value] = {
    "int": _integer,
    "str": _text,
    "str_int": functools.partial(_of_text, int),
    "str_float": functools.partial(_of_text, float),
    "str_decimal": functools.partial(_of_text, Decimal),
    "json": json.loads,
}
