"""Samples that are awaited: datasets whose `__getitem__` is an `async def`, alone and inside of others.

A wrapper that goes on with a sample of such a dataset returns a coroutine itself, which awaits the sample first. It
sees from the sample whether to do so; the loader sees from the dataset whether it needs an event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import CoroutineType
from typing import Any

from stoker._core.protocol import definer, is_ours_or_torchs
from stoker.datasets.nesting import batched_by


def is_awaited(dataset: Any, batched: bool) -> bool:
    """Returns whether samples of a dataset are awaited: its `__getitem__`, or the `__getitems__` that fetches batches,
    is an `async def`, or is Stoker's or torch's and passes on samples of such a dataset.

    Args:
        batched: whether batches are fetched, by `__getitems__` if the dataset has one of its own.
    """
    whole = batched_by(dataset) if batched else None
    if whole is not None:
        return inspect.iscoroutinefunction(whole.__getitems__)
    kind = type(dataset)
    if inspect.iscoroutinefunction(getattr(kind, "__getitem__", None)):
        return True
    if not is_ours_or_torchs(definer(kind, "__getitem__")):
        return False
    held = getattr(dataset, "__dict__", {})
    inner = held.get("datasets", [held["dataset"]] if "dataset" in held else [])
    return any(is_awaited(each, False) for each in (inner.values() if isinstance(inner, dict) else inner))


def then(sample: Any, go_on: Callable[[Any], Any]) -> Any:
    """Returns `go_on(sample)`; for a coroutine, a coroutine with that result for its sample."""
    return _after(sample, go_on) if type(sample) is CoroutineType else go_on(sample)


async def _after(sample: Any, go_on: Callable[[Any], Any]) -> Any:
    return go_on(await sample)


async def settled(sample: Any) -> Any:
    """Returns the sample; the one of a coroutine."""
    return await sample if type(sample) is CoroutineType else sample


def together(samples: Iterable[Any], go_on: Callable[[list[Any]], Any] = list) -> Any:
    """Returns `go_on` of the list of samples; if there are coroutines among them, a coroutine with that result.

    They are awaited one after another, so that random numbers are drawn in their order.
    """
    made: list[Any] = []
    try:
        made.extend(samples)
    except BaseException:
        close(made)
        raise
    return _all_of(made, go_on) if CoroutineType in map(type, made) else go_on(made)


async def _all_of(samples: list[Any], go_on: Callable[[list[Any]], Any]) -> Any:
    try:
        return go_on([await settled(sample) for sample in samples])
    finally:
        close(samples)


def close(samples: Iterable[Any]) -> int:
    """Closes the coroutines among some samples that nobody will await; returns their number."""
    coroutines: list[Coroutine[Any, Any, Any]] = [sample for sample in samples if type(sample) is CoroutineType]
    for coroutine in coroutines:
        coroutine.close()
    return len(coroutines)
