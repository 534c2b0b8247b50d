"""Runs samples under generators seeded from (epoch's seed, position), so that a sample's numbers depend on nothing
else.

Seeding all generators before each sample costs more than a cheap sample does, so a generator is seeded only once
samples are known to draw from it. Until then it is *idle*: its state is compared at the end of each batch. If it has
changed, it becomes *active*, seeded before each sample, and the batch is made again. For the first samples of a worker,
all generators are seeded before each, and those that change become active, so that nothing is made twice. In each case
a sample draws only from generators seeded for its own position, so the results are the same.

A stream cannot give a sample twice. There a global generator is *waiting*: it is seeded for position 0 until a sample
draws from it, and for each sample after that one. The position of that sample is part of the stream's state, so a
sample's numbers follow from its position here too.

The file is long because all three ways share the record of the generators that were found and drawn from.

Not detected: code that draws and then restores the state (`torch.random.fork_rng`). `seeding="sample"` covers it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from stoker._engine.activity import ACTIVITY, NEW_MARK, PLACE, Activity
from stoker._random.find_generators import find_generators
from stoker._random.generators import (
    LegacyState,
    RandomState,
    global_generators,
    global_streams,
    loaded_torch,
    mix,
    step,
    stream_of,
    torch_unused,
)
from stoker._random.sample_rng import SampleRNG
from stoker.errors import StokerWarning

Seeding = Literal["auto", "sample", "worker"]

_PROBES = 8  # samples; 25 us each, before the first batch
_PROOFS = 8  # consecutive samples
_SAMPLE, _WHOLE, _COLLATE = range(3)

_NOTHING = nullcontext()
_key = lru_cache(16)(mix)  # of an epoch: needed for each batch

T = TypeVar("T")


class SampleSeeding:
    """Runs the samples of batches under generators that are seeded for each sample.

    One object for each worker, kept for the worker's life; not thread safe. A sample's numbers depend on the seed and
    its position only, not on the split into batches or on the worker.

    The generators are Python's, NumPy's and torch's global ones (torch's if torch is imported), those that the dataset
    holds, and those of `rng`. A generator of the dataset is keyed by its state when it was found: its copies in other
    workers agree, and generators with other initial seeds differ. The search is repeated when the epoch's seed changes,
    because `set_epoch` may have made new generators.

    Cost (`benchmarks/order_cost.py`), in a batch of 64: some 6 us for the batch if nothing is drawn (8 with `restore`).
    Seeding for a sample costs 5 us for Python's generator, 3 each for NumPy's legacy one and for torch's, 5 for those
    of `rng`, and is paid only for generators in use. `whole` and `collate` always seed all.

    Args:
        mode: `"auto"`; `"sample"` seeds every generator before each sample, used or not; `"worker"` seeds only those of
            `rng`.
        dataset: searched for generators; may be a tuple of several objects.
        threads: whether other threads make samples at the same time, so that only `rng` is seeded. A warning is given
            if a global generator changes while the first samples are made.
        restore: whether the states of all generators are restored after each call, as the trainer's process needs.
        rng: the result of `sample_rng()` within the dataset.
        mark: memory in which `samples` leaves the place of the current sample (`stoker._engine.activity`).
        held: the generators that the dataset holds, if the search ran before the worker was forked. The worker has a
            copy of objects that it would search itself.

    Attributes:
        failed_at: place in its batch of the sample that raised, after `samples()` has raised.
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
        self._mark: Any = [*NEW_MARK] if mark is None else mark
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
        self._found: dict[int, tuple[Any, RandomState]] = {}  # keeps the generators alive, so that no id is reused
        self._globals: dict[str, RandomState] = {}  # by library
        self._active: list[RandomState] = []
        self._idle: list[RandomState] = []
        self._idle_states: list[tuple[RandomState, Any]] | None = None
        self._to_put_back: list[tuple[RandomState, Any]] = []
        self._drawn: dict[str, int] = {}  # of the current stream
        self._waiting_for: int | None = None  # key for which the waiting generators are seeded at position 0
        self._waiting_until = math.inf  # the last position for which they wait
        self._waiting: list[tuple[str, RandomState]] = []
        self._at = 0
        self._others: list[RandomState] = []

    def idle(self) -> list[RandomState] | None:
        """Returns the generators to watch when samples need no seeds; None while samples are seeded, or may be."""
        if self._probes or self._active or self._rng.streams or self._bystanders or self._torch_is_new():
            return None
        return self._idle

    def samples(
        self,
        seed: int,
        positions: Sequence[int] | range,
        fetch: Callable[[Any], T],
        indices: Sequence[Any],
        first: int = 0,
    ) -> list[T]:
        """Returns the samples `fetch(index)`, in order, each under generators seeded for its position.

        The mark of the first sample is `first`, its place in a unit whose other samples are made elsewhere.

        Samples are fetched twice in one case: after the worker's first samples, those of the batch in which a generator
        is drawn from for the first time.

        Raises:
            Exception: raised by `fetch`, unchanged; `failed_at` is then the place of the index.
        """
        key = self._begin(seed, _SAMPLE)
        many = len(indices)
        alone = min(many, self._probes)
        done: list[T] = []
        self._mark[PLACE], self._mark[ACTIVITY] = first, Activity.SAMPLE
        try:
            if alone:
                with self._borrowed(self._all()):
                    for position, index in zip(positions[:alone], indices[:alone], strict=True):
                        self._mark[PLACE] = first + len(done)
                        with self._bystanders_watched():
                            done.append(self._alone(key, position, partial(fetch, index)))
            if alone < many:
                self._together(key, positions[alone:], fetch, indices[alone:], done, first)
        except BaseException:
            self.failed_at = len(done)
            done.clear()  # a kept exception must not keep the batch
            raise
        return done

    def one(self, seed: int, position: int, call: Callable[[], T], drawn: dict[str, int]) -> T:
        """Returns `call()` for the next sample of a stream, never called twice. For use within `undisturbed`.

        Args:
            seed: of the epoch.
            position: of the sample.
            call: returns the sample.
            drawn: the position of the first draw from each global generator (see `GLOBALS`); updated. Up to that
                position the generator is seeded for position 0, and after it for each sample.
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
            self._waiting_for = None  # an error callback may draw as well
            raise
        finally:
            self._note_what_was_drawn_from(position)

    def _note_what_was_drawn_from(self, position: int) -> None:
        for whose, stream in self._waiting:
            if stream.drawn():
                self._drawn[whose] = position
                self._waiting_for = None

    def next_one(self, seed: int, position: int) -> None:
        """Ends the current sample within a call of `one`, and begins another, as two calls would."""
        self._note_what_was_drawn_from(position)
        self.again(seed, position)

    @property
    def position(self) -> int:
        """Returns the position of the current sample, within a call of `one`."""
        return self._at

    @property
    def draws(self) -> bool:
        """Returns whether samples of the stream of the latest `one` have drawn random numbers, or may have."""
        return bool(self._drawn or self._rng.streams)

    def are_at(self, seed: int, position: int) -> bool:
        """Returns whether the current call of `one` is for that sample."""
        return position == self._at and self._rng.key == _key(seed, _SAMPLE)

    def again(self, seed: int, position: int) -> None:
        """Seeds the generators for another sample, for the rest of a call of `one`."""
        key, self._at = _key(seed, _SAMPLE), position
        self._wait(key, position)
        self._seed_others(key, position)

    def afresh(self, seed: int, position: int) -> None:
        """Seeds the generators again within `samples`, for the replacement of a sample that failed: it draws the same
        numbers.
        """
        sample_key = step(mix(seed, _SAMPLE), position)
        for stream in (*self._rng.beside, *self._rng.streams):
            stream.seed(sample_key)

    def whole(self, seed: int, position: int, call: Callable[[], T]) -> T:
        """Returns `call()` under generators seeded once for a whole batch (`__getitems__`), never called twice."""
        return self._once(_WHOLE, seed, position, call)

    def collate(self, seed: int, position: int, call: Callable[[], T]) -> T:
        """Returns `call()` under generators seeded once for the user's collator, with numbers of its own, never called
        twice.
        """
        return self._once(_COLLATE, seed, position, call)

    @contextmanager
    def undisturbed(self, seed: int) -> Iterator[None]:
        """Allows calls of `one` within the block, and restores states once, at its end."""
        self._begin(seed, _SAMPLE)
        restore = self._restore
        with self._borrowed(self._all()):
            self._restore = False
            if restore or any(stream.drawn() for _, stream in self._waiting):  # drawn between two calls
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
        """Finds the present generators; those found before keep their streams."""
        self._knows_torch = loaded_torch() is not None
        before, self._found = self._found, {}
        self._waiting_for = None
        held, self._held = self._held, None
        for generator in (
            *global_generators().values(),
            *(find_generators(self._dataset) if held is None else held),
        ):
            name = id(generator)
            stream = before[name][1] if name in before else stream_of(generator)
            if isinstance(stream, LegacyState) and not stream.is_of(generator):
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

    def _all(self) -> list[RandomState]:
        return [*self._active, *self._idle]

    def _seed_all(self, key: int, position: int) -> None:
        self._rng.key, self._rng.find_position = key, lambda: position
        self._idle_states = self._waiting_for = None
        self._rng.beside = self._all()
        self._rng.again()

    def _alone(self, key: int, position: int, call: Callable[[], T]) -> T:
        """Returns a sample with every generator seeded. In the worker's first samples, generators that change become
        active.
        """
        seeded = self._all()
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
        return self._alone(key, position, call)  # once more: this sample has imported torch and drawn from it

    def _together(
        self,
        key: int,
        positions: Sequence[int],
        fetch: Callable[[Any], T],
        indices: Sequence[Any],
        done: list[T],
        first: int,
    ) -> None:
        """Appends samples to `done`, with the active generators seeded for each, and watches the idle ones."""
        kept, mark = len(done), self._mark
        start = first + kept
        self._rng.key, self._rng.find_position = key, lambda: positions[mark[PLACE] - start]
        while True:
            del done[kept:]
            before = self._states_of_idle()
            self._rng.beside = [*self._active]
            seeded = [*self._active, *self._rng.streams]
            try:
                with self._borrowed(self._active):
                    for mark[PLACE], index in enumerate(indices, start):
                        if seeded:
                            sample_key = step(key, positions[mark[PLACE] - start])
                            for stream in seeded:
                                stream.seed(sample_key)
                        done.append(fetch(index))
            except Exception:
                if not self._drew_unseeded(before, seeded):
                    raise
            else:
                if not self._drew_unseeded(before, seeded):
                    return

    def _states_of_idle(self) -> list[tuple[RandomState, Any]]:
        if self._restore:  # the training loop may have drawn since
            return [(stream, stream.state()) for stream in self._idle]
        if self._idle_states is None:
            self._idle_states = [(stream, stream.state()) for stream in self._idle]
        return self._idle_states

    def _drew_unseeded(self, before: Sequence[tuple[RandomState, Any]], seeded: list[RandomState]) -> bool:
        """Returns whether samples drew from a generator that was not seeded for them. All generators drawn from become
        active.

        `before` has the earlier states of those that may have changed, or None for one that was just seeded.
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

    def _borrowed(self, streams: list[RandomState]) -> AbstractContextManager[None]:
        """Restores the states of these streams at the end, in the trainer's process."""
        return self._put_back(streams) if self._restore and streams else _NOTHING

    @contextmanager
    def _put_back(self, streams: list[RandomState]) -> Iterator[None]:
        self._to_put_back = [(stream, stream.state()) for stream in streams]
        try:
            yield
        finally:
            for stream, state in self._to_put_back:
                stream.restore(state)
            self._to_put_back = []

    def _bystanders_watched(self) -> AbstractContextManager[None]:
        """Warns if a global generator changes during each of a worker thread's first samples.

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
                "samples. All threads share it, so its numbers do not repeat for any seed. The cause is most likely "
                "the dataset or its transforms: draw from stoker.sample_rng() there, or use worker_method='process'. "
                "If only the training loop draws from it, or if they need not repeat, seeding='worker' turns this "
                "warning off.",
                StokerWarning,
                stacklevel=2,
            )


def key_of_samples(seed: int) -> int:
    """Returns the key of an epoch's samples: a sample's generators are seeded with `step(key, position)`."""
    return mix(seed, _SAMPLE)
