"""The samples in the batches of a loader, as plain values, for JSON and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.diagnostics.composition.class_shares import class_shares
from stoker.diagnostics.composition.epoch_order import is_same_order, order_of, points_of
from stoker.diagnostics.composition.noted_epoch import noted_epochs
from stoker.diagnostics.composition.padding_shares import padding_shares

POINTS = 40_000
"""Points of all pictures of a page, some 12 bytes each."""

PICTURE = 5000
"""Points of one picture."""


def composition_of(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns orders of epochs, classes and lengths of a loader as plain JSON values; None if nothing is known.

    Args:
        records: the notes of its epochs.
    """
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
