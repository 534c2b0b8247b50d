from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.sources.clips.clips_of_files import Cut


@given(
    seconds=st.floats(0.01, 5),
    hop=st.none() | st.floats(0.01, 5),
    rate=st.sampled_from([8000, 44_100, 12_800, 1000, 30_000 / 1001]),
    total=st.integers(1, 200_000),
    pads=st.booleans(),
)
@example(seconds=0.01171875, hop=None, rate=30_000 / 1001, total=2, pads=False)  # several clips begin at one tick
def test_clips_cover_a_file_as_far_as_they_can(
    seconds: float, hop: float | None, rate: float, total: int, pads: bool
) -> None:
    cut = Cut.checked(seconds, hop, False, "pad" if pads else "raise")
    count, length = cut.count(total, rate), cut.length(total, rate)
    ends = [cut.start(number, rate) + length for number in range(max(0, count - 2), count + 2)]
    whole = [end for end in ends[: min(count, 2)] if end <= total]
    if not pads:
        assert len(whole) == min(count, 2)
        assert cut.start(count, rate) + length > total
    elif count:
        assert cut.start(count - 1, rate) < total
        assert cut.start(count, rate) >= total or cut.start(count - 1, rate) + length >= total


@pytest.mark.parametrize(
    ("seconds", "hop", "pads", "expected"),
    [
        (1, None, False, 10),
        (1, None, True, 11),
        (1, 0.5, False, 20),
        (1, 0.5, True, 20),
        (1, 0.6, True, 17),
        (3, 4, False, 2),
        (11, None, False, 0),
        (11, None, True, 1),
        (10.5, None, True, 1),
        (0.1, None, False, 105),
    ],
)
def test_count(seconds: float, hop: float | None, pads: bool, expected: int) -> None:
    assert Cut.checked(seconds, hop, False, "pad" if pads else "raise").count(105_000, 10_000) == expected


def test_slack_is_room_at_the_end() -> None:
    cut = Cut.checked(1, None, False, "pad")
    assert cut.count(1999, 1000, slack=2) == 2
    assert cut.count(2001, 1000, slack=2) == 2
    assert cut.count(2003, 1000, slack=2) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("2", None, False, "raise"), TypeError, "seconds is '2', expected a number"),
        ((True, None, False, "raise"), TypeError, "seconds is True"),
        ((0, None, False, "raise"), ValueError, "seconds is 0, expected a positive"),
        ((float("nan"), None, False, "raise"), ValueError, "seconds is nan"),
        ((1, -1, False, "raise"), ValueError, "hop is -1"),
        ((None, 1, False, "raise"), ValueError, "hop is given, but there is one clip of each file"),
        ((1, 1, True, "raise"), ValueError, "hop is given, but there is one clip of each file"),
        ((1, None, False, "loop"), ValueError, 'short is \'loop\', expected "raise" or "pad"'),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cut.checked(*arguments)
