"""The bases of the streams that read files: shared out by files, or by parts of them, with a transform behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, TypeVar

from stoker.datasets.map import MapDataset
from stoker.datasets.stream import Stream, StreamIterator
from stoker.extend import State, resume, share_of
from stoker.sources.urls import hub_fingerprint

T = TypeVar("T")


class PartStream(Stream[T]):
    """A stream of numbered parts, such as files. A subclass iterates over those of its share, `_numbers`."""

    def __init__(self, parts: int) -> None:
        self._numbers = range(parts)

    @property
    def num_shards(self) -> int:
        return len(self._numbers)

    def shard(self, num_shards: int, index: int) -> Self:
        part = copy.copy(self)
        part._numbers = share_of(self._numbers, num_shards, index)
        return part


class FileStream(Stream[Any]):
    """The samples of files, in sequence: the base of the public classes.

    Args:
        files: their names, in order.
    """

    def __init__(self, files: list[str], source: PartStream[Any], transform: Callable[[Any], Any] | None) -> None:
        self.files = files
        self._source = source
        self._transform = transform

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.files)

    @property
    def num_shards(self) -> int:
        """The number of parts into which the stream can be cut: files, or parts of them."""
        return self._source.num_shards

    def shard(self, num_shards: int, index: int) -> Self:
        """Returns every `num_shards`-th part, from part `index` on.

        Raises:
            ValueError: there are fewer parts than `num_shards`, or `index` is not a shard.
        """
        part = copy.copy(self)
        part._source = self._source.shard(num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return resume(self._source if self._transform is None else MapDataset(self._source, self._transform), state)
