"""The lengths of samples, and the share of padding in batches as they are and in a random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.diagnostics.composition.noted_epoch import NotedEpoch, Numbers

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
