"""The place in a share of a partition: which records have arrived, and which were given. No I/O."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from stoker.datasets.stream import State
from stoker.errors import StateFormatError
from stoker.sources.kafka.shares import PartitionShare, ReadUpTo

_MOST_RECORDS = 20_000
_MOST_BYTES = 8 << 20


class SavedPlace(NamedTuple):
    """The place of a share in a state.

    Attributes:
        share: the share.
        at: the offset of its next record, or below it.
        end: the offset behind its last one; None without an end.
        read: records at or behind `at` that other shares of the partition had given when this one began.
        is_next: whether it was this share's turn.
        partitions: the number of all partitions of the stream.
    """

    share: PartitionShare
    at: int
    end: int | None
    read: list[ReadUpTo]
    is_next: bool
    partitions: int

    @classmethod
    def of(cls, name: str, entry: Any) -> SavedPlace:
        """Returns the place that a state's entry holds.

        Raises:
            StateFormatError: it holds none.
        """
        share = PartitionShare.named(name)
        try:
            at, end = operator.index(entry["at"]), entry["end"]
            read = [ReadUpTo(*map(operator.index, each)) for each in entry.get("read", [])]
            end = None if end is None else operator.index(end)
            return cls(share, at, end, read, bool(entry.get("next")), operator.index(entry["of"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateFormatError(f"the place in {name} was expected in a state, found {str(entry)[:200]}") from error


class PartitionCursor:
    """The place in a share of a partition.

    Args:
        share: the share.
        at: the offset of the next record to fetch.
        end: the offset behind the last one; None without an end.
        read: records that were given before, in any order.

    Attributes:
        share: the share.
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
            partitions: the number of all partitions of the stream.
        """
        at = self.at
        entry: State = {"at": at, "end": self.end, "of": partitions}
        if read := [list(each) for each in self._read if each.at > at]:
            entry["read"] = read
        if is_next:
            entry["next"] = True
        return entry
