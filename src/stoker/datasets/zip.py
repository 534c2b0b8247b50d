"""Datasets combined sample by sample, by index or as streams."""

from __future__ import annotations

from typing import Any

from stoker.datasets.awaited import together
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import absolute, become_stream, checked, pass_epoch
from stoker.datasets.gather import Indices, all_or_none, gather_from, inside, layout_of
from stoker.datasets.stream import State, Stream, StreamIterator, parts
from stoker.datasets.worker_share import resume_and_report
from stoker.errors import StateError


class ZipDataset(Dataset[tuple[Any, ...]]):
    """Tuples of the samples at one index of each dataset; the shortest dataset ends it.

    If one of the datasets is a stream, so is the result; datasets by index are then read from their start. If one
    dataset fails to give its sample, the tuple fails, and the next one is complete again. The datasets are not sharded
    separately, because their shards might not match.

    Args:
        *datasets: at least one, by index or streams.
        strict: whether different lengths are an error: at once if all have indices, at the end of a stream otherwise.

    Raises:
        TypeError: one of the arguments is not a dataset, or a subclass of this class was given a stream.
        ValueError: there is no dataset; or with `strict`, lengths differ.
    """

    stoker_protocol = True
    datasets: tuple[Any, ...]
    strict: bool

    def __init__(self, *datasets: Any, strict: bool = False) -> None:
        if not datasets:
            raise ValueError("ZipDataset() was given no dataset: pass at least one, not in a list")
        self.datasets = tuple(checked(dataset, "ZipDataset") for dataset in datasets)
        self.strict = strict
        if any(map(is_stream, datasets)):
            become_stream(self, _ZipStream)
        elif strict and len(lengths := {len(dataset) for dataset in datasets}) > 1:
            raise ValueError(
                f"ZipDataset(strict=True): the datasets have {sorted(lengths)} samples, expected equal numbers"
            )

    def __len__(self) -> int:
        """Returns the length of the shortest dataset.

        Raises:
            TypeError: one of the datasets has no length.
        """
        return min(map(len, self.datasets))

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Returns the samples at `index`; a negative index counts from the end of the shortest dataset.

        Raises:
            IndexError: `index` is out of range.
        """
        place = absolute(index, len(self))
        samples: tuple[Any, ...] = together((dataset[place] for dataset in self.datasets), tuple)
        return samples

    def gather_layout(self) -> Any:
        """Returns the datasets' layouts as a tuple, if all can gather."""
        layouts = all_or_none([layout_of(dataset) for dataset in self.datasets])
        return None if layouts is None else tuple(layouts)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes each dataset write its samples."""
        places = inside(indices, len(self))
        for dataset, part in zip(self.datasets, out, strict=True):
            if gather_from(dataset, places, part) is NotImplemented:
                return NotImplemented
        return None

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the datasets that offer `set_epoch`."""
        for dataset in self.datasets:
            pass_epoch(dataset, epoch)


class _ZipStream(ZipDataset, Stream[tuple[Any, ...]]):
    def _begin(self, state: State | None) -> StreamIterator[tuple[Any, ...]]:
        states = parts(state, "datasets", len(self.datasets))
        pairs = zip(self.datasets, states, strict=True)
        return _Zipped([resume_and_report(*pair, "ZipDataset") for pair in pairs], self.strict)


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
            except Exception as error:  # the others advance too, so that all stay aligned
                failure = error if failure is None else failure
        if failure is not None:
            self._interrupted = False
            raise failure
        return tuple(samples)

    def _refuse_longer(self, ended: int) -> None:
        """Raises ValueError unless all streams end here: the first stream was the one to end, and none of the others
        goes on.
        """
        others = enumerate(self._sources)
        longer = 0 if ended else next((place for place, source in others if next(source, _END) is not _END), None)
        if longer is not None:
            raise ValueError(
                f"ZipDataset(strict=True): dataset {ended} has ended, but dataset {longer} has more samples. "
                "Without strict, the shortest dataset ends the stream."
            )

    def _check(self) -> None:
        if self._interrupted:
            raise StateError(
                "this iterator of a ZipDataset was interrupted (by Ctrl-C, or by a signal handler that raises) after "
                "only some of its datasets had advanced: its next samples would not match. Begin a new one, with an "
                "earlier state."
            )

    def state_dict(self) -> State:
        self._check()
        return {"datasets": [source.state_dict() for source in self._sources]}


_END = object()
