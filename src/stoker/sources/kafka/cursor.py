"""The place in a partition: which records have arrived, which were given, and how a state says so. No I/O."""

from __future__ import annotations

import json
import math
import operator
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stoker.errors import StateFormatError
from stoker.extend import State

_MOST_RECORDS = 20_000
_MOST_BYTES = 8 << 20


class SavedPlace(NamedTuple):
    """The place of a share in a state.

    Attributes:
        at: the offset of its next record, or below it.
        end: the offset behind its last one; None without an end.
        read: records at or behind `at` that other shares of the partition had given when this one began.
        partitions: the number of all partitions of the stream.
        is_joined: whether the state is of all workers that shared partitions, in an earlier version.
    """

    share: PartitionShare
    at: int
    end: int | None
    read: list[ReadUpTo]
    is_next: bool
    partitions: int
    is_joined: bool = False

    @classmethod
    def of(cls, name: str, entry: Any) -> SavedPlace:
        """Returns the place that a state's entry holds."""
        share = PartitionShare.named(name)
        try:
            at, end = operator.index(entry["at"]), entry["end"]
            read = [ReadUpTo(*map(operator.index, each)) for each in entry.get("read", [])]
            end = None if end is None else operator.index(end)
            is_next, is_joined = bool(entry.get("next")), bool(entry.get("joined"))
            return cls(share, at, end, read, is_next, operator.index(entry["of"]), is_joined)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateFormatError(f"the place in {name} was expected in a state, found {str(entry)[:200]}") from error


class PartitionCursor:
    """The place in a share of a partition.

    Args:
        at: the offset of the next record to fetch.
        end: the offset behind the last one; None without an end.
        read: records that were given before, in any order.

    Attributes:
        fetched: the offset of the next record to fetch.
        end: the offset behind the last one.
        is_assigned: whether the client fetches it.
        is_lost: whether it cannot be read further, which was raised.
    """

    def __init__(self, share: PartitionShare, at: int, end: int | None, read: Iterable[ReadUpTo] = ()) -> None:
        self.share = share
        self.fetched = at
        self.end = end
        self.is_assigned = False
        self.is_lost = False
        self._read = [each for each in read if each.at > at]
        self._has_all = not self._read and share.modulus == 1
        self._arrived: deque[Any] = deque()
        self._bytes = 0

    @property
    def at(self) -> int:
        """The offset of the next record to give, or below it."""
        return int(self._arrived[0].offset()) if self._arrived else self.fetched

    @property
    def has_arrived(self) -> bool:
        """Whether a record can be given."""
        return bool(self._arrived)

    @property
    def is_fetched(self) -> bool:
        """Whether the client has nothing to fetch any more."""
        return self.is_lost or (self.end is not None and self.fetched >= self.end)

    @property
    def is_over(self) -> bool:
        """Whether all records were given."""
        return self.is_fetched and not self._arrived

    @property
    def is_full(self) -> bool:
        """Whether enough records wait to be given that no more should be fetched."""
        return len(self._arrived) >= _MOST_RECORDS or self._bytes >= _MOST_BYTES

    @property
    def has_room(self) -> bool:
        """Whether few records wait to be given."""
        return len(self._arrived) <= _MOST_RECORDS // 4 and self._bytes <= _MOST_BYTES // 4

    def arrives(self, message: Any) -> None:
        """Takes a message of the partition; drops one of another share, or behind the end."""
        offset = message.offset()
        end = self.end
        if offset < self.fetched or self.is_lost:
            return
        if end is not None and offset >= end:  # records before the end were removed, by compaction for one
            self.fetched = max(self.fetched, end)
            return
        self.fetched = offset + 1
        if self._has_all or (self.share.has(offset) and not any(each.holds(offset) for each in self._read)):
            self._arrived.append(message)
            self._bytes += len(message)  # of its value

    def arrives_at(self, offset: int) -> None:
        """Learns that there is no record before `offset` any more: the log ends there, or begins there."""
        self.fetched = max(self.fetched, offset)

    def give(self) -> Any:
        """Returns the next message. There is one."""
        message = self._arrived.popleft()
        self._bytes -= len(message)
        return message

    def state(self, is_next: bool, partitions: int) -> State:
        """Returns the entry of a state.

        Args:
            is_next: whether it is this share's turn.
        """
        at = self.at
        entry: State = {"at": at, "end": self.end, "of": partitions}
        if read := [list(each) for each in self._read if each.at > at]:
            entry["read"] = read
        if is_next:
            entry["next"] = True
        return entry


_NAME = re.compile(r"(?P<topic>[^:%]+):(?P<partition>\d+)(%(?P<modulus>\d+)=(?P<residue>\d+))?")
_MOST_CLASSES = 1 << 16


class PartitionShare(NamedTuple):
    """The records of a partition, or those whose offsets have one residue, as the state of an earlier version has them.

    That version cut a partition among workers if there were more of them. Places of shares say together which records
    of a partition were given, whatever the cut was, so that one reader of the partition continues from them.

    Attributes:
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
        """Returns the share of this name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise StateFormatError(f"a partition was expected in a state, found {name!r}")
        share = cls(found["topic"], int(found["partition"]))
        return share if found["modulus"] is None else share._replace(residue=int(found[5]), modulus=int(found[4]))

    def has(self, offset: int) -> bool:
        """Returns whether the record at `offset` belongs to the share."""
        return offset % self.modulus == self.residue


def former_shares(shares: Sequence[PartitionShare], num_shards: int, index: int) -> list[PartitionShare]:
    """Returns what an earlier version read in part `index` of `num_shards`: a cut partition if there were too few."""
    if num_shards <= len(shares):
        return list(shares[index::num_shards])
    whole, part = shares[index % len(shares)], index // len(shares)
    parts = len(range(index % len(shares), num_shards, len(shares)))
    return [whole._replace(residue=whole.residue + whole.modulus * part, modulus=whole.modulus * parts)]


def are_whole(shares: Sequence[PartitionShare], of: PartitionShare | None = None) -> bool:
    """Returns whether shares of one partition hold all its records, or all those of the share `of`."""
    classes = min(_MOST_CLASSES, math.lcm(*(share.modulus for share in [*shares, *([of] if of else [])])))
    residues = range(classes) if of is None else range(of.residue, classes, of.modulus)
    return all(any(share.has(residue) for share in shares) for residue in residues)


class ReadUpTo(NamedTuple):
    """Of a partition, all records of one residue below an offset were given.

    Attributes:
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


_ENTRY = {"at", "end", "of"}

Partition = tuple[str, int]


def offsets_in(states: Sequence[Any], begins: Mapping[Partition, int]) -> dict[Partition, int]:
    """Returns the offset of each partition below which all records were given, for the partitions that states name.

    Args:
        states: of loaders or streams; parts of one stream's together, as those of all ranks.
        begins: the partitions of the stream, and where each began without a state.

    Raises:
        StateFormatError: a place of a partition is damaged.
    """
    read: dict[Partition, list[ReadUpTo]] = defaultdict(list)
    for state in states:
        for name, entry in _entries(state):
            place = SavedPlace.of(name, entry)
            partition = (place.share.topic, place.share.partition)
            if partition in begins:
                read[partition] += [ReadUpTo(place.share.residue, place.share.modulus, place.at), *place.read]
    return {where: first_unread(PartitionShare(*where), begins[where], known) for where, known in read.items()}


def _entries(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the entry of each share of a partition that a state holds, however deep."""
    if isinstance(state, Mapping):
        shards = state.get("shards")
        for name, entry in shards.items() if isinstance(shards, Mapping) else ():
            if isinstance(entry, Mapping) and entry.keys() >= _ENTRY:
                yield name, entry
        for key, value in state.items():
            yield from _entries(_parsed(value) if _is_one_value(key) else value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _entries(value)


def _is_one_value(key: Any) -> bool:
    """Returns whether a key of a loader's state holds a part of it as one text: of all ranks, or of one."""
    return key == "below" or (isinstance(key, str) and key.startswith("rank "))


def _parsed(below: Any) -> Any:
    """Returns the value of a part of a loader's state that is one text of JSON."""
    if not isinstance(below, str):
        return below
    try:
        return json.loads(below)
    except ValueError as error:
        raise StateFormatError(f"the state of a loader is damaged: {below[:200]}") from error
