"""What a loader's state holds: where an epoch stands, in plain values, and whether it fits the loader that loads it.

The format is drawn in `docs/design/06-order-and-state.md`. It has a version; a later one reads the earlier ones.
"""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from stoker.errors import StateFormatError, StateMismatchError

VERSION = 1

State = dict[str, Any]


class Place(NamedTuple):
    """A place in an epoch: where it begins, or where it is resumed.

    Attributes:
        seed: the epoch's, or None where it is still to be decided.
        batches: how many this rank has received, counted without a gap.
        position: how far all ranks are in the epoch's order: in samples, or in batches where a batch sampler knows
            them by number.
        ahead: numbers of batches that were received before an earlier one was (`in_order=False`).
        mark: what a sampler of the user's said of itself there.
        over: whether that sampler has ended, and what it said is said behind its end.
        generators: of a sampler that says nothing, states of the generators that it draws from: before `iter()`, and
            before its first step if that was taken. See `loader/walk.py`.
        told: by how much the epochs that others were told (`set_epoch`) are ahead of ours.
        workers: where the workers' streams stand.
        turn: whose turn is next.
    """

    seed: int | None = None
    batches: int = 0
    position: int = 0
    ahead: frozenset[int] = frozenset()
    mark: Any = None
    over: bool = False
    generators: tuple[Any, Any] | None = None
    told: tuple[tuple[str, int], ...] = ()
    workers: list[Any] | None = None
    turn: int = 0

    @property
    def is_decided(self) -> bool:
        """Whether it lies in an epoch that has begun: it is no place in another."""
        return self.seed is not None or self.batches > 0

    def streams(self, count: int) -> tuple[list[int], int, dict[int, Any]]:
        """For `count` workers: those whose streams go on, whose turn it is among them, and where each begins."""
        if self.workers is None:
            return list(range(count)), 0, {}
        active = [number for number, state in enumerate(self.workers) if state is None or not state.get("ended")]
        turn = next((place for place, number in enumerate(active) if number >= self.turn), 0)
        # Copies: threads share this process, and a dataset may go on writing in what it was given
        starts = {number: copy.deepcopy(self.workers[number]) for number in active if self.workers[number] is not None}
        return active, turn, starts


START = Place()


def packed(epoch: int, place: Place, kind: dict[str, Any]) -> State:
    """The state of a loader of this kind at a place of an epoch: what `state_dict()` returns.

    It has the same names whatever is in it, and what lies below the loader is one value: a checkpoint that is read by
    name (`torch.distributed.checkpoint` does so) finds all of it.
    """
    said = {"sampler": place.mark, "generators": place.generators, "workers": place.workers}
    below = {name: value for name, value in said.items() if value is not None}
    counted = {"over": place.over, "told": place.told, "turn": place.turn}
    below |= {name: value for name, value in counted.items() if value}
    state: State = {"stoker": VERSION, "epoch": epoch, "seed": place.seed, "batches": place.batches}
    state |= {"position": place.position, "ahead": sorted(place.ahead), "kind": kind}
    return state | {"below": _as_text(below) if below else None}


def _as_text(below: dict[str, Any]) -> Any:
    """As JSON, where that gives it back unchanged: what is the dataset's own may hold anything."""
    plain = {name: _listed(value) for name, value in below.items()}
    try:
        text = json.dumps(plain)
        return text if json.loads(text) == plain else plain
    except (TypeError, ValueError):
        return plain


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if type(value) is tuple else value


def unpacked(state: Mapping[str, Any]) -> tuple[int, Place, dict[str, Any]]:
    """Epoch, place and kind of a state.

    Raises:
        StateFormatError: it is damaged, not one of ours, or of a newer format.
    """
    if not isinstance(state, Mapping) or "stoker" not in state:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateFormatError(
            f"this is no state of a Stoker loader: a dictionary from state_dict() was expected, not {found}. A state "
            "of torchdata's StatefulDataLoader cannot be taken over."
        )
    if state["stoker"] != VERSION:
        raise StateFormatError(
            f"the state has format {state['stoker']!r}, and this version of Stoker knows format {VERSION}: load it "
            "with the version that wrote it, or a later one."
        )
    missing = [name for name in packed(0, START, {}) if name not in state]
    if missing:
        raise StateFormatError(f"the state lacks {', '.join(missing)}: it is truncated or was changed.")
    epoch, batches, position = (_count(state, name) for name in ("epoch", "batches", "position"))
    seed = None if state["seed"] is None else _count(state, "seed")
    kind, ahead, below = state["kind"], state["ahead"], _below(state["below"])
    generators, told, workers = below.get("generators"), below.get("told", ()), below.get("workers")
    if (
        not isinstance(kind, Mapping)
        or not isinstance(ahead, (list, tuple))
        or not all(isinstance(number, int) and number > batches for number in ahead)
        or not (generators is None or _is_list(generators, 2))
        or not (_is_list(told) and all(_is_list(pair, 2) and isinstance(pair[1], int) for pair in told))
        or not (workers is None or (_is_list(workers) and workers))
    ):
        raise StateFormatError(f"the state is damaged: {_shown(state)}")
    place = Place(
        seed=seed,
        batches=batches,
        position=position,
        ahead=frozenset(ahead),
        mark=below.get("sampler"),
        over=bool(below.get("over")),
        generators=None if generators is None else (generators[0], generators[1]),
        told=tuple((name, number) for name, number in told),
        workers=None if workers is None else list(workers),
        turn=_count(below, "turn") if "turn" in below else 0,
    )
    return epoch, place, dict(kind)


def _below(value: Any) -> Mapping[str, Any]:
    """What lies below the loader, from a state's text."""
    try:
        below = json.loads(value) if isinstance(value, str) else {} if value is None else value
        if isinstance(below, Mapping):
            return below
    except ValueError:
        pass
    raise StateFormatError(f"the state is damaged: below is {str(value)[:200]!r}")


def _is_list(value: Any, length: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and length in (None, len(value))


def check_fits(theirs: dict[str, Any], ours: dict[str, Any], ahead: bool) -> None:
    """Raises StateMismatchError if a state of one kind cannot go on in a loader of another.

    The number of ranks may differ, and then the batch size as well if the global batch stays what it was.
    """
    theirs, ours = dict(theirs), dict(ours)
    if ahead and not same_batches(theirs, ours):
        raise StateMismatchError(
            "the state holds batches that were delivered out of order (in_order=False), so it fits only the same "
            f"number of ranks and batch size: {theirs.get('ranks')} ranks x {theirs.get('batch_size')} there, "
            f"{ours.get('ranks')} x {ours.get('batch_size')} here. strict=False delivers these batches again."
        )
    if "ranks" in theirs and "ranks" in ours and theirs["ranks"] != ours["ranks"]:
        for kind in (theirs, ours):
            kind.pop("distributed", None)  # a run on one rank need not say how it would share
        if _global_batch(theirs) == _global_batch(ours):
            theirs.pop("batch_size", None), ours.pop("batch_size", None)
    theirs.pop("ranks", None), ours.pop("ranks", None)
    if "seed" not in theirs:  # of streams of all ranks, each with its own
        ours.pop("seed", None)
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if names:
        told = "; ".join(f"{name} was {theirs.get(name)!r} and is {ours.get(name)!r}" for name in names)
        raise StateMismatchError(
            f"the state does not fit this loader: {told}. Make the loader as it was when the state was saved, or pass "
            "strict=False if you know that the order is the same."
        )


def same_batches(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether a batch's number means the same in both."""
    return all(theirs.get(name) == ours.get(name) for name in ("ranks", "batch_size"))


def _global_batch(kind: dict[str, Any]) -> Any:
    ranks, size = kind["ranks"], kind.get("batch_size") or 1
    return ranks * size if isinstance(ranks, int) and isinstance(size, int) else None


def _count(state: Mapping[str, Any], name: str) -> int:
    try:
        value = operator.index(state[name])
        if value < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise StateFormatError(
            f"the state is damaged: {name} is {state.get(name)!r}, and a count was expected."
        ) from None
    return value


def _shown(state: Mapping[str, Any]) -> str:
    return json.dumps(dict(state), default=repr)[:200]
