"""What becomes of a sample that fails: the error policy, applied in the worker, where the sample is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stoker import errors
from stoker._engine.base import DESCRIBE, IDLE, POLICY, Known, of_the_gone
from stoker._stories import shortened, story_of, text_of
from stoker.datasets.described import describe
from stoker.loader.generators import mix
from stoker.loader.ledger import plain_index
from stoker.loader.sample_rng import SampleRNG

if TYPE_CHECKING:
    from stoker.loader.job import Work

Decision = Literal["raise", "skip", "replace"]
Kind = Literal["exception", "death", "stall", "skip"]


@dataclass(frozen=True)
class ErrorRecord:
    """A sample that failed, as an `on_error` callable gets it, in the worker.

    Attributes:
        kind: "exception"; "death" or "stall" of a worker that made it, several times.
        index: what the sampler gave; None in a stream.
        position: in the epoch, counted from 0; in a stream, of what this worker reads.
        epoch: number of the epoch.
        batch: number of the batch in the epoch; in a stream, always 0.
        worker: number of the worker.
        description: what `dataset.describe(index)` says, where there is such a method; never of a stream, which has no
            index. `Subset` and `ConcatDataset`, torch's as well, ask the dataset that has the sample.
        exception: what was raised, or stands for the death.
        traceback: as text; of a death, the last stack of the worker, where it could be had.
    """

    kind: Kind
    index: Any
    position: int
    epoch: int
    batch: int
    worker: int
    description: str | None
    exception: Exception
    traceback: str


OnError: TypeAlias = Decision | Callable[[ErrorRecord], Decision]

LEFT_OUT: Any = object()
"""Stands where a sample was left out."""

_OUTCOMES: dict[Decision, str] = {"raise": "raised", "skip": "skipped", "replace": "replaced"}


class Faults:
    """The error policy of one worker.

    What it decided for a sample of a unit it decides again: a batch may be made twice (`loader/seeding.py`).

    Args:
        policy: the loader's `on_error`.
        dataset: asked to describe a sample, if it can.
        worker: number of the worker.

    Attributes:
        mark: where the worker leaves what it is doing.
        rng: of the worker: what the user's own code draws while it is asked about a sample is that sample's.
        unit: in hand. It is set for each, and `begin` called for those that `is_touched` says or something is known of:
            a batch of which nothing is to be told should not pay for that.
        is_lenient: whether a sample that fails may be left out or replaced.
        knows_any: whether the unit is known to end its workers somewhere.
        has_met_any: whether a sample of the unit has failed.
        is_touched: one of the two, for the unit before.
    """

    def __init__(self, policy: OnError, dataset: Any, worker: int) -> None:
        self.is_lenient = policy != "raise"
        self.mark: Any = [IDLE]
        self.rng = SampleRNG(0)
        self.unit: Work
        self.knows_any = self.has_met_any = self.is_touched = False  # no properties: every batch looks at them
        self._policy = policy
        self._dataset = dataset
        self._worker = worker
        self._known: dict[int, list[dict[str, Any]]] = {}
        self._met: dict[int, dict[str, Any]] = {}
        self._decided: dict[int, Decision] = {}

    def begin(self, known: Known) -> None:
        """The next unit is known to do that."""
        self._known, self.knows_any = {}, bool(known)
        for mark, story in known:
            self._known.setdefault(mark, []).append(story)
        self._met, self._decided, self.has_met_any = {}, {}, False
        self.is_touched = self.knows_any

    @property
    def met(self) -> list[dict[str, Any]]:
        """The samples of the unit that failed, in order; plain values."""
        return [self._met[place] for place in sorted(self._met)]

    def has_met(self, place: int) -> bool:
        """Whether it is decided what becomes of this sample."""
        return place in self._met

    def named(self, place: int, index: Any) -> Any:
        """The index of a sample that failed, for a message: with what the dataset says of it."""
        description = self._met[place]["description"] if place in self._met else None
        return index if description is None else _Described(f"{index!r} ({description})")

    def raise_known(self, mark: int) -> None:
        """Raises, in a worker's stead, what this mark of the unit is known to do."""
        if mark in self._known:
            raise _as_exception(self._known[mark][-1])

    def deaths_at(self, place: int) -> int:
        """How often that was found guilty: the sample, then those that took its place."""
        return len(self._known.get(place, ()))

    def decide(self, place: int, index: Any, position: int, error: Exception) -> Decision:
        """What becomes of a sample; it is recorded.

        Raises:
            ErrorPolicyError: the user's callable raised, or returned nonsense.
        """
        wish = issubclass(type(error), errors.SkipSample)  # isinstance() would ask the object too
        known = self._known.get(place)
        text = known[-1]["message"] if known else text_of(error)
        kind: Kind = "skip" if wish else known[0]["kind"] if known else "exception"
        story = (known[-1]["stack"] if known else "") or story_of(error)
        unit, description = self.unit, self._description(index, position)
        record = ErrorRecord(kind, index, position, unit.epoch, unit.batch, self._worker, description, error, story)
        self.has_met_any = self.is_touched = True
        fault = self._met[place] = {
            "kind": kind,
            "outcome": "raised",  # until it is decided otherwise, which may fail
            "place": place,
            "position": position,
            "index": _plain(index),
            "description": record.description,
            "exception": _reason(error) if wish else shortened(f"{type(error).__name__}: {text}"),
            "traceback": shortened(story),
            "worker": self._worker,
            "replacement": None,
            "time": time.time(),
        }
        decision = self._decided.get(place)
        if decision is None:
            ours = issubclass(type(error), errors.ShardingError)  # a mistake in the use of the loader, not in the data
            decision = self._wish() if wish else "raise" if ours else self._asked(record)
            self._decided[place] = decision
        fault["outcome"] = _OUTCOMES[decision]
        return decision

    def replaced(self, place: int, index: Any) -> None:
        """Another sample was taken in its place."""
        self._met[place]["replacement"] = _plain(index)

    def gave_up(self, place: int) -> None:
        """No other could take its place."""
        self._met[place]["outcome"] = "raised"

    def not_replaced(self, most: int) -> int:
        """A stream has ended before so many could take the place of others: the latest of these are left out."""
        latest = [place for place in sorted(self._met, reverse=True) if self._met[place]["outcome"] == "replaced"]
        for place in latest[:most]:
            self._met[place]["outcome"] = "skipped"
        return len(latest[:most])

    def replaced_by(self, samples: int) -> None:
        """So many came: of a stream's samples that failed one after the other, only one has another in its place."""
        for place in [place for place in sorted(self._met) if self._met[place]["outcome"] == "replaced"][samples:]:
            self._met[place]["outcome"] = "skipped"

    def _wish(self) -> Decision:
        """A dataset's own: it is never an error."""
        return "replace" if self._policy == "replace" else "skip"

    def _asked(self, record: ErrorRecord) -> Decision:
        if not callable(self._policy):
            return self._policy
        failed = f"which had failed with {type(record.exception).__name__}: {text_of(record.exception)}"
        try:
            with self._marked(POLICY, record.position):
                decision = self._policy(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end this worker, and each that comes after it
            raise errors.ErrorPolicyError(
                f"on_error raised {type(error).__name__}: {text_of(error)}, when it was asked about sample "
                f"{record.index!r}, {failed}"
            ) from error
        if not isinstance(decision, str) or decision not in _OUTCOMES:  # an array has an == of its own
            raise errors.ErrorPolicyError(
                f'on_error must return "raise", "skip" or "replace", but returned {decision!r} for sample '
                f"{record.index!r}, {failed}"
            ) from record.exception
        return decision

    def _description(self, index: Any, position: int) -> str | None:
        if index is None:  # in a stream
            return None
        try:
            with self._marked(DESCRIBE, position):
                said = describe(self._dataset, index)
                return None if said is None else str.__str__(str(said))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it fails as the sample did: that must not hide the sample's own error
            return f"(describe() raised {type(error).__name__}: {text_of(error)})"

    @contextlib.contextmanager
    def _marked(self, mark: int, position: int) -> Iterator[None]:
        """While code of the user's about a sample runs: if that ends the worker, it is not the sample that did."""
        before = self.mark[0], self.rng.find_position
        self.mark[0], self.rng.find_position = mark, lambda: position
        try:
            self.raise_known(mark)
            yield
        finally:
            self.mark[0], self.rng.find_position = before


def candidates(place: int, indices: Sequence[Any], spares: Sequence[Any], key: int) -> Iterator[Any]:
    """Who may take the place of a sample: the others of its batch, in a keyed order, then the spares."""
    others = [other for other in range(len(indices)) if other != place]
    order = sorted(others, key=lambda other: mix(key, other))
    yield from (indices[other] for other in order)
    yield from spares


class _Described(str):
    """An index with its description, which prints as it is where Python asks for its repr."""

    def __repr__(self) -> str:
        return str(self)


def _as_exception(story: dict[str, Any]) -> Exception:
    kind = errors.StalledError if story["kind"] == "stall" else errors.WorkerDiedError
    stack = f"\nIts last Python stack:\n{story['stack'].strip()}" if story["stack"] else ""
    return of_the_gone(kind(story["message"] + stack))


def _reason(error: Exception) -> str:
    return " ".join(map(text_of, error.args))


def _plain(index: Any) -> Any:
    """An index as it travels through processes that do not know the user's classes."""
    if isinstance(index, (bool, type(None))):
        return index
    if isinstance(index, str):
        return str.__str__(index)  # not as a class of the user's
    return plain_index(index)
