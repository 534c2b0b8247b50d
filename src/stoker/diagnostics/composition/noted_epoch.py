"""`NotedEpoch`: the notes of one epoch, put together from the records of the training process."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


@dataclass
class NotedEpoch:
    """The samples of an epoch that were noted, in order. Of a long epoch these are whole batches at equal distances.

    Attributes:
        epoch: number of the pass, over all loaders of the line.
        about: facts about the dataset.
        batches: of which the sampler gave the indices, noted or not.
        samples: in them.
        every: of so many batches one is noted.
        is_whole: whether the sampler came to its end.
        starts: position in the epoch at which each noted batch begins.
        sizes: of these batches.
        indices: of all their samples.
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
