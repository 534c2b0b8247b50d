from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from stoker.datasets.base import is_stream
from stoker.datasets.map import MapDataset
from stoker.datasets.window import WindowDataset
from stoker.errors import StateMismatchError
from stoker.testing.streams import SOURCES, Numbers, Plain, StreamSuite


class ByIndex:
    """A dataset that is no sequence."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return range(7)[index]


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: WindowDataset(kind(11), 4, 2, drop_last=False) for kind in SOURCES.values()),
        lambda: WindowDataset(Numbers(17, num_shards=2), 3),
        lambda: WindowDataset(Numbers(17), 2, 5),
        lambda: WindowDataset(Numbers(16), 7, 1),
        lambda: WindowDataset(WindowDataset(Plain(19), 3, 2), 3, 1),
    ],
    ids=[*SOURCES, "side by side", "with gaps", "each", "nested"],
)
class TestWindowsOfStreams(StreamSuite):
    shards_keep_samples = False


def test_windows_by_index() -> None:
    dataset: Any = WindowDataset(ByIndex(), 3)
    assert (dataset.size, dataset.stride, dataset.drop_last) == (3, 3, True)
    assert [dataset[i] for i in range(len(dataset))] == [[0, 1, 2], [3, 4, 5]]
    assert dataset[-1] == [3, 4, 5]
    with pytest.raises(IndexError, match="index 2 is outside"):
        dataset[2]
    assert not is_stream(dataset)
    overlapping: Any = WindowDataset(ByIndex(), 4, 2, drop_last=False)
    assert [overlapping[i] for i in range(len(overlapping))] == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6]]


@pytest.mark.parametrize("drop_last", [True, False])
def test_streams_have_the_windows_of_sequences(drop_last: bool) -> None:
    for n, size, stride in itertools.product(range(12), (1, 2, 3, 5), (1, 2, 3, 4, 7)):
        by_index: Any = WindowDataset(list(range(n)), size, stride, drop_last)
        stream: Any = WindowDataset(Numbers(n), size, stride, drop_last)
        windows = [by_index[i] for i in range(len(by_index))]
        assert list(stream) == windows, (n, size, stride)
        assert len(stream) == len(windows)
        starts = range(0, max(0, n - size + 1), stride)
        assert [window for window in windows if len(window) == size] == [list(range(s, s + size)) for s in starts]
        if not drop_last and stride <= size:
            assert set().union(*windows) == set(range(n)), "every sample has a window"
            assert len(windows) < 2 or windows[-1][-1] > windows[-2][-1], "no window repeats what was seen"


def test_sliceable_source_is_sliced() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    dataset: Any = WindowDataset(tokens, 8, 4)
    assert dataset[2].dtype == np.uint16
    assert dataset[2].tolist() == list(range(8, 16))
    assert np.shares_memory(dataset[2], tokens)
    assert WindowDataset("abcdefg", 3)[1] == "def"
    assert WindowDataset(b"abcdefg", 3, drop_last=False)[2] == b"g"
    assert WindowDataset((1, 2, 3), 2)[0] == [1, 2]


def test_tensors_are_sliced() -> None:
    torch = pytest.importorskip("torch")
    window = WindowDataset(torch.arange(10), 4)[1]
    assert window.tolist() == [4, 5, 6, 7]


def test_a_source_that_fetches_batches_is_asked_once() -> None:
    class Fetching(ByIndex):
        def __getitems__(self, indices: list[int]) -> tuple[int, ...]:
            return tuple(indices)

    assert WindowDataset(Fetching(), 3, 2)[1] == [2, 3, 4]


def test_changing_a_window_changes_no_other() -> None:
    windows = iter(WindowDataset(Numbers(6), 4, 2))  # type: ignore[call-overload]
    next(windows).clear()
    assert next(windows) == [2, 3, 4, 5]


@pytest.mark.parametrize("torn", range(13))
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("size", "stride"), [(4, 2), (4, 4), (3, 1), (2, 5), (5, 3)])
def test_no_window_reaches_over_a_sample_that_fails(size: int, stride: int, drop_last: bool, torn: int) -> None:
    def read(number: int) -> int:
        if number == torn:
            raise OSError("a torn page")
        return number

    dataset: Any = WindowDataset(MapDataset(Numbers(13), read), size, stride, drop_last)

    def walk(windows: Any) -> list[tuple[Any, Any]]:
        """What comes, and the state behind it."""
        found: list[tuple[Any, Any]] = []
        while True:
            try:
                found.append((next(windows), dataset.state_dict()))
            except OSError:
                found.append(("torn", dataset.state_dict()))
            except StopIteration:
                return found

    walked = walk(iter(dataset))
    given = [window for window, _ in walked]
    whole: Any = WindowDataset(range(13), size, stride, drop_last)
    wanted = [list(whole[index]) for index in range(len(whole))]
    assert [window for window in given if window != "torn"] == [window for window in wanted if torn not in window]
    reached = len(wanted) < 2 or torn < (len(wanted) - 1) * stride + size  # else it need not have been read
    assert given.count("torn") == 1 or not reached
    for behind, (_, state) in enumerate(walked, 1):
        dataset.load_state_dict(state)
        assert [window for window, _ in walk(iter(dataset))] == given[behind:]


def test_no_window_reaches_over_an_interruption() -> None:
    def read(number: int) -> int:
        if number == 4:
            raise KeyboardInterrupt
        return number

    windows = iter(WindowDataset(MapDataset(Numbers(9), read), 3, 1))  # type: ignore[call-overload]
    assert [next(windows), next(windows)] == [[0, 1, 2], [1, 2, 3]]
    with pytest.raises(KeyboardInterrupt):
        next(windows)
    assert list(windows) == [[5, 6, 7], [6, 7, 8]]


def test_a_state_of_other_windows_is_refused() -> None:
    dataset: Any = WindowDataset(Numbers(13), 4, 2)
    next(iter(dataset))
    state = dataset.state_dict()
    for other in (WindowDataset(Numbers(13), 4, 1), WindowDataset(Numbers(13), 3, 2)):
        other.load_state_dict(state)  # type: ignore[attr-defined]
        with pytest.raises(StateMismatchError, match="another order"):
            iter(other)  # type: ignore[call-overload]


def test_windows_stay_within_their_shard() -> None:
    dataset: Any = WindowDataset(Numbers(9, num_shards=2), 2)
    assert dataset.num_shards == 2
    assert list(dataset.shard(num_shards=2, index=1)) == [[1, 3], [5, 7]]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    WindowDataset(source, 2).set_epoch(5)
    assert source.epoch == 5


def test_bad_input_is_refused() -> None:
    for number in (0, -3):
        with pytest.raises(ValueError, match=f"size is {number}, expected at least 1"):
            WindowDataset([1], number)
        with pytest.raises(ValueError, match=f"stride is {number}, expected at least 1"):
            WindowDataset([1], 2, number)
    with pytest.raises(TypeError, match=r"size is 2\.0, expected an integer"):
        WindowDataset([1], 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a set, which is not a dataset"):
        WindowDataset({1}, 2)
