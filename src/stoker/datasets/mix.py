"""Several datasets mixed in exact proportions, and the endless sequence of sources that this needs."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import absolute, become_stream, checked, filled_shards_of, pass_epoch, shard_of
from stoker.datasets.gather import Indices, common_layout, gather_parts, inside
from stoker.datasets.stream import State, Stream, StreamIterator, count, parts, same_settings
from stoker.datasets.worker_share import resume_and_report
from stoker.errors import StateFormatError

T_co = TypeVar("T_co", covariant=True)


class MixDataset(Dataset[T_co]):
    """Samples of several datasets in proportion to their weights, each dataset in its own order.

    A batch is gathered if all datasets can gather and have the same layout.

    Nothing is random: i and the weights alone decide which dataset gives sample i. Of the first i samples each dataset
    has its share, within one sample for up to three datasets and within two for more. Finding an index takes a few
    microseconds. The mix is a stream if one of the datasets is; the others are then read from their start.

    `stop` says how the mix continues at the turn of a dataset without further samples:

    - `stop="first"`: the mix ends, in exact proportions to the last sample.
    - `stop="drop"`: the mix continues with the others, in their proportions: every sample occurs once.
    - `stop="repeat"`: that dataset starts again, until every dataset has been read once.

    Shards of a stream are mixes of the datasets' shards, each in these proportions and with its own end.

    Args:
        datasets: at least one, by index or streams.
        weights: one weight above 0 for each dataset, in any unit. They are used exactly: `[7, 2, 1]` and
            `[0.7, 0.2, 0.1]` differ by rounding, and a state of one does not load into the other.
        stop: "first", "drop" or "repeat", see above.

    Raises:
        TypeError: `datasets` is not a list or tuple of datasets, a weight is not a number, or a subclass of this class
            was given a stream.
        ValueError: there is no dataset; the number of weights differs from that of datasets; a weight is not finite and
            above 0; `stop` is unknown; or a dataset is empty and `stop` is not "drop". (For a stream without samples it
            is raised while iterating.)
    """

    stoker_protocol = True
    datasets: list[Any]
    weights: list[Any]
    stop: str

    def __init__(
        self, datasets: Sequence[Any], weights: Sequence[float], stop: Literal["first", "drop", "repeat"] = "first"
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
        """Returns the number of samples up to the end that `stop` sets."""
        return self._stretches[-1].stop

    def __getitem__(self, index: Any) -> T_co:
        """Returns the sample at `index`; a negative index counts from the end.

        Raises:
            IndexError: `index` is out of range.
        """
        source, nth = self._turn(absolute(index, len(self)))
        sample: T_co = self.datasets[source][nth]
        return sample

    def _turn(self, position: int) -> tuple[int, int]:
        """Returns the dataset that gives the sample at a position, and the index within it."""
        stretch = self._stretches[bisect_right(self._starts, position) - 1]
        place, turn = stretch.proportions.turn(position - stretch.start)
        source = stretch.sources[place]
        return source, (stretch.given[place] + turn) % self._lengths[source]

    def gather_layout(self) -> Any:
        """Returns the layout of a sample, if all datasets can gather and have the same layout; None for a stream."""
        return None if is_stream(self) else common_layout(self.datasets)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes each dataset write its part of the batch, unless each part would be only a few samples."""
        turns = np.array([self._turn(place) for place in inside(indices, len(self)).tolist()], np.int64).reshape(-1, 2)
        return gather_parts(self.datasets, turns[:, 0], turns[:, 1], out)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the datasets that offer `set_epoch`."""
        for dataset in self.datasets:
            pass_epoch(dataset, epoch)


class _Stretch(NamedTuple):
    """Positions from `start` to `stop` - 1, at which `sources` take turns; `given` counts earlier samples of each."""

    start: int
    stop: int
    sources: list[int]
    given: list[int]
    proportions: Proportions


def _stretches(shares: list[Fraction], lengths: list[int], stop: str) -> Iterator[_Stretch]:
    """Yields the stretches of a mix by index: a new one begins whenever a source drops out."""
    start, sources, counts = 0, list(range(len(shares))), [0] * len(shares)
    while sources:
        proportions = Proportions([shares[source] for source in sources])
        # The position at which each source has no sample left.
        ends = [proportions.position(place, lengths[source] - counts[place]) for place, source in enumerate(sources)]
        size = max(ends) if stop == "repeat" else min(ends)
        yield _Stretch(start, start + size, sources, counts, proportions)
        if stop != "drop":
            return
        left = [place for place in range(len(sources)) if ends[place] != size]
        now = proportions.before(size)
        start, sources, counts = start + size, [sources[p] for p in left], [counts[p] + now[p] for p in left]


def _empty(place: int, datasets: Sequence[Any]) -> ValueError:
    return ValueError(
        f"dataset {place} of the mix ({type(datasets[place]).__name__}) gave no sample, so it cannot have its share. "
        "Remove it, or pass stop='drop' to continue without it."
    )


class _MixStream(MixDataset[T_co], Stream[T_co]):
    def __len__(self) -> int:
        return list(_stretches(self._shares, list(map(len, self.datasets)), self.stop))[-1].stop

    @property
    def num_shards(self) -> int:
        # No dataset may be empty in a shard: each worker has to give the mix in its proportions.
        return max(1, min(map(filled_shards_of, self.datasets)))

    def shard(self, num_shards: int, index: int) -> MixDataset[T_co]:
        shards = [shard_of(dataset, num_shards, index) for dataset in self.datasets]
        return MixDataset(shards, self.weights, self.stop)  # type: ignore[arg-type]  # checked before

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _Mixed(self.datasets, self._shares, self.stop, state)


class _Mixed(StreamIterator[Any]):
    """Iterator of a mix. Positions count from the last drop-out of a source; `_ended` lists the sources read to their
    end.
    """

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
        self._sources = [resume_and_report(*pair, "MixDataset") for pair in zip(datasets, states, strict=True)]
        self._take_turns()

    def _take_turns(self) -> None:
        gone = self._ended if self._stop == "drop" else []
        self._turns = [source for source in range(len(self._datasets)) if source not in gone]
        if self._turns:
            self._proportions = Proportions([self._shares[source] for source in self._turns])

    def __next__(self) -> Any:
        again = False  # whether the current source has just been restarted
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
                self._sources[source] = resume_and_report(self._datasets[source], None, "MixDataset")
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


# An endless sequence of sources in given proportions, known at any position.
#
# **The tree.** Two sources of shares p and 1 - p have an exact answer: of the first r positions, the first source gets
# p * r, rounded. The sources are therefore paired into a binary tree (Huffman's, which joins the two smallest until one
# is left). Each node divides its samples between its two sides by this rule, and a position is followed down to a leaf,
# counting on the way. That takes a few integer operations for a source with a large share, and one node for each bit of
# its share for a small one; only the tree is stored. Weights are used as the exact fractions that they are, so
# proportions stay exact for any length.
#
# **Evenness.** A rounding is off by at most one half, and each node below passes on its share of the error from above.
# The sum is less than one sample for up to three sources: of the first i positions a source of share w has w * i,
# within one. For more sources it stays below two (in Huffman's tree a node with two sides has at most 2/3 of the node
# above); among 20,000 random weightings of up to 40 sources the largest was 1.33. A merge of evenly spaced samples has
# no such bound: with one large and twenty equal small sources, the large one is 9 samples off.
#
# The sequence for a list of weights must never change: orders that were used once must repeat.


class _Node(NamedTuple):
    weight: int
    order: int  # among equal weights: sources first, from the last one, whose number is -order; then nodes by age
    sides: tuple[Any, Any] | None = None  # the heavier node, the lighter one


class Proportions:
    """An endless sequence of turns of `len(weights)` sources, by position. Immutable and thread safe."""

    def __init__(self, weights: Sequence[Fraction]) -> None:
        unit = math.lcm(*(weight.denominator for weight in weights))
        heap = [_Node(int(weight * unit), -number) for number, weight in enumerate(weights)]
        heapq.heapify(heap)
        for age in range(1, len(heap)):
            lighter, heavier = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, _Node(lighter.weight + heavier.weight, age, (heavier, lighter)))
        self._root = heap[0]
        self._paths: dict[int, list[tuple[int, int, bool]]] = {}
        below: list[tuple[_Node, list[tuple[int, int, bool]]]] = [(self._root, [])]
        while below:
            node, path = below.pop()
            if node.sides is None:
                self._paths[-node.order] = path
            else:
                step = (node.weight, node.sides[0].weight)
                below += [(side, [*path, (*step, side is node.sides[0])]) for side in node.sides]

    def turn(self, position: int) -> tuple[int, int]:
        """Returns the source at a position, and the number of its earlier turns."""
        weight, order, sides = self._root
        while sides is not None:
            heavier, lighter = sides
            before, rest = divmod(2 * position * heavier.weight + weight, 2 * weight)  # as in `_heavier`
            if rest + 2 * heavier.weight >= 2 * weight:  # then this position belongs to the heavier side
                position = before
                weight, order, sides = heavier
            else:
                position -= before
                weight, order, sides = lighter
        return -order, position

    def position(self, source: int, turn: int) -> int:
        """Returns the position of a source's turn, counted from 0: `turn(position(s, t)) == (s, t)`."""
        for weight, heavier, is_heavier in reversed(self._paths[source]):
            # The first position after which the side has turn + 1, solved from the rounding of `_heavier`.
            if is_heavier:
                turn = -(-(2 * turn + 1) * weight // (2 * heavier)) - 1
            else:
                turn = (2 * turn + 1) * weight // (2 * (weight - heavier))
        return turn

    def before(self, position: int) -> list[int]:
        """Returns the number of earlier positions of each source."""
        counts = []
        for source in range(len(self._paths)):
            left = position
            for weight, heavier, is_heavier in self._paths[source]:
                mine = _heavier(left, weight, heavier)
                left = mine if is_heavier else left - mine
            counts.append(left)
        return counts


def _heavier(positions: int, weight: int, heavier: int) -> int:
    """Returns the number of a node's first positions that its heavier side has: its share, rounded half up."""
    return (2 * positions * heavier + weight) // (2 * weight)


def exact(weights: Sequence[Any]) -> list[Fraction]:
    """Returns weights as exact fractions.

    Args:
        weights: finite numbers above 0, of Python or NumPy, or one-element tensors; their sum is arbitrary.

    Raises:
        TypeError: a weight is not a number.
        ValueError: a weight is zero, negative, infinite or NaN.
    """
    fractions = []
    for place, weight in enumerate(weights):
        number = weight.item() if hasattr(weight, "item") else weight
        try:
            usable = math.isfinite(number) and number > 0
        except TypeError:
            raise TypeError(f"weights[{place}] is {weight!r}, which is not a number") from None
        if not usable:
            raise ValueError(f"weights[{place}] is {number}: weights must be finite and above 0; drop the dataset")
        fractions.append(Fraction(number))
    return fractions
