"""Progress of a share of numbered shards, in a form from which a share of any other size can continue.

A stream of several shards (files, streams) numbers them, and a share is a range: every n-th shard. The state of a share
is one entry of `{"shards": {share: …}}`: a bit for each of its shards that is done, and the states of the shards that
are begun. The entries of all shares together describe the whole stream, so a loader with another number of workers
passes all entries to each worker, and each picks its own shards. If a worker has not done so before the next state is
taken, entries of several rounds come together; those of later rounds take precedence.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stoker._core.worker_info import current
from stoker.datasets.stream import State
from stoker.errors import StateFormatError, StateMismatchError


def share_of(numbers: range, num_shards: int, index: int) -> range:
    """Returns every `num_shards`-th of these shards, from the one at `index` on.

    Raises:
        ValueError: there are fewer shards than shares, or `index` is not a share.
    """
    if not 0 <= index < num_shards <= len(numbers):
        raise ValueError(f"there is no share {index} of {num_shards} shares of {len(numbers)} shards")
    return numbers[index::num_shards]


def torchs_part(numbers: range) -> range:
    """Returns the part of these shards that belongs to this process if it is a worker of torch's own loader; else all.

    Stoker's loader cuts a stream before it is opened. torch's gives each worker the whole stream.
    """
    info = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
    if info is None or current.info is not None:
        return numbers
    return numbers[info.id :: info.num_workers]


class ShardProgress:
    """The shards of a share that are done and those that are begun.

    Args:
        numbers: the share.
        total: the number of shards of the whole stream.
        state: of this share, or of the shares that hold its shards; None for the start.

    Attributes:
        begun: the states of the begun shards, by number: in the order in which the share gave them if the state was its
            own, else ascending. The share removes the shards that it continues.
        waiting: the shards that are neither done nor begun, in order. The share removes those that it begins.
        saved: the entry of this share, or of another one, in the state; None at the start.
        is_own: whether the state was that of this share alone.

    Raises:
        StateFormatError: the state is damaged, or not a state of shards.
        StateMismatchError: the state has another number of shards.
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
                raise StateFormatError(f"a state of shards was expected, found {str(state)[:200]}") from error
        self.waiting = deque(number for number in self._left() if number not in self.begun)

    def _load(self, shares: dict[str, dict[str, Any]]) -> None:
        begun: dict[int, Any] = {}
        if not shares:
            raise ValueError("no shares")
        for name, share in sorted(shares.items(), key=lambda item: int(item[1]["round"])):
            self.saved, self._round = share, int(share["round"]) + 1
            if share["of"] != self._total:
                raise StateMismatchError(f"the state is of {share['of']} shards, but there are {self._total} now")
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
        """Marks a shard as done."""
        self._done[self._numbers.index(number)] = True

    def _left(self) -> Iterator[int]:
        return (self._numbers[place] for place in np.flatnonzero(~self._done).tolist())

    def state(self, begun: Iterable[tuple[int, Any]], **own: Any) -> State:
        """Returns the share's state: the begun shards with their states, and the values in `own`."""
        entry: State = {"of": self._total, "round": self._round, "done": _hex(self._done)}
        return {"shards": {self._name: {**entry, "begun": [list(pair) for pair in begun], **own}}}


def _hex(bits: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """Returns the bits as a number in hexadecimal; the lowest bit is the first."""
    return f"{int.from_bytes(np.packbits(bits, bitorder='little').tobytes(), 'little'):x}"


def _bits(number: str, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    packed = (int(number, 16) & (1 << count) - 1).to_bytes(count // 8 + 1, "little")
    return np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
