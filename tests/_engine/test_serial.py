"""What the serial backend adds to an error: at which sample it was raised."""

from __future__ import annotations

from typing import Any

import pytest

import stoker

ALWAYS_THE_SAME = OSError("image file is truncated")


class Bad(stoker.Dataset[int]):
    stoker_protocol = True

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            raise ALWAYS_THE_SAME
        return index

    def describe(self, index: int) -> str:
        return f"train/{index}.jpg"


def notes(settings: dict[str, Any]) -> list[str]:
    batches = iter(stoker.DataLoader(Bad(), output="numpy", **settings))
    raised = []
    while True:
        try:
            next(batches)
        except OSError as error:
            raised.append(error)
        except StopIteration:
            break
    assert set(map(id, raised)) == {id(ALWAYS_THE_SAME)} and str(ALWAYS_THE_SAME) == "image file is truncated"
    return ALWAYS_THE_SAME.__notes__


def test_an_error_says_at_which_sample_and_only_once() -> None:
    for _ in range(2):
        told = notes({"batch_size": None})
        assert told == [f"Raised in this process, at sample {index} (train/{index}.jpg)" for index in (4, 5)]


def test_a_batch_that_fails_names_its_samples() -> None:
    def collate(samples: list[int]) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        list(stoker.DataLoader([3, 4, 5], batch_size=3, collate_fn=collate))
    assert caught.value.__notes__ == ["Raised in this process, at samples 0, 1, 2 (3 in the batch)"]


class Left(BaseException):
    """No Exception, as those of some libraries."""


class Leaves(stoker.Dataset[int]):
    """A sample that calls sys.exit(), or raises another that is no Exception, as often as told."""

    def __init__(self, times: int, how: type[BaseException]) -> None:
        self.times = times
        self.how = how

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2 and self.times:
            self.times -= 1
            raise self.how(3)
        return index


@pytest.mark.parametrize("how", [SystemExit, Left, GeneratorExit])
@pytest.mark.parametrize(("times", "batches"), [(1, [[0, 1], [2, 3], [4, 5], [6, 7]]), (99, [[0, 1], [4, 5], [6, 7]])])
def test_loop_resumed_after_sys_exit_loses_no_batch(
    times: int, batches: list[list[int]], how: type[BaseException]
) -> None:
    """A loop that goes on after SystemExit loses no batch and does not repeat one without end."""
    iterator, found, left = iter(stoker.DataLoader(Leaves(times, how), batch_size=2, output="numpy")), [], 0
    while True:
        try:
            found.append(next(iterator).tolist())
        except how:
            left += 1
        except StopIteration:
            break
    assert found == batches
    assert left == min(times, 2)
