from __future__ import annotations

import dataclasses
import gc
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker import collate
from stoker.errors import LeafTypeError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Item:
    image: Any


def test_arrays_at_any_depth_are_converted_and_nothing_else() -> None:
    item, sample = Item(np.ones(1)), np.arange(3)
    data = {"a": sample, "p": Point(np.float32(2), None), "t": (1, "s", b"b"), "i": item, "r": range(2)}
    for convert in (collate.default_convert, collate.numpy_convert, collate.deferred_convert):
        out = convert(data)
        assert out["a"].tolist() == [0, 1, 2] and type(out["p"]) is Point and out["p"].x.shape == ()
        assert out["p"].y is None and out["t"] == [1, "s", b"b"] and out["r"] == [0, 1]
        assert out["i"] is item and type(item.image) is np.ndarray
    assert data["a"] is sample


def test_a_conversion_leaves_nothing_to_the_garbage_collector() -> None:  # which rests in workers
    data = {"a": [np.ones(1), (1, {"b": None})]}
    collate.default_convert(data)  # what the first call in a process loads is not looked at
    gc.collect()
    collate.default_convert(data)
    assert gc.collect() == 0


@pytest.mark.parametrize("convert", [collate.default_convert, collate.numpy_convert, collate.deferred_convert])
def test_memory_is_kept(convert: Any) -> None:
    array = np.arange(3)
    assert np.shares_memory(np.asarray(convert([array])[0]), array)


def test_the_kinds_of_leaves(torch_not_loaded: None) -> None:
    data = (np.ones(2), np.int8(1), np.array(["a"]))
    kinds = {
        convert.__name__: [type(leaf) for leaf in convert(data)]
        for convert in (collate.default_convert, collate.numpy_convert, collate.deferred_convert)
    }
    leaf = collate.TensorLeaf
    assert kinds == {
        "default_convert": [np.ndarray] * 3,
        "numpy_convert": [np.ndarray] * 3,
        "deferred_convert": [leaf, leaf, np.ndarray],
    }


def test_array_without_tensor_dtype_is_refused_with_its_path(torch_not_loaded: None) -> None:
    days = {"when": [np.ones(2, "M8[D]")]}
    with pytest.raises(
        LeafTypeError, match=r'^sample\["when"\]\[0\]: can\'t convert np.ndarray of type numpy.datetime64'
    ):
        collate.deferred_convert(days)
    assert collate.numpy_convert(days)["when"][0].dtype == "M8[D]"


def test_tensors_become_arrays_for_numpy_alone() -> None:
    torch = pytest.importorskip("torch")
    followed = torch.ones(2, requires_grad=True)
    assert collate.default_convert([followed])[0] is followed
    assert type(collate.numpy_convert([followed])[0]) is np.ndarray
    with pytest.raises(TypeError, match=r'^sample\["d"\]: can\'t convert'):
        collate.default_convert({"d": np.ones(1, "M8[D]")})
    with pytest.raises(LeafTypeError, match="BFloat16"):
        collate.numpy_convert([torch.ones(1, dtype=torch.bfloat16)])
