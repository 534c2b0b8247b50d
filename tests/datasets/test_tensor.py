from __future__ import annotations

import numpy as np
import pytest

from stoker.datasets import TensorDataset


def test_arrays_are_cut_along_the_first_dimension() -> None:
    x, y = np.arange(12).reshape(4, 3), np.arange(4.0)
    data = TensorDataset(x, y)
    assert len(data) == 4
    assert data.tensors == (x, y)
    assert data[2][0].tolist() == [6, 7, 8]
    assert data[-1][1] == 3.0
    assert np.shares_memory(data[1][0], x)
    assert data[1:3][0].shape == (2, 3)


def test_tensors_as_torch() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(12).reshape(4, 3), np.arange(4)
    data, theirs = TensorDataset(x, torch.from_numpy(y)), torch.utils.data.TensorDataset(x, torch.from_numpy(y))
    assert len(data) == len(theirs)
    for index in (0, -1, slice(1, 3), [0, 2], torch.tensor([1, 1])):
        assert all(torch.equal(ours, other) for ours, other in zip(data[index], theirs[index], strict=True))
    assert isinstance(TensorDataset(x, y)[0][1], np.integer)


def test_sizes_that_differ_are_refused() -> None:
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        TensorDataset(np.zeros(3), np.zeros((4, 3)))


def test_an_index_beyond_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        TensorDataset(np.zeros(3))[3]


def test_a_subclass_with_getitem_alone_is_obeyed() -> None:
    assert not hasattr(TensorDataset, "__getitems__")
