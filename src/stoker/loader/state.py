"""What a loader's state holds: where an epoch stands, in plain values, and whether it fits the loader that loads it.

The format is drawn in `docs/design/06-order-and-state.md`. It has a version; a later one reads the earlier ones.
"""

from __future__ import annotations

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
        generators: states of that sampler's generator, before and after the epoch's seed was drawn.
        workers: where the workers' streams stand.
        turn: whose turn is next.
    """

    seed: int | None = None
    batches: int = 0
    position: int = 0
    ahead: frozenset[int] = frozenset()
    mark: Any = None
    generators: tuple[Any, Any] | None = None
    workers: list[Any] | None = None
    turn: int = 0

    def streams(self, count: int) -> tuple[list[int], int, dict[int, Any]]:
        """For `count` workers: those whose streams go on, whose turn it is among them, and where each begins."""
        if self.workers is None:
            return list(range(count)), 0, {}
        active = [number for number, state in enumerate(self.workers) if state is None or not state.get("ended")]
        turn = next((place for place, number in enumerate(active) if number >= self.turn), 0)
        return active, turn, {number: self.workers[number] for number in active if self.workers[number] is not None}


START = Place()


def packed(epoch: int, place: Place, kind: dict[str, Any]) -> State:
    """The state of a loader of this kind at a place of an epoch: what `state_dict()` returns."""
    state: State = {"stoker": VERSION, "epoch": epoch, "seed": place.seed, "batches": place.batches}
    state |= {"position": place.position, "kind": kind}
    if place.ahead:
        state["ahead"] = sorted(place.ahead)
    if place.mark is not None:
        state["sampler"] = place.mark
    if place.generators is not None:
        state["generators"] = list(place.generators)
    if place.workers is not None:
        state |= {"workers": place.workers, "turn": place.turn}
    return state


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
    missing = [name for name in ("epoch", "seed", "batches", "position", "kind") if name not in state]
    if missing:
        raise StateFormatError(f"the state lacks {', '.join(missing)}: it is truncated or was changed.")
    epoch, batches, position = (_count(state, name) for name in ("epoch", "batches", "position"))
    seed = None if state["seed"] is None else _count(state, "seed")
    kind = state["kind"]
    ahead, generators, workers = state.get("ahead", []), state.get("generators"), state.get("workers")
    if (
        not isinstance(kind, Mapping)
        or not isinstance(ahead, (list, tuple))
        or not all(isinstance(number, int) and number > batches for number in ahead)
        or not (generators is None or (isinstance(generators, (list, tuple)) and len(generators) == 2))
        or not (workers is None or (isinstance(workers, (list, tuple)) and workers))
    ):
        raise StateFormatError(f"the state is damaged: {_shown(state)}")
    place = Place(
        seed=seed,
        batches=batches,
        position=position,
        ahead=frozenset(ahead),
        mark=state.get("sampler"),
        generators=None if generators is None else (generators[0], generators[1]),
        workers=None if workers is None else list(workers),
        turn=_count(state, "turn") if workers is not None else 0,
    )
    return epoch, place, dict(kind)


def check_fits(theirs: dict[str, Any], ours: dict[str, Any], ahead: bool) -> None:
    """Raises StateMismatchError if a state of one kind cannot go on in a loader of another.

    The number of ranks may differ, and then the batch size as well if the global batch stays what it was.
    """
    theirs, ours = dict(theirs), dict(ours)
    if ahead and (theirs.get("ranks"), theirs.get("batch_size")) != (ours.get("ranks"), ours.get("batch_size")):
        raise StateMismatchError(
            "the state holds batches that were delivered out of order (in_order=False), so it fits only the same "
            f"number of ranks and batch size: {theirs.get('ranks')} ranks x {theirs.get('batch_size')} there, "
            f"{ours.get('ranks')} x {ours.get('batch_size')} here. strict=False delivers these batches again."
        )
    if "ranks" in theirs and "ranks" in ours and theirs["ranks"] != ours["ranks"]:
        for kind in (theirs, ours):
            kind.pop("distributed", None)  # a run on one rank need not say how it would share
        if theirs["ranks"] * (theirs.get("batch_size") or 1) == ours["ranks"] * (ours.get("batch_size") or 1):
            theirs.pop("batch_size", None), ours.pop("batch_size", None)
    theirs.pop("ranks", None), ours.pop("ranks", None)
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if names:
        told = "; ".join(f"{name} was {theirs.get(name)!r} and is {ours.get(name)!r}" for name in names)
        raise StateMismatchError(
            f"the state does not fit this loader: {told}. Make the loader as it was when the state was saved, or pass "
            "strict=False if you know that the order is the same."
        )


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
