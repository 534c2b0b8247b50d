from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import StateFormatError
from stoker.sources.kafka.client_config import PartitionRange
from stoker.sources.kafka.cursor import (
    PartitionCursor,
    PartitionShare,
    ReadUpTo,
    SavedPlace,
    are_whole,
    first_unread,
    former_shares,
)
from stoker.sources.kafka.stream import PartitionRecords

END = 40


class Message:
    """As the client's."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def __len__(self) -> int:
        return 1000


def given_by(cursor: PartitionCursor, count: int) -> list[int]:
    """The offsets that a cursor gives, as messages arrive."""
    given = []
    for offset in range(cursor.fetched, END + 3):
        if len(given) == count:
            break
        cursor.arrives(Message(offset))
        if cursor.has_arrived:
            given.append(cursor.give().offset())
    return given


def shared_out(num_shards: int) -> list[PartitionShare]:
    shares = [former_shares([PartitionShare("t", 0)], num_shards, index) for index in range(num_shards)]
    return [share for part in shares for share in part]


@given(
    steps=st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 20), min_size=7, max_size=7)), max_size=4),
    start=st.integers(0, 5),
)
def test_states_of_cut_partitions_give_each_record_once(steps: list[tuple[int, list[int]]], start: int) -> None:
    state: dict[str, Any] = {}
    seen: list[int] = []
    for num_shards, counts in [*steps, (1, [END] * 7)]:
        saved = [SavedPlace.of(name, entry) for name, entry in state.items()]
        read = [ReadUpTo(place.share.residue, place.share.modulus, place.at) for place in saved]
        read += [each for place in saved for each in place.read]
        state = {}
        for share, count in zip(shared_out(num_shards), counts, strict=False):
            cursor = PartitionCursor(share, first_unread(share, start, read), END, read)
            seen += given_by(cursor, count)
            state[share.name] = cursor.state(is_next=False, partitions=1)
    assert sorted(seen) == list(range(start, END))


def test_what_other_shares_had_given_is_not_given_again() -> None:
    """A share's place says what shares of an earlier cut had given, which the state has no place of any more."""
    range_of = PartitionRange("t", 0, 0, END, None)
    records = PartitionRecords(None, [range_of], {("t", 0): 0}, ends=True, timeout=1)  # type: ignore[arg-type]
    saved = [SavedPlace(PartitionShare("t", 0, 0, 2), 10, END, [ReadUpTo(1, 4, 13)], is_next=False, partitions=1)]
    given = given_by(records._cursor(PartitionShare("t", 0), saved), END)
    assert given == [n for n in range(END) if not (n < 10 and n % 2 == 0) and not (n < 13 and n % 4 == 1)]


def test_shares_of_a_partition_are_known_to_be_all() -> None:
    thirds = shared_out(3)
    assert are_whole(thirds) and are_whole([PartitionShare("t", 0)])
    assert not are_whole(thirds[1:])
    assert are_whole([*thirds[1:], *former_shares(thirds[:1], 2, 0), *former_shares(thirds[:1], 2, 1)])


@pytest.mark.parametrize("share", [PartitionShare("a.b-c_d", 12), PartitionShare("t", 0, 5, 7)])
def test_names_lead_back_to_their_shares(share: PartitionShare) -> None:
    assert PartitionShare.named(share.name) == share


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("t", {}),
        ("t:0", {}),
        ("t:0", {"at": "x", "end": 1}),
        ("t:0", 3),
        ("t:0", {"at": 1, "end": 1, "of": 1, "read": [[1]]}),
        ("t:0", {"at": 1, "end": 1}),
    ],
)
def test_damaged_places_are_refused(name: str, entry: Any) -> None:
    with pytest.raises(StateFormatError, match="was expected in a state"):
        SavedPlace.of(name, entry)


def test_a_full_cursor_says_so() -> None:
    cursor = PartitionCursor(PartitionShare("t", 0), 0, None)
    assert cursor.has_room and not cursor.is_full
    for offset in range(9000):  # MB of values
        cursor.arrives(Message(offset))
    assert cursor.is_full and not cursor.has_room and cursor.fetched == 9000
    for _ in range(7000):
        cursor.give()
    assert cursor.has_room and cursor.at == 7000


def test_records_that_were_removed_are_passed_over() -> None:
    cursor = PartitionCursor(PartitionShare("t", 0), 0, 10)
    for offset in (0, 4, 4, 3, 12):  # compacted, repeated, and behind the end
        cursor.arrives(Message(offset))
    assert [cursor.give().offset(), cursor.give().offset()] == [0, 4]
    assert cursor.is_over and cursor.at == 10
