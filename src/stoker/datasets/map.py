"""A function applied to every sample, and the samples of a stream that fulfil a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoker.datasets.awaited import then
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, become_stream, checked, pass_epoch, shard_of, shards_of
from stoker.datasets.gather import describe
from stoker.datasets.stream import State, Stream, StreamIterator, not_the_end, resume

# The samples of a stream that fulfil a condition.


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


class MapDataset(Dataset[T_co]):
    """The results of `fn` for each sample of a dataset: `fn(dataset[i])`, or over a stream, a stream of `fn(sample)`.

    Order, length, shards and state are the source's. `fn` runs in the worker that fetches, under the sample's own seed,
    so it may draw random numbers. It is called again at each access; nothing is cached.

    Args:
        dataset: by index, or a stream: the `MapDataset` is then an `IterableDataset`.
        fn: takes a sample and returns its replacement. If workers are threads, several call it at once.

    Raises:
        TypeError: `dataset` is not a dataset, `fn` is not callable, or a subclass of this class was given a stream.
    """

    stoker_protocol = True
    dataset: Any
    fn: Callable[[Any], T_co]

    def __init__(self, dataset: Any, fn: Callable[[Any], T_co]) -> None:
        if not callable(fn):
            raise TypeError(f"MapDataset(dataset, fn): fn is a {type(fn).__name__}, which cannot be called")
        self.dataset = checked(dataset, "MapDataset")
        self.fn = fn
        if is_stream(dataset):
            become_stream(self, _MapStream)

    def __len__(self) -> int:
        """Returns the source's length.

        Raises:
            TypeError: the source has no length.
        """
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T_co:
        """Returns `fn` of the source's sample at `index`; negative if the source accepts that."""
        result: T_co = then(self.dataset[index], self.fn)
        return result

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[T_co]]:
        """Returns a function that fetches several samples. Exists only if the source has `__getitems__`, because
        samples are then seeded together.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__
        return lambda indices: then(fetch(indices), lambda samples: list(map(self.fn, samples)))

    def describe(self, index: Any) -> Any:
        """Returns the source's description of its sample at `index`, if it offers `describe`; else None."""
        return describe(self.dataset, index)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)


class _MapStream(MapDataset[T_co], OverStream[T_co]):
    _in_step = True

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _MapIterator(resume(self.dataset, state), self.fn)


class _MapIterator(StreamIterator[T_co]):
    def __init__(self, source: StreamIterator[Any], fn: Callable[[Any], T_co]) -> None:
        self._source = source
        self._fn = fn

    def __next__(self) -> T_co:
        sample = next(self._source)
        try:
            return self._fn(sample)
        except StopIteration as error:
            raise not_the_end("fn of a MapDataset") from error

    def state_dict(self) -> State:
        return self._source.state_dict()
