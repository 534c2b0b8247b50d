"""Several datasets mixed in exact proportions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeVar

from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import absolute, become_stream, checked, pass_epoch, shard_of, shards_of
from stoker.datasets.listening import listened
from stoker.datasets.proportion import Proportions, exact
from stoker.datasets.stream import State, Stream, StreamIterator, count, parts, same_settings
from stoker.errors import StateFormatError

T_co = TypeVar("T_co", covariant=True)


class MixDataset(Dataset[T_co]):
    """Samples of several datasets in turn, in proportion to their weights; each dataset in its own order.

    Nothing is drawn at random: i and the weights alone decide which dataset gives sample i, and of the first i samples
    each dataset has its share, within one sample for up to three datasets and within two for more. Any index is found
    in some microseconds. With a stream among the datasets it is a stream; the others are then read from their start.

    What happens at the turn of a dataset that has no more samples:

    - `stop="first"`: the mix ends, in exact proportions to the last sample.
    - `stop="drop"`: it continues with the others, in their proportions: every sample once.
    - `stop="repeat"`: that dataset starts again, until each dataset has been read once.

    Shards of a stream are mixes of the datasets' shards, each in these proportions and with its own end.

    Args:
        datasets: at least one, by index or streams.
        weights: one for each, above 0, in any unit. They are taken exactly, so `[7, 2, 1]` is a hair's breadth beside
            `[0.7, 0.2, 0.1]`; a state is of one of the two.
        stop: see above.

    Raises:
        TypeError: `datasets` is no list or tuple of datasets, a weight is no number, or a subclass of this class was
            given a stream.
        ValueError: there is no dataset; the weights are not as many, or one is not finite and above 0; `stop` is
            unknown; or a dataset is empty, unless they are dropped. (A stream that gives no sample raises it while
            iterating.)
    """

    datasets: list[Any]
    weights: list[Any]
    stop: str

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float],
        stop: Literal["first", "drop", "repeat"] = "first",
    ) -> None:
        if not isinstance(datasets, (list, tuple)):
            raise TypeError(f"MixDataset(datasets, weights): datasets is a {type(datasets).__name__}, expected a list")
        if stop not in ("first", "drop", "repeat"):
            raise ValueError(f"stop is {stop!r}, expected 'first', 'drop' or 'repeat'")
        if not datasets or len(datasets) != len(weights):
            raise ValueError(f"MixDataset was given {len(datasets)} datasets and {len(weights)} weights: one for each")
        self.datasets = [checked(dataset, "MixDataset") for dataset in datasets]
        self.weights = list(weights)
        self.stop = stop
        self._shares = exact(self.weights)
        for place, dataset in enumerate(datasets):
            if stop != "drop" and not is_stream(dataset) and len(dataset) == 0:
                raise _empty(place, datasets)
        if any(map(is_stream, datasets)):
            become_stream(self, _MixStream)
            return
        self._lengths = list(map(len, datasets))
        self._stretches = list(_stretches(self._shares, self._lengths, stop))
        self._starts = [stretch.start for stretch in self._stretches]

    def __len__(self) -> int:
        """Returns how many samples come until the end that `stop` sets."""
        return self._stretches[-1].stop

    def __getitem__(self, index: Any) -> T_co:
        """Returns the sample at `index`, from the end where it is negative.

        Raises:
            IndexError: it is outside.
        """
        source, nth = self._turn(absolute(index, len(self)))
        sample: T_co = self.datasets[source][nth]
        return sample

    def _turn(self, position: int) -> tuple[int, int]:
        """Which dataset's sample is at a position, and at which index."""
        stretch = self._stretches[bisect_right(self._starts, position) - 1]
        place, turn = stretch.proportions.turn(position - stretch.start)
        source = stretch.sources[place]
        return source, (stretch.given[place] + turn) % self._lengths[source]

    def set_epoch(self, epoch: int) -> None:
        """Tells the datasets which epoch follows, those that want to know."""
        for dataset in self.datasets:
            pass_epoch(dataset, epoch)


class _Stretch(NamedTuple):
    """Positions from `start` to `stop` - 1, at which these sources take turns; `given` are their samples before."""

    start: int
    stop: int
    sources: list[int]
    given: list[int]
    proportions: Proportions


def _stretches(shares: list[Fraction], lengths: list[int], stop: str) -> Iterator[_Stretch]:
    """A mix by index, cut where a source drops out."""
    start, sources, given = 0, list(range(len(shares))), [0] * len(shares)
    while sources:
        proportions = Proportions([shares[source] for source in sources])
        # At which turn each is asked in vain.
        ends = [proportions.position(place, lengths[source] - given[place]) for place, source in enumerate(sources)]
        size = max(ends) if stop == "repeat" else min(ends)
        yield _Stretch(start, start + size, sources, given, proportions)
        if stop != "drop":
            return
        left = [place for place in range(len(sources)) if ends[place] != size]
        now = proportions.before(size)
        start, sources, given = start + size, [sources[p] for p in left], [given[p] + now[p] for p in left]


def _empty(place: int, datasets: Sequence[Any]) -> ValueError:
    return ValueError(
        f"dataset {place} of the mix ({type(datasets[place]).__name__}) gave no sample, so it cannot have its share. "
        "Leave it out, or use stop='drop', which goes on without it."
    )


class _MixStream(MixDataset[T_co], Stream[T_co]):
    def __len__(self) -> int:
        return list(_stretches(self._shares, list(map(len, self.datasets)), self.stop))[-1].stop

    @property
    def num_shards(self) -> int:
        return min(map(shards_of, self.datasets))

    def shard(self, num_shards: int, index: int) -> MixDataset[T_co]:
        shards = [shard_of(dataset, num_shards, index) for dataset in self.datasets]
        return MixDataset(shards, self.weights, self.stop)  # type: ignore[arg-type]  # checked before

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _Mixed(self.datasets, self._shares, self.stop, state)


class _Mixed(StreamIterator[Any]):
    """Counts positions from where the last source dropped out, and notes which have been through once."""

    def __init__(self, datasets: list[Any], shares: list[Fraction], stop: str, state: State | None) -> None:
        states = parts(state, "datasets", len(datasets))
        whole = sum(shares)
        self._settings: State = {"weights": [str(share / whole) for share in shares], "stop": stop}
        same_settings(state, self._settings)
        self._position = count(state, "position")
        self._ended = _ended(state, len(datasets))
        self._datasets = datasets
        self._shares = shares
        self._stop = stop
        self._sources = [listened(*pair, "MixDataset") for pair in zip(datasets, states, strict=True)]
        self._take_turns()

    def _take_turns(self) -> None:
        gone = self._ended if self._stop == "drop" else []
        self._turns = [source for source in range(len(self._datasets)) if source not in gone]
        if self._turns:
            self._proportions = Proportions([self._shares[source] for source in self._turns])

    def __next__(self) -> Any:
        again = False  # whether the source whose turn it is has just been started again
        while self._turns:
            place, turn = self._proportions.turn(self._position)
            source = self._turns[place]
            sample = next(self._sources[source], _NONE)
            if sample is not _NONE:
                self._position += 1
                return sample
            if self._stop != "drop" and (turn == 0 or again):
                raise _empty(source, self._datasets)
            if source not in self._ended:
                self._ended.append(source)
            if self._stop == "drop":
                self._position = 0
                self._take_turns()
            elif self._stop == "first" or len(self._ended) == len(self._datasets):
                break
            else:
                self._sources[source] = listened(self._datasets[source], None, "MixDataset")
                again = True
        raise StopIteration

    def state_dict(self) -> State:
        sources = [source.state_dict() for source in self._sources]
        return {**self._settings, "position": self._position, "ended": list(self._ended), "datasets": sources}


def _ended(state: State | None, number: int) -> list[int]:
    ended = [] if state is None else state.get("ended")
    if not isinstance(ended, list) or not all(place in range(number) for place in ended):
        raise StateFormatError(f"the state of a mix of {number} datasets names {ended} as those that have ended")
    return list(ended)


_NONE = object()
