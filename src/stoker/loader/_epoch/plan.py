"""Plans: the steps of an epoch, in order, as described in `docs/design/01-plan.md`.

The file is long because the plans of all kinds of loaders have one interface, and are read against each other.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoker._core.interruption import tears
from stoker.errors import StateMismatchError
from stoker.loader._epoch.ranks import RankSlice
from stoker.loader._job.work import as_batch, as_given
from stoker.loader._random.generators import mix
from stoker.loader._state.schema import is_plain
from stoker.samplers.order import BatchOrder, Int64Array, Order

BLOCK = 16384
"""Positions of a permutation that are computed at once, because a call costs as much as some thousand positions."""

SPARES = 4
"""Spare samples sent with a batch if failing samples are to be replaced: that all four fail too is no coincidence."""

AROUND = 4096
"""Positions before and after a batch from which spares are drawn."""

FIRST_BLOCK = 512
"""Positions computed in the first call: fewer than `BLOCK`, because the trainer waits for the first batch."""


class Step(NamedTuple):
    """The part of a plan for one unit.

    Attributes:
        indices: a list of indices for a batch, or an array of indices if the batch is to be gathered; a single index
            without batching; for a stream, its state in a worker's first step, or None.
        position: position of the first sample in the epoch, counted from 0.
        worker: the worker for the step, or None for any free one.
        number: number of the step in the epoch, counted from 0; always 0 for streams.
        stride: distance of the samples' positions: the number of ranks that share the epoch.
    """

    indices: Any
    position: int
    worker: int | None
    number: int = 0
    stride: int = 1


class Plan(Protocol):
    """The interface of a plan, which yields an epoch's steps in order."""

    def next(self) -> Step | None:
        """Returns the next step, or None at the end; raises errors of the user's sampler."""

    def answered(self, worker: int, ended: bool) -> None:
        """Records that a worker has completed one of its steps, or that its stream has ended."""

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Returns indices to replace samples that fail, beside those of the step itself; the same at each call."""

    @property
    def samples(self) -> int | None:
        """Returns the number of samples in the whole plan; None if it is unknown."""


class _Numbered:
    """A plan in which step k follows from k alone."""

    def __init__(self, first: int, bound_to: int | None) -> None:
        self._first = first
        self._bound_to = bound_to
        self._next = 0

    def step(self, k: int) -> Step | None:
        raise NotImplementedError

    def next(self) -> Step | None:
        step = self.step(self._next)
        self._next += step is not None
        return step

    def upcoming(self) -> list[Any] | None:
        """Returns the indices of the step that `next` would return, without advancing; None at the end."""
        step = self.step(self._next)
        return None if step is None else list(step.indices)

    def place(self) -> tuple[int, int]:
        """Returns position and stride of the step that `next` would return; at the end, of none."""
        return (0, 1) if (step := self.step(self._next)) is None else (step.position, step.stride)

    def advance(self) -> int:
        """Advances past the next step, and returns its number."""
        self._next += 1
        return self._first + self._next - 1

    def answered(self, worker: int, ended: bool) -> None:
        assert not ended, "only streams end"

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Returns no spares: other samples may not fit into the sampler's batch."""
        return []

    @property
    def samples(self) -> int | None:
        """Returns None: the number is unknown until each batch is made."""
        return None

    def _worker(self, k: int) -> int | None:
        return (self._first + k) % self._bound_to if self._bound_to else None


class ComputedPlan(_Numbered):
    """Batches of a computed order: step k follows from (order, share, batch size, k) alone.

    Args:
        order: the epoch's indices, by position.
        share: this rank's positions, from the place at which the epoch begins or is resumed.
        batch_size: samples in a batch; None for single indices.
        drop_last: whether a last, smaller batch is left out.
        first: number in the epoch of the first step, for the workers' turns.
        bound_to: number of workers if step k belongs to worker k mod n.
        limit: steps at most; None for all.
        arrays: whether indices of a batch are an array.
    """

    def __init__(
        self,
        order: Order,
        share: RankSlice,
        batch_size: int | None,
        drop_last: bool,
        *,
        first: int = 0,
        bound_to: int | None = None,
        limit: int | None = None,
        arrays: bool = False,
    ) -> None:
        super().__init__(first, bound_to)
        self._arrays = arrays and batch_size is not None
        self._order = order
        self._share = share
        self._origin, self._stride = share.begin + share.world.rank, share.world.size
        self._size = batch_size or 1
        self._single = batch_size is None
        self._count = len(share) - len(share) % self._size if drop_last else len(share)
        if limit is not None:
            self._count = min(self._count, limit * self._size)
        self._block_start = 0
        self._block: list[int] | Int64Array = []
        self._cut_from = 0
        self._cut: list[list[int]] = []  # indices of the steps from `_cut_from` on

    def step(self, k: int) -> Step | None:
        """Returns step k, in constant time."""
        start = k * self._size
        if start >= self._count:
            return None
        return self._step(k, self._indices(start, min(start + self._size, self._count)))

    def _step(self, k: int, indices: Any) -> Step:
        position = self._origin + k * self._size * self._stride
        return Step(indices[0] if self._single else indices, position, self._worker(k), self._first + k, self._stride)

    def next(self) -> Step | None:
        if self._arrays or (indices := self.upcoming()) is None:
            return super().next()
        k = self._next
        self._next = k + 1
        return self._step(k, indices)

    def upcoming(self) -> list[Any] | None:
        at = self._next - self._cut_from
        if not 0 <= at < len(self._cut):
            self._cut_from, at = self._next, 0
            self._cut = self._cut_ahead(self._next * self._size)
        return self._cut[at] if self._cut else None

    def _cut_ahead(self, start: int) -> list[list[int]]:
        """Returns the indices of the batches from `start` on, as far as they are known without taking more."""
        if start >= self._count:
            return []
        size = self._size
        self._indices(start, min(start + size, self._count))
        at, end = start - self._block_start, self._block_start + len(self._block)
        block = self._block if isinstance(self._block, list) else self._block.tolist()
        whole = len(block) if end >= self._count else at + (len(block) - at) // size * size
        return [block[first : first + size] for first in range(at, min(whole, self._count - self._block_start), size)]

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Returns neighbours in the order, chosen by the seed and the step's position."""
        low, high = max(0, step.position - AROUND), min(len(self._order), step.position + AROUND)
        places = sorted(low + mix(seed, step.position, number) % (high - low) for number in range(SPARES))
        indices: list[int] = self._order.take(np.array(places, np.int64)).tolist()
        return indices

    @property
    def samples(self) -> int | None:
        """Returns the number of samples of this rank."""
        return self._count

    def _indices(self, start: int, stop: int) -> Any:
        at = start - self._block_start
        if at < 0 or stop - self._block_start > len(self._block):
            ahead = BLOCK if len(self._block) else FIRST_BLOCK
            end = min(self._count, start + max(ahead, stop - start))
            block = self._order.take(self._share.positions(start, end))
            self._block, self._block_start, at = block if self._arrays else block.tolist(), start, 0
        part = self._block[at : at + stop - start]
        return part.copy() if self._arrays else part  # a dataset may modify the array


class BatchesPlan(_Numbered):
    """Batches that a batch sampler returns by number, divided among ranks batch by batch."""

    def __init__(
        self,
        batches: BatchOrder,
        share: RankSlice,
        *,
        first: int = 0,
        bound_to: int | None = None,
    ) -> None:
        super().__init__(first, bound_to)
        self._batches = batches
        self._share = share

    def step(self, k: int) -> Step | None:
        """Returns step k, in the time that the sampler takes for a batch."""
        if k >= len(self._share):
            return None
        (number,) = self._share.positions(k, k + 1).tolist()
        position = operator.index(self._batches.position(number))
        place = self._share.begin + self._share.world.rank + k * self._share.world.size
        if again := place // self._share.n:  # pads the last round: a repeated batch, augmented differently
            last = self._share.n - 1
            position += again * (operator.index(self._batches.position(last)) + len(self._batches.batch(last)))
        return Step(self._batches.batch(number), position, self._worker(k), self._first + k)

    @property
    def samples(self) -> int | None:
        """Returns the number of samples; None with several ranks, of whose batches each would have to be made."""
        share = self._share
        if share.world.size > 1:
            return None
        if not len(share):
            return 0
        last = share.n - 1
        with contextlib.suppress(Exception):  # of a sampler of the user's: raised where its batch is due
            end = operator.index(self._batches.position(last)) + len(self._batches.batch(last))
            return end - operator.index(self._batches.position(share.begin))
        return None


class Endless:
    """An order without end: passes over the n samples, each with an order of its own.

    Args:
        n: positions in a pass.
        order_of: returns the order of a pass, by its number.
    """

    LENGTH = 2**62

    def __init__(self, n: int, order_of: Callable[[int], Order]) -> None:
        self._n = n
        self._order_of = order_of
        self._latest: tuple[int, Order] | None = None

    def __len__(self) -> int:
        return self.LENGTH

    def take(self, positions: Int64Array) -> Int64Array:
        """Returns the indices at ascending positions."""
        passes, places = np.divmod(positions, self._n)
        edges = [0, *(np.flatnonzero(np.diff(passes)) + 1).tolist(), len(positions)]
        parts = [
            self._order(int(passes[start])).take(places[start:stop])
            for start, stop in itertools.pairwise(edges)
            if stop > start
        ]
        return np.concatenate(parts) if parts else positions

    def _order(self, number: int) -> Order:
        if self._latest is None or self._latest[0] != number:
            self._latest = number, self._order_of(number)
        return self._latest[1]


class StreamedPlan:
    """The plan of a user's sampler that can only be iterated over.

    Args:
        sampler: the iterator over indices, or batches of indices.
        batched: whether the sampler yields batches.
        bound_to: number of workers if step k belongs to worker k mod n.
        at: (steps, samples) that the sampler has yielded before.
        mark: returns the sampler's state, or None; None for a sampler without one. Called when a state is asked for,
            and after a step whose indices have no form in a state.
        size: indices in each batch except the last: a smaller batch shows that the sampler has ended. None if unknown.
        left: what the sampler has given before its state was loaded, and `sampler` yields again; shrinks with each.
    """

    def __init__(
        self,
        sampler: Iterator[Any],
        batched: bool,
        *,
        bound_to: int | None = None,
        at: tuple[int, int] = (0, 0),
        mark: Callable[[], Any] | None = None,
        size: int | None = None,
        left: Collection[Any] = (),
    ) -> None:
        self._sampler = sampler
        self._left = left
        self._batched = batched
        self._bound_to = bound_to
        self._count, self._position = at
        self._mark = mark
        self._size = size
        self._is_over = False
        self._ahead: deque[Step | Exception | None] = deque()
        self._given: deque[tuple[Step, Any]] = deque()  # not delivered, each with the sampler's state then, if needed
        self._before: Any = None  # the sampler's state after the latest delivered step, if it was needed

    def walk(self, count: int) -> None:
        """Walks `count` steps ahead, for later calls of `next()`, which also raise the sampler's error in its turn."""
        for _ in range(count):
            if self._ahead and (self._ahead[-1] is None or isinstance(self._ahead[-1], Exception)):
                return
            try:
                self._ahead.append(self._walked())
            except Exception as error:
                if tears(error):
                    raise
                self._ahead.append(error)

    @property
    def is_ready(self) -> bool:
        """Returns whether `next()` can return a step without walking."""
        return bool(self._ahead)

    def upcoming(self) -> list[Any] | None:
        """Returns the indices of the step that `next` would return, without passing it; None at the end, or if `next`
        would raise."""
        if not self._ahead:
            self.walk(1)
        step = self._ahead[0]
        if not isinstance(step, Step):
            return None
        return step.indices if self._batched else [step.indices]

    def place(self) -> tuple[int, int]:
        """Returns position and stride of the step that `upcoming` has returned; at the end, of none."""
        step = self._ahead[0] if self._ahead else None
        return (step.position, step.stride) if isinstance(step, Step) else (0, 1)

    def advance(self) -> int:
        """Advances past the step that `upcoming` has returned, and returns its number."""
        step = self._ahead.popleft()
        assert isinstance(step, Step)
        return step.number

    def forward(self, count: int) -> None:
        """Walks until `count` steps have passed, without loading a sample.

        Raises:
            StateMismatchError: the sampler has fewer steps.
        """
        while self._count < count:
            if self.next() is None:
                raise StateMismatchError(
                    f"the state is from after step {count} of the sampler, which now ends after {self._count}: it is "
                    "another sampler, or was changed, or can be iterated over only once."
                )

    def behind(self, count: int) -> tuple[int, Any, tuple[Any, ...], bool] | None:
        """Returns (samples passed, state of the sampler, batches given before that state and behind `count` steps,
        whether it has ended), from which it is resumed there; None if it has no state.
        """
        if self._mark is None:
            return None
        self.delivered(count)
        position = self._given[0][0].position if self._given else self._position
        if self._before is not None and any(mark is not None for _, mark in self._given):
            return position, self._before, (), False
        pending, mark = [as_given(step.indices) for step, _ in self._given], self._mark()
        return None if mark is None else (position, mark, (*pending, *self._left), self._is_over)

    def delivered(self, count: int) -> None:
        """Records that the user has the first `count` steps."""
        while self._given and self._given[0][0].number < count:
            _, self._before = self._given.popleft()

    def knows(self, number: int) -> bool:
        """Returns whether a state can lie behind a step: not if a sampler with a state has yet to give it."""
        return self._mark is None or number < self._count

    def next(self) -> Step | None:
        if not self._ahead:
            return self._walked()
        step = self._ahead.popleft()
        if isinstance(step, Exception):
            raise step
        return step

    def _walked(self) -> Step | None:
        left = len(self._left)
        for batch in self._sampler:
            indices = batch if not self._batched or type(batch) is list else as_batch(batch)
            worker = self._count % self._bound_to if self._bound_to else None
            step = Step(indices, self._position, worker, self._count)
            self._position += len(indices) if self._batched else 1
            self._count += 1
            self._is_over = self._size is not None and len(indices) < self._size
            if self._mark is not None:
                is_again = len(self._left) < left  # the sampler's state is from behind all of these
                self._given.append((step, None if is_again or is_plain(as_given(indices)) else self._mark()))
            return step
        self._is_over = True
        return None

    def answered(self, worker: int, ended: bool) -> None:
        assert not ended, "only streams end"

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Returns no spares: later indices of the sampler are not known yet."""
        return []

    @property
    def samples(self) -> int | None:
        """Returns None: the number is unknown."""
        return None


class TurnPlan:
    """The plan of streams: each worker in turn makes a batch, until its stream ends.

    If the order does not matter, the next step goes to the worker with the fewest steps to do, so that a worker with
    slow samples does not delay the others.

    Args:
        active: the workers whose streams have not ended, in ascending order.
        turn: the first worker in turn, as a place in `active`.
        starts: by worker, the state from which its stream is resumed, sent with its first step.
        in_order: whether workers keep to their turns.
    """

    def __init__(
        self, active: Iterable[int], turn: int = 0, starts: Mapping[int, Any] | None = None, in_order: bool = True
    ) -> None:
        self._active = list(active)
        self._turn = turn
        self._starts = dict(starts or {})
        self._in_order = in_order
        self._to_do: Counter[int] = Counter()

    def next(self) -> Step | None:
        if not self._active:
            return None
        self._turn %= len(self._active)
        if not self._in_order:
            turns = range(self._turn, self._turn + len(self._active))
            self._turn = min(turns, key=lambda turn: self._to_do[self._at(turn)])
        worker = self._at(self._turn)
        self._turn = self._turn % len(self._active) + 1
        self._to_do[worker] += 1
        return Step(self._starts.pop(worker, None), 0, worker)

    def _at(self, turn: int) -> int:
        return self._active[turn % len(self._active)]

    def upcoming(self) -> list[Any]:
        """Returns no indices: see `StreamedPlan.upcoming`. A step of the only worker changes nothing."""
        return []

    def place(self) -> tuple[int, int]:
        """Returns no place."""
        return 0, 1

    def advance(self) -> int:
        """Returns the number of each step."""
        return 0

    def answered(self, worker: int, ended: bool) -> None:
        self._to_do[worker] -= 1
        if ended and worker in self._active:
            place = self._active.index(worker)
            self._active.remove(worker)
            self._turn -= place < self._turn

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Returns no spares: a stream continues with its next samples."""
        return []

    @property
    def samples(self) -> int | None:
        """Returns None: the streams' lengths are unknown."""
        return None
