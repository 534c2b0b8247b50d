"""Datasets in datasets: who gives whole batches, where those around it only hand on what they are asked."""

from __future__ import annotations

from typing import Any

_HANDING_ON = {
    **dict.fromkeys(("Subset", "MapDataset", "CacheDataset", "PackDataset"), "dataset"),
    **dict.fromkeys(("ConcatDataset", "StackDataset", "ZipDataset"), "datasets"),
}
"""Our classes, and torch's of the same names, that ask others for what they give, and where they keep these."""

_HOMES = ("stoker.datasets.", "torch.utils.data.")

_FETCHING = ("__getitem__", "__getitems__")


def held_by(dataset: Any, methods: tuple[str, ...]) -> list[Any] | None:
    """The datasets that one of our classes, or of torch's, hands on to; None for any other, which answers by itself.

    A subclass that has one of `methods` of its own is another, and so is an object that has.
    """
    if not getattr(dataset, "__dict__", {}).keys().isdisjoint(methods):
        return None
    nearest = next((base for base in type(dataset).__mro__ if not vars(base).keys().isdisjoint(methods)), object)
    place = _HANDING_ON.get(nearest.__name__)
    if place is None or not nearest.__module__.startswith(_HOMES):
        return None
    held = getattr(dataset, place)
    if place == "dataset":
        return [held]
    return list(held.values() if isinstance(held, dict) else held)


def batched_by(dataset: Any) -> Any:
    """The dataset with a `__getitems__` of its own, this one or one in it: whole batches are fetched then. Else None.

    `Subset`, `StackDataset` and others of ours always have the method, and only hand on. Where nobody has one to hand
    on to, samples are fetched one by one: each has its own seed, threads may make them, and workers share batches. So
    they are where rows of `columns` go through a function: what the rows gain by being read at once is nothing beside
    it.
    """
    if not callable(getattr(dataset, "__getitems__", None)):
        return None
    held = held_by(dataset, _FETCHING)
    if held is None:
        return None if _is_overridden(dataset) else dataset
    found = next((found for part in held if (found := batched_by(part)) is not None), None)
    return None if _is_ours(found, "Columns") and _is_ours(dataset, "MapDataset") else found


def _is_overridden(dataset: Any) -> bool:
    """Whether its samples are those of a `__getitem__` that comes before the `__getitems__` of a class of ours, or of
    torch's, which would pass it by."""
    if "__getitems__" in getattr(dataset, "__dict__", {}):
        return False
    having = [base for base in type(dataset).__mro__ if not vars(base).keys().isdisjoint(_FETCHING)]
    fetches = next((base for base in having if "__getitems__" in vars(base)), None)
    return fetches is not None and fetches is not having[0] and fetches.__module__.startswith(_HOMES)


def _is_ours(dataset: Any, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith(_HOMES[0]) for base in type(dataset).__mro__)
