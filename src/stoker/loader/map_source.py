"""How a unit's samples are fetched from a dataset with indices, and what is done where one fails."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker._engine.base import WHOLE, NothingLeft
from stoker._stories import text_of
from stoker.datasets.nesting import batched_by
from stoker.errors import BatchError, ErrorBudgetError, SamplerError, SkipSample, WorkerDiedError
from stoker.loader.faults import LEFT_OUT, Faults, candidates
from stoker.loader.generators import mix

if TYPE_CHECKING:
    from stoker.collate.early import Keep
    from stoker.loader.job import Work
    from stoker.loader.seeding import SampleSeeding
    from stoker.loader.threads import Made, Threads


class MapSource:
    """Fetches samples by their indices.

    Args:
        dataset: it has `__getitem__`, or `__getitems__`.
        batched: whether a unit's indices are a list.
        faults: what is done about samples that fail.
        mark: where what is being done is left.
        threads: make the samples, where there is more than one of them.
        counted: whether a batch has to have a sample for each index: our collation would take any number for a batch.
        in_thread: whether `sys.exit()` in a sample, which ends a worker process, is an error like any other.

    Attributes:
        failed_index: index of the sample that raised, after `samples` has; all of the unit's, if it was the batch.
    """

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        faults: Faults,
        mark: Any,
        threads: Threads | None = None,
        counted: bool = False,
        in_thread: bool = False,
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._faults = faults
        self._mark = mark
        self._threads = threads
        self._counted = counted
        self._leaving = SystemExit if in_thread else ()
        self._fetch = functools.partial(operator.getitem, dataset)
        self._fetch_all = dataset.__getitems__ if batched and batched_by(dataset) is not None else None
        self._skips = False  # whether the dataset has asked to leave a sample out
        self.failed_index: Any = None

    def samples(self, work: Work, seeds: SampleSeeding, keep: Keep | None = None) -> list[Any]:
        """The unit's samples in order, without those that were left out.

        Args:
            work: the unit.
            seeds: seeds the generators for each sample.
            keep: is given each sample as it comes, with its place, and gives what stands for it.

        Raises:
            NothingLeft: all were left out.
            Exception: what the dataset raised, where the policy says so; `failed_index` then tells where.
        """
        indices = list(work.indices) if self._batched else [work.indices]
        try:
            samples = self._all(work, seeds, indices, keep)
        except self._leaving as left:
            error = _left(left)
            if (place := seeds.failed_at) is not None:
                self._blame(place, indices, _positions(work, indices), error)
            raise error from left
        except Exception as error:
            place = seeds.failed_at
            if place is None:
                self.failed_index = work.indices
            elif place < len(indices):
                self._blame(place, indices, _positions(work, indices), error)
            raise
        if self._faults.has_met_any:
            samples = [sample for sample in samples if sample is not LEFT_OUT]
            if not samples:
                raise NothingLeft
        return samples

    def run(self, work: Work, seeds: SampleSeeding, first: int, last: int, keep: Keep | None = None) -> list[Any]:
        """The samples from `first` to before `last`, of which none may be left out; `keep` counts from the first.

        Raises:
            Exception: what the dataset raised.
        """
        indices = list(work.indices)
        positions = _positions(work, indices)
        try:
            fetch = self._kept(keep, first)
            return seeds.samples(work.seed, positions[first:last], fetch, indices[first:last], first)
        except Exception as error:
            if seeds.failed_at is not None and not isinstance(error, SkipSample):
                self._blame(first + seeds.failed_at, indices, positions, error)
            raise

    def _kept(self, keep: Keep | None, first: int = 0) -> Callable[[Any], Any]:
        """What fetches the sample at the place that is marked."""
        if keep is None:
            return self._fetch
        fetch, mark = self._fetch, self._mark
        return lambda index: keep(mark[0] - first, fetch(index))

    def _all(self, work: Work, seeds: SampleSeeding, indices: list[Any], keep: Keep | None) -> list[Any]:
        if self._fetch_all is not None:
            return self._at_once(work, seeds, indices)
        if self._threads is None:
            return self._in_turn(work, seeds, indices, keep=keep)
        if self._faults.knows_any:
            self._threads.rest()  # one at a time: so the mark says which it was
            return self._in_turn(work, seeds, indices)
        made = self._threads.made(work, _positions(work, indices), indices, self._fetch)
        try:
            return self._in_turn(work, seeds, indices, made)
        finally:
            made.forget()

    def _blame(self, place: int, indices: list[Any], positions: range, error: Exception) -> None:
        """The sample at this place raised, and so does its batch."""
        self.failed_index = indices[place]
        _blame_the_sampler(error, self.failed_index, self._dataset)
        if not self._faults.has_met(place):
            self._faults.decide(place, self.failed_index, positions[place], error)
        self.failed_index = self._faults.named(place, self.failed_index)

    def begin(self, work: Work) -> None:
        """This unit will be asked for, so its samples may be begun: there are threads for it."""
        if self._threads is not None:
            indices = list(work.indices) if self._batched else [work.indices]
            self._threads.begin(work, _positions(work, indices), indices, self._fetch)

    def _in_turn(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        made: Made | None = None,
        keep: Keep | None = None,
    ) -> list[Any]:
        """Sample by sample; threads may have made them."""
        if not (self._skips or self._faults.is_lenient or self._faults.knows_any):
            positions = _positions(work, indices)
            try:
                if made is None:
                    return seeds.samples(work.seed, positions, self._kept(keep), indices)
                return seeds.samples(work.seed, positions, made.sample, range(len(indices)))
            except SkipSample:
                self._skips = True  # from now on it is expected
        return self._carefully(work, seeds, indices, self._fetch, made, keep)

    def _at_once(self, work: Work, seeds: SampleSeeding, indices: list[Any]) -> list[Any]:
        """By `__getitems__`; sample by sample where that fails, and it matters which one it is.

        Raises:
            BatchError: it returned other than a sample for each index, where these are counted.
        """
        fetch_all: Callable[[list[Any]], Any] = self._fetch_all  # type: ignore[assignment]
        if not self._faults.knows_any:
            self._mark[0] = WHOLE
            try:
                whole: list[Any] = seeds.whole(work.seed, work.position, lambda: fetch_all(indices))
            except Exception as error:
                if not (self._faults.is_lenient or isinstance(error, SkipSample)):
                    raise
            else:
                if self._counted and _count(whole) != len(indices):
                    raise _miscounted(whole, len(indices), self._dataset)
                return whole
        return self._carefully(work, seeds, indices, lambda index: fetch_all([index])[0])

    def _carefully(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        made: Made | None = None,
        keep: Keep | None = None,
    ) -> list[Any]:
        positions = _positions(work, indices)
        guarded = functools.partial(self._guarded, work, seeds, indices, fetch, made)

        def kept(item: tuple[int, Any]) -> Any:
            sample = guarded(item)
            return sample if keep is None or sample is LEFT_OUT else keep(item[0], sample)

        return seeds.samples(work.seed, positions, kept, list(enumerate(indices)))

    def _guarded(
        self,
        work: Work,
        seeds: SampleSeeding,
        indices: list[Any],
        fetch: Callable[[Any], Any],
        made: Made | None,
        item: tuple[int, Any],
    ) -> Any:
        place, index = item
        try:
            self._faults.raise_known(place)
            return fetch(index) if made is None else made.sample(place)
        # No name for it outlives these lines: it would keep the frame that it was raised in, and what that one holds
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
        """What stands for a sample that failed, if anything is to."""
        decision = self._faults.decide(place, indices[place], work.position + place * work.stride, error)
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
        killers = self._faults.deaths_at(place) - 1
        for other in candidates(place, indices, work.spares, key):
            tried += 1
            if tried <= killers:
                continue
            seeds.afresh(work.seed, position)
            try:
                sample = fetch(other)
            except Exception:  # it fails too, and is counted where it is its turn
                continue
            self._faults.replaced(place, other)
            return sample
        self._faults.gave_up(place)
        raise ErrorBudgetError(
            f"sample {indices[place]!r} cannot be replaced ({type(error).__name__}: {text_of(error)}): "
            + (f"each of the {tried} that could take its place fails as well." if tried else "there is no other.")
            + " Is the whole dataset out of reach? Larger batches have more to choose from; a sampler that is walked "
            "gives only its batch."
        ) from error


def _left(left: BaseException) -> WorkerDiedError:
    """What `sys.exit()` in a sample is where it does not end a process."""
    error = WorkerDiedError(f"DataLoader worker thread exited unexpectedly: a sample called sys.exit({left})")
    error.__cause__ = left
    return error


def _positions(work: Work, indices: Sequence[Any]) -> range:
    return range(work.position, work.position + work.stride * len(indices), work.stride)


def _count(samples: Any) -> int | None:
    """How many there are; None of what is no sequence."""
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
    given = _count(samples)
    what = f"a {type(samples).__name__}, which is no list of samples," if given is None else f"{given} samples"
    return BatchError(
        f"{type(batched_by(dataset)).__name__}.__getitems__() returned {what} for {wanted} indices. Return a list with "
        "one sample for each index, in their order. To have a sample left out, raise stoker.SkipSample; to return "
        "anything else, such as a batch that is collated already, pass a collate_fn that takes it."
    )


def _blame_the_sampler(error: Exception, index: Any, dataset: Any) -> None:
    """Gives an error a cause to read where the index is none of the dataset's; its type stays the dataset's."""
    if error.__cause__ is not None or not isinstance(error, (LookupError, TypeError)):
        return
    with contextlib.suppress(Exception):  # a dataset without a length, or with any other mind of its own
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
