"""The samples of a stream that pass a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.datasets.base import is_stream
from stoker.datasets.combining import checked, pass_epoch, shard_of, shards_of
from stoker.datasets.stream import State, Stream, StreamIterator, not_the_end, resume

T_co = TypeVar("T_co", covariant=True)


class FilterDataset(Stream[T_co]):
    """The samples of a stream for which `keep(sample)` is true, in their order. Its length is not known.

    Shards and state are the source's, so a sample that was left out is not tested again on resume.

    Args:
        dataset: a stream.
        keep: takes a sample. Its answer should follow from the sample alone, else a second pass differs.

    Raises:
        TypeError: `dataset` is no stream (a length and indices cannot be kept where samples are left out), or `keep`
            cannot be called.
    """

    def __init__(self, dataset: Any, keep: Callable[[Any], Any]) -> None:
        if not callable(keep):
            raise TypeError(f"FilterDataset(dataset, keep): keep is a {type(keep).__name__}, which cannot be called")
        if not is_stream(checked(dataset, "FilterDataset")):
            raise TypeError(
                f"FilterDataset was given a {type(dataset).__name__}, a dataset by index, but which samples it will "
                "keep is known only after reading them all. Choose the indices once: Subset(dataset, [i for i in "
                "range(len(dataset)) if …]); or read it as a stream: from_iterable(lambda: dataset)."
            )
        self.dataset = dataset
        self.keep = keep

    def set_epoch(self, epoch: int) -> None:
        """Tells the source which epoch follows, if it wants to know."""
        pass_epoch(self.dataset, epoch)

    @property
    def num_shards(self) -> int:
        """Into how many shards the source can be cut."""
        return shards_of(self.dataset)

    def shard(self, num_shards: int, index: int) -> FilterDataset[T_co]:
        """Returns the samples of the source's shard that pass."""
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
