"""The samples in the batches of a loader, as plain values: order, classes, lengths and padding."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

POINTS = 40_000
"""Points of all pictures of a page, some 12 bytes each."""

PICTURE = 5000
"""Points of one picture."""


def composition_of(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns orders of epochs, classes and lengths of a loader as plain JSON values; None if nothing is known."""
    epochs = noted_epochs(records)
    orders = [order for epoch in epochs if (order := order_of(epoch)) is not None]
    classes, padding = class_shares(epochs), padding_shares(epochs)
    if not (orders or classes or padding):
        return None
    same = len(epochs) > 1 and is_same_order(epochs[0], epochs[1])
    return {"orders": orders, "same_order": same if len(orders) > 1 else None, "classes": classes, "padding": padding}


def pictures(loaders: Sequence[Sequence[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Returns for each loader the points of its orders, in the order of `composition_of`.

    Args:
        loaders: the notes of each.
    """
    shown = [[epoch for epoch in noted_epochs(records) if order_of(epoch) is not None] for records in loaders]
    most = min(PICTURE, POINTS // max(1, sum(map(len, shown))))
    return [[points_of(epoch, most) for epoch in epochs] for epochs in shown]


Numbers = np.ndarray[Any, Any]


@dataclass
class NotedEpoch:
    """The samples of an epoch that were noted, in order. Of a long epoch these are whole batches at equal distances.

    Attributes:
        epoch: number of the pass, over all loaders of the line.
        batches: of which the sampler gave the indices, noted or not.
        samples: in them.
        every: of so many batches one is noted.
        is_whole: whether the sampler came to its end.
        starts: position in the epoch at which each noted batch begins.
        labels: of these samples; None if they are not known.
        lengths: of these samples; None if they are not known.
        padded: of some batches that the loop got: number, padded length, lengths of the samples, field.
    """

    epoch: int
    about: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    every: int = 1
    is_whole: bool = False
    starts: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    sizes: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    indices: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    labels: Numbers | None = None
    lengths: Numbers | None = None
    padded: list[list[Any]] = field(default_factory=list)

    @property
    def positions(self) -> Numbers:
        """Returns the position of each noted sample in the epoch."""
        firsts = np.cumsum(self.sizes) - self.sizes
        return np.repeat(self.starts - firsts, self.sizes) + np.arange(len(self.indices))

    def split(self, values: Numbers) -> list[Numbers]:
        """Returns values of the noted samples, batch by batch."""
        return np.split(values, np.cumsum(self.sizes)[:-1]) if len(self.sizes) else []


def noted_epochs(records: Iterable[dict[str, Any]]) -> list[NotedEpoch]:
    """Returns the epochs whose samples were noted, in order; without indices only those with lengths.

    Args:
        records: of one loader, or of several of the same line.
    """
    by_epoch: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for record in records:
        by_epoch.setdefault((record["loader"], record["noted"]), []).append(record)
    found = [_put_together(number, parts) for number, parts in enumerate(by_epoch.values())]
    return [epoch for epoch in found if len(epoch.indices) or epoch.padded]


def _put_together(number: int, records: list[dict[str, Any]]) -> NotedEpoch:
    epoch = NotedEpoch(number)
    chunks = [record for record in records if "indices" in record]
    if any("unknown" in record for record in records):
        chunks = []
    for record in records:
        epoch.about |= record.get("about", {})
        epoch.batches, epoch.samples = record.get("batches", epoch.batches), record.get("samples", epoch.samples)
        epoch.every = max(epoch.every, record.get("every", 1))
        epoch.is_whole = record.get("whole", epoch.is_whole)
        epoch.padded += record.get("padded", [])
    looked = max((record["looks_every"] for record in records if "padded" in record), default=1)
    epoch.padded = [one for one in epoch.padded if not one[0] % looked]
    if not chunks:
        return epoch
    numbers = np.concatenate([np.array(chunk["numbers"], np.int64) for chunk in chunks])
    starts = np.concatenate([np.array(chunk["starts"], np.int64) for chunk in chunks])
    sizes = np.concatenate([np.array(chunk["sizes"], np.int64) for chunk in chunks])
    kept = numbers % epoch.every == 0
    samples = np.repeat(kept, sizes)
    epoch.starts, epoch.sizes = starts[kept], sizes[kept]
    epoch.indices = _joined(chunks, "indices", np.int64)[samples]
    epoch.labels = _joined(chunks, "labels", np.int64)[samples] if _has(chunks, "labels") else None
    epoch.lengths = _joined(chunks, "lengths", np.float64)[samples] if _has(chunks, "lengths") else None
    return epoch


def _has(chunks: list[dict[str, Any]], name: str) -> bool:
    return all(name in chunk for chunk in chunks)


def _joined(chunks: list[dict[str, Any]], name: str, dtype: type) -> Numbers:
    return np.concatenate([np.frombuffer(base64.b64decode(chunk[name]), dtype) for chunk in chunks])


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


BINS = 24
"""Bars of the histogram of lengths."""

ORDERS = 10
"""Random orders whose mean is told."""


def padding_shares(epochs: Sequence[NotedEpoch]) -> dict[str, Any] | None:
    """Returns lengths and padding of the first epoch of which they are known, as plain JSON values; else None.

    Lengths are those that the sampler or the dataset holds, else those of batches with a mask.
    """
    measured = next((epoch for epoch in epochs if epoch.padded), None)
    known = next((epoch for epoch in epochs if epoch.lengths is not None and len(epoch.indices)), None)
    if known is not None and known.lengths is not None:
        batches, source, every = known.split(known.lengths), known.about["lengths"], known.every
    elif measured is not None:
        batches = [np.array(lengths, np.float64) for _, _, lengths, _ in measured.padded]
        source, every = measured.padded[0][3], None
    else:
        return None
    batches = [batch for batch in batches if len(batch)]
    lengths = np.concatenate(batches)
    if not lengths.max() > 0 or max(map(len, batches)) < 2:
        return None
    counts, edges = np.histogram(lengths, BINS if np.ptp(lengths) else 1)
    return {
        "source": source,
        "noted_every": every,
        "samples": len(lengths),
        "batches": len(batches),
        "shortest": float(lengths.min()),
        "median": float(np.median(lengths)),
        "longest": float(lengths.max()),
        "padding": padding_of(batches),
        "padding_at_random": padding_at_random(batches),
        "padding_measured": None if measured is None else _measured(measured),
        "histogram": {"edges": [round(float(edge), 3) for edge in edges], "counts": counts.tolist()},
    }


def padding_of(batches: Sequence[Numbers]) -> float:
    """Returns the share of padding if each batch is padded to its longest sample."""
    padded = sum(float(batch.max()) * len(batch) for batch in batches)
    return 1 - sum(float(batch.sum()) for batch in batches) / padded if padded else 0.0


def padding_at_random(batches: Sequence[Numbers]) -> float:
    """Returns the same of the same samples in random order, cut into batches of the same sizes: a mean, repeatable."""
    lengths, cuts = np.concatenate(batches), np.cumsum([len(batch) for batch in batches])[:-1]
    generator = np.random.default_rng(0)
    return float(np.mean([padding_of(np.split(generator.permutation(lengths), cuts)) for _ in range(ORDERS)]))


def _measured(epoch: NotedEpoch) -> float:
    """Returns the share of padding in the batches that the loop got."""
    padded = sum(width * len(lengths) for _, width, lengths, _ in epoch.padded)
    return 1 - sum(sum(lengths) for _, _, lengths, _ in epoch.padded) / padded if padded else 0.0


FEWEST = 16
"""Samples of an epoch below which its order says nothing."""


def order_of(epoch: NotedEpoch) -> dict[str, Any] | None:
    """Returns the order of an epoch as plain JSON values; None if too few samples were noted."""
    count = len(epoch.indices)
    if count < FEWEST:
        return None
    found = {
        "epoch": epoch.epoch,
        "batches": epoch.batches,
        "samples": epoch.samples,
        "whole": epoch.is_whole,
        "noted": count,
        "noted_every": epoch.every,
        "dataset": epoch.about.get("length"),
        "lowest": int(epoch.indices.min()),
        "highest": int(epoch.indices.max()),
        "repeated": count - len(np.unique(epoch.indices)),
    }
    return {**found, "text": _sentence(found, np.diff(epoch.indices))}


def _sentence(order: dict[str, Any], steps: Numbers) -> str:
    parts = []
    if (steps > 0).all() or (steps < 0).all():
        way = "order" if steps[0] > 0 else "opposite order"
        parts.append(f"Not shuffled: the samples come in the {way} of the dataset.")
    which = "" if order["noted_every"] == 1 else f" that were noted (one batch of {order['noted_every']})"
    if order["repeated"]:
        parts.append(f"Of {order['noted']:,} samples{which}, {order['repeated']:,} had come before in the epoch.")
    else:
        parts.append(f"No sample came twice among the {order['noted']:,}{which or ' noted'}.")
    if not order["whole"]:
        parts.append("The epoch was not finished.")
    return " ".join(parts)


def is_same_order(one: NotedEpoch, other: NotedEpoch) -> bool:
    """Returns whether two epochs gave the same samples in the same order, as far as both were noted."""
    count = min(len(one.sizes), len(other.sizes))
    if one.every != other.every or count < 1 or sum(one.sizes[:count]) < FEWEST:
        return False
    samples = int(sum(one.sizes[:count]))
    return np.array_equal(one.sizes[:count], other.sizes[:count]) and np.array_equal(
        one.indices[:samples], other.indices[:samples]
    )


def points_of(epoch: NotedEpoch, most: int) -> dict[str, Any]:
    """Returns the points of a picture: positions in the epoch and indices. Of many, some are drawn, always the same."""
    positions, indices = epoch.positions, epoch.indices
    if len(indices) > most:
        some = np.sort(np.random.default_rng(0).choice(len(indices), most, replace=False))
        positions, indices = positions[some], indices[some]
    return {"positions": positions.tolist(), "indices": indices.tolist()}
