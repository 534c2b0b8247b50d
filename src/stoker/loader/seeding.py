"""Runs samples under generators seeded from (epoch's seed, position): what a sample draws depends on nothing else.

Seeding all generators before each sample costs more than a cheap sample does, so a generator is seeded only once it is
known to be drawn from. Until then it is *idle*: its state is compared at the end of each batch. If it has moved, it
becomes *active*, seeded before each sample, and the batch is done again. The first samples of a worker find out without
doing anything twice: all generators are seeded before each of them, and those that move become active. Whatever the
path, a sample draws only from generators that were seeded for its own position, so the results are the same.

A stream cannot be asked for a sample twice. There a global generator is *waiting*: as it is for the sample at position
0, until one draws from it; behind that one it is seeded for each. Which one that was is part of where the stream
stands, so what a sample draws follows from its position here too.

Not seen: code that draws and then puts the state back (`torch.random.fork_rng`); `seeding="sample"` is the cure.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from stoker.errors import StokerWarning
from stoker.loader.generators import (
    LegacyStream,
    Stream,
    global_generators,
    global_streams,
    loaded_torch,
    mix,
    step,
    stream_of,
    torch_unused,
)
from stoker.loader.held_generators import held_generators
from stoker.loader.sample_rng import SampleRNG

Seeding = Literal["auto", "sample", "worker"]

_PROBES = 8  # 25 us each, before the first batch
_PROOFS = 8  # samples in a row
_SAMPLE, _WHOLE, _COLLATE = range(3)

_NOTHING = nullcontext()
_key = lru_cache(16)(mix)  # of an epoch: asked for at each batch

T = TypeVar("T")


class SampleSeeding:
    """Runs the samples of batches under generators that are seeded for each.

    One object for each worker, kept for the worker's life; not thread safe. What a sample draws depends on the seed and
    its position alone, not on how samples are split into batches or who makes them.

    The generators are Python's, NumPy's and torch's global ones (torch's if torch is imported), those that the dataset
    holds, and those of `rng`. One that the dataset holds is keyed by its state when it was found: its copies in other
    workers agree, generators with other initial seeds differ. They are looked for again when the epoch's seed changes,
    because `set_epoch` may have made new ones.

    Cost (`benchmarks/order_cost.py`), in a batch of 64: some 6 us for the batch if nothing is drawn (8 with
    `restore`). Seeding for a sample costs 5 us for Python's generator, 3 each for NumPy's legacy one and for torch's, 5
    for those of `rng`, and is paid only for those that are drawn from. `whole` and `collate` always seed all.

    Args:
        mode: `"auto"`; `"sample"` seeds every generator before each sample, drawn from or not; `"worker"` leaves all
            but those of `rng` to run their own course.
        dataset: what is searched for generators; a tuple of several objects will do.
        threads: other threads make samples at the same time, so only `rng` is seeded. A warning is given if a global
            generator moves while the first samples are made.
        restore: puts back the states of all generators after each call, as is right in the trainer's process.
        rng: what the dataset sees as `get_worker_info().rng`.
        mark: where `samples` leaves the place of the sample that it makes, at [0].
        held: the generators that the dataset holds, where they have been looked for already: before the worker was
            forked. What each worker looks at itself it has a copy of.

    Attributes:
        failed_at: where in its batch the sample lies that raised, after `samples()` has raised.
    """

    def __init__(
        self,
        mode: Seeding,
        *,
        dataset: object,
        threads: bool = False,
        restore: bool = False,
        rng: SampleRNG | None = None,
        mark: Any = None,
        held: list[Any] | None = None,
    ) -> None:
        self.failed_at: int | None = None
        self._mark: Any = [0] if mark is None else mark
        self._dataset = dataset
        self._held = held
        self._always = mode == "sample"
        self._only_rng = threads or mode == "worker"
        self._bystanders = global_streams() if threads and mode != "worker" else {}
        self._seen_to_move = 0
        self._restore = restore
        self._rng = SampleRNG(0) if rng is None else rng
        self._probes = _PROBES
        self._epoch: int | None = None
        self._knows_torch = False
        self._found: dict[int, tuple[Any, Stream]] = {}  # holds what it names, so that no id is used twice
        self._globals: dict[str, Stream] = {}  # by whose they are
        self._active: list[Stream] = []
        self._idle: list[Stream] = []
        self._seeded: list[Stream] = []  # for the sample that is being made
        self._idle_states: list[tuple[Stream, Any]] | None = None
        self._to_put_back: list[tuple[Stream, Any]] = []
        self._drawn: dict[str, int] = {}  # of the stream that is read
        self._waiting_for: int | None = None  # key of the samples whose first the waiting ones are seeded for, and were
        self._waiting_until = math.inf  # the last position for which they wait
        self._waiting: list[tuple[str, Stream]] = []
        self._at = 0
        self._others: list[Stream] = []

    def samples(
        self,
        seed: int,
        positions: Sequence[int] | range,
        fetch: Callable[[Any], T],
        indices: Sequence[Any],
        first: int = 0,
    ) -> list[T]:
        """The samples `fetch(index)`, in order, each under generators seeded for its position.

        The mark of the first is `first`: its place in a unit of which others make the rest.

        Samples are fetched twice in one case: past the worker's first samples, those of the batch in which a generator
        is drawn from for the first time.

        Raises:
            Exception: what `fetch` raised, as it is; `failed_at` then tells for which of the indices.
        """
        key = self._begin(seed, _SAMPLE)
        many = len(indices)
        alone = min(many, self._probes)
        done: list[T] = []
        try:
            if alone:
                with self._borrowed(self._all()):
                    for position, index in zip(positions[:alone], indices[:alone], strict=True):
                        self._mark[0] = first + len(done)
                        with self._bystanders_watched():
                            done.append(self._alone(key, position, partial(fetch, index)))
            if alone < many:
                self._together(key, positions[alone:], fetch, indices[alone:], done, first)
        except BaseException:
            self.failed_at = len(done)
            done.clear()  # who keeps the exception keeps no batch
            raise
        return done

    def one(self, seed: int, position: int, call: Callable[[], T], drawn: dict[str, int]) -> T:
        """Within `undisturbed`: `call()` for the next sample of a stream, never done twice.

        Args:
            seed: of the epoch.
            position: of the sample.
            call: gives it.
            drawn: whose global generators were drawn from (see `GLOBALS`), and at which position first. Up to there
                they are as for position 0, behind it they are seeded for each. It is added to.
        """
        if seed != self._epoch or not self._knows_torch:
            self._begin(seed, _SAMPLE)
        key = _key(seed, _SAMPLE)
        if drawn is not self._drawn or key != self._waiting_for or position > self._waiting_until:
            self._drawn = drawn
            self._wait(key, position)
        self._at = position
        if self._others or self._rng.streams:
            self._seed_others(key, position)
        try:
            if self._probes:
                with self._bystanders_watched():
                    self._probes -= 1
                    return call()
            return call()
        except BaseException:
            self._waiting_for = None  # who is asked what to do about it may draw as well
            raise
        finally:
            self._note_what_was_drawn_from(position)

    def _note_what_was_drawn_from(self, position: int) -> None:
        for whose, stream in self._waiting:
            if stream.drawn():
                self._drawn[whose] = position
                self._waiting_for = None

    def next_one(self, seed: int, position: int) -> None:
        """Within a call of `one`: what follows is another's, as if that had ended and another call begun."""
        self._note_what_was_drawn_from(position)
        self.again(seed, position)

    @property
    def position(self) -> int:
        """Within a call of `one`: of the sample that is made."""
        return self._at

    @property
    def draws(self) -> bool:
        """Whether samples of the stream that `one` was last called for have drawn random numbers, or may have."""
        return bool(self._drawn or self._rng.streams)

    def are_at(self, seed: int, position: int) -> bool:
        """Within a call of `one`: whether it is for that sample."""
        return position == self._at and self._rng.key == _key(seed, _SAMPLE)

    def again(self, seed: int, position: int) -> None:
        """Within a call of `one`: the rest of it runs under generators seeded for another sample."""
        key, self._at = _key(seed, _SAMPLE), position
        self._wait(key, position)
        self._seed_others(key, position)

    def afresh(self, seed: int, position: int) -> None:
        """Within `samples`: another is tried in the place of the one that failed, and draws what that one drew."""
        sample_key = step(mix(seed, _SAMPLE), position)
        for stream in (*self._seeded, *self._rng.streams):
            stream.seed(sample_key)

    def whole(self, seed: int, position: int, call: Callable[[], T]) -> T:
        """`call()` under generators seeded once for a batch that is fetched at once (`__getitems__`), never twice."""
        return self._once(_WHOLE, seed, position, call)

    def collate(self, seed: int, position: int, call: Callable[[], T]) -> T:
        """`call()` under generators seeded once for a user's collator, never twice, with numbers of its own."""
        return self._once(_COLLATE, seed, position, call)

    @contextmanager
    def undisturbed(self, seed: int) -> Iterator[None]:
        """Within it, samples may be made by `one`. States are put back once, at its end."""
        self._begin(seed, _SAMPLE)
        restore = self._restore
        with self._borrowed(self._all()):
            self._restore = False
            if restore or any(stream.drawn() for _, stream in self._waiting):  # by whatever came between
                self._waiting_for = None
            try:
                yield
            finally:
                self._restore = restore

    def _once(self, purpose: int, seed: int, position: int, call: Callable[[], T]) -> T:
        key = self._begin(seed, purpose)
        with self._bystanders_watched(), self._borrowed(self._all()):
            self._seed_all(key, position)
            if self._probes:
                self._probes -= 1
            return call()

    def _wait(self, key: int, position: int) -> None:
        if self._always:
            self._drawn.update(dict.fromkeys(self._globals, -1))
        self._waiting = [
            (whose, stream) for whose, stream in self._globals.items() if position <= self._drawn.get(whose, position)
        ]
        self._waiting_until = min((self._drawn.get(whose, math.inf) for whose, _ in self._waiting), default=math.inf)
        waiting = [stream for _, stream in self._waiting]
        self._others = [stream for stream in self._all() if stream not in waiting]
        self._rng.key, self._rng.find_position = key, lambda: self._at
        self._waiting_for, self._idle_states = key, None
        first = step(key, 0)
        for stream in waiting:
            stream.seed(first)

    def _seed_others(self, key: int, position: int) -> None:
        sample_key = step(key, position)
        for stream in (*self._others, *self._rng.streams):
            stream.seed(sample_key)

    def _begin(self, seed: int, purpose: int) -> int:
        self.failed_at = None
        if seed != self._epoch or self._torch_is_new():
            self._epoch, self._knows_torch = seed, loaded_torch() is not None
            if not self._only_rng:
                self._find()
        return _key(seed, purpose)

    def _find(self) -> None:
        """Takes up the generators that there are now; those that were there before stay what they were."""
        self._knows_torch = loaded_torch() is not None
        before, self._found = self._found, {}
        self._waiting_for = None
        held, self._held = self._held, None
        for generator in (
            *global_generators().values(),
            *(held_generators(self._dataset) if held is None else held),
        ):
            name = id(generator)
            stream = before[name][1] if name in before else stream_of(generator)
            if isinstance(stream, LegacyStream) and not stream.is_of(generator):
                stream = stream_of(generator)
            if stream is not None:
                self._found[name] = (generator, stream)
        streams = [stream for _, stream in self._found.values()]
        self._globals = {
            whose: self._found[id(generator)][1]
            for whose, generator in global_generators().items()
            if id(generator) in self._found
        }
        self._active = [stream for stream in streams if self._always or stream in self._active]
        self._idle = [stream for stream in streams if stream not in self._active]
        self._idle_states = None

    def _torch_is_new(self) -> bool:
        return not self._knows_torch and loaded_torch() is not None

    def _all(self) -> list[Stream]:
        return [*self._active, *self._idle]

    def _seed_all(self, key: int, position: int) -> None:
        self._rng.key, self._rng.find_position = key, lambda: position
        self._idle_states = self._waiting_for = None
        sample_key = step(key, position)
        for stream in (*self._active, *self._idle, *self._rng.streams):
            stream.seed(sample_key)

    def _alone(self, key: int, position: int, call: Callable[[], T]) -> T:
        """A sample for which every generator is seeded; in the worker's first ones, those that move become active."""
        seeded = self._seeded = self._all()
        self._seed_all(key, position)
        before = [(stream, None) for stream in self._idle] if self._probes else []
        self._probes = max(0, self._probes - 1)
        try:
            result = call()
        except Exception:
            if not self._drew_unseeded(before, [*seeded, *self._rng.streams]):
                raise
        else:
            if not self._drew_unseeded(before, [*seeded, *self._rng.streams]):
                return result
        return self._alone(key, position, call)  # once more, because this sample has imported torch and drawn from it

    def _together(
        self,
        key: int,
        positions: Sequence[int],
        fetch: Callable[[Any], T],
        indices: Sequence[Any],
        done: list[T],
        first: int,
    ) -> None:
        """Appends samples to `done` for which the active generators are seeded, while the idle ones are watched."""
        kept, mark = len(done), self._mark
        start = first + kept
        self._rng.key, self._rng.find_position = key, lambda: positions[mark[0] - start]
        while True:
            del done[kept:]
            before = self._states_of_idle()
            seeded = self._seeded = [*self._active, *self._rng.streams]
            try:
                with self._borrowed(self._active):
                    for mark[0], index in enumerate(indices, start):
                        if seeded:
                            sample_key = step(key, positions[mark[0] - start])
                            for stream in seeded:
                                stream.seed(sample_key)
                        done.append(fetch(index))
            except Exception:
                if not self._drew_unseeded(before, seeded):
                    raise
            else:
                if not self._drew_unseeded(before, seeded):
                    return

    def _states_of_idle(self) -> list[tuple[Stream, Any]]:
        if self._restore:  # the training loop may have drawn since
            return [(stream, stream.state()) for stream in self._idle]
        if self._idle_states is None:
            self._idle_states = [(stream, stream.state()) for stream in self._idle]
        return self._idle_states

    def _drew_unseeded(self, before: Sequence[tuple[Stream, Any]], seeded: list[Stream]) -> bool:
        """Whether samples drew from a generator that was not seeded for them. All that they drew from become active.

        `before` has the states of those that may have moved, or None for one that was just seeded.
        """
        if not self._only_rng and self._torch_is_new():
            self._find()
            _, default = self._found[id(loaded_torch().default_generator)]
            before = [*before, (default, torch_unused())]
            if self._to_put_back:
                self._to_put_back.append(before[-1])
        moved = []
        for stream, state in before:
            if stream.drawn() if state is None else stream.state() != state:
                moved.append((stream, state))
        if not moved and not self._rng.streams:  # nearly always
            return False
        for stream, state in moved:
            self._idle_states = None
            if stream in self._idle:
                self._idle.remove(stream)
                self._active.append(stream)
            if self._restore and stream not in seeded:
                stream.restore(state)
        drawn_from = (*(stream for stream, _ in moved), *self._rng.streams)
        return any(stream not in seeded for stream in drawn_from)

    def _borrowed(self, streams: list[Stream]) -> AbstractContextManager[None]:
        """In the trainer's process, puts the states of these streams back at the end."""
        return self._put_back(streams) if self._restore and streams else _NOTHING

    @contextmanager
    def _put_back(self, streams: list[Stream]) -> Iterator[None]:
        self._to_put_back = [(stream, stream.state()) for stream in streams]
        try:
            yield
        finally:
            for stream, state in self._to_put_back:
                stream.restore(state)
            self._to_put_back = []

    def _bystanders_watched(self) -> AbstractContextManager[None]:
        """Warns if a global generator moves during each of a worker thread's first samples.

        The training loop draws from it as well, but not during every one of them.
        """
        return self._warned() if self._bystanders and self._probes else _NOTHING

    @contextmanager
    def _warned(self) -> Iterator[None]:
        before = {whose: stream.state() for whose, stream in self._bystanders.items()}
        yield
        self._bystanders = {
            whose: stream for whose, stream in self._bystanders.items() if stream.state() != before[whose]
        }
        self._seen_to_move += 1
        if self._bystanders and self._seen_to_move == _PROOFS:
            moved, self._bystanders = list(self._bystanders), {}
            warnings.warn(
                f"The global random generator of {' and '.join(moved)} moved while a worker thread made its first "
                "samples. All threads share it, so what it gives repeats for no seed. The cause is most likely the "
                "dataset or its transforms: draw from get_worker_info().rng there, or use worker_method='process'. If "
                "only the training loop draws from it, or if it need not repeat, seeding='worker' keeps this warning "
                "away.",
                StokerWarning,
                stacklevel=2,
            )


def key_of_samples(seed: int) -> int:
    """From an epoch's seed: `step(key, position)` is what the generators of a sample are seeded with."""
    return mix(seed, _SAMPLE)
