"""What an epoch delivers, decided before it is walked: see `docs/design/01-plan.md`."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoker.errors import SamplerError, StateMismatchError
from stoker.loader.generators import mix
from stoker.loader.shares import Share
from stoker.samplers.order import BatchOrder, Int64Array, Order

BLOCK = 16384
"""Positions of a permutation that are computed at once: a call costs as much as some thousand of its positions."""

SPARES = 4
"""Samples that are sent along with a batch, where those that fail are to be replaced: a batch that fails as a whole and
four others is no bad luck."""

AROUND = 4096
"""Positions before and behind a batch from which these are drawn."""

FIRST_BLOCK = 512
"""The first time fewer, because somebody waits for the first batch."""


class Step(NamedTuple):
    """One unit's share of the plan.

    Attributes:
        indices: a list of indices for a batch, or an array of them where it is to be gathered; a single index without
            batching, None for a stream.
        position: where in the epoch the first sample stands, counted from 0.
        worker: the worker that has to do it, or None for whoever is free.
        number: the step's in the epoch, counted from 0; streams do not number theirs.
        stride: how far apart in the epoch its samples stand: the number of ranks that share the epoch.
    """

    indices: Any
    position: int
    worker: int | None
    number: int = 0
    stride: int = 1


class Plan(Protocol):
    """Gives an epoch's steps, in order."""

    def next(self) -> Step | None:
        """The next step, or None at the end; raises what the user's sampler raises."""

    def answered(self, worker: int, ended: bool) -> None:
        """The worker has done one of its steps, or has found that its stream has ended."""

    def mark(self) -> Any:
        """Where the user's sampler stands behind the latest step, for `Progress`; None where that need not be known."""

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Indices that may take the place of samples that fail, beside those of the step itself; the same each time."""

    @property
    def samples(self) -> int | None:
        """Samples that the plan will give from its beginning on; None where nobody knows."""


class _Numbered:
    """A plan whose step k follows from k alone."""

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

    def answered(self, worker: int, ended: bool) -> None:
        assert not ended, "only streams end"

    def mark(self) -> None:
        """Steps are known by their numbers."""

    def spares(self, step: Step, seed: int) -> list[Any]:
        """None but the batch's own: others may not fit into what the sampler made."""
        return []

    @property
    def samples(self) -> int | None:
        """Not known without making each batch."""
        return None

    def _worker(self, k: int) -> int | None:
        return (self._first + k) % self._bound_to if self._bound_to else None


class ComputedPlan(_Numbered):
    """Batches of an order that is a function: step k follows from (order, share, batch size, k) alone.

    Args:
        order: the epoch's indices, by position.
        share: this rank's positions, from where the epoch is begun or resumed.
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
        share: Share,
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
        self._size = batch_size or 1
        self._single = batch_size is None
        self._count = len(share) - len(share) % self._size if drop_last else len(share)
        if limit is not None:
            self._count = min(self._count, limit * self._size)
        self._block_start = 0
        self._block: list[int] | Int64Array = []

    def step(self, k: int) -> Step | None:
        """Step k, in constant time."""
        start = k * self._size
        if start >= self._count:
            return None
        indices = self._indices(start, min(start + self._size, self._count))
        world = self._share.world
        position = self._share.begin + world.rank + start * world.size
        return Step(indices[0] if self._single else indices, position, self._worker(k), self._first + k, world.size)

    def spares(self, step: Step, seed: int) -> list[Any]:
        """Neighbours in the order, drawn from the seed and the step's position."""
        low, high = max(0, step.position - AROUND), min(len(self._order), step.position + AROUND)
        places = sorted(low + mix(seed, step.position, number) % (high - low) for number in range(SPARES))
        indices: list[int] = self._order.take(np.array(places, np.int64)).tolist()
        return indices

    @property
    def samples(self) -> int | None:
        """Those of this rank."""
        return self._count

    def _indices(self, start: int, stop: int) -> Any:
        at = start - self._block_start
        if at < 0 or stop - self._block_start > len(self._block):
            ahead = BLOCK if len(self._block) else FIRST_BLOCK
            end = min(self._count, start + max(ahead, stop - start))
            block = self._order.take(self._share.positions(start, end))
            self._block, self._block_start, at = block if self._arrays else block.tolist(), start, 0
        part = self._block[at : at + stop - start]
        return part.copy() if self._arrays else part  # a dataset may write to what it is given


class BatchesPlan(_Numbered):
    """Batches that a batch sampler knows by their number, shared out among ranks batch by batch."""

    def __init__(
        self,
        batches: BatchOrder,
        share: Share,
        *,
        first: int = 0,
        bound_to: int | None = None,
    ) -> None:
        super().__init__(first, bound_to)
        self._batches = batches
        self._share = share

    def step(self, k: int) -> Step | None:
        """Step k, as quick as the sampler."""
        if k >= len(self._share):
            return None
        (number,) = self._share.positions(k, k + 1).tolist()
        position = operator.index(self._batches.position(number))
        place = self._share.begin + self._share.world.rank + k * self._share.world.size
        if again := place // self._share.n:  # it pads the last round: drawn again, and augmented otherwise
            last = self._share.n - 1
            position += again * (operator.index(self._batches.position(last)) + len(self._batches.batch(last)))
        return Step(self._batches.batch(number), position, self._worker(k), self._first + k)


class Endless:
    """One order after another, for ever: each pass over the n samples has its own.

    Args:
        n: positions in a pass.
        order_of: the order of a pass, by its number.
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
    """A sampler of the user's: it can only be walked.

    Args:
        sampler: the iterator over its indices, or batches of indices.
        batched: whether it gives batches.
        bound_to: number of workers if step k belongs to worker k mod n.
        at: (steps, samples) that are behind the sampler where it stands.
        mark: says where the sampler stands, if it can.
        size: of each batch but the last: one with fewer indices shows that the sampler has ended. None: nobody knows.
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
    ) -> None:
        self._sampler = sampler
        self._batched = batched
        self._bound_to = bound_to
        self._count, self._position = at
        self._mark = mark
        self._size = size
        self._is_over = False

    def forward(self, count: int) -> None:
        """Walks on until `count` steps are behind it. No sample is loaded.

        Raises:
            StateMismatchError: it has not as many.
        """
        while self._count < count:
            if self.next() is None:
                raise StateMismatchError(
                    f"the state stands behind step {count} of the sampler, which ends after {self._count} now: it is "
                    "another's, or has been changed, or can be walked only once."
                )

    def mark(self) -> Any:
        """(samples behind it, what the sampler says about where it stands, whether that is its end); None where it says
        nothing."""
        said = None if self._mark is None else self._mark()
        return None if said is None else (self._position, said, self._is_over)

    def next(self) -> Step | None:
        for indices in self._sampler:
            if self._batched and not isinstance(indices, list):
                indices = _as_list(indices)
            worker = self._count % self._bound_to if self._bound_to else None
            step = Step(indices, self._position, worker, self._count)
            self._position += len(indices) if self._batched else 1
            self._count += 1
            self._is_over = self._size is not None and len(indices) < self._size
            return step
        self._is_over = True
        return None

    def answered(self, worker: int, ended: bool) -> None:
        assert not ended, "only streams end"

    def spares(self, step: Step, seed: int) -> list[Any]:
        """What the sampler gives later is not known yet."""
        return []

    @property
    def samples(self) -> int | None:
        """Only the sampler knows."""
        return None


def _as_list(batch: Any) -> list[Any]:
    """A batch of indices as a list: arrays and tensors give Python's numbers."""
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__iter__"):
        raise SamplerError(
            f"the batch sampler yielded {batch!r}, which is no batch: each item must be a list of indices. "
            "Pass a sampler of single indices as `sampler=`, with a `batch_size`."
        )
    return list(batch)


class TurnPlan:
    """Streams: workers make a batch each in turn, until theirs ends.

    Where the order does not matter, it is whoever has least to do: nobody then waits for one whose samples take long.

    Args:
        active: the workers whose streams have not ended, in ascending order.
        turn: whose turn is first, as a place in `active`.
        starts: what each worker's first step carries, by worker: where its stream is resumed.
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

    def answered(self, worker: int, ended: bool) -> None:
        self._to_do[worker] -= 1
        if ended and worker in self._active:
            place = self._active.index(worker)
            self._active.remove(worker)
            self._turn -= place < self._turn

    def mark(self) -> None:
        """The workers know where their streams stand."""

    def spares(self, step: Step, seed: int) -> list[Any]:
        """The stream has others."""
        return []

    @property
    def samples(self) -> int | None:
        """As many as the streams have."""
        return None
