"""The samples of a stream that fulfil a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.datasets.base import is_stream
from stoker.datasets.combining import checked, pass_epoch, shard_of, shards_of
from stoker.datasets.stream import State, Stream, StreamIterator, not_the_end, resume

T_co = TypeVar("T_co", covariant=True)


class FilterDataset(Stream[T_co]):
    """The samples of a stream for which `keep(sample)` is true, in their order, without a length.

    Shards and state are the source's, so a sample that was dropped is not tested again on resume.

    Args:
        dataset: a stream.
        keep: takes a sample. Its result should depend on the sample alone, else a second pass differs.

    Raises:
        TypeError: `dataset` is not a stream (filtering cannot preserve a length and indices), or `keep` is not
            callable.
    """

    def __init__(self, dataset: Any, keep: Callable[[Any], Any]) -> None:
        if not callable(keep):
            raise TypeError(f"FilterDataset(dataset, keep): keep is a {type(keep).__name__}, which cannot be called")
        if not is_stream(checked(dataset, "FilterDataset")):
            raise TypeError(
                f"FilterDataset was given a {type(dataset).__name__}, a dataset by index, whose filtered length is "
                "known only after reading all samples. Choose the indices once: Subset(dataset, [i for i in "
                "range(len(dataset)) if …]); or read it as a stream: from_iterable(lambda: dataset)."
            )
        self.dataset = dataset
        self.keep = keep

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)

    @property
    def num_shards(self) -> int:
        """The number of shards of the source; 1 for a subclass, whose shards would be plain filters."""
        return shards_of(self.dataset) if type(self) is FilterDataset else 1

    def shard(self, num_shards: int, index: int) -> FilterDataset[T_co]:
        """Returns the source's shard, filtered."""
        return FilterDataset(shard_of(self.dataset, num_shards, index), self.keep)

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _Filtered(resume(self.dataset, state), self.keep)


class _Filtered(StreamIterator[T_co]):
    def __init__(self, source: StreamIterator[T_co], keep: Callable[[T_co], Any]) -> None:
        self._source = source
        self._keep = keep

    def __next__(self) -> T_co:
        while True:
            sample = next(self._source)
            try:
                if self._keep(sample):
                    return sample
            except StopIteration as error:
                raise not_the_end("keep of a FilterDataset") from error

    def state_dict(self) -> State:
        return self._source.state_dict()
