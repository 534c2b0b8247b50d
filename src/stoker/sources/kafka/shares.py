"""Shares of partitions by the residue of their offsets, and the part of a partition that has been read. No I/O.

A share of a whole partition has the modulus 1. If there are more workers than partitions, a partition is cut: a share
then has the offsets of one residue. Positions of shares say together which records of a partition were given, whatever
the cut was, so that any other cut continues from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stoker.errors import StateFormatError

_NAME = re.compile(r"(?P<topic>[^:%]+):(?P<partition>\d+)(%(?P<modulus>\d+)=(?P<residue>\d+))?")
_MOST_CLASSES = 1 << 16


class PartitionShare(NamedTuple):
    """The records of a partition whose offsets have one residue.

    Attributes:
        topic: of the partition.
        partition: its number.
        residue: of the offsets.
        modulus: of the offsets; 1 for all.
    """

    topic: str
    partition: int
    residue: int = 0
    modulus: int = 1

    @property
    def place(self) -> str:
        """The partition, as messages name it."""
        return f"{self.topic}:{self.partition}"

    @property
    def name(self) -> str:
        """The share's name in a state."""
        return self.place if self.modulus == 1 else f"{self.place}%{self.modulus}={self.residue}"

    @classmethod
    def named(cls, name: str) -> PartitionShare:
        """Returns the share of this name.

        Raises:
            StateFormatError: it is no such name.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise StateFormatError(f"a partition was expected in a state, found {name!r}")
        share = cls(found["topic"], int(found["partition"]))
        return share if found["modulus"] is None else share._replace(residue=int(found[5]), modulus=int(found[4]))

    def has(self, offset: int) -> bool:
        """Returns whether the record at `offset` belongs to the share."""
        return offset % self.modulus == self.residue


def cut(shares: Sequence[PartitionShare], num_shards: int, index: int) -> list[PartitionShare]:
    """Returns part `index` of `num_shards` parts: whole shares, unless there are fewer shares than parts."""
    if num_shards <= len(shares):
        return list(shares[index::num_shards])
    whole, part = shares[index % len(shares)], index // len(shares)
    parts = len(range(index % len(shares), num_shards, len(shares)))
    return [whole._replace(residue=whole.residue + whole.modulus * part, modulus=whole.modulus * parts)]


class ReadUpTo(NamedTuple):
    """Of a partition, all records of one residue below an offset were given.

    Attributes:
        residue: of their offsets.
        modulus: of their offsets.
        at: the offset of the next one, or below it.
    """

    residue: int
    modulus: int
    at: int

    def holds(self, offset: int) -> bool:
        """Returns whether the record at `offset` was given."""
        return offset < self.at and offset % self.modulus == self.residue


def first_unread(share: PartitionShare, start: int, read: Iterable[ReadUpTo]) -> int:
    """Returns an offset below which all records of the share were given.

    Args:
        share: the share.
        start: the offset at which its partition begins.
        read: the offsets given, by this share and by others.
    """
    known = list(read)
    classes = math.lcm(share.modulus, *(each.modulus for each in known))
    if classes > _MOST_CLASSES:  # cut into very different parts, again and again: what was given is skipped one by one
        known = [each for each in known if share.modulus % each.modulus == 0]
        classes = share.modulus
    return min(
        max((each.at for each in known if residue % each.modulus == each.residue), default=start)
        for residue in range(share.residue, classes, share.modulus)
    )
