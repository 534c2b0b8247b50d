"""The fields of samples (types, shapes, ranges, sizes) and the samples of each class, of those that are looked at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DEEPEST = 6
"""Containers inside each other that are taken apart."""

WIDEST = 40
"""Items of a list that are fields of their own; a longer list is one field."""

_MAGIC = ((b"\xff\xd8\xff", "JPEG"), (b"\x89PNG", "PNG"), (b"RIFF", "RIFF"), (b"GIF8", "GIF"), (b"%PDF", "PDF"))


@dataclasses.dataclass
class FieldSummary:
    """A field of the samples.

    Attributes:
        path: such as `["image"]` or `[0]`; "" if samples are no containers.
        types: of its values, the most frequent first.
        shapes: of its values; their lengths for texts and bytes.
        dtypes: of arrays and tensors, modes of images, kinds of encoded bytes.
        missing: of them, those that have None there.
        size: bytes of all its values together.
    """

    path: str
    types: dict[str, int] = dataclasses.field(default_factory=dict)
    shapes: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, int] = dataclasses.field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    count: int = 0
    missing: int = 0
    size: int = 0

    @property
    def shape(self) -> str:
        """Returns the shape in words; a size that differs as its range: `3 x 200..512 x 180..640`."""
        if not self.shapes:
            return ""
        by_rank: dict[int, list[tuple[int, ...]]] = {}
        for shape in self.shapes:
            by_rank.setdefault(len(shape), []).append(shape)
        return " or ".join(_ranges(shapes) for _, shapes in sorted(by_rank.items()))

    @property
    def range(self) -> str:
        """Returns the smallest and the largest number."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g}..{self.high:.4g}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the field as plain JSON values."""
        return {
            "path": self.path,
            "types": self.types,
            "dtypes": self.dtypes,
            "shape": self.shape,
            "low": _finite(self.low),
            "high": _finite(self.high),
            "count": self.count,
            "missing": self.missing,
            "mean_bytes": round(self.size / max(1, self.count)),
        }

    def add(self, value: Any) -> None:
        """Counts a value."""
        self.count += 1
        _count(self.types, type(value).__name__)
        if value is None:
            self.missing += 1
            return
        array = _as_array(value)
        if isinstance(value, (str, bytes, bytearray)):
            _count(self.shapes, (len(value),))
            self.size += len(value) if isinstance(value, (bytes, bytearray)) else len(value.encode(errors="replace"))
            if isinstance(value, (bytes, bytearray)):
                _count(self.dtypes, next((name for magic, name in _MAGIC if bytes(value[:4]).startswith(magic)), ""))
        elif hasattr(value, "getbands"):
            _count(self.shapes, (value.height, value.width))
            _count(self.dtypes, str(value.mode))
            self.size += value.width * value.height * len(value.getbands())
        elif array is not None:
            if array.shape or hasattr(value, "dtype"):
                _count(self.shapes, array.shape)
                _count(self.dtypes, str(getattr(value, "dtype", array.dtype)))
            self.size += int(array.nbytes)
            self._numbers(array)
        elif isinstance(value, (list, tuple, set, dict)):
            _count(self.shapes, (len(value),))

    def _numbers(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.kind not in "biuf" or not array.size:
            return
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if not finite.size:
            return
        low, high = float(finite.min()), float(finite.max())
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def fields_of(samples: Iterable[Any]) -> dict[str, FieldSummary]:
    """Returns the fields of samples by their path, in order of first sight."""
    found: dict[str, FieldSummary] = {}
    for sample in samples:
        for path, value in leaves(sample):
            found.setdefault(path, FieldSummary(path)).add(value)
    return found


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a sample with their paths; a value that is no container is one field."""
    if depth < DEEPEST:
        if isinstance(value, Mapping) and value:
            for key, item in list(value.items()):
                yield from leaves(item, f"{path}[{key!r}]", depth + 1)
            return
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                yield from leaves(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
            return
        if isinstance(value, (tuple, list)) and 0 < len(value) <= WIDEST and not _is_numbers(value):
            names = getattr(value, "_fields", None)
            for place, item in enumerate(value):
                yield from leaves(item, f"{path}.{names[place]}" if names else f"{path}[{place}]", depth + 1)
            return
    yield path, value


def _is_numbers(value: Any) -> bool:
    """Returns whether a list is a row of numbers, one field. A tuple of two is a sample and its label."""
    return isinstance(value, list) and all(isinstance(item, (int, float)) for item in value)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns an array of an array, a tensor, a number or a list of numbers; None for anything else."""
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        value = value.detach().cpu()
        return np.asarray((value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy())
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)) or (
        isinstance(value, list) and _is_numbers(value)
    ):
        try:
            return np.asarray(value)
        except (OverflowError, ValueError):
            return None
    return None


def _ranges(shapes: list[tuple[int, ...]]) -> str:
    if not shapes[0]:
        return "scalar"
    sides = [sorted(side) for side in zip(*shapes, strict=True)]
    return " x ".join(f"{side[0]:,}" if side[0] == side[-1] else f"{side[0]:,}..{side[-1]:,}" for side in sides)


def _count(counts: dict[Any, int], key: Any) -> None:
    if key != "":
        counts[key] = counts.get(key, 0) + 1


def _finite(value: float | None) -> float | None:
    return value if value is None or np.isfinite(value) else None


NAMES = ("label", "labels", "target", "targets", "class", "cls", "category", "y")
"""Names of attributes, fields and columns that hold labels."""

MOST_CLASSES = 1000
"""Different labels from which on they are no classes, where they are taken from fields."""


@dataclass(frozen=True)
class ClassBalance:
    """The samples of each class.

    Attributes:
        counts: samples by class, the largest class first.
        source: where the labels come from: an attribute of the dataset, or a field of the samples.
        is_whole: whether these are all samples.
    """

    counts: dict[str, int]
    source: str
    samples: int
    is_whole: bool

    @property
    def ratio(self) -> float:
        """Returns how many times as many samples the largest class has as the smallest."""
        return max(self.counts.values()) / max(1, min(self.counts.values()))

    def as_dict(self) -> dict[str, Any]:
        """Returns the balance as plain JSON values."""
        return {**vars(self), "classes": len(self.counts), "ratio": self.ratio}


def class_balance(dataset: Any, samples: Sequence[Any], count: int | None) -> ClassBalance | None:
    """Returns the samples of each class; None where nothing is known as labels.

    Args:
        dataset: whose attributes `targets`, `labels` and `classes` are read; None for a stream.
    """
    names = _class_names(dataset)
    for name in ("targets", "labels", "y"):
        labels = _attribute(dataset, name)
        if labels is not None and np.ndim(labels) == 1 and len(labels) == count and count:
            return _balance(np.asarray(labels).tolist(), names, f"dataset.{name}", True)
    for path in _paths_of_labels(samples):
        labels = [value for sample in samples for where, value in leaves(sample) if where == path]
        labels = [label.item() if hasattr(label, "item") and np.ndim(label) == 0 else label for label in labels]
        if labels and all(isinstance(label, (int, str, bool)) for label in labels):
            found = _balance(labels, names, f"sample{path}", len(samples) == count)
            if len(found.counts) <= MOST_CLASSES and (len(found.counts) < len(labels) or names):
                return found
    return None


def _balance(labels: list[Any], names: Sequence[str] | None, source: str, is_whole: bool) -> ClassBalance:
    def name(label: Any) -> str:
        is_index = isinstance(label, int) and not isinstance(label, bool)
        return str(names[label]) if names is not None and is_index and 0 <= label < len(names) else str(label)

    counts = {name(label): number for label, number in Counter(labels).most_common()}
    if is_whole and names is not None and len(names) <= MOST_CLASSES:
        counts |= {each: 0 for each in map(str, names) if each not in counts}
    return ClassBalance(counts, source, len(labels), is_whole)


def _paths_of_labels(samples: Sequence[Any]) -> list[str]:
    """Returns the fields that may hold labels: those with such a name, then the second one of a pair."""
    if not samples:
        return []
    paths = [path for path, _ in leaves(samples[0])]
    named = [path for path in paths if path.rpartition("[")[2].strip("]'.").rpartition(".")[2].lower() in NAMES]
    return [*named, *(["[1]"] if paths[:2] == ["[0]", "[1]"] else [])]


def _class_names(dataset: Any) -> Sequence[str] | None:
    names = _attribute(dataset, "classes")
    return names if isinstance(names, (list, tuple)) and names else None


def _attribute(dataset: Any, name: str) -> Any:
    """Returns an attribute; None where there is none, or where it cannot be read."""
    try:
        return getattr(dataset, name, None)
    except Exception:
        return None
