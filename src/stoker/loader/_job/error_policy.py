"""The error policy for samples that fail, applied in the worker."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stoker import errors
from stoker._core.exceptions import format_exception, safe_str, shortened
from stoker._engine.activity import ACTIVITY, NEW_MARK, Activity, Position
from stoker._engine.activity import sample as at_sample
from stoker._engine.backend import KnownFault, KnownFaults, of_the_gone
from stoker._engine.tracebacks import users_stacks
from stoker.datasets.gather import describe
from stoker.events import FaultRecord, Outcome, plain_index
from stoker.loader._random.generators import mix
from stoker.loader._random.sample_rng import SampleRNG

if TYPE_CHECKING:
    from stoker.loader._job.work import Work

Decision = Literal["raise", "skip", "replace"]
Kind = Literal["exception", "death", "stall", "skip"]


@dataclass(frozen=True)
class ErrorRecord:
    """A sample that failed, as passed to an `on_error` callable in the worker.

    Attributes:
        kind: "exception"; "death" or "stall" of a worker that made it, several times.
        index: given by the sampler; None in a stream.
        position: in the epoch, counted from 0; in a stream, in the samples that this worker reads.
        epoch: number of the epoch.
        batch: number of the batch in the epoch; in a stream, always 0.
        worker: number of the worker.
        description: result of `dataset.describe(index)`, if there is such a method; of a stream, which has no index,
            the notes of the exception. `Subset` and `ConcatDataset`, torch's as well, ask the dataset that has the
            sample.
        exception: raised by the sample, or made to represent the death.
        traceback: as text; of a death, the last stack of the worker, if available.
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


class _Mark(enum.Enum):  # of which there is one object in each process
    LEFT_OUT = "left out"


LEFT_OUT: Any = _Mark.LEFT_OUT
"""Takes the place of a sample that was left out."""

_OUTCOMES: dict[Decision, Outcome] = {"raise": "raised", "skip": "skipped", "replace": "replaced"}


class ErrorPolicy:
    """The error policy of one worker.

    A decision about a sample of a unit is final.

    Args:
        policy: the loader's `on_error`.
        dataset: asked to describe a sample, if it can.
        worker: number of the worker.

    Attributes:
        mark: memory for the worker's current activity.
        rng: of the worker: numbers that the user's code draws during a decision are those of the sample.
        unit: the current one. It is set for each unit; `begin` is called only if `is_touched` or for known faults, so
            that a batch without faults does not pay for it.
        is_lenient: whether a sample that fails may be left out or replaced.
        knows_any: whether the unit is known to end its workers somewhere.
        has_met_any: whether a sample of the unit has failed.
        is_touched: one of the two, for the unit before.
    """

    def __init__(self, policy: OnError, dataset: Any, worker: int) -> None:
        self.is_lenient = not _is(policy, "raise")
        self.mark: Any = [*NEW_MARK]
        self.rng = SampleRNG(0)
        self.unit: Work
        self.knows_any = self.has_met_any = self.is_touched = False  # no properties: every batch looks at them
        self._policy = policy
        self._dataset = dataset
        self._worker = worker
        self._known: dict[Position, list[KnownFault]] = {}
        self._met: dict[int, FaultRecord] = {}
        self._decided: dict[int, Decision] = {}

    def begin(self, known: KnownFaults) -> None:
        """Begins a unit that is known to end its workers."""
        self._known, self.knows_any = {}, bool(known)
        for fault in known:
            self._known.setdefault(fault.position, []).append(fault)
        self._met, self._decided, self.has_met_any = {}, {}, False
        self.is_touched = self.knows_any

    @property
    def met(self) -> list[FaultRecord]:
        """Returns the samples of the unit that failed, in order."""
        return [self._met[place] for place in sorted(self._met)]

    def has_met(self, place: int) -> bool:
        """Returns whether the outcome of this sample is decided."""
        return place in self._met

    def named(self, place: int, index: Any) -> Any:
        """Returns the index of a sample that failed, with its description, for a message."""
        description = self._met[place].description if place in self._met else None
        return index if description is None else _Described(f"{index!r} ({description})")

    def raise_known(self, position: Position) -> None:
        """Raises the known fault of the unit at this position, instead of ending the worker."""
        if position in self._known:
            raise _as_exception(self._known[position][-1])

    def deaths_at(self, place: int) -> int:
        """Returns the number of deaths at this place: of the sample, then of its replacements."""
        return len(self._known.get(at_sample(place), ()))

    def decide(self, place: int, index: Any, position: int, error: Exception) -> Decision:
        """Returns the outcome of a sample, and records it.

        Raises:
            ErrorPolicyError: the user's callable raised, or returned an invalid value.
        """
        wish = issubclass(type(error), errors.SkipSample)  # isinstance() would ask the object too
        known = self._known.get(at_sample(place))
        text = known[-1].message if known else safe_str(error)
        kind: Kind = "skip" if wish else known[0].kind if known else "exception"
        story = (known[-1].stack if known else "") or format_exception(error)
        unit, description = self.unit, _notes(error) if index is None else self._description(index, position)
        record = ErrorRecord(kind, index, position, unit.epoch, unit.batch, self._worker, description, error, story)
        self.has_met_any = self.is_touched = True
        fault = self._met[place] = FaultRecord(
            kind=kind,
            outcome="raised",  # until it is decided otherwise, which may fail
            place=place,
            position=position,
            index=_plain(index),
            description=record.description,
            exception=" ".join(map(safe_str, error.args)) if wish else shortened(f"{type(error).__name__}: {text}"),
            traceback=shortened(story),
            worker=self._worker,
        )
        decision = self._decided.get(place)
        if decision is None:
            ours = issubclass(type(error), errors.ShardingError)  # a mistake in the use of the loader, not in the data
            decision = self._wish() if wish else "raise" if ours else self._asked(record)
            self._decided[place] = decision
        fault.outcome = _OUTCOMES[decision]
        return decision

    def replaced(self, place: int, index: Any) -> None:
        """Records the replacement of a sample."""
        self._met[place].replacement = _plain(index)

    def gave_up(self, place: int) -> None:
        """Records that no other sample could replace it."""
        self._met[place].outcome = "raised"

    def not_replaced(self, most: int) -> int:
        """Leaves out the latest replaced samples, at most `most`, because a stream ended; returns their number."""
        latest = [place for place in sorted(self._met, reverse=True) if self._met[place].outcome == "replaced"]
        for place in latest[:most]:
            self._met[place].outcome = "skipped"
        return len(latest[:most])

    def replaced_by(self, samples: int) -> None:
        """Records the replacements that a stream gave: of several consecutive failures, only one is replaced."""
        for place in [place for place in sorted(self._met) if self._met[place].outcome == "replaced"][samples:]:
            self._met[place].outcome = "skipped"

    def _wish(self) -> Decision:
        """Returns the outcome of `SkipSample`, which is never an error."""
        return "replace" if _is(self._policy, "replace") else "skip"

    def _asked(self, record: ErrorRecord) -> Decision:
        if not callable(self._policy):
            return self._policy
        failed = f"which had failed with {type(record.exception).__name__}: {safe_str(record.exception)}"
        try:
            with self._marked(Activity.POLICY, record.position):
                decision = self._policy(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end this worker, and each that comes after it
            raise errors.ErrorPolicyError(
                f"on_error raised {type(error).__name__}: {safe_str(error)}, when it was asked about sample "
                f"{record.index!r}, {failed}"
            ) from error
        if not isinstance(decision, str) or decision not in _OUTCOMES:  # an array has an == of its own
            raise errors.ErrorPolicyError(
                f'on_error must return "raise", "skip" or "replace", but returned {decision!r} for sample '
                f"{record.index!r}, {failed}"
            ) from record.exception
        return decision

    def _description(self, index: Any, position: int) -> str | None:
        try:
            with self._marked(Activity.DESCRIBE, position):
                description = describe(self._dataset, index)
                return None if description is None else str.__str__(str(description))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it fails as the sample did: that must not hide the sample's own error
            return f"(describe() raised {type(error).__name__}: {safe_str(error)})"

    @contextlib.contextmanager
    def _marked(self, activity: Activity, position: int) -> Iterator[None]:
        """While code of the user's about a sample runs: if that ends the worker, it is not the sample that did."""
        before = self.mark[ACTIVITY], self.rng.find_position
        self.mark[ACTIVITY], self.rng.find_position = activity, lambda: position
        try:
            self.raise_known(Position(activity))
            yield
        finally:
            self.mark[ACTIVITY], self.rng.find_position = before


def _is(policy: OnError, word: str) -> bool:
    return isinstance(policy, str) and policy == word  # a user's object may have an __eq__ of its own


def candidates(place: int, indices: Sequence[Any], spares: Sequence[Any], key: int) -> Iterator[Any]:
    """Yields the candidates to replace a sample: the others of its batch, in a keyed order, then the spares."""
    others = [other for other in range(len(indices)) if other != place]
    order = sorted(others, key=lambda other: mix(key, other))
    yield from (indices[other] for other in order)
    yield from spares


class _Described(str):
    """An index with its description, without quotes in its repr."""

    def __repr__(self) -> str:
        return str(self)


def _as_exception(fault: KnownFault) -> Exception:
    kind = errors.StalledError if fault.kind == "stall" else errors.WorkerDiedError
    stack = f"\nIts last Python stack:\n{users_stacks(fault.stack).strip()}" if fault.stack else ""
    return of_the_gone(kind(fault.message + stack))


def _notes(error: Exception) -> str | None:
    notes = vars(error).get("__notes__", ())
    return shortened("; ".join(note for note in notes if isinstance(note, str))) or None


def _plain(index: Any) -> Any:
    """Returns an index in a form that unpickles without the user's classes."""
    if isinstance(index, (bool, type(None))):
        return index
    if isinstance(index, str):
        return str.__str__(index)  # not as a class of the user's
    return plain_index(index)
