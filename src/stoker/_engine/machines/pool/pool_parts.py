"""What the ranks of a pool send: equal parts have equal digests, in whichever process they were pickled."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import NamedTuple, cast


class PoolParts(NamedTuple):
    """The parts that one rank sends to a pool.

    Attributes:
        digest: of the dataset and the functions.
        label: names the dataset for messages.
        settings: those of this rank's loader, pickled: they differ by rank.
        classes: cloudpickle's numbers of the classes that travel by value, in the order in which the pickle has them.
            The same class has another number in each rank.
    """

    digest: str
    label: str
    settings: bytes
    classes: tuple[str, ...]


class ClassNumbers:
    """cloudpickle's numbers of classes, as they are when this is pickled: behind the parts. Unpickles as a list."""

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        cloudpickle = sys.modules["cloudpickle.cloudpickle"]
        return list, ([*cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.values()],)


class PoolOrder(NamedTuple):
    """What the agent of a pool is told of it.

    Attributes:
        name: of the pool.
        place: of the agent in it, as part of its name.
        once: whether its process unpickles the dataset, for all ranks.
        parts: what the rank sends.
    """

    name: str
    place: str
    once: bool
    parts: PoolParts

    def at(self, place: int, moves: int) -> PoolOrder:
        """Returns the order for the agent of this place. It has another name for each move from a machine that is to be
        taken away, so that it is not the one there.
        """
        return self._replace(place=f"{place}-{moves}" if moves else f"{place}")


class RankParts(NamedTuple):
    """What a rank says to its pool, beside the parts.

    Attributes:
        once: whether the dataset may be unpickled once for several workers.
        kind: the class of the dataset, in words.
        settings: as in `PoolParts`.
        numbers: of all classes that cloudpickle has numbered in the trainer.
    """

    once: bool
    kind: str
    settings: bytes
    numbers: ClassNumbers | Sequence[str]

    def order(self, name: str, pickled: bytes, large: Sequence[memoryview]) -> PoolOrder:
        """Returns what the agents of the pool of this name are told, for the parts as they were pickled."""
        numbers = cast("Sequence[str]", self.numbers)
        places = {number: at for number in numbers if (at := pickled.find(number.encode())) >= 0}
        classes = tuple(sorted(places, key=places.__getitem__))
        same = pickled
        for place, number in enumerate(classes):
            same = same.replace(number.encode(), b"%032x" % place)
        digest = hashlib.sha256(same)
        for view in large:
            digest.update(b"%d " % view.nbytes)
            digest.update(view)
        size, short = len(pickled) + sum(view.nbytes for view in large), digest.hexdigest()
        label = f"{self.kind} ({size:,} bytes, digest {short[:8]})"
        return PoolOrder(name, "", self.once, PoolParts(short, label, self.settings, classes))


def number_as(theirs: Sequence[str], own: Sequence[str]) -> None:
    """Gives classes that were unpickled here the numbers of another rank, whose trainer knows them by these."""
    cloudpickle = sys.modules.get("cloudpickle.cloudpickle")
    if cloudpickle is None or tuple(theirs) == tuple(own):
        return
    by_number, by_class = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID, cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
    for there, here in zip(theirs, own, strict=True):
        if (kind := by_number.get(there)) is not None:
            by_number[here] = kind
            by_class[kind] = here
