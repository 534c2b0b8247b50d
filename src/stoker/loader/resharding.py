"""States of streams that workers have shared out among themselves, put together for another number of workers."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from stoker.errors import StateFormatError, StateMismatchError
from stoker.loader.generators import GLOBALS

if TYPE_CHECKING:
    from stoker.datasets.stream import State


def reshared(states: list[Any], workers: int) -> list[Any]:
    """States of streams, as they were saved by some number of workers, for another number of workers.

    Raises:
        StateMismatchError: they are of a dataset that shares itself out and does not name its shards, or has forgotten
            some.
        StateFormatError: they are no states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None] * workers
    if len(states) == workers:
        return states if _know_draws(begun) else [_as_begun(begun[0]) if state is None else state for state in states]
    merged = _merged(begun)
    if all(state["ended"] for state in begun) and len(begun) == len(states):
        return [{**(merged or {}), "ended": True}] * workers
    if merged is not None:
        return [merged] * workers
    if len(states) == 1:
        states = begun = [{**begun[0], "strided": True}]
    if any(state.get("strided") for state in begun):  # so will those that have not begun since states were put together
        states = [
            {**state, "strided": True} if state is not None and state.get("merged") else state for state in states
        ]
        begun = _begun(states)
    if all(state.get("strided") for state in begun):
        return [_strided_anew(states)] * workers
    raise StateMismatchError(
        f"the state has the streams of {len(states)} workers, and this loader has {workers}: a dataset that shares "
        f"itself out can be resumed only with as many workers as saved it. Use num_workers={len(states)}, or let its "
        "state name its shards (see the guide on resuming)."
    )


def together(states: list[Any]) -> list[Any]:
    """The streams of all ranks, as one worker of one rank would have left them.

    Raises:
        StateMismatchError: they do not name their shards, so nobody can know whose is what.
        StateFormatError: they are no states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None]
    merged = _merged(begun)
    if merged is None:
        raise StateMismatchError(
            "the streams of the ranks do not name their shards, so nobody can tell what another number of ranks has "
            "still to read: go on with as many ranks, each with its own state. Streams that are interleaved or made of "
            "text files name them where they have a shard for each worker, and yours may (see the guide on resuming)."
        )
    return [{**merged, "ended": len(begun) == len(states) and all(state["ended"] for state in begun)}]


def _begun(states: list[Any]) -> list[State]:
    """Those who have begun."""
    if not all(state is None or _is_state(state) for state in states):
        raise StateFormatError(f"the state is damaged: its streams are {str(states)[:200]}")
    return [state for state in states if state is not None]


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or "ended" not in state:
        return False
    drawn = state.get("drawn", {})
    if not isinstance(drawn, dict) or not all(isinstance(position, int) for position in drawn.values()):
        return False
    known = "part" in state or isinstance(state.get("stream", 0), (dict, type(None)))
    return bool(state["ended"]) or (known and isinstance(state.get("position"), int))


def since(before: State | None, state: State) -> State:
    """A worker's state, with the shards that it names and has not read from since it began there: they may be another
    worker's, whose word on them then counts.

    Args:
        before: where the worker began; None for the start.
        state: where it stands now.
    """
    was, now = _shards(before or {})[0], _shards(state)[0]
    if state["ended"] and now == {} and state["position"] > (before["position"] if before else 0):
        return {**state, "forgot": True}
    if before is None or not was or not now:
        return state
    handed = was if before.get("merged") else before.get("unread", ())
    unread = [name for name in handed if name in now and now[name] == was.get(name)]
    return {**state, "unread": unread} if unread else state


def _merged(states: list[State]) -> State | None:
    """The shards that all workers name, in one state for each of them; None if they name none, or if each has read all
    of the stream and kept samples by stride: then a shard's place says nothing of what was kept.

    Positions go on behind all that came before: what is drawn for a sample then is not drawn again.
    """
    if any(state.get("strided") for state in states):
        return None
    states = sorted(states, key=lambda state: not state.get("merged"))  # what a worker has not begun yet is the oldest
    unread: dict[str, Any] = {}
    read: dict[str, Any] = {}
    wrap = None
    for state in states:
        shards, wrap = _shards(state)
        if shards is None:
            return None
        if state.get("forgot"):
            raise StateMismatchError(
                "a worker's stream had come to its end, and its state no longer named the shards that it had read: "
                "with another number of workers they would be read again. Let the dataset name them until its next "
                "iteration begins (see the guide on resuming), or use as many workers as saved the state."
            )
        old = shards if state.get("merged") else state.get("unread", ())
        for name, place in shards.items():
            (unread if name in old else read)[name] = place
    whole: State = {"shards": {**unread, **read}}
    position = max(state["position"] for state in states)
    drawn: dict[str, int] = {}
    for whose, first in (item for state in states for item in drawn_in(state).items()):
        drawn[whose] = min(first, drawn.get(whose, first))
    return {
        **{"ended": False, "merged": True, "position": position, "drawn": drawn},
        "stream": whole if wrap is None else {wrap: whole},
    }


def _shards(state: State) -> tuple[dict[str, Any] | None, str | None]:
    """The shards that a worker's state names, None if it names none; and under which name they are kept there."""
    stream = state.get("stream") or {}
    kept_by = [name for name in ("own", "iterator") if name in stream]
    wrap = kept_by[0] if kept_by and len(kept_by) == len(stream) else None
    named = stream if wrap is None else stream[wrap]
    if not isinstance(named, dict) or named.keys() != {"shards"} or not isinstance(named["shards"], dict):
        return None, wrap
    return named["shards"], wrap


def _strided_anew(states: list[Any]) -> State:
    """Where any number of workers can go on with a stream that was shared out by stride."""
    unread = [0 if state is None else math.inf if state["ended"] else state["position"] for state in states]
    some = next(state for state in states if state is not None)
    left, tail = some.get("left", []), some.get("tail", 0)
    new_tail = max(tail, *(state["position"] for state in states if state is not None))
    places = itertools.chain(enumerate(left), ((q - tail + len(left), q) for q in range(tail, new_tail)))
    earliest = states[unread.index(min(unread))]
    return {
        **((_as_begun(some) or {}) if earliest is None else earliest),
        **{"ended": False, "strided": True, "tail": new_tail},
        "left": [position for place, position in places if position >= unread[place % len(states)]],
    }


def _as_begun(other: State) -> State | None:
    """Where a worker has not begun, beside another that has: as one of its version, if they read one stream."""
    if not other.get("strided"):
        return None
    start: State = {"position": 0, "stream": None, "ended": False, "strided": True}
    return {**start, "drawn": {}} if _know_draws([other]) else start


def _know_draws(states: list[State]) -> bool:
    """Whether they are of a version that says what was drawn from."""
    return all("drawn" in state or "position" not in state for state in states)


def drawn_in(state: State) -> dict[str, int]:
    """Whose global generators a stream has drawn from, and where first. In former versions, which do not say it, all
    were seeded for each sample."""
    return dict(state.get("drawn", dict.fromkeys(GLOBALS, -1)))
