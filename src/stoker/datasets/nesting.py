"""Nested datasets: the datasets inside a wrapper, and the one among them that fetches whole batches."""

from __future__ import annotations

from typing import Any

from stoker._core.protocol import definer, is_ours, is_ours_or_torchs

_HANDING_ON = {
    **dict.fromkeys(("Subset", "MapDataset", "CacheDataset", "PackDataset"), "dataset"),
    **dict.fromkeys(("RetryDataset", "RateLimitDataset"), "dataset"),
    **dict.fromkeys(("ConcatDataset", "MixDataset", "StackDataset", "ZipDataset"), "datasets"),
}
"""Classes of Stoker, and of torch under the same names, that forward to inner datasets, with the attribute that holds
them.
"""

_PLAIN = ("Subset", "ConcatDataset")
"""Classes that hold only datasets and numbers."""

_FETCHING = ("__getitem__", "__getitems__")


def held_by(dataset: Any, methods: tuple[str, ...]) -> list[Any] | None:
    """Returns the datasets that a wrapper of Stoker or torch forwards to; None for any other dataset.

    A subclass, or an object, that defines one of `methods` itself does not count as a wrapper.
    """
    if not getattr(dataset, "__dict__", {}).keys().isdisjoint(methods):
        return None
    nearest = next((base for base in type(dataset).__mro__ if not vars(base).keys().isdisjoint(methods)), object)
    if not is_ours_or_torchs(nearest, *_HANDING_ON):
        return None
    place = _HANDING_ON[nearest.__name__]
    inner = getattr(dataset, place)
    if place == "dataset":
        return [inner]
    return list(inner.values() if isinstance(inner, dict) else inner)


def batched_by(dataset: Any) -> Any:
    """Returns the dataset whose own `__getitems__` fetches whole batches: this one or one inside it. None if there is
    none.

    `Subset`, `StackDataset` and other classes of Stoker always have the method but only forward it. Without a dataset
    to forward to, samples are fetched one by one: each has its own seed, threads may make them, and workers share
    batches. The rows of `columns` that pass through a function are fetched one by one as well: reading them together
    would save little compared with the function.
    """
    if not callable(getattr(dataset, "__getitems__", None)):
        return None
    inner = held_by(dataset, _FETCHING)
    if inner is None:
        return None if _is_overridden(dataset) else dataset
    name = next((name for part in inner if (name := batched_by(part)) is not None), None)
    return None if _is_a(name, "Columns") and _is_a(dataset, "MapDataset") else name


def unpickled_once(dataset: Any) -> bool:
    """Returns whether the dataset's class declares `unpickle_once = True`, so that clean workers may share one
    unpickled copy.

    A `Subset` or `ConcatDataset`, also torch's own, has the declaration that all its datasets have.
    """
    kind = type(dataset)
    declared = getattr(kind, "unpickle_once", None)
    if declared is not None or not is_ours_or_torchs(kind, *_PLAIN):
        return declared is True
    inner = held_by(dataset, _FETCHING) or [None]
    return all(map(unpickled_once, inner))


def prefers_whole_batches(dataset: Any) -> bool:
    """Returns whether the dataset's class declares `prefer_whole_batches = True`: the sample behind another one costs
    less than any other, because it is in the same block. A wrapper has the declaration of a dataset inside it.
    """
    if getattr(type(dataset), "prefer_whole_batches", None) is True:
        return True
    return any(map(prefers_whole_batches, held_by(dataset, _FETCHING) or ()))


def _is_overridden(dataset: Any) -> bool:
    """Returns whether a subclass overrides `__getitem__` below a `__getitems__` of Stoker or torch, which would bypass
    it.
    """
    if "__getitems__" in getattr(dataset, "__dict__", {}):
        return False
    nearest = next((base for base in type(dataset).__mro__ if not vars(base).keys().isdisjoint(_FETCHING)), object)
    fetches = definer(type(dataset), "__getitems__")
    return fetches is not nearest and is_ours_or_torchs(fetches)


def _is_a(dataset: Any, name: str) -> bool:
    """Returns whether a dataset is of a class of Stoker's, or a subclass."""
    return any(is_ours(base, name) for base in type(dataset).__mro__)
