"""`EpochNotes`: the samples in the batches of an epoch, their labels and lengths, noted in the training process.

Only the standard library is imported, as by the recorder. No code of the user's runs: what is read are attributes of
objects and their classes, and properties of classes of torch's, torchvision's and Stoker's. Indices are those that the
sampler gave, copied at once: nothing is drawn, asked for again, or changed. Of long epochs every second batch is noted,
then every fourth, and so on, so that the notes cover all of the epoch. A line holds batches:
`{"noted": epoch, "loader": 0, "every": 2, "numbers": [...], "starts": [...], "sizes": [...], "indices": ...}`, where
the starts are positions in the epoch, and `indices` (of all these batches), `labels` and `lengths` are base 64 of
machine numbers.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
from array import array
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stoker._core.protocol import is_ours

LABELS = ("targets", "labels")
"""Attributes of datasets that hold a label for each sample, by torchvision's convention."""

COUNTED = 200_000
"""Labels of a dataset that are counted; of more, so many at equal distances."""

CLASSES = 1000
"""Different labels from which on they are no classes."""

LOOKED_AT = 1000
"""Values of a list whose kind is looked at."""


class SampleColumn:
    """A value for each sample.

    Args:
        values: a list, array or tensor.
        source: where they are found, in words.
        indices: by sample, the place of its value, if the dataset is a subset.
    """

    def __init__(self, values: Any, source: str, indices: Any = None) -> None:
        self._values = values
        self._indices = indices
        self.source = source

    def __len__(self) -> int:
        return len(self._values if self._indices is None else self._indices)

    def take(self, indices: list[int]) -> list[Any] | None:
        """Returns the values of samples; None if there are none for all of them."""
        try:
            places = indices if self._indices is None else _at(self._indices, indices)
            return _at(self._values, places)
        except Exception:  # shorter than the dataset, or of another kind further on
            return None

    def counts(self) -> tuple[dict[int, int], int] | None:
        """Returns samples by value, the largest class first, and how many were counted; None if they are no classes."""
        every = -(-len(self) // COUNTED)
        found = self.take(list(range(0, len(self), every)))
        if not found:
            return None
        counts = Counter(found)
        if len(counts) > CLASSES or any(not isinstance(value, int) for value in itertools.islice(counts, CLASSES)):
            return None
        return dict(counts.most_common()), len(found)


def _at(values: Any, places: list[Any]) -> list[Any]:
    if _is_array(values):
        found: list[Any] = values[places].tolist()
        return found
    return [value if type(value) in (int, float) else value.item() for value in map(values.__getitem__, places)]


def labels_of(loader: Any) -> SampleColumn | None:
    """Returns the labels of a loader's samples: of its dataset, through subsets, or of a sampler of Stoker's."""
    found = _of_dataset(own(loader, "dataset"), LABELS, "iu")
    for name in ("batch_sampler", "sampler"):
        sampler = own(loader, name)
        if found is None and _root(sampler) == "stoker" and _is_column(values := own(sampler, "labels"), "iu"):
            found = SampleColumn(values, f"{type(sampler).__name__}.labels")
    return found


def lengths_of(loader: Any) -> SampleColumn | None:
    """Returns the lengths of a loader's samples: those of its samplers, or of its dataset."""
    samplers = [own(loader, "batch_sampler"), own(loader, "sampler")]
    for sampler in (*samplers, own(samplers[0], "sampler")):
        if _is_column(values := own(sampler, "lengths"), "iuf"):
            return SampleColumn(values, f"{type(sampler).__name__}.lengths")
    return _of_dataset(own(loader, "dataset"), ("lengths",), "iuf")


def class_names_of(loader: Any) -> list[str] | None:
    """Returns the names of the classes, by label, if the dataset has them."""
    dataset = own(loader, "dataset")
    while _is_subset(dataset):
        dataset = own(dataset, "dataset")
    names = own(dataset, "classes")
    if type(names) in (list, tuple) and 0 < len(names) <= CLASSES and all(type(name) is str for name in names):
        return [name[:60] for name in names]
    return None


def length_of(loader: Any) -> int | None:
    """Returns the length of a dataset that tells it without code of the user's; else None."""
    dataset = own(loader, "dataset")
    root = type(dataset).__module__.partition(".")[0]
    if root in ("builtins", "stoker", "torchvision") or type(dataset).__name__ == "TensorDataset":
        try:
            return len(dataset)
        except Exception:
            return None
    indices: Any = own(dataset, "indices") if _is_subset(dataset) else None
    return len(indices) if isinstance(indices, list | range) else None


def _of_dataset(dataset: Any, names: tuple[str, ...], kinds: str) -> SampleColumn | None:
    if _is_subset(dataset):
        inner, indices = _of_dataset(own(dataset, "dataset"), names, kinds), own(dataset, "indices")
        if inner is None or not (type(indices) in (list, tuple, range) or _is_array(indices)):
            return None
        if inner._indices is not None:
            indices = _at(inner._indices, indices if type(indices) is list else list(indices))
        return SampleColumn(inner._values, inner.source, indices)
    for name in names:
        if _is_column(values := own(dataset, name), kinds):
            return SampleColumn(values, f"dataset.{name}")
    return None


def _is_subset(dataset: Any) -> bool:
    return type(dataset).__name__ == "Subset" and _root(dataset) in ("torch", "stoker")


def _is_array(values: Any) -> bool:
    kind = type(values)
    return _root(values) in ("numpy", "torch") and kind.__name__ in ("ndarray", "memmap", "Tensor")


def _is_column(values: Any, kinds: str) -> bool:
    """Returns whether these are numbers of some kinds, NumPy's letters, in one dimension."""
    if _is_array(values):
        if type(values).__name__ == "Tensor":
            kind = "f" if values.is_floating_point() else "b" if str(values.dtype) == "torch.bool" else "i"
            return values.dim() == 1 and len(values) > 0 and kind in kinds and values.device.type == "cpu"
        return values.ndim == 1 and len(values) > 0 and values.dtype.kind in kinds
    if type(values) not in (list, tuple) and not (_root(values) == "stoker" and hasattr(values, "__getitem__")):
        return False
    some = [values[place] for place in range(0, len(values), -(-len(values) // LOOKED_AT) or 1)]
    return bool(some) and all(_kind_of(one) in kinds for one in some)


def _kind_of(value: Any) -> str:
    """Returns NumPy's letter for a kind of number; "?" for anything else."""
    if type(value) in (int, float):
        return "i" if type(value) is int else "f"
    return str(value.dtype.kind) if _root(value) == "numpy" and hasattr(value, "dtype") else "?"


def own(owner: Any, name: str) -> Any:
    """Returns an attribute of an object or its class, or a property of a library's class; None if there is none."""
    try:
        held = vars(owner)
    except TypeError:
        held = {}
    if name in held:
        return held[name]
    of_class = next((vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), None)
    if of_class is not None and not hasattr(of_class, "__get__"):  # no property
        return of_class
    if _root(owner) not in ("torch", "torchvision", "torchdata", "stoker"):
        return None
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _root(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


SAMPLES = 20_000
"""Samples of an epoch that are noted, about; at least half as many of a long epoch."""

PADDED = 64
"""Batches of an epoch in which lengths are looked for, about."""

WITHOUT = 4
"""Batches without lengths, after which no more are looked at."""

Columns = Callable[[], tuple[dict[str, Any], SampleColumn | None, SampleColumn | None]]
"""Returns facts about the dataset, and the label and the length of each of its samples."""


class EpochNotes:
    """The notes of an epoch under way. Used by the thread that iterates.

    Args:
        columns: called once, with the first notes that are written.

    Attributes:
        is_done: whether the epoch has ended, so that no notes follow.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns: Columns | None = columns
        self._key: dict[str, int] = {}
        self._labels: SampleColumn | None = None
        self._lengths: SampleColumn | None = None
        self.is_done = False
        self._is_off = self._is_over = False
        self._batches = self._samples = self._kept = 0
        self._every = 1
        self._numbers: list[int] = []
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._indices = array("q")
        self._received = self._with = 0
        self._looks_every = 1
        self._padded: list[list[Any]] = []

    def name(self, loader: int, epoch: int) -> None:
        """Names the epoch, whose first batches may have been noted before."""
        self._key = {"noted": epoch, "loader": loader}

    def asked(self, indices: Any) -> None:
        """Notes the indices of the next batch; anything but whole numbers ends the notes."""
        if self._is_off:
            return
        try:
            size = _size(indices)
            if not self._batches % self._every:
                self._note(_whole_numbers(indices), size)
        except (TypeError, ValueError, OverflowError):
            self._is_off = True
            return
        self._batches += 1
        self._samples += size

    def _note(self, indices: Sequence[int], size: int) -> None:
        self._indices.extend(indices)
        self._numbers.append(self._batches)
        self._starts.append(self._samples)
        self._sizes.append(size)
        self._kept += size
        if self._kept >= SAMPLES:
            self._every, self._kept = 2 * self._every, self._kept // 2

    def over(self) -> None:
        """Notes that the sampler has ended."""
        self._is_over = True

    def received(self, batch: Any) -> None:
        """Notes the lengths of the samples of a batch that the loop got, if the batch tells them."""
        number, self._received = self._received, self._received + 1
        if number % self._looks_every or (number >= WITHOUT and not self._with):
            return
        if (found := lengths_in(batch)) is not None:
            self._padded.append([number, *found])
            self._with += 1
            if self._with >= PADDED:
                self._looks_every, self._with = 2 * self._looks_every, self._with // 2

    def lines(self) -> list[dict[str, Any]]:
        """Returns the records of the notes since the last call."""
        lines: list[dict[str, Any]] = []
        if self._is_off:
            was_done, self.is_done = self.is_done, True
            self._columns = self._labels = self._lengths = None
            return [] if was_done else [{**self._key, "unknown": True}]
        if self._numbers:
            if self._columns is not None:
                about, self._labels, self._lengths = self._columns()
                self._columns = None
                lines.append({**self._key, "about": about})
            lines.append(self._chunk())
        if self._padded:
            lines.append({**self._key, "looks_every": self._looks_every, "padded": self._padded})
            self._padded = []
        if self.is_done:
            self._labels = self._lengths = None
            lines.append({**self._key, "batches": self._batches, "samples": self._samples, "whole": self._is_over})
        return lines

    def _chunk(self) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            **self._key,
            "every": self._every,
            "batches": self._batches,
            "samples": self._samples,
            "whole": self._is_over,
            "numbers": self._numbers,
            "starts": self._starts,
            "sizes": self._sizes,
            "indices": _text(self._indices),
        }
        indices = self._indices.tolist()
        for name, column, kind in (("labels", self._labels, "q"), ("lengths", self._lengths, "d")):
            if column is not None and (values := column.take(indices)) is not None:
                with contextlib.suppress(TypeError, OverflowError):  # other values than the first ones
                    chunk[name] = _text(array(kind, values))
        self._numbers, self._starts, self._sizes, self._indices = [], [], [], array("q")
        return chunk


def _text(numbers: array[Any]) -> str:
    return binascii.b2a_base64(numbers.tobytes(), newline=False).decode()


_LISTS = (list, tuple)


def _is_list(indices: Any) -> bool:
    kind = type(indices)
    return kind in _LISTS or is_ours(kind, "GivenBatch")


def _is_plain(value: Any) -> bool:
    """Returns whether a value is of a class of Python, NumPy or torch: its methods are not the user's."""
    return type(value).__module__.partition(".")[0] in ("builtins", "numpy", "torch")


def _size(indices: Any) -> int:
    """Returns the samples of a batch.

    Raises:
        TypeError: it is nothing that tells its size without code of the user's.
    """
    if _is_list(indices):
        return len(indices)
    if not _is_plain(indices) or indices is None:
        raise TypeError
    shape = getattr(indices, "shape", ())
    return int(shape[0]) if shape else 1


def _whole_numbers(indices: Any) -> Sequence[int]:
    """Returns the indices of a batch as an array of whole numbers.

    Raises:
        TypeError, OverflowError: they are others.
    """
    if not _is_list(indices):
        found = indices.tolist() if hasattr(indices, "tolist") else indices
        indices = found if isinstance(found, list) else [found]
    if indices and not _is_plain(indices[0]):
        raise TypeError
    return array("q", list(indices))


LENGTHS = ("lengths", "length", "input_lengths", "seq_lens", "src_lengths")
"""Fields that hold a length for each sample."""


def lengths_in(batch: Any) -> tuple[int, list[int], str] | None:
    """Returns the padded length of a batch, the length of each sample, and the field with them; None if there is none.

    Read are tensors and arrays in the memory of the host: `attention_mask`, Stoker's masks (`ids_mask` beside `ids`,
    and `Padded`), `mask`, and fields of lengths.
    """
    try:
        for part in _parts(batch):
            if (found := _of_fields(part)) is not None:
                return found
    except Exception:  # of an odd array: the program must not see it
        return None
    return None


def _parts(batch: Any) -> Iterator[Mapping[Any, Any]]:
    """Yields the mappings of a batch: itself, or its parts."""
    for part in batch if type(batch) in (list, tuple) else (batch,):
        if type(part) is dict:
            yield part
        elif isinstance(part, UserDict) and type(part).__module__.partition(".")[0] in ("transformers", "collections"):
            yield vars(part)["data"]
        elif is_ours(type(part), "Padded"):
            yield {"values": part.values, "values_mask": part.mask}


def _of_fields(fields: Mapping[Any, Any]) -> tuple[int, list[int], str] | None:
    for name in ("attention_mask", *_masks_beside(fields), "mask"):
        array = _array(fields.get(name), 2, "biu")
        if array is None or not array.size:
            continue
        real = array != 0
        if name == "mask" and not (real[:, 0].all() or real[:, -1].all()):  # real values begin, or end, each row
            continue
        return int(array.shape[1]), real.sum(axis=1).tolist(), name
    for name in LENGTHS:
        array = _array(fields.get(name), 1, "iu")
        if array is None or not array.size:
            continue
        lengths = array.tolist()
        shapes: list[Any] = [getattr(value, "shape", ()) for value in fields.values()]
        wide = [int(shape[1]) for shape in shapes if len(shape) > 1 and shape[0] == len(lengths)]
        if wide and max(lengths) <= wide[0]:
            return wide[0], lengths, name
    return None


def _masks_beside(fields: Mapping[Any, Any]) -> Iterator[str]:
    for name in fields:
        if isinstance(name, str) and f"{name}_mask" in fields:
            yield f"{name}_mask"


def _array(value: Any, dimensions: int, kinds: str) -> Any:
    """Returns a tensor of the host or an array as an array; None for anything else."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        if value.dim() != dimensions or value.device.type != "cpu":
            return None
        value = value.detach().numpy()
    elif (kind.__module__, kind.__name__) != ("numpy", "ndarray"):
        return None
    return value if value.ndim == dimensions and value.dtype.kind in kinds else None
