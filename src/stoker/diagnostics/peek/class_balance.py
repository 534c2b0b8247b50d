"""The samples of each class: of all samples where the dataset knows its labels, else of those that are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.diagnostics.peek.fields import leaves

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
        samples: number of samples counted.
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
        samples: that are looked at.
        count: number of all samples.
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
