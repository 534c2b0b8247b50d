"""A unit that several workers make."""

from __future__ import annotations

from stoker._engine.supervision.split_policy import SplitBatch


def test_split_batch_is_complete_when_all_rows_are_written() -> None:
    share = SplitBatch(4)
    share.handed_out()
    share.handed_out()
    share.add_part(2, 2, "layout", {1: b"later"}, "a")
    assert not share.is_over
    share.add_part(0, 2, "layout", {1: b"first"}, "b")
    assert share.is_over and not share.spoiled and share.reports == ["a", "b"]
    assert share.texts == {1: [b"first", b"later"]}


def test_parts_with_different_layouts_spoil_a_split_batch() -> None:
    share = SplitBatch(4)
    share.handed_out()
    share.handed_out()
    share.add_part(0, 2, "layout", {}, "")
    share.add_part(2, 2, "another", {}, "")
    assert share.spoiled and share.is_over


def test_spoiled_split_batch_ends_with_its_last_writer() -> None:
    share = SplitBatch(64)
    share.handed_out()
    share.handed_out()
    share.failed()
    assert share.spoiled and not share.is_over
    share.add_part(0, 2, "layout", {}, "")
    assert share.is_over


def test_the_error_of_the_first_rows_counts() -> None:
    share = SplitBatch(64)
    for _ in range(3):
        share.handed_out()
    share.raised(20, "late")
    share.raised(10, "early")
    assert not share.is_over
    share.raised(30, "later")
    assert share.is_over and share.error == (10, "early")
