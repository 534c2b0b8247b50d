"""Fetches a unit's samples from a map-style dataset, and handles those that fail.

The file is long because all ways to fetch share the handling of a sample that fails.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker._core import mistakes
from stoker._core.exceptions import safe_str
from stoker._engine.activity import ACTIVITY, PLACE, Activity
from stoker._engine.activity import sample as at_sample
from stoker._engine.backend import NothingLeft
from stoker._engine.transport.rows import MisfitError
from stoker.datasets.nesting import batched_by
from stoker.errors import BatchError, ErrorBudgetError, SamplerError, SkipSample, WorkerDiedError
from stoker.loader._job.error_policy import LEFT_OUT, ErrorPolicy, candidates
from stoker.loader._job.work import Raised, Work, positions_of, sample_of
from stoker.loader._random.generators import mix

if TYPE_CHECKING:
    from stoker.collate._compiled.incremental import RowSink
    from stoker.loader._job.async_samples import AsyncSamples, Awaiting, InFlight
    from stoker.loader._job.sample_threads import Made, Threads
    from stoker.loader._random.sample_seeding import SampleSeeding


class MapFetcher:
    """Fetches samples by their indices.

    Args:
        dataset: with `__getitem__` or `__getitems__`.
        batched: whether a unit's indices are a list.
        faults: the policy for samples that fail.
        mark: memory for the current activity.
        threads: make the samples, if there are several threads, or several samples in flight.
        awaiting: awaits samples one by one, if they are awaited.
        counted: whether a batch must have one sample for each index: Stoker's collation accepts any number.
        in_thread: whether `sys.exit()` in a sample, which ends a worker process, is an error like any other.

    Attributes:
        failed_index: index of the sample that raised, after `samples` has; all of the unit's, if the batch raised.
        positions: of the unit's samples that were not left out, after `samples`.
    """

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        faults: ErrorPolicy,
        mark: Any,
        threads: Threads | AsyncSamples | None = None,
        awaiting: Awaiting | None = None,
        counted: bool = False,
        in_thread: bool = False,
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._error_policy = faults
        self._mark = mark
        self._threads = threads
        self._counted = counted
        self._leaving = SystemExit if in_thread else ()
        # As the dataset has them, and for one call alone: its result is awaited, if it has to be
        self._getitem: Callable[[Any], Any] = functools.partial(operator.getitem, dataset)
        self._getitems = dataset.__getitems__ if batched and batched_by(dataset) is not None else None
        alone = awaiting.alone if awaiting is not None else lambda fetch: fetch
        self._fetch = alone(self._getitem)
        self._fetch_all = None if self._getitems is None else alone(self._getitems)
        self._at_hand: deque[Any] = deque()  # the first samples of the next unit; the last may be an error
        self._whole: tuple[Any, ...] = ()  # the samples of the next unit, fetched at once, or their error
        self._skips = False  # whether the dataset has asked to leave a sample out
        self.failed_index: Any = None
        self.positions: Sequence[int] = ()

    def samples(self, work: Work, seeds: SampleSeeding, keep: RowSink | None = None) -> list[Any]:
        """Returns the unit's samples in order, without those that were left out.

        Args:
            work: the unit.
            seeds: seeds the generators for each sample.
            keep: gets each sample as it is made, with its place, and returns its substitute.

        Raises:
            NothingLeft: all were left out.
            Exception: raised by the dataset, if the policy is to raise; `failed_index` is then set.
        """
        indices = list(work.indices) if self._batched else [work.indices]
        try:
            samples = self._all(work, seeds, indices, keep)
        except self._leaving as left:
            error = _left(left)
            if (place := seeds.failed_at) is not None:
                self._blame(place, indices, positions_of(work, indices), error)
            raise error from left
        except Exception as error:
            place = seeds.failed_at
            if place is None:
                self.failed_index = work.indices
            elif place < len(indices):
                self._blame(place, indices, positions_of(work, indices), error)
            raise
        self.positions = positions_of(work, indices)
        if self._error_policy.has_met_any:
            kept = [place for place, sample in enumerate(samples) if sample is not LEFT_OUT]
            if not kept:
                raise NothingLeft
            samples, self.positions = [samples[place] for place in kept], [self.positions[place] for place in kept]
        return samples

    @property
    def fetch(self) -> Callable[[Any], Any] | None:
        """Returns the fetch function of a sample; None if units are fetched otherwise or samples may be left out."""
        return self._fetch if self._fetch_all is None and self._is_plain else None

    @property
    def fetch_all(self) -> Callable[[Any], Any] | None:
        """Returns the fetch function of a batch, under the same conditions."""
        return self._fetch_all if self._is_plain else None

    @property
    def _is_plain(self) -> bool:
        return self._threads is None and not self._skips and self._is_strict

    @property
    def indexed(self) -> Any:
        """Returns the dataset, if `fetch` is no more than its index: Python calls its `__getitem__` more cheaply by
        the index. Else None.
        """
        return self._dataset if self._fetch is self._getitem else None

    @property
    def _is_strict(self) -> bool:
        """Returns whether the first error of a unit is raised."""
        return not (self._error_policy.is_lenient or self._error_policy.knows_any)

    @property
    def is_ahead(self) -> bool:
        """Returns whether samples of the next unit are fetched already."""
        return bool(self._at_hand or self._whole)

    def has_fetched(self, samples: list[Any], error: BaseException | None = None) -> None:
        """Takes the first samples of the next unit, already fetched, and the error of the one behind them."""
        self._at_hand = deque(samples if error is None else [*samples, Raised(error)])

    def has_fetched_all(self, samples: Any) -> None:
        """Takes the samples of the next unit, as `fetch_all` has given them, or its error as `Raised`."""
        self._whole = (samples,)

    def run(
        self, work: Work, seeds: SampleSeeding, first: int, last: int, out: list[Any], keep: RowSink | None = None
    ) -> None:
        """Appends the samples from `first` to before `last` to `out`, `LEFT_OUT` for one that asks for it.

        Args:
            work: the unit.
            seeds: seeds the generators for each sample.
            first: place of the first sample in the unit.
            last: the place behind the last.
            out: keeps the samples made before one that raised.
            keep: counts places from `first`; raises if there is no memory for the rows: `out` then ends with the
                sample that it was called for.

        Raises:
            Exception: raised by the dataset.
            MisfitError: raised by `keep`.
        """
        indices = list(work.indices)
        positions = positions_of(work, indices)
        done: list[Any] = []
        refused: list[Any] = []
        fetch = self._kept(keep, first)
        if keep is not None:
            fetch = functools.partial(self._kept_or_refused, keep, first, refused)
        skipped = functools.partial(self._skipped, work, seeds, indices, None)
        try:
            seeds.samples(
                *(work.seed, positions[first:last], fetch, indices[first:last], first),
                in_part=True,
                skipped=skipped,
                done=done,
            )
        except MisfitError:
            done += refused
            raise
        except Exception as error:
            if seeds.failed_at is not None:
                self._blame(first + seeds.failed_at, indices, positions, error)
            raise
        finally:
            out += done
            done.clear()  # a kept exception must not keep them

    def joined(self, work: Work, seeds: SampleSeeding, by_place: Mapping[int, Any], keep: RowSink | None) -> list[Any]:
        """Returns the unit's samples, without those that were left out: those in `by_place` are fetched already, the
        rest is fetched now. `keep` is as in `samples`.
        """
        indices, mark = list(work.indices), self._mark
        positions = positions_of(work, indices)

        def fetch(index: Any) -> Any:
            place = mark[PLACE]
            sample = by_place[place] if place in by_place else self._fetch(index)
            return sample if keep is None or sample is LEFT_OUT else keep(place, sample)

        skipped = functools.partial(self._skipped, work, seeds, indices, keep)
        try:
            samples = seeds.samples(work.seed, positions, fetch, indices, in_part=True, skipped=skipped)
        except Exception as error:
            if seeds.failed_at is not None:
                self._blame(seeds.failed_at, indices, positions, error)
            raise
        self.positions = positions
        samples = [sample for sample in samples if sample is not LEFT_OUT]
        if not samples:
            raise NothingLeft
        return samples

    def _kept_or_refused(self, keep: RowSink, first: int, refused: list[Any], index: Any) -> Any:
        sample = self._fetch(index)
        try:
            return keep(self._mark[PLACE] - first, sample)
        except Exception as error:
            refused[:] = [sample]
            raise MisfitError("no memory for the rows") from error

    def _kept(self, keep: RowSink | None, first: int = 0) -> Callable[[Any], Any]:
        """Returns the function that fetches the sample at the marked place."""
        fetch: Callable[[Any], Any] = self._fetch
        mark = self._mark
        if self._at_hand:
            fetch, self._at_hand = _after(self._at_hand, fetch), deque()
        if keep is None:
            return fetch
        return lambda index: keep(mark[PLACE] - first, fetch(index))

    def _all(self, work: Work, seeds: SampleSeeding, indices: list[Any], keep: RowSink | None) -> list[Any]:
        if self._threads is not None and self._error_policy.knows_any:
            self._threads.rest()  # one at a time: so the mark says which it was
        if self._fetch_all is not None:
            return self._at_once(work, seeds, indices)
        if self._threads is None or self._error_policy.knows_any:
            return self._in_turn(work, seeds, indices, keep=keep)
        samples = self._threads.made(*self._all_at_once(work))
        try:
            return self._in_turn(work, seeds, indices, samples)
        finally:
            samples.forget()

    def _blame(self, place: int, indices: list[Any], positions: range, error: Exception) -> None:
        """Records that the sample at this place raised, and fails its batch."""
        self.failed_index = indices[place]
        _blame_the_sampler(error, self.failed_index, self._dataset)
        if not self._error_policy.has_met(place):
            self._error_policy.decide(place, self.failed_index, positions[place], error)
        self.failed_index = self._error_policy.named(place, self.failed_index)

    def begin(self, work: Work) -> None:
        """Begins the samples of a coming unit beside those of this one."""
        if self._threads is not None:
            self._threads.begin(*self._all_at_once(work))

    def _all_at_once(self, work: Work) -> tuple[Any, ...]:
        """Returns the arguments with which `threads` begins or makes a unit."""
        indices = list(work.indices) if self._batched else [work.indices]
        if self._getitems is None:
            return work, positions_of(work, indices), indices, self._getitem, self._is_strict, 0
        batch = getattr(work.indices, "given", indices)
        return work, range(work.position, work.position + 1), [batch], self._getitems, True, len(indices)

    def _in_turn(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        fetched: Made | InFlight | None = None,
        keep: RowSink | None = None,
    ) -> list[Any]:
        """Returns the samples fetched one by one, or made by threads."""
        if not self._skips and self._is_strict:
            positions = positions_of(work, indices)
            skipped = functools.partial(self._skipped, work, seeds, indices, keep)
            if fetched is None:
                return seeds.samples(work.seed, positions, self._kept(keep), indices, skipped=skipped)
            return seeds.samples(work.seed, positions, fetched.sample, range(len(indices)), skipped=skipped)
        return self._carefully(work, seeds, indices, self._fetch, fetched, keep)

    def _skipped(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        keep: RowSink | None,
        place: int,
        wish: SkipSample,
    ) -> Any:
        """Returns the substitute of the first sample that asks to be left out. From now on this is expected."""
        self._skips = True
        sample = self._instead(work, seeds, place, indices, self._fetch, wish)
        return sample if keep is None or sample is LEFT_OUT else keep(place, sample)

    def _at_once(self, work: Work, seeds: SampleSeeding, indices: list[Any]) -> list[Any]:
        """Returns samples from `__getitems__`; one by one if that fails and the policy needs the failing sample.

        Raises:
            BatchError: it did not return one sample for each index, and the number is checked.
        """
        fetch_all: Callable[[Any], Any] = self._fetch_all  # type: ignore[assignment]
        batch = getattr(work.indices, "given", [*indices])  # the dataset may change the list
        at_hand, self._whole = self._whole, ()
        if not self._error_policy.knows_any:
            self._mark[ACTIVITY] = Activity.WHOLE
            try:
                if self._threads is None:
                    whole: list[Any] = seeds.whole(
                        work.seed, work.position, lambda: sample_of(*at_hand) if at_hand else fetch_all(batch)
                    )
                else:
                    whole = self._threads.made(*self._all_at_once(work)).sample(0)
            except Exception as error:
                if not (self._error_policy.is_lenient or isinstance(error, SkipSample)):
                    raise
            else:
                if self._counted and not isinstance(batch, Mapping) and _count(whole) != len(indices):
                    raise _miscounted(whole, len(indices), self._dataset)
                return whole
        return self._carefully(work, seeds, indices, lambda index: fetch_all([index])[0])

    def _carefully(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        fetched: Made | InFlight | None = None,
        keep: RowSink | None = None,
    ) -> list[Any]:
        positions = positions_of(work, indices)
        guarded = functools.partial(self._guarded, work, seeds, indices, fetch, fetched)

        def kept(item: tuple[int, Any]) -> Any:
            sample = guarded(item)
            return sample if keep is None or sample is LEFT_OUT else keep(item[0], sample)

        return seeds.samples(work.seed, positions, kept, list(enumerate(indices)), in_dataset=indices)

    def _guarded(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        fetched: Made | InFlight | None,
        item: tuple[int, Any],
    ) -> Any:
        place, index = item
        try:
            self._error_policy.raise_known(at_sample(place))
            return fetch(index) if fetched is None else fetched.sample(place)
        # Delete the error's name here: it would keep the frame that raised it, and that frame's objects
        except self._leaving as left:
            return self._instead(work, seeds, place, indices, fetch, _left(left))
        except Exception as error:
            return self._instead(work, seeds, place, indices, fetch, error)

    def _instead(
        self,
        work: Work,
        seeds: SampleSeeding,
        place: int,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        error: Exception,
    ) -> Any:
        """Returns the replacement of a sample that failed, if the policy allows one."""
        decision = self._error_policy.decide(place, indices[place], work.position + place * work.stride, error)
        if decision == "raise":
            raise error
        if decision == "skip":
            return LEFT_OUT
        return self._replacement(work, seeds, place, indices, fetch, error)

    def _replacement(
        self,
        work: Work,
        seeds: SampleSeeding,
        place: int,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        error: Exception,
    ) -> Any:
        position = work.position + place * work.stride
        key = mix(work.seed, position)
        tried = 0
        # Of those that were tried here before, all but the last have killed as well
        killers = self._error_policy.deaths_at(place) - 1
        for other in candidates(place, indices, work.spares, key):
            tried += 1
            if tried <= killers:
                continue
            seeds.afresh(work.seed, position)
            try:
                sample = fetch(other)
            except Exception:  # it fails too, and is counted in its turn
                continue
            self._error_policy.replaced(place, other)
            return sample
        self._error_policy.gave_up(place)
        raise ErrorBudgetError(
            f"sample {indices[place]!r} cannot be replaced ({type(error).__name__}: {safe_str(error)}): "
            + (f"each of the {tried} samples that could replace it fails as well." if tried else "there is no other.")
            + " Is the whole dataset out of reach? A larger batch offers more replacements; a sampler that is iterated "
            "over offers only those of its batch."
        ) from error


def _after(at_hand: deque[Any], fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that gives these samples first, and raises the error behind them."""

    def next_one(index: Any) -> Any:
        return sample_of(at_hand.popleft()) if at_hand else fetch(index)

    return next_one


def _left(left: BaseException) -> WorkerDiedError:
    """Returns the error for `sys.exit()` in a sample that does not end a process."""
    error = WorkerDiedError(f"DataLoader worker thread exited unexpectedly: a sample called sys.exit({left})")
    error.__cause__ = left
    return error


def _count(samples: Any) -> int | None:
    """Returns the number of samples; None for an object that is not a sequence."""
    if type(samples) is list:
        return len(samples)
    try:
        if isinstance(samples, dict):
            return None
        if isinstance(samples, Mapping):  # a table of columns may have rows as well, as those of tensordict do
            samples[0]
        return len(samples) if hasattr(samples, "__getitem__") else None
    except (TypeError, LookupError):  # an array without dimensions, a mapping without rows
        return None


def _miscounted(samples: Any, wanted: int, dataset: Any) -> BatchError:
    number = _count(samples)
    what = f"a {type(samples).__name__}, which is no list of samples," if number is None else f"{number} samples"
    return BatchError(
        f"{type(batched_by(dataset)).__name__}.__getitems__() returned {what} for {wanted} indices. Return a list with "
        "one sample for each index, in their order. To have a sample left out, raise stoker.SkipSample; to return "
        "anything else, such as a batch that is collated already, pass a collate_fn that takes it."
    )


def _blame_the_sampler(error: Exception, index: Any, dataset: Any) -> None:
    """Adds a cause to an error whose index is not in the dataset; the type of the error stays."""
    if error.__cause__ is not None or not isinstance(error, (LookupError, TypeError)):
        return
    with contextlib.suppress(Exception):  # a dataset without a length, or with any other mind of its own
        if (why := mistakes.of_index(index, dataset)) is not None:
            error.__cause__ = SamplerError(why)
            return
        length = len(dataset)
        if not hasattr(index, "__index__"):
            what = f"{index!r} ({type(index).__name__}), which is no integer"
        elif not -length <= index < length:
            what = f"index {index}, but the dataset has {length} samples"
        else:
            return
        error.__cause__ = SamplerError(
            f"the sampler yielded {what}. Was it made for another dataset, or has the dataset changed since?"
        )
