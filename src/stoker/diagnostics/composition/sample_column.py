"""`SampleColumn`: the label, or the length, of each sample, where a loader's dataset or sampler holds them.

Only the standard library is imported. Read are attributes of the objects and their classes, which runs no code of the
user's, and properties of classes of torch's, torchvision's and Stoker's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

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
