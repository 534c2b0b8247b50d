"""The classes in the batches, beside those of the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.diagnostics.composition.noted_epoch import NotedEpoch

SHOWN = 30
"""Classes of which shares are told; the others are summed up."""


def class_shares(epochs: Sequence[NotedEpoch]) -> dict[str, Any] | None:
    """Returns the shares of the classes in a dataset and in its batches, as plain JSON values; None without labels."""
    known = [epoch for epoch in epochs if epoch.labels is not None and len(epoch.indices) and "labels" in epoch.about]
    if not known:
        return None
    about = known[0].about["labels"]
    counts = Counter({int(label): int(number) for label, number in about["counts"]})
    drawn: Counter[int] = Counter()
    for epoch in known:
        assert epoch.labels is not None
        drawn.update(epoch.labels.tolist())
    there, came = sum(counts.values()), sum(drawn.values())
    rows: list[dict[str, Any]] = [
        {"name": _name(label, about["names"]), "dataset": counts[label] / there, "batches": drawn[label] / came}
        for label in sorted({*counts, *drawn}, key=lambda label: (-counts[label], label))
    ]
    shown, others = rows[:SHOWN], rows[SHOWN:]
    widest = max(rows, key=lambda row: abs(row["batches"] - row["dataset"]))
    return {
        "source": about["source"],
        "labels": about["of"],
        "labels_counted": about["counted"],
        "samples": came,
        "classes": len(rows),
        "shares": shown,
        "others": {"classes": len(others)}
        | {name: sum(row[name] for row in others) for name in ("dataset", "batches")},
        "farthest": widest,
        "batch": batch_composition(known, [number / there for number in counts.values()]),
    }


def batch_composition(epochs: Sequence[NotedEpoch], shares: Sequence[float]) -> dict[str, Any] | None:
    """Returns how many classes a batch has, and the share of its most frequent one, over the batches of full size.

    Args:
        epochs: with labels.
        shares: of the classes in the dataset: batches drawn from it at random are told beside it.
    """
    full = max(int(epoch.sizes.max()) for epoch in epochs)
    if full < 2:
        return None
    distinct, top = [], []
    for epoch in epochs:
        assert epoch.labels is not None
        for labels in epoch.split(epoch.labels):
            if len(labels) == full:
                _, counts = np.unique(labels, return_counts=True)
                distinct.append(len(counts))
                top.append(counts.max() / full)
    return {
        "size": full,
        "batches": len(distinct),
        "classes": [min(distinct), float(np.mean(distinct)), max(distinct)],
        "classes_at_random": float(np.sum(1 - (1 - np.array(shares)) ** full)),
        "most_frequent": [float(min(top)), float(np.mean(top)), float(max(top))],
    }


def _name(label: int, names: Sequence[str] | None) -> str:
    return names[label] if names is not None and 0 <= label < len(names) else str(label)
