from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.collate import GraphCollator, TensorLeaf
from stoker.errors import BatchError, LeafTypeError, MissingFieldError


@dataclasses.dataclass
class Molecule:
    x: Any
    edge_index: Any


def graph(nodes: int, edges: list[tuple[int, int]], **others: Any) -> dict[str, Any]:
    return {
        "x": np.arange(nodes * 2, dtype=np.float32).reshape(nodes, 2),
        "edge_index": np.array(edges, np.int64).reshape(-1, 2).T,
        "edge_attr": np.arange(len(edges), dtype=np.float32),
        **others,
    }


def collate(*args: Any, **options: Any) -> Any:
    return GraphCollator(*args, output="numpy", **options)


def test_graphs_become_one_graph_of_parts() -> None:
    batch = collate()(
        [
            graph(3, [(0, 1), (2, 0)], y=1.0, name="a"),
            graph(1, [], y=2.0, name="b"),
            graph(2, [(1, 1)], y=3.0, name="c"),
        ]
    )
    assert list(batch) == ["x", "edge_index", "edge_attr", "y", "name", "batch", "ptr"]
    assert batch["x"].shape == (6, 2) and batch["x"].dtype == np.float32
    assert batch["edge_index"].tolist() == [[0, 2, 5], [1, 0, 5]]
    assert batch["edge_attr"].tolist() == [0, 1, 0]
    assert batch["y"].tolist() == [1, 2, 3] and batch["name"] == ["a", "b", "c"]
    assert batch["batch"].tolist() == [0, 0, 0, 1, 2, 2] and batch["ptr"].tolist() == [0, 3, 4, 6]
    assert batch["edge_index"].dtype == batch["batch"].dtype == batch["ptr"].dtype == np.int64


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 99)), min_size=1, max_size=5))
def test_each_graph_can_be_taken_out_again(sizes: list[tuple[int, int, int]]) -> None:
    graphs = [
        graph(nodes, np.random.default_rng(seed).integers(0, nodes, (edges, 2)).tolist())
        for nodes, edges, seed in sizes
    ]
    batch = collate()(graphs)
    for place, one in enumerate(graphs):
        first, last = batch["ptr"][place : place + 2]
        own = batch["batch"][batch["edge_index"][0]] == place
        assert np.array_equal(batch["x"][first:last], one["x"])
        assert np.array_equal(batch["edge_index"][:, own] - first, one["edge_index"])
        assert np.array_equal(batch["edge_attr"][own], one["edge_attr"])


def test_small_node_numbers_do_not_overflow() -> None:
    edges = np.array([[0], [199]], np.uint8)
    batch = collate()([{"x": np.zeros((200, 1)), "edge_index": edges}] * 3)
    assert batch["edge_index"].tolist() == [[0, 200, 400], [199, 399, 599]]


@pytest.mark.parametrize("kind", [Molecule, SimpleNamespace])
def test_graphs_may_be_objects(kind: Any) -> None:
    batch = collate()([kind(x=[[1.0], [2.0]], edge_index=[[0], [1]]), kind(x=[[3.0]], edge_index=[[0], [0]])])
    assert batch["x"].tolist() == [[1], [2], [3]] and batch["edge_index"].tolist() == [[0, 2], [1, 2]]


def test_fields_of_nodes_and_edges_are_named() -> None:
    samples = [graph(2, [(0, 1)], label=[1, 0]), graph(3, [(2, 1)], label=[1, 1, 0])]
    assert collate(nodes=["x", "label"])(samples)["label"].tolist() == [1, 0, 1, 1, 0]
    with pytest.raises(BatchError, match=r'sample\["label"\]: each element in list'):
        collate()(samples)
    with pytest.raises(MissingFieldError, match="no field 'labels'"):
        collate(nodes=["labels"])(samples)
    with pytest.raises(TypeError, match=r"pass \['x'\]"):
        GraphCollator("x")


def test_graphs_without_node_fields_tell_their_number() -> None:
    bare = {"edge_index": np.array([[0], [1]])}
    batch = collate()([{**bare, "num_nodes": 3}, {**bare, "num_nodes": 2}])
    assert batch["edge_index"].tolist() == [[0, 3], [1, 4]] and batch["ptr"].tolist() == [0, 3, 5]
    assert batch["num_nodes"].tolist() == [3, 2]
    with pytest.raises(MissingFieldError, match="the number of nodes of a graph is unknown"):
        collate()([bare])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": np.array([[0], [2]])}, r'sample\["edge_index"\]: an edge of sample 1 .* node 2, .* 0 to 1'),
        ({"edge_index": np.array([[0], [-1]])}, "node -1"),
        ({"edge_index": np.array([[0, 1], [1, 0], [1, 1]])}, r"shape \(3, 2\), expected \(2, edges\)"),
        ({"edge_index": np.array([[0.0], [1.0]])}, "are float64, expected integers"),
        ({"edge_index": []}, r"a graph without edges has shape \(2, 0\)"),
        ({"edge_attr": np.zeros(3)}, r'sample\["edge_attr"\]: sample 1 of the batch has 1 edges, but shape \(3,\)'),
        ({"pos": np.zeros((3, 3))}, r'sample\["pos"\]: sample 1 of the batch has 2 nodes, but shape \(3, 3\)'),
        ({"x": np.zeros((2, 5))}, r"\(2, 2\) in sample 0 and \(2, 5\) in sample 1.*first dimension only"),
        ({"x": 3.0}, "a single number"),
        ({"x": np.array(["a", "b"])}, "must contain tensors"),
    ],
)
def test_a_graph_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    good = graph(2, [(0, 1)], pos=np.zeros((2, 3)))
    with pytest.raises(BatchError, match=message) as caught:
        collate()([good, good | change])
    assert 1 in caught.value.places or "x" in change


def test_fields_that_clash_or_lack_are_named() -> None:
    with pytest.raises(BatchError, match="the field 'batch' would be replaced"):
        collate()([graph(1, [], batch=1)])
    with pytest.raises(MissingFieldError, match="'edge_attr' is in sample 0"):
        collate()([graph(1, []), {name: value for name, value in graph(1, []).items() if name != "edge_attr"}])
    with pytest.raises(MissingFieldError, match="no field 'edge_index'"):
        collate()([{"x": np.zeros((1, 1))}])
    with pytest.raises(LeafTypeError):
        collate()([3])


def test_joined_leaves_lie_in_the_memory_of_the_batch(slot: Any) -> None:
    batch = collate()([graph(3, [(0, 1)]), graph(2, [(1, 1)])])
    assert all(slot.holds(leaf) for leaf in batch.values())


def test_workers_without_torch_defer_graphs(torch_not_loaded: None) -> None:
    assert {*map(type, GraphCollator(output="deferred")([graph(2, [(0, 1)])]).values())} == {TensorLeaf}


def test_tensors_that_numpy_cannot_hold_are_joined_by_torch() -> None:
    torch = pytest.importorskip("torch")
    edges = torch.tensor([[0], [1]])
    batch = GraphCollator()([{"x": torch.ones(2, 1, dtype=torch.bfloat16), "edge_index": edges}] * 2)
    assert batch["x"].dtype == torch.bfloat16 and batch["x"].shape == (4, 1)
    assert batch["edge_index"].tolist() == [[0, 2], [1, 3]]


class Graphs(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return graph(1 + index % 3, [(0, index % (1 + index % 3))], y=index)


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_graphs_travel_between_processes(birth: str) -> None:
    with stoker.DataLoader(
        Graphs(),
        batch_size=3,
        shuffle=True,
        seed=1,
        num_workers=2,
        multiprocessing_context=birth,
        collate_fn=GraphCollator(),
        output="numpy",
    ) as loader:
        batches = list(loader)
    assert sorted(number for batch in batches for number in batch["y"].tolist()) == list(range(10))
    for batch in batches:
        assert np.diff(batch["ptr"]).tolist() == [1 + number % 3 for number in batch["y"].tolist()]


@pytest.mark.filterwarnings("ignore")  # PyTorch Geometric's own, when it is imported
class TestPyTorchGeometric:
    @pytest.fixture
    def data(self) -> Any:
        pytest.importorskip("torch")
        return pytest.importorskip("torch_geometric.data")

    def items(self, data: Any) -> list[Any]:
        import torch

        return [
            data.Data(**{name: torch.as_tensor(value) for name, value in graph(1 + n, [(0, n)], y=[n]).items()})
            for n in range(4)
        ]

    def test_their_data_become_their_batch(self, data: Any) -> None:
        items = self.items(data)
        ours, theirs = GraphCollator()(items), data.Batch.from_data_list(items)
        assert type(ours) is type(theirs) and ours.keys() == theirs.keys() and ours.num_graphs == 4
        assert all((ours[key] == theirs[key]).all() for key in theirs.keys())  # noqa: SIM118

    def test_ours_of_plain_dicts_is_equal_to_theirs(self, data: Any) -> None:
        theirs = data.Batch.from_data_list(self.items(data))
        ours = GraphCollator()([graph(1 + n, [(0, n)], y=n) for n in range(4)])
        assert all((ours[key] == theirs[key]).all() for key in ("x", "edge_index", "edge_attr", "y", "batch", "ptr"))

    def test_their_batches_travel_between_processes(self, data: Any) -> None:
        items = self.items(data)
        with stoker.DataLoader(items, batch_size=2, num_workers=2, collate_fn=GraphCollator()) as loader:
            batches = list(loader)
        assert [batch.num_graphs for batch in batches] == [2, 2]
        assert batches[1].to_data_list()[1].edge_index.tolist() == [[0], [3]]
