"""Converts the states of divided streams to another number of workers, and decides when a worker reports a costly
state.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from stoker.datasets.fingerprint import Fingerprint
from stoker.errors import StateFormatError, StateMismatchError
from stoker.loader._random.generators import GLOBALS

if TYPE_CHECKING:
    from stoker.datasets.stream import State
    from stoker.loader._state.schema import Place


_CUT_PARTITION = re.compile(r":\d+%\d+=\d+'")  # the name of a part of a Kafka partition, of an earlier version


def reshared(states: list[Any], workers: int) -> list[Any]:
    """Returns the states of streams, saved by any number of workers, for `workers` workers.

    Raises:
        StateMismatchError: they are of a dataset that shards itself and does not name its shards, or no longer names
            all of them.
        StateFormatError: they are not states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None] * workers
    if len(states) == workers and _share_a_partition(states):
        return [_joined(begun)] * workers
    if len(states) == workers:
        if _CUT_PARTITION.search(str(states)) and not any(state.get("strided") for state in begun):
            return [{**state, "cut": True} for state in states]  # each worker goes on with its part of each dataset
        return states if _know_draws(begun) else [_as_begun(begun[0]) if state is None else state for state in states]
    _check_exact(begun, f"this loader has {workers} workers: use num_workers={len(states)}")
    merged = _merged(begun)
    if all(state["ended"] for state in begun) and len(begun) == len(states):
        return [{**(merged or {}), "ended": True}] * workers
    if merged is not None:
        return [merged] * workers
    if len(states) == 1:
        states = begun = [{**begun[0], "strided": True}]
    if any(state.get("strided") for state in begun):  # then merged states that have not begun are strided too
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


def _share_a_partition(states: list[Any]) -> bool:
    """Returns whether workers of an earlier version shared a Kafka partition, and one of them had given nothing."""
    is_early = any(state is None or state.get("merged") for state in states)
    return is_early and _CUT_PARTITION.search(str(states)) is not None


def _joined(begun: list[State]) -> State:
    """Returns one state, for every worker, of those who shared a partition, which one worker reads now.

    Raises:
        StateMismatchError: they are below a combinator's.
    """
    merged = _merged(begun)
    if merged is None:
        raise StateMismatchError(
            "the state is of an earlier version, in which workers shared a Kafka partition, and was saved before each "
            "of them had given a batch. Load a later state, or begin the epoch anew."
        )
    shards = {name: {**place, "joined": True} for name, place in merged["stream"]["shards"].items()}
    return {**merged, "stream": {"shards": shards}}


def names_shards(state: State) -> bool:
    """Returns whether a worker's state names the shards of its stream, so that other workers can continue it."""
    return _shards(state)[0] is not None


def not_begun(stream: State | None) -> State:
    """Returns the state of a worker that has given nothing yet, of a stream whose start has a state."""
    return {"ended": False, "merged": True, "position": 0, "drawn": {}, "stream": stream}


def going_on(place: Place, workers: int) -> Place:
    """Returns a place at an epoch's end, from which the datasets continue, for `workers` workers.

    If each worker had a part of its own, another number of workers begins again from the start.
    """
    states = place.workers or []
    _begun(states)
    if len(states) == workers:
        return place
    if len(states) == 1 or all(state is not None and state.get("strided") for state in states):
        return place._replace(workers=states[:1] * workers)
    return place._replace(workers=None, through=False)


def holds_own(state: Any) -> bool:
    """Returns whether the state of a stream holds a state from the `state_dict()` of a user's dataset."""
    if isinstance(state, list):
        return any(map(holds_own, state))
    return isinstance(state, dict) and ("own" in state or any(map(holds_own, state.values())))


def name_shards(states: list[Any]) -> bool:
    """Returns whether workers' states are there and name the shards as they are now, so that they can be merged."""
    return bool(states) and all(
        state is not None and _shards(state)[0] is not None and not state.get("again", {}).get("read")
        for state in states
    )


def together(states: list[Any]) -> list[Any]:
    """Returns the states of all ranks' streams, merged as if one worker of one rank had saved them.

    Raises:
        StateMismatchError: they do not name their shards, so the owner of each shard is unknown.
        StateFormatError: they are not states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None]
    _check_exact(begun, "merged states are for any number of ranks: let each rank load its own")
    merged = _merged(begun)
    if merged is None:
        raise StateMismatchError(
            "the streams of the ranks do not name their shards, so the rest of the epoch cannot be divided among "
            "another number of ranks: continue with the same number of ranks, each with its own state. Interleaved "
            "streams and streams of text files name their shards if they have one for each worker; other datasets can "
            "do so too (see the guide on resuming)."
        )
    return [{**merged, "ended": len(begun) == len(states) and all(state["ended"] for state in begun)}]


def _check_exact(states: list[State], way: str) -> None:
    """Raises StateMismatchError if a stream has yet to read what it gave behind its state: only the same worker can."""
    again = max((state["again"]["read"] for state in states if "again" in state and not state["ended"]), default=0)
    if again:
        raise StateMismatchError(
            f"a worker's stream stands {again} samples behind its last state, because its state_dict() takes long, and "
            f"{way}. Or let the state be taken after each batch, when it is saved: "
            "StatefulDataLoader(..., snapshot_every_n_steps=1)."
        )


def _begun(states: list[Any]) -> list[State]:
    """Returns the states of the workers that have begun.

    Raises:
        StateFormatError: they are not states of streams.
    """
    if not all(state is None or _is_state(state) for state in states):
        raise StateFormatError(f"the state is damaged: its streams are {str(states)[:200]}")
    return [state for state in states if state is not None]


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or "ended" not in state:
        return False
    drawn = state.get("drawn", {})
    if not isinstance(drawn, dict) or not all(isinstance(position, int) for position in drawn.values()):
        return False
    again = state.get("again", {"read": 0})
    if not isinstance(again, dict) or not isinstance(again.get("read"), int):
        return False
    known = "part" in state or isinstance(state.get("stream", 0), (dict, type(None)))
    return bool(state["ended"]) or (known and isinstance(state.get("position"), int))


def since(before: State | None, state: State) -> State:
    """Returns a worker's state, with the shards that it names and has not read since `before` marked as unread.

    Another worker may have read an unread shard; that worker's state of the shard then counts.

    Args:
        before: the state from which the worker began; None for the start.
        state: the worker's state now.
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
    """Returns one state, for every worker, with the shards that all workers name.

    None if they name none, or if each worker has read the whole stream and kept samples by stride: the place of a shard
    then does not show which samples were kept. Positions continue after the highest one so far, so that no random
    numbers are drawn twice.
    """
    if any(state.get("strided") for state in states):
        return None
    states = sorted(
        states, key=lambda state: not state.get("merged")
    )  # merged states that no worker has begun are the oldest
    unread: dict[str, Any] = {}
    read: dict[str, Any] = {}
    wrap = None
    for state in states:
        shards, wrap = _shards(state)
        if shards is None:
            return None
        if state.get("forgot"):
            raise StateMismatchError(
                "a worker's stream had ended, and its state no longer named the shards that it had read: another "
                "number of workers would read them again. Let the dataset name them until its next "
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
    """Returns the shards that a worker's state names, or None; and the key in the state that holds them, or None."""
    stream = state.get("stream") or {}
    kept_by = [name for name in ("own", "iterator") if name in stream]
    wrap = kept_by[0] if kept_by and len(kept_by) == len(stream) else None
    named = stream if wrap is None else stream[wrap]
    if not isinstance(named, dict) or named.keys() != {"shards"} or not isinstance(named["shards"], dict):
        return None, wrap
    return named["shards"], wrap


def _strided_anew(states: list[Any]) -> State:
    """Returns one state from which any number of workers can continue a stream that was divided by stride."""
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
    """Returns the start state, in the format of `other`, of a worker that reads the same stream; None if it does not.

    Used for a worker that has not begun while another has.
    """
    if not other.get("strided"):
        return None
    start: State = {"position": 0, "stream": None, "ended": False, "strided": True}
    return {**start, "drawn": {}} if _know_draws([other]) else start


def _know_draws(states: list[State]) -> bool:
    """Returns whether the states are of a version that records the generators drawn from."""
    return all("drawn" in state or "position" not in state for state in states)


def drawn_in(state: State) -> dict[str, int]:
    """Returns the global generators that a stream has drawn from, each with the position of its first draw.

    Earlier versions do not record them and seeded all generators for each sample.
    """
    return dict(state.get("drawn", dict.fromkeys(GLOBALS, -1)))


# When a worker reports the state of a user's stream, which may be slow to take: after each unit while that costs
# little, else after every n-th. The answers between hold the number of samples read since and their fingerprint: a
# resumed stream reads these again and compares. Without workers the state is taken when the loader's own is.


FREE = 2e-4
"""Seconds. A state that takes less goes with each unit, whose way to the trainer costs as much."""

LATEST = 3
"""States of which the cheapest counts. The first one of a process takes longer than the others."""

SHARE = 0.02
"""Share of a unit's time that states may take."""

MOST = 10_000
"""Units from one state to the next, at most."""


class Snapshots:
    """The states of one stream.

    Args:
        every: units from one state to the next if states cost much; None for as many as that `SHARE` is kept.
        when_asked: whether no unit brings a state.

    Attributes:
        are_few: whether not every unit brings a state.
    """

    def __init__(self, every: int | None, when_asked: bool) -> None:
        self._every = every
        self._when_asked = when_asked
        self.are_few = False
        self._left = 0  # units without a state that follow
        self._costs: deque[float] = deque(maxlen=LATEST)
        self.restart()

    def restart(self, again: int = 0, marks: Fingerprint | None = None) -> None:
        """Counts from a state on.

        Args:
            again: samples that were read behind that state already.
            marks: their fingerprint.
        """
        self._read = again
        self._print = Fingerprint() if marks is None else marks

    def begin(self) -> None:
        """From now on not every unit brings a state."""
        self.are_few = True
        self.restart(self._read, self._print)

    def took(self, sample: Any) -> None:
        """Counts a sample."""
        self._read += 1
        if self._left or self._when_asked:
            self._print.take(sample, self._read)

    def failed(self) -> None:
        """Counts a sample that raised."""
        self._read += 1

    def is_due(self, ended: bool) -> bool:
        """Returns whether this unit brings a state."""
        if not self.are_few:
            return True
        if self._when_asked:
            return False
        if ended or not self._left:
            return True
        self._left -= 1
        return False

    def measured(self, cost: float, seconds: float, may_wait: bool) -> None:
        """Records a state.

        Args:
            cost: seconds that it took.
            seconds: that its unit took.
            may_wait: whether a state with samples to read again does as well.
        """
        self.restart()
        units = 1
        self._costs.append(cost)
        cost = min(self._costs) if len(self._costs) == LATEST else 0.0
        if may_wait and cost > FREE and cost > SHARE * seconds:
            units = self._every or min(MOST, math.ceil(cost / (SHARE * max(seconds, 1e-6))))
        self._left = units - 1

    def since(self) -> bytes:
        """Returns the samples read since the last state."""
        return pickle.dumps({"read": self._read, "print": self._print.now}, 5)


def state_of(data: bytes) -> dict[str, Any]:
    """Returns the state of a stream from a worker's bytes: with what was read since as `again`, if there is any."""
    file = io.BytesIO(data)
    state: dict[str, Any] = pickle.load(file)
    since = file.read()
    return {**state, "again": pickle.loads(since)} if since else state
