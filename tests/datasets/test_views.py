from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.datasets.base import is_stream
from stoker.datasets.map import MapDataset
from stoker.datasets.views import ViewsDataset, average_views
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


def seen(sample: int, view: int) -> tuple[int, int]:
    return sample, view


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: ViewsDataset(kind(4), 3, seen) for kind in SOURCES.values()),
        lambda: ViewsDataset(Numbers(5, num_shards=2), 3, seen, grouped=True),
        lambda: ViewsDataset(ViewsDataset(Numbers(3, num_shards=2), 2, seen), 2, seen),
    ],
    ids=[*SOURCES, "grouped", "nested"],
)
class TestViewsOfStreams(StreamSuite):
    pass


def test_views_of_a_sample_stand_side_by_side() -> None:
    dataset: Any = ViewsDataset([10, 20], 3, seen)
    assert len(dataset) == 6
    assert [dataset[i] for i in range(6)] == [(10, 0), (10, 1), (10, 2), (20, 0), (20, 1), (20, 2)]
    assert dataset[-1] == (20, 2)
    with pytest.raises(IndexError, match="index 6 is outside of a dataset of 6 samples"):
        dataset[6]
    assert not is_stream(dataset)


def test_grouped_a_sample_is_the_tuple_of_its_views() -> None:
    dataset: Any = ViewsDataset([10, 20], 2, seen, grouped=True)
    assert [dataset[i] for i in range(len(dataset))] == [((10, 0), (10, 1)), ((20, 0), (20, 1))]
    assert dataset[-2] == dataset[0]


def test_streams_give_the_same_views() -> None:
    for grouped in (False, True):
        by_index: Any = ViewsDataset(range(3), 2, seen, grouped)
        stream: Any = ViewsDataset(Numbers(3), 2, seen, grouped)
        assert list(stream) == [by_index[i] for i in range(len(by_index))]
        assert len(stream) == len(by_index)


def test_views_without_a_transform_are_fetched_separately() -> None:
    """As datasets that augment at random need it."""
    fetched: list[int] = []
    source: MapDataset[int] = MapDataset(range(3), lambda number: fetched.append(number) or len(fetched))
    expanded: Any = ViewsDataset(source, 2)
    assert [expanded[i] for i in range(6)] == [1, 2, 3, 4, 5, 6]
    grouped: Any = ViewsDataset(source, 2, grouped=True)
    assert grouped[1] == (7, 8)
    assert fetched == [0, 0, 1, 1, 2, 2, 1, 1]


def test_a_stream_is_read_once_for_all_views() -> None:
    read: list[int] = []
    source: Any = MapDataset(Numbers(3), lambda number: read.append(number) or number)
    list(ViewsDataset(source, 4, seen))  # type: ignore[call-overload]
    assert read == [0, 1, 2]


def test_a_view_that_fails_is_passed_over() -> None:
    samples = iter(ViewsDataset(Numbers(2), 2, lambda sample, view: 1 // (sample + view)))  # type: ignore[call-overload]
    with pytest.raises(ZeroDivisionError):
        next(samples)
    assert list(samples) == [1, 1, 0]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    ViewsDataset(source, 2, seen).set_epoch(5)
    assert source.epoch == 5


def test_averages_of_arrays() -> None:
    outputs = np.arange(12, dtype=np.float32).reshape(6, 2)
    average = average_views(outputs, 3)
    assert average.dtype == np.float32
    assert average.tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert average_views([1, 2, 3, 5], 2).tolist() == [1.5, 4.0]
    assert average_views(np.zeros((0, 5)), 3).shape == (0, 5)


def test_averages_of_tensors_keep_kind_and_gradients() -> None:
    torch = pytest.importorskip("torch")
    outputs = torch.arange(4.0, requires_grad=True)
    average = average_views(outputs, 2)
    assert average.tolist() == [0.5, 2.5]
    average.sum().backward()
    assert outputs.grad.tolist() == [0.5] * 4


def test_averages_of_integers_are_floats() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.int64, torch.uint8, torch.bool):
        average = average_views(torch.tensor([0, 1, 1, 1]).to(kind), 2)
        assert (average.dtype, average.tolist()) == (torch.float32, [0.5, 1.0])
    assert average_views(np.array([0, 1, 1, 1]), 2).tolist() == [0.5, 1.0]


def test_averages_of_parts_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outputs have shape \(5, 2\), which is not a multiple of 3 views"):
        average_views(np.zeros((5, 2)), 3)
    with pytest.raises(ValueError, match=r"outputs have shape \(\)"):
        average_views(np.float32(1), 1)
    with pytest.raises(ValueError, match="n is 0, expected at least 1"):
        average_views(np.zeros(4), 0)


def test_a_state_of_more_views_is_refused() -> None:
    dataset: Any = ViewsDataset(Numbers(3), 2, seen)
    dataset.load_state_dict({"view": 2, "source": {"given": 1}})
    with pytest.raises(ValueError, match="stands at view 2, and this dataset has 2"):
        iter(dataset)


def test_a_state_of_another_number_of_views_is_refused() -> None:
    dataset: Any = ViewsDataset(Numbers(3), 3, seen)
    next(iter(dataset))
    other: Any = ViewsDataset(Numbers(3), 2, seen)
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(ValueError, match="another order"):
        iter(other)


def test_bad_input_is_refused() -> None:
    for n in (0, -2):
        with pytest.raises(ValueError, match=f"n is {n}, expected at least 1"):
            ViewsDataset([1], n)
    with pytest.raises(TypeError, match=r"n is 1\.5, expected an integer"):
        ViewsDataset([1], 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"transform is a int, expected transform\(sample, view\)"):
        ViewsDataset([1], 2, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"over a stream needs a transform.*all 2 views would be the same"):
        ViewsDataset(Numbers(3), 2)
    with pytest.raises(TypeError, match="a set, which is not a dataset"):
        ViewsDataset({1}, 2)


@pytest.mark.parametrize("grouped", [False, True])
def test_transform_that_raises_stopiteration_ends_no_stream(grouped: bool) -> None:
    dataset: Any = ViewsDataset(Numbers(3), 1, lambda sample, view: next(iter([0][sample % 2 :])), grouped)
    samples = iter(dataset)
    first = next(samples)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(samples)
    assert list(samples) == [first]
