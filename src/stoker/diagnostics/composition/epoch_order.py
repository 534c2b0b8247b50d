"""How well an epoch is shuffled: figures, a sentence, and the points of a picture.

Two figures tell orders apart. The first is von Neumann's ratio of ranks (R. Bartels, "The Rank Version of von Neumann's
Ratio Test for Randomness", Journal of the American Statistical Association 77, 1982): the squared distance of
neighbours in the epoch, in ranks of their places in the dataset. Here it is the share of what a random order has, so 1
is random and 0 is sorted. The other is Spearman's correlation of position in the epoch and place in the dataset.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.diagnostics.composition.noted_epoch import NotedEpoch, Numbers

FEWEST = 16
"""Samples of an epoch below which its order says nothing."""

SURE = 3.0
"""Standard deviations from a random order, up to which an order is called random."""

LEAST = 0.05
"""Distance from a random order's figures, up to which an order is called random however sure it is."""


def order_of(epoch: NotedEpoch) -> dict[str, Any] | None:
    """Returns the order of an epoch as plain JSON values; None if too few samples were noted."""
    count = len(epoch.indices)
    if count < FEWEST:
        return None
    distinct = len(np.unique(epoch.indices))
    ratio, correlation, deviation = figures(epoch)
    kind = kind_of(epoch, ratio, correlation, deviation)
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
        "repeated": count - distinct,
        "neighbours": ratio,
        "correlation": correlation,
        "kind": kind,
    }
    return {**found, "text": sentence(found)}


def figures(epoch: NotedEpoch) -> tuple[float | None, float, float]:
    """Returns the ratio of ranks (None without neighbours), the correlation, and the ratio's standard deviation.

    The deviation is that of a random order.
    """
    positions, ranks = epoch.positions, _ranks(epoch.indices)
    spread = float(((ranks - ranks.mean()) ** 2).mean())
    if not spread:
        return None, 0.0, 1.0
    correlation = float(np.corrcoef(positions, ranks)[0, 1])
    are_neighbours = np.diff(positions) == 1
    pairs = int(are_neighbours.sum())
    if not pairs:
        return None, correlation, 1.0
    distances = float((np.diff(ranks)[are_neighbours] ** 2).mean())
    return distances / (2 * spread), correlation, pairs**-0.5


def kind_of(epoch: NotedEpoch, ratio: float | None, correlation: float, deviation: float) -> str:
    """Returns the kind of an order.

    "sequential", "reversed", "random"; "window" if the order of the dataset is kept at large and not at small, "runs"
    if it is kept at small and not at large; "spread" if neighbours are farther apart than in a random order; "other".
    """
    positions = epoch.positions
    steps = np.diff(epoch.indices)[np.diff(positions) == 1]
    for step, kind in ((1, "sequential"), (-1, "reversed")):
        if len(steps) and (steps == step).mean() > 0.99 and step * correlation > 0.99:
            return kind
    is_level = abs(correlation) <= max(LEAST, SURE / len(epoch.indices) ** 0.5)
    if ratio is None:
        return "random" if is_level else "window" if correlation > 0 else "other"
    off = max(LEAST, SURE * deviation)
    if abs(ratio - 1) <= off and is_level:
        return "random"
    if ratio < 1 - off:
        return "runs" if abs(correlation) < 0.5 else "window" if correlation > 0 else "other"
    return "spread" if ratio > 1 + off and is_level else "other"


_SENTENCES = {
    "sequential": "Not shuffled: the samples come in the order of the dataset.",
    "reversed": "Not shuffled: the samples come in the opposite order of the dataset.",
    "random": "Shuffled: nothing tells this order from a random one.",
    "window": "Shuffled in part: samples that stand early in the dataset come early, as from a buffer of limited size.",
    "runs": "Shuffled in part: neighbours of the dataset come near each other, as from whole shards or blocks.",
    "spread": "Neighbours in the epoch are farther apart in the dataset than in a random order.",
    "other": "Neither the order of the dataset nor a random one.",
}


def sentence(order: dict[str, Any]) -> str:
    """Returns the kind of an order, in words, with its figures."""
    parts = [_SENTENCES[order["kind"]]]
    if order["neighbours"] is not None:
        parts.append(
            f"Distance of neighbours (ratio of ranks): {order['neighbours']:.2f} of that of a random order. "
            f"Correlation of position and index: {round(order['correlation'], 2) + 0.0:.2f}."
        )
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


def _ranks(values: Numbers) -> Numbers:
    """Returns the ranks of values, from 0; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    ranks: Numbers = means[inverse]
    return ranks
