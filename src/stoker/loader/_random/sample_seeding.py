"""Runs samples under generators seeded from (epoch's seed, position), so that a sample's numbers depend on nothing
else.

No sample is asked for twice, so its generators are seeded before it, also if it is not known to draw from them. For
three generators that costs 14 us. All generators are therefore seeded for each of a worker's first 1,000 samples and
for all samples of a batch that workers share. They stay seeded as long as 1,000 samples take 0.3 ms each on average.
For cheaper samples only *active* generators are seeded from then on: those that were drawn from. The others are *idle*:
their states are compared at the end of each batch, and one that has changed becomes active. The samples of that batch
stay as they are. An idle generator has the state that was seeded for one of the worker's own samples, which did not
draw from it, so a late draw gives no number that other workers, or the training loop, have.

Another worker is told which generators are active (`learn`, `news`).

In a stream, a global generator is *waiting*: it is seeded for position 0 until a sample draws from it, and for each
sample after that one. The position of that sample is part of the stream's state, so a sample's numbers follow from its
position here too.

The file is long because all these ways share the record of the generators that were found and drawn from.

Not detected: code that draws and then restores the state (`torch.random.fork_rng`). `seeding="sample"` covers it.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal, TypeVar

from stoker._engine.activity import ACTIVITY, NEW_MARK, PLACE, Activity
from stoker.errors import SkipSample
from stoker.loader._random.find_generators import HeldBy, SampleParts, find_generators
from stoker.loader._random.generators import (
    LegacyState,
    RandomState,
    global_generators,
    loaded_torch,
    mix,
    step,
    stream_of,
    torch_unused,
)
from stoker.loader._random.sample_rng import SampleRNG
from stoker.loader._random.seeded_run import Lent, SeededRun
from stoker.loader._random.thread_generators import Bystanders

Seeding = Literal["auto", "sample", "worker"]

_PROBES = 1000
"""Samples of a worker for which all generators are seeded."""

_AGAIN = 8
"""The same at least, where an epoch begins: with it, datasets begin to augment."""

_MANY = 16
"""Generators that the dataset holds and that are seeded for each sample, beside those of the sample's part."""

_DEAR = 3e-4
"""Seconds: samples that take longer are always looked at, because the seeds of three generators take 5 % of it."""

_SAMPLE, _WHOLE, _COLLATE, _TRANSFORM = range(4)

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

    Cost (`benchmarks/order_cost.py`), in a batch of 64 cheap samples: some 6 us for the batch if nothing is drawn (14
    with `restore`). Seeding for a sample costs 5 us for Python's generator (1 in a stream, with the compiled part), 3
    each for NumPy's legacy one and for torch's, 5 for those of `rng`. `whole` and `collate` always seed all.

    Args:
        mode: `"auto"`; `"sample"` seeds every generator before each sample, used or not; `"worker"` seeds only those of
            `rng`.
        dataset: searched for generators; may be a tuple of several objects.
        threads: whether other threads make samples at the same time, so that only `rng` is seeded. A warning is given
            if a global generator changes while the first samples are made.
        restore: whether the states of all generators are restored after each call, as the trainer's process needs.
        rng: the result of `sample_rng()` within the dataset.
        mark: memory in which `samples` leaves the place of the current sample (`stoker._engine.activity`).
        generators: the generators that the dataset holds, if the search ran before the worker was forked. The worker
            has a copy of objects that it would search itself.
        looked_at: samples that were fetched in this process in earlier epochs.
        held_by: see `SampleParts`: of many generators, those of one part of the dataset are seeded for its samples.
        tell: reports a text to the user once.

    Attributes:
        failed_at: place in its batch of the sample that raised, after `samples()` has raised.
        known: names of generators that other workers have found to be drawn from.
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
        generators: list[Any] | None = None,
        looked_at: int = 0,
        held_by: HeldBy | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.failed_at: int | None = None
        self._mark: Any = [*NEW_MARK] if mark is None else mark
        self._dataset = dataset
        self._held = generators
        self._always = mode == "sample"
        self._only_rng = threads or mode == "worker"
        self._bystanders = Bystanders() if threads and mode != "worker" else None
        self._restore = restore
        self._rng = SampleRNG(0) if rng is None else rng
        self._rng.on_torch = weakly(self._torch_came)
        self._probes = 0 if self._always or self._only_rng else _PROBES - looked_at  # samples yet to be looked at
        self._counted, self._seconds = 0, 0.0  # of them
        self.known: Collection[str] = ()
        self._news: list[str] = []
        self._names: dict[RandomState, str] = {}
        self._held_by, self._tell = held_by, tell
        self._parts: SampleParts | None = None
        self._in_parts: list[list[int]] = []  # the `id` of each part's generators
        self._of_parts: list[list[RandomState]] = []  # by the number of the part
        self._rest: list[RandomState] = []  # too many: seeded once an epoch
        self._rest_is_due = False
        self._epoch: int | None = None
        self._knows_torch = False
        self._found: dict[int, tuple[Any, RandomState]] = {}  # keeps the generators alive, so that no id is reused
        self._globals: dict[str, RandomState] = {}  # by library
        self._touched: Collection[RandomState] = ()  # generators of the parts of the present samples
        self._streams = False  # whether calls of `one` are allowed now
        self._active: list[RandomState] = []
        self._idle: list[RandomState] = []
        self._idle_states: list[tuple[RandomState, Any]] | None = None
        self._to_put_back: list[tuple[RandomState, Any]] = []
        self._drawn: dict[str, int] = {}  # of the current stream
        self._waiting_for: int | None = None  # key for which the waiting generators are seeded at position 0
        self._first_states: tuple[int, dict[RandomState, Any]] | None = None  # of a key, as long as they wait
        self._waits: tuple[int, dict[str, int], int] | None = None  # key, draws and position of the latest `_wait`
        self._lent_for: tuple[int, dict[str, int], int] | None = None
        self._lent = Lent((), ())  # for these: in process
        self._waiting_until = math.inf  # the last position for which they wait
        self._waiting: list[tuple[str, RandomState]] = []
        self._at = 0
        self._others: list[RandomState] = []
        self._seeder: SeededRun | None = None  # seeds the others, and looks at those that wait
        self._run_for: list[Sequence[RandomState]] = []
        self._run: SeededRun | None = None  # for these generators: seeded, and watched
        self._running: SeededRun | None = None

    def plain(self) -> tuple[Lent, SeededRun | None] | None:
        """Returns the generators, to be lent to each batch, and what seeds those that samples draw from, None if there
        are none; None while samples need more.
        """
        if self._probes > 0 or self._rng.streams or self._bystanders or self._torch_is_new():
            return None
        if self._parts is not None or (self._idle and self._idle_states is None):
            return None
        run = self._run_of(self._active, []) if self._active else None
        if self._active and (run is None or self._rest):
            return None
        self._rng.beside = self._active
        self._lent_for, self._lent = None, Lent(self._idle_states or (), self._active)
        return self._lent, run

    @property
    def active(self) -> list[RandomState]:
        """Returns the generators that are seeded for each sample. The list grows."""
        return self._active

    def learn(self, names: Collection[str]) -> None:
        """Makes generators active that other workers have found to be drawn from: `news()` of these."""
        if names != self.known:
            self.known = names
            for stream in [stream for stream in self._idle if self._names[stream] in names]:
                self._activate(stream, is_news=False)

    def news(self) -> tuple[str, ...]:
        """Returns the names of generators that have become active since the last call."""
        news, self._news = self._news, []
        return tuple(news)

    def learn_moved(self, moved: Sequence[RandomState]) -> None:
        """Makes generators active that samples have drawn from elsewhere."""
        for stream in moved:
            self._activate(stream)

    def samples(
        self,
        seed: int,
        positions: Sequence[int] | range,
        fetch: Callable[[Any], T],
        indices: Sequence[Any],
        first: int = 0,
        *,
        in_part: bool = False,
        in_dataset: Sequence[Any] | None = None,
        skipped: Callable[[int, SkipSample], T] | None = None,
        done: list[T] | None = None,
    ) -> list[T]:
        """Returns the samples `fetch(index)`, in order, each under generators seeded for its position. No sample is
        fetched twice.

        Args:
            seed: of the epoch.
            positions: of the samples.
            fetch: returns a sample.
            indices: of the samples.
            first: mark of the first sample: its place in a unit whose other samples are made elsewhere.
            in_part: whether they are.
            in_dataset: the samples' indices, if `indices` has others.
            skipped: returns the substitute of the sample at a mark that raised `SkipSample`.
            done: receives the samples; keeps those made before one that raised.

        Raises:
            Exception: raised by `fetch`, unchanged; `failed_at` is then the place of the index.
        """
        key = self._begin(seed, _SAMPLE)
        kept, done = done, list[T]() if done is None else done
        many, mark, rng = len(indices), self._mark, self._rng
        mark[PLACE], mark[ACTIVITY] = first, Activity.SAMPLE
        own = indices if in_dataset is None else in_dataset
        of_parts = {} if self._parts is None else self._begin_parts(own)
        self._seed_rest(key, positions)
        rng.key, rng.find_position = key, lambda: positions[mark[PLACE] - first]

        def fetch_until(end: int, seeded: list[RandomState], looks: bool) -> None:
            rng.beside = seeded
            start = first + len(done)
            for mark[PLACE], index in enumerate(indices[len(done) : end], start):
                if of_parts:
                    rng.beside = [*seeded, *of_parts[mark[PLACE] - first]]
                if rng.beside or rng.streams:
                    sample_key = step(key, positions[mark[PLACE] - first])
                    for stream in (*rng.beside, *rng.streams):
                        stream.seed(sample_key)
                try:
                    done.append(fetch(index))
                except SkipSample as wish:
                    if skipped is None:
                        raise
                    done.append(skipped(mark[PLACE], wish))
                finally:
                    if looks:
                        self._look()

        try:
            with self._borrowed([*self._all(), *self._touched]):
                while len(done) < many:
                    probes = many if in_part and not self._only_rng else self._probes
                    if self._bystanders:
                        with self._bystanders.watched():
                            fetch_until(len(done) + 1, self._active, False)
                    elif probes > 0:
                        began, before = perf_counter(), len(done)
                        self._idle_states = None
                        try:
                            fetch_until(min(many, before + probes), self._all(), True)
                        finally:
                            self._count(len(done) - before, perf_counter() - began)
                    else:
                        with self._watched(step(key, positions[len(done)])):
                            fetch_until(many, self._active, False)
        except BaseException:
            self.failed_at = len(done)
            if kept is None:
                done.clear()  # a kept exception must not keep the batch
            raise
        return done

    def _begin_parts(self, indices: Sequence[Any]) -> dict[int, list[RandomState]]:
        """Returns the generators of the samples' parts, by the place of the sample."""
        assert self._parts is not None
        places = map(self._parts.of, indices)
        touched = {place: [] if part is None else self._of_parts[part] for place, part in enumerate(places)}
        self._touched = {stream for streams in touched.values() for stream in streams}
        return touched

    def _seed_rest(self, key: int, positions: Sequence[int]) -> None:
        """Seeds generators that are too many for each sample, once an epoch, and tells the user if they are in use."""
        if self._rest_is_due and len(positions):
            for stream in self._rest:
                stream.seed(step(key, positions[0]))
            self._rest_is_due = False
        elif self._rest and self._tell is not None and any(stream.drawn() for stream in self._rest):
            self._tell(_TOO_MANY.format(len(self._rest) + _MANY, _MANY))
            self._tell = None

    def _count(self, samples: int, seconds: float) -> None:
        """Counts samples that were looked at. If they were dear, as many more will be."""
        if self._probes > 0:
            self._counted, self._seconds = self._counted + samples, self._seconds + seconds
            self._probes -= samples
            if self._probes <= 0:
                self._probes = _PROBES if self._seconds >= _DEAR * self._counted else 0
                self._counted, self._seconds = 0, 0.0

    def _look(self) -> None:
        """Makes the generators active that the current sample has drawn from, for which all were seeded."""
        for stream in [stream for stream in self._idle if stream.drawn()]:
            self._activate(stream)
        self._take_torch()

    @contextmanager
    def _watched(self, sample_key: int) -> Iterator[None]:
        """Makes the idle generators active that samples draw from within the block. In the trainer's process, idle
        generators have states of their own there, seeded by `sample_key` at first.
        """
        if self._idle_states is None:
            if self._restore:
                for stream in self._idle:
                    stream.seed(sample_key)
            self._idle_states = [(stream, stream.state()) for stream in self._idle]
        elif self._restore:
            for stream, state in self._idle_states:
                stream.restore(state)
        try:
            yield
        finally:
            self.learn_moved([stream for stream, state in self._idle_states or () if stream.state() != state])
            self._take_torch()

    def _activate(self, stream: RandomState, is_news: bool = True) -> None:
        self._idle.remove(stream)
        self._active.append(stream)
        if self._idle_states is not None:
            self._idle_states = [pair for pair in self._idle_states if pair[0] is not stream]
        if is_news:
            self._news.append(self._names[stream])

    def _take_torch(self) -> None:
        """Takes up torch's generator, if a sample has made torch known in another way than by an import."""
        if not self._only_rng and self._torch_is_new():
            self._find()
            stream = self._globals["torch"]
            if self._to_put_back:
                self._to_put_back.append((stream, torch_unused()))
            if stream in self._idle and stream.state() != torch_unused():
                self._activate(stream)

    def _torch_came(self) -> None:
        """Seeds torch's generator for the current sample, which has just imported torch, as for all that follow."""
        if self._only_rng or not self._torch_is_new():
            return
        self._find()
        stream = self._globals["torch"]
        if self._restore or self._to_put_back:
            self._to_put_back.append((stream, torch_unused()))
        if self._streams and "torch" not in self._drawn:
            self._waiting.append(("torch", stream))
            stream.seed(step(self._rng.key, 0))
            return
        if stream in self._idle:
            self._activate(stream)
        if stream not in self._rng.beside:
            self._rng.beside.append(stream)
        stream.seed(step(self._rng.key, self._rng.find_position()))

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
            if self._bystanders:
                with self._bystanders.watched():
                    return call()
            return call()
        except BaseException:
            self._waiting_for = None  # an error callback may draw as well
            raise
        finally:
            for whose, stream in self._waiting:  # as `_note_what_was_drawn_from`, without a call for each sample
                if stream.drawn():
                    drawn[whose] = position
                    self._waiting_for = self._waits = None

    def several(
        self, seed: int, position: int, drawn: dict[str, int], iterator: Iterator[T], samples: list[T], most: int
    ) -> bool | None:
        """Appends samples of a stream as calls of `one` would return them, `next` of `iterator` being the call: at most
        `most`, and fewer if one needs more than seeds, as the first draw from a generator does.

        Returns:
            Whether the iterator has ended; None if nothing was done, because `one` has to be called.
        """
        if seed != self._epoch or not self._knows_torch:
            self._begin(seed, _SAMPLE)
        if self._rng.streams or self._bystanders or not self._knows_torch:
            return None
        key = _key(seed, _SAMPLE)
        if drawn is not self._drawn or key != self._waiting_for or position > self._waiting_until:
            self._drawn = drawn
            self._wait(key, position)
        if (run := self._seeder) is None:
            return None
        before, self._running = len(samples), run
        most = int(min(most, self._waiting_until - position + 1))
        ended = True
        try:
            ended = run.take(key, position, 1, iterator, samples, most)
        except BaseException:
            self._waiting_for = None  # an error callback may draw as well
            raise
        finally:
            self._running, self._at = None, position + len(samples) - before - (not ended)
            if run.has_moved:
                self._note_what_was_drawn_from(self._at)
        return ended

    def _run_of(self, seeded: list[RandomState], watched: list[RandomState]) -> SeededRun | None:
        if self._run_for != [seeded, watched]:
            self._run_for, self._run = [[*seeded], watched], SeededRun.of(seeded, watched)
        return self._run

    def _note_what_was_drawn_from(self, position: int) -> None:
        for whose, stream in self._waiting:
            if stream.drawn():
                self._drawn[whose] = position
                self._waiting_for = self._waits = None

    def next_one(self, seed: int, position: int) -> None:
        """Ends the current sample within a call of `one`, and begins another, as two calls would."""
        self._note_what_was_drawn_from(position)
        self.again(seed, position)

    @property
    def position(self) -> int:
        """Returns the position of the current sample, within a call of `one` or `several`."""
        return self._at if self._running is None else self._running.end()  # who asks may seed generators

    @property
    def draws(self) -> bool:
        """Returns whether samples of the stream of the latest `one` have drawn random numbers, or may have."""
        return bool(self._drawn or self._rng.streams)

    def are_at(self, seed: int, position: int) -> bool:
        """Returns whether the current call of `one` is for that sample."""
        return position == self.position and self._rng.key == _key(seed, _SAMPLE)

    def again(self, seed: int, position: int) -> None:
        """Seeds the generators for another sample, for the rest of a call of `one`."""
        if self._running is not None:
            self._running.end()
        key, self._at, self._running = _key(seed, _SAMPLE), position, None
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

    def transform(self, seed: int, position: int, call: Callable[[], T]) -> T:
        """Returns `call()` as `collate` does, for the user's transform of the batch."""
        return self._once(_TRANSFORM, seed, position, call)

    @contextmanager
    def undisturbed(self, seed: int) -> Iterator[None]:
        """Allows calls of `one` and `several` within the block, and restores states once, at its end."""
        restore = self.allow(seed)
        try:
            yield
        finally:
            self.refuse(restore)

    def allow(self, seed: int) -> bool:
        """Allows calls of `one` and `several` until `refuse`, which restores states and gets the result."""
        self._begin(seed, _SAMPLE)
        waits, first, restore = self._waits, self._first_states, self._restore
        if restore and waits is not None and first is not None and waits[0] == _key(seed, _SAMPLE):
            if waits is not self._lent_for:
                self._lent_for = waits
                self._lent = Lent([*first[1].items()], self._others)
            self._lent.lend()
            self._waiting_for = waits[0]
        elif restore:
            self._to_put_back = [(stream, stream.state()) for stream in self._all()]
            self._waiting_for = None
        elif any(stream.drawn() for _, stream in self._waiting):  # drawn between two calls
            self._waiting_for = None
        self._restore, self._streams = False, True
        return restore

    def refuse(self, restore: bool) -> None:
        """Ends what `allow` has begun."""
        if restore:
            self.give_back()
        self._restore, self._streams = restore, False

    def give_back(self) -> None:
        """Restores the states of the training loop, also those that an interrupt has left with samples."""
        self._lent.take_back()
        self.put_back()

    def _once(self, purpose: int, seed: int, position: int, call: Callable[[], T]) -> T:
        key = self._begin(seed, purpose)
        with self._bystanders.watched() if self._bystanders else _NOTHING, self._borrowed(self._all(purpose)):
            self._seed_all(key, position, purpose)
            return call()

    def _wait(self, key: int, position: int) -> None:
        waits, first = self._waits, self._first_states
        waits_on = waits is not None and waits[0] == key and waits[1] is self._drawn and waits[2] <= position
        if waits_on and first is not None and position <= self._waiting_until:
            for stream, state in first[1].items():
                stream.restore(state)
            self._waiting_for = key
            return
        if self._always:
            self._drawn.update(dict.fromkeys(self._globals, -1))
        self._waiting = [
            (whose, stream) for whose, stream in self._globals.items() if position <= self._drawn.get(whose, position)
        ]
        self._waiting_until = min((self._drawn.get(whose, math.inf) for whose, _ in self._waiting), default=math.inf)
        waiting = [stream for _, stream in self._waiting]
        self._others = [stream for stream in self._all() if stream not in waiting]
        self._seeder = self._run_of(self._others, waiting)
        me = weakref.ref(self)
        self._rng.key, self._rng.find_position = key, lambda: 0 if (seeding := me()) is None else seeding.position
        self._waiting_for, self._idle_states = key, None
        self._waits = key, self._drawn, position
        if self._first_states is not None and self._first_states[0] == key and [*self._first_states[1]] == waiting:
            for stream, state in self._first_states[1].items():
                stream.restore(state)
            return
        for stream in waiting:
            stream.seed(step(key, 0))
        self._first_states = (key, {stream: stream.state() for stream in waiting})

    def _seed_others(self, key: int, position: int) -> None:
        others: Sequence[RandomState] = self._others
        if others and self._seeder is not None:
            self._seeder.seed(key, position)
            others = ()
        if others or self._rng.streams:
            sample_key = step(key, position)
            for stream in (*others, *self._rng.streams):
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
        self._waiting_for = self._waits = None
        generators, self._held = self._held, None
        generators = find_generators(self._dataset) if generators is None else generators
        self._parts, self._in_parts, self._touched = None, [], ()
        alone = self._alone_in_parts(generators) if len(generators) > _MANY else set()
        for generator in (*global_generators().values(), *generators):
            name = id(generator)
            stream = before[name][1] if name in before else stream_of(generator)
            if isinstance(stream, LegacyState) and not stream.is_of(generator):
                stream = stream_of(generator)
            if stream is not None:
                self._found[name] = (generator, stream)
            elif self._tell is not None and type(generator).__module__.partition(".")[0] not in _LIBRARIES:
                self._tell(_REFUSES.format(type(generator).__name__))
        self._globals = {
            whose: self._found[id(generator)][1]
            for whose, generator in global_generators().items()
            if id(generator) in self._found
        }
        self._of_parts = [[self._found[name][1] for name in names if name in self._found] for names in self._in_parts]
        self._names = {
            stream: f"{type(generator).__name__} {stream.salt:016x}"
            for name, (generator, stream) in self._found.items()
            if name not in alone
        }
        self._rest = [] if self._held_by is None else [*self._names][_MANY + len(self._globals) :]
        self._rest_is_due = bool(self._rest)
        for stream in self._rest:
            del self._names[stream]
        self._names |= {stream: whose for whose, stream in self._globals.items()}
        drawn = {*self._active, *(stream for stream, name in self._names.items() if name in self.known)}
        # In place: the samples that are being fetched go on with the list
        self._active[:] = [stream for stream in self._names if self._always or stream in drawn]
        self._idle = [stream for stream in self._names if not (self._always or stream in drawn)]
        self._idle_states = None
        self._probes = 0 if self._always else max(self._probes, _AGAIN)

    def _alone_in_parts(self, all_generators: list[Any]) -> set[int]:
        """Returns the generators that one part of the dataset has for itself, by `id`; no sample of another part is to
        draw from them.
        """
        if self._held_by is None:
            return set()
        parts = SampleParts(self._dataset[0] if type(self._dataset) is tuple else self._dataset, self._held_by)
        if len(parts.parts) < 2:
            return set()
        known = set(map(id, all_generators)) - {id(generator) for generator in global_generators().values()}
        generators = [known & set(map(id, find_generators(part))) for part in parts.parts]
        count = Counter(name for names in generators for name in names)
        alone = {name for name, number in count.items() if number == 1}
        self._parts, self._in_parts = parts, [sorted(names & alone) for names in generators]
        return alone

    def _torch_is_new(self) -> bool:
        return not self._knows_torch and loaded_torch() is not None

    def _all(self, purpose: int = _SAMPLE) -> list[RandomState]:
        """Returns the generators that are seeded for a sample of any part, or for a whole batch."""
        of_parts = itertools.chain(*self._of_parts) if purpose == _WHOLE else ()
        return [*self._active, *self._idle, *of_parts]

    def _seed_all(self, key: int, position: int, purpose: int) -> None:
        self._rng.key, self._rng.find_position = key, lambda: position
        self._idle_states = self._waiting_for = self._waits = self._first_states = None
        self._rng.beside = self._all(purpose)
        self._rng.again()

    def _borrowed(self, streams: list[RandomState]) -> AbstractContextManager[None]:
        """Restores the states of these streams at the end, in the trainer's process."""
        return self._put_back(streams) if self._restore and streams else _NOTHING

    @contextmanager
    def _put_back(self, streams: list[RandomState]) -> Iterator[None]:
        self._to_put_back = [(stream, stream.state()) for stream in streams]
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Restores the states that generators had before samples used them, in the trainer's process."""
        for stream, state in self._to_put_back:
            stream.restore(state)
        self._to_put_back = []


_TOO_MANY = (
    "The dataset holds {} random generators that each sample may draw from. {} of them are seeded for each sample; to "
    "seed the others too would take longer than most samples, so they are seeded once an epoch in each worker, and "
    "their numbers depend on the number of workers. Let transforms share a generator, or draw from stoker.sample_rng()."
)


_LIBRARIES = ("random", "numpy", "torch", "secrets")

_REFUSES = (
    "The {} that the dataset holds cannot be read or seeded (its getstate(), setstate() or seed() raises), so it is "
    "left alone: its numbers do not repeat, and its copies in workers may give the same. Draw from stoker.sample_rng() "
    "instead."
)


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a method that does not keep its object: it then ends with its loader, without a collection of garbage."""
    weak = weakref.WeakMethod(method)

    def called(*values: object) -> None:
        if (method := weak()) is not None:
            method(*values)

    return called


def key_of_batches(seed: int) -> int:
    """Returns the same for what fetches whole batches."""
    return mix(seed, _WHOLE)


def key_of_samples(seed: int) -> int:
    """Returns the key of an epoch's samples: a sample's generators are seeded with `step(key, position)`."""
    return mix(seed, _SAMPLE)


def key_of_transform(seed: int) -> int:
    """Returns the same for transforms of batches."""
    return mix(seed, _TRANSFORM)
