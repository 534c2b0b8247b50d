from __future__ import annotations

from typing import Any

import pytest

from stoker.datasets.cache_store import loaded, pickled

torch = pytest.importorskip("torch")


def back(sample: Any) -> tuple[Any, int]:
    """A sample as it comes from its pickle, and how large that is."""
    data = pickled(sample, 0)
    return loaded(data, 0), len(data)


@pytest.mark.parametrize(
    "view",
    [
        lambda data: data[3],
        lambda data: data[:, 3],
        lambda data: data[5:5],
        lambda data: data[3].conj(),
        lambda data: data[3].requires_grad_(),
        lambda data: data.requires_grad_()[3],
        lambda data: data[:2].t(),
        lambda data: data[1, 1],
    ],
    ids=["row", "column", "empty", "conjugate", "leaf", "with history", "transposed", "number"],
)
def test_view_is_pickled_without_the_rest_of_its_array(view: Any) -> None:
    tensor = view(torch.randn(100, 1000, dtype=torch.complex64))
    (again, _), size = back((tensor, 1))
    assert size < 25_000
    assert (again.shape, again.dtype, again.requires_grad) == (tensor.shape, tensor.dtype, tensor.requires_grad)
    assert again.equal(tensor)


def test_array_that_is_no_view_is_pickled_as_it_is() -> None:
    whole = torch.arange(6.0)
    parts, _ = back([whole, whole, torch.nn.Parameter(whole), whole.expand(1000, 6), whole.to_sparse()])
    assert parts[0] is parts[1]
    assert type(parts[2]) is torch.nn.Parameter
    assert parts[3].stride() == (0, 1)
    assert parts[4].layout is torch.sparse_coo


def test_a_sample_without_a_pickle_is_named() -> None:
    with pytest.raises(TypeError, match=r"sample 7 \(function\) cannot be cached"):
        pickled(lambda: 0, 7)
    with pytest.raises(RuntimeError, match="sample 7 was cached, but cannot be unpickled"):
        loaded(b"", 7)
