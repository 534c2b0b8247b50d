"""How far a share of numbered shards has come, in a form that a share of any other size can go on from.

A stream of several shards (files, streams) has a number for each, and a share of them is a range: every n-th. The state
of a share is one entry of `{"shards": {share: …}}`: a bit for each of its shards that is done, and the states of those
that are begun. The entries of all shares together say how the whole stream stands, so a loader with another number of
workers hands all of them to each worker, and each picks what is now its own. Where it has not done so before the next
state is taken, entries of several such rounds come together; the later ones know better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stoker.datasets.stream import State
from stoker.errors import StateFormatError, StateMismatchError


def share_of(numbers: range, num_shards: int, index: int) -> range:
    """Every `num_shards`-th of these shards, from the one at `index` on.

    Raises:
        ValueError: there are fewer shards, or there is no such share.
    """
    if not 0 <= index < num_shards <= len(numbers):
        raise ValueError(f"there is no share {index} of {num_shards} shares of {len(numbers)} shards")
    return numbers[index::num_shards]


class Progress:
    """What is done and what is begun of a share.

    Args:
        numbers: the share.
        total: how many shards the whole stream has.
        state: of this share or of several others that hold its shards; None for the start.

    Attributes:
        begun: the states of shards that are begun, by number: in the order in which the share gave them if the state
            was its own, else ascending. The share takes out what it goes on with.
        waiting: the shards that are neither done nor begun, in their order. The share takes out what it begins.
        saved: what a share put into its state beside that: this one, or some other; None at the start.
        is_own: whether it was this one.

    Raises:
        StateFormatError: the state is damaged, or no state of shards.
        StateMismatchError: it is of another number of shards.
    """

    def __init__(self, numbers: range, total: int, state: State | None) -> None:
        self._numbers = numbers
        self._total = total
        self._done = np.zeros(len(numbers), np.bool_)
        self._round = 0
        self.begun: dict[int, Any] = {}
        self.saved: State | None = None
        self.is_own = False
        if state is not None:
            try:
                self._load(state["shards"])
            except StateMismatchError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise StateFormatError(f"a state of shards was expected, not {str(state)[:200]}") from error
        self.waiting = deque(number for number in self._left() if number not in self.begun)

    def _load(self, shares: dict[str, dict[str, Any]]) -> None:
        begun: dict[int, Any] = {}
        if not shares:
            raise ValueError("no shares")
        for name, share in sorted(shares.items(), key=lambda item: int(item[1]["round"])):
            self.saved, self._round = share, int(share["round"]) + 1
            if share["of"] != self._total:
                raise StateMismatchError(f"the state is of {share['of']} shards, and there are {self._total} now")
            start, step = map(int, name.split("/"))
            theirs = range(start, self._total, step)
            for place in np.flatnonzero(_bits(share["done"], len(theirs))).tolist():
                if theirs[place] in self._numbers:
                    self.finish(theirs[place])
            begun |= {int(number): inner for number, inner in share["begun"]}
        self.is_own = list(shares) == [self._name]
        if self.is_own:
            self._round -= 1
        else:
            begun = dict(sorted(begun.items()))
        left = set(self._left())
        self.begun = {number: inner for number, inner in begun.items() if number in left}

    @property
    def _name(self) -> str:
        return f"{self._numbers.start}/{self._numbers.step}"

    def finish(self, number: int) -> None:
        """A shard is done."""
        self._done[self._numbers.index(number)] = True

    def _left(self) -> Iterator[int]:
        return (self._numbers[place] for place in np.flatnonzero(~self._done).tolist())

    def state(self, begun: Iterable[tuple[int, Any]], **own: Any) -> State:
        """The share's state: `begun` are the shards that are begun, and whatever it needs beside."""
        entry: State = {"of": self._total, "round": self._round, "done": _hex(self._done)}
        return {"shards": {self._name: {**entry, "begun": [list(pair) for pair in begun], **own}}}


def _hex(bits: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """As a number in hexadecimal, whose lowest bit is the first."""
    return f"{int.from_bytes(np.packbits(bits, bitorder='little').tobytes(), 'little'):x}"


def _bits(number: str, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    packed = (int(number, 16) & (1 << count) - 1).to_bytes(count // 8 + 1, "little")
    return np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
