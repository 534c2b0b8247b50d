"""Datasets side by side, by index or as streams."""

from __future__ import annotations

from typing import Any

from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import absolute, become_stream, checked, pass_epoch
from stoker.datasets.gather import Indices, all_or_none, gather_from, inside, layout_of
from stoker.datasets.listening import listened
from stoker.datasets.stream import State, Stream, StreamIterator, parts
from stoker.errors import StateError


class ZipDataset(Dataset[tuple[Any, ...]]):
    """Sample i is the tuple of what each dataset gives as its i-th; it ends with the shortest.

    With a stream among them it is a stream; datasets with indices are then read from their start. A sample that fails
    in one of them fails as a whole; the next sample is whole again. It is not sharded by its parts, whose shards may
    not match.

    Args:
        *datasets: at least one, by index or streams.
        strict: whether it is an error if one is longer: at once where all have indices, at the end of a stream.

    Raises:
        TypeError: one of them is no dataset, or a subclass of this class was given a stream.
        ValueError: there is none; or with `strict`, lengths differ.
    """

    datasets: tuple[Any, ...]
    strict: bool

    def __init__(self, *datasets: Any, strict: bool = False) -> None:
        if not datasets:
            raise ValueError("ZipDataset() was given no dataset: give at least one, not in a list")
        self.datasets = tuple(checked(dataset, "ZipDataset") for dataset in datasets)
        self.strict = strict
        if any(map(is_stream, datasets)):
            become_stream(self, _ZipStream)
        elif strict and len(lengths := {len(dataset) for dataset in datasets}) > 1:
            raise ValueError(
                f"ZipDataset(strict=True): the datasets have {sorted(lengths)} samples, expected as many each"
            )

    def __len__(self) -> int:
        """Returns the length of the shortest.

        Raises:
            TypeError: one of them does not know its length.
        """
        return min(map(len, self.datasets))

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Returns the samples at `index`, from the end of the shortest where it is negative.

        Raises:
            IndexError: it is outside.
        """
        place = absolute(index, len(self))
        return tuple(dataset[place] for dataset in self.datasets)

    def gather_layout(self) -> Any:
        """Returns the datasets' layouts as a tuple, if all can gather."""
        layouts = all_or_none([layout_of(dataset) for dataset in self.datasets])
        return None if layouts is None else tuple(layouts)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Has each dataset write its samples."""
        places = inside(indices, len(self))
        for dataset, part in zip(self.datasets, out, strict=True):
            if gather_from(dataset, places, part) is NotImplemented:
                return NotImplemented
        return None

    def set_epoch(self, epoch: int) -> None:
        """Tells the datasets which epoch follows, those that want to know."""
        for dataset in self.datasets:
            pass_epoch(dataset, epoch)


class _ZipStream(ZipDataset, Stream[tuple[Any, ...]]):
    def _begin(self, state: State | None) -> StreamIterator[tuple[Any, ...]]:
        states = parts(state, "datasets", len(self.datasets))
        pairs = zip(self.datasets, states, strict=True)
        return _Zipped([listened(*pair, "ZipDataset") for pair in pairs], self.strict)


class _Zipped(StreamIterator[tuple[Any, ...]]):
    def __init__(self, sources: list[StreamIterator[Any]], strict: bool) -> None:
        self._sources = sources
        self._strict = strict
        self._interrupted = False

    def __next__(self) -> tuple[Any, ...]:
        self._check()
        self._interrupted = True
        samples = self._samples()
        self._interrupted = False
        return samples

    def _samples(self) -> tuple[Any, ...]:
        samples: list[Any] = []
        failure: Exception | None = None
        for place, source in enumerate(self._sources):
            try:
                samples.append(next(source))
            except StopIteration:
                self._interrupted = False
                if self._strict:
                    self._refuse_longer(place)
                raise
            except Exception as error:  # the others move on too, so that they stay side by side
                failure = failure or error
        if failure is not None:
            self._interrupted = False
            raise failure
        return tuple(samples)

    def _refuse_longer(self, ended: int) -> None:
        """The first to end must be the first that was asked, and none of the others may go on."""
        others = enumerate(self._sources)
        longer = 0 if ended else next((place for place, source in others if next(source, _END) is not _END), None)
        if longer is not None:
            raise ValueError(
                f"ZipDataset(strict=True): dataset {ended} has ended, but dataset {longer} goes on. Without strict, "
                "the shortest ends it."
            )

    def _check(self) -> None:
        if self._interrupted:
            raise StateError(
                "this iterator of a ZipDataset was interrupted (by Ctrl-C, or by a signal's handler that raises) when "
                "some of its datasets had moved on and others had not: what would follow is no pair. Begin a new one, "
                "with a state from before."
            )

    def state_dict(self) -> State:
        self._check()
        return {"datasets": [source.state_dict() for source in self._sources]}


_END = object()
