"""Types that users register, in our map and in torch's, and the entries of torch's that they replace."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker import collate


class Graph:
    def __init__(self, nodes: int) -> None:
        self.nodes = nodes


class BigGraph(Graph):
    pass


class Numbers(list[int]):
    pass


def collate_graphs(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return ("graphs", collate.collate([graph.nodes for graph in batch], collate_fn_map=collate_fn_map))


@pytest.fixture
def ours() -> Iterator[dict[Any, Any]]:
    before = dict(collate.default_collate_fn_map)
    yield collate.default_collate_fn_map
    collate.default_collate_fn_map.clear()
    collate.default_collate_fn_map.update(before)


@pytest.fixture
def torchs() -> Iterator[dict[Any, Any]]:
    torchs = pytest.importorskip("torch.utils.data._utils.collate").default_collate_fn_map
    before = dict(torchs)
    yield torchs
    torchs.clear()
    torchs.update(before)


def test_a_type_registered_with_us_is_collated_by_its_function(ours: Any) -> None:
    ours[Graph] = collate_graphs
    batch = collate.default_collate([{"g": Graph(1), "b": BigGraph(5)}, {"g": Graph(2), "b": BigGraph(6)}])
    assert batch["g"][0] == "graphs" and batch["g"][1].tolist() == [1, 2] and batch["b"][1].tolist() == [5, 6]


def test_the_function_is_given_a_map_of_the_same_output(ours: Any) -> None:
    ours[Graph] = collate_graphs
    assert type(collate.numpy_collate([Graph(1)])[1]) is np.ndarray


def test_an_entry_of_ours_can_be_replaced(ours: Any) -> None:
    ours[int] = lambda batch, *, collate_fn_map: sum(batch)
    assert collate.default_collate([1, 2]) == 3 and collate.numpy_collate([{"x": 1}, {"x": 2}]) == {"x": 3}


def test_our_map_serves_without_torch(ours: Any, torch_not_loaded: None) -> None:
    ours[Graph] = collate_graphs
    assert collate.default_collate([(Graph(1),), (Graph(2),)])[0][1].tolist() == [1, 2]


def test_exact_types_go_before_the_order_of_registration(ours: Any) -> None:
    ours[Graph] = lambda batch, *, collate_fn_map: "graph"
    ours[BigGraph] = lambda batch, *, collate_fn_map: "big"
    ours[(Numbers, set)] = lambda batch, *, collate_fn_map: "several types"
    assert collate.default_collate([[BigGraph(1), Graph(1), {1}, Numbers([1])]]) == [
        "big",
        "graph",
        "several types",
        "several types",
    ]


def test_a_type_registered_with_torch_is_obeyed(torchs: Any) -> None:
    torchs[Graph] = collate_graphs
    torchs[type(None)] = lambda batch, *, collate_fn_map: None
    batch = collate.default_collate([{"g": Graph(1), "n": None}, {"g": Graph(2), "n": None}])
    assert batch["g"][1].tolist() == [1, 2] and batch["n"] is None


def test_registered_function_that_calls_torchs_collate_works(torchs: Any, slot: Any) -> None:
    from torch.utils.data._utils.collate import collate as torchs_collate

    def graphs(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torchs_collate([{"n": np.full(3, graph.nodes)} for graph in batch], collate_fn_map=collate_fn_map)

    torchs[Graph] = graphs
    assert type(collate.numpy_collate([Graph(1)])["n"]) is np.ndarray
    assert slot.holds(collate.default_collate([Graph(1), Graph(2)])["n"])


@pytest.mark.parametrize("disguised", [False, True])
def test_replaced_entry_of_torchs_registry_applies_to_arrays(torchs: Any, disguised: bool) -> None:
    import torch

    def negated(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return -torch.stack(batch)

    torchs[torch.Tensor] = functools.wraps(torchs[torch.Tensor])(negated) if disguised else negated
    batch = collate.default_collate([(torch.ones(1), np.ones(1)), (torch.ones(1), np.ones(1))])
    assert [leaf.tolist() for leaf in batch] == [[[-1], [-1]], [[-1], [-1]]]


def test_torchs_own_collate_functions_map_to_stokers(torchs: Any, slot: Any) -> None:
    class Signal(np.ndarray[Any, Any]):
        pass

    torchs[Signal] = torchs[np.ndarray]
    assert slot.holds(collate.default_collate([np.ones(3).view(Signal)]))


def test_an_entry_taken_from_torchs_map_is_gone(torchs: Any) -> None:
    del torchs[str]
    with pytest.raises(TypeError, match="found <class 'str'>"):
        collate.default_collate(["a"])


def test_collate_knows_only_what_it_is_given() -> None:
    assert collate.collate([{"x": 1}, {"x": 2}], collate_fn_map={int: lambda b, *, collate_fn_map: sum(b)}) == {"x": 3}
    for fn_map in (None, {}, {int: None}):
        with pytest.raises(TypeError, match="found <class 'float'>"):
            collate.collate([{"x": 1.0}], collate_fn_map=fn_map)
    with pytest.raises(TypeError, match="found <class 'str'>"):
        collate.collate(["a"])


def test_collate_writes_in_place_for_torchs_own_functions(torchs: Any, slot: Any) -> None:
    import torch

    batch = collate.collate([{"x": torch.ones(2), "y": np.ones(2)}], collate_fn_map=dict(torchs))
    assert slot.holds(batch["x"]) and slot.holds(batch["y"])
