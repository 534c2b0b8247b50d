"""The part of a stream that a rank reads, as `shard(num_shards, index)` has cut it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from stoker.datasets.base import is_stream

_MOST_STEPS = 16
_MOST_PARTS = 256  # items of a list that are examined


class KnowsShare:
    """Base of streams: each notes the arguments of its `shard`."""

    _share: tuple[int, int] | None = None  # number of parts of the whole stream, and the number of this one

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "shard" in vars(cls):
            cls.shard = _noting(vars(cls)["shard"])  # type: ignore[attr-defined]


def _noting(shard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shard)
    def noted(self: KnowsShare, num_shards: int, index: int) -> Any:
        part = shard(self, num_shards, index)
        if isinstance(part, KnowsShare) and num_shards > 1:
            of, number = self._share or (1, 0)
            part._share = int(of * num_shards), int(number + of * index)
        return part

    return noted


def rank_share(stream: Any) -> tuple[int, int] | None:
    """Returns the number of parts into which a stream, or one inside it, was cut, and the number of its part; None for
    a whole stream. A part that was cut again is a part of the whole stream."""
    ring, seen = [stream], {id(stream)}
    found: list[tuple[int, int]] = []
    for _ in range(_MOST_STEPS):
        found += [each._share for each in ring if isinstance(each, KnowsShare) and each._share is not None]
        inner = {id(part): part for each in ring for part in _streams_in(each) if id(part) not in seen}
        ring = list(inner.values())
        seen |= inner.keys()
    return max(found, default=None)


def _streams_in(holder: Any) -> Iterator[Any]:
    try:
        held = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return
    for value in held.values():
        items = value[:_MOST_PARTS] if type(value) in (list, tuple) else [value]
        yield from filter(is_stream, items)
