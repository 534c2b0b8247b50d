"""Graphs and arrays of different sizes, joined: graphs without edges between them, arrays one behind another."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np

from stoker.collate import mismatch, registry, structure, tensors
from stoker.collate.default import collated_by
from stoker.collate.flavours import Flavoured
from stoker.collate.mismatch import common_dtype
from stoker.collate.stacking import NumpyLeaves
from stoker.collate.tensors import Array, as_array, as_tensor, is_tensor
from stoker.errors import BatchError, MissingFieldError

_INT64 = np.dtype(np.int64)
_NODES = ("x", "pos")
_EDGES = ("edge_attr", "edge_weight")


@dataclass(frozen=True)
class GraphCollator(Flavoured):
    """A `collate_fn` that joins graphs into one: their nodes and edges one behind another, node numbers moved along.

    A sample is a mapping, a dataclass, or any object with attributes, of one graph with N nodes and E edges:

    | field of a sample                           | field of the batch                                        |
    |---------------------------------------------|-----------------------------------------------------------|
    | `nodes`: shape (N, ...)                     | shape (sum of N, ...)                                     |
    | `edge_index`: shape (2, E), node numbers    | shape (2, sum of E), int64: numbers in the joined graph   |
    | `edges`: shape (E, ...)                     | shape (sum of E, ...)                                     |
    | any other: one value for each graph         | as by `default_collate`: shape (graphs, ...)              |
    |                                             | `batch`: shape (sum of N,), int64, each node's graph      |
    |                                             | `ptr`: shape (graphs + 1,), int64, each graph's first node |

    The last entry of `ptr` is the number of all nodes.

    The batch is a dict. Graphs keep the order of the samples, and nodes and edges their order in each graph. Labels of
    nodes or edges belong into `nodes=` or `edges=`; otherwise they are taken for values of the graph. A graph without
    node fields has a field `num_nodes`.

    Samples that are `Data` or `HeteroData` of PyTorch Geometric become its `Batch`, by its own rules; the fields below
    do not apply to them. For `follow_batch` and `exclude_keys`, use its `Collater` as `collate_fn` instead.

    Leaves are written once, in a worker process into the memory of the batch. Samples are not changed. Stateless: any
    thread and process may call it, and it can be pickled.

    Attributes:
        nodes: the fields with a row for each node; None for "x" and "pos", as far as a sample has them.
        edges: the fields with a row for each edge; None for "edge_attr" and "edge_weight", as far as a sample has them.
        edge_index: the field of the edges.
        output: "torch" or "numpy"; None is the output of `default_collate`.

    Raises:
        BatchError: on call. Rows do not match the number of nodes or edges, an edge leads to a node that the graph does
            not have, or the samples differ in their fields. The message names field, sample and shapes.
        TypeError: on construction, if `nodes` or `edges` is a single text.
    """

    nodes: Sequence[str] | None = None
    edges: Sequence[str] | None = None
    _: KW_ONLY
    edge_index: str = "edge_index"
    output: registry.Output | None = None

    def __post_init__(self) -> None:
        for name, fields in (("nodes", self.nodes), ("edges", self.edges)):
            if isinstance(fields, str):
                raise TypeError(f"{name} should be a list of fields, but got {fields!r}: pass [{fields!r}]")

    def for_output(self, output: registry.Output) -> GraphCollator:
        """Returns the same collator with leaves of another kind."""
        return replace(self, output=output)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        geometric = sys.modules.get("torch_geometric.data")
        if geometric is not None and isinstance(batch[0], sys.modules["torch_geometric.data.data"].BaseData):
            return geometric.Batch.from_data_list(list(batch))
        return _Graphs(self, [_fields_of(sample, batch) for sample in batch]).joined()


class _Graphs:
    """The graphs of one batch, each as a mapping of its fields."""

    def __init__(self, options: GraphCollator, graphs: list[Mapping[str, Any]]) -> None:
        first = graphs[0]
        for name in (options.edge_index, *(options.nodes or ()), *(options.edges or ())):
            if name not in first:
                raise MissingFieldError(f"a graph has no field {name!r}, only {list(first)}: correct {options}")
        for name in ("batch", "ptr"):
            if name in first:
                raise BatchError(f"the field {name!r} would be replaced by that of the batch: rename it in the samples")
        self._edge_index = options.edge_index
        self._nodes = [name for name in options.nodes or _NODES if name in first]
        self._edges = [name for name in options.edges or _EDGES if name in first]
        self._graphs = graphs
        self._leaves: NumpyLeaves = registry.leaves_for(options.output)
        self._functions = registry.functions(self._leaves)
        self._counts: list[int] = []  # of nodes
        self._sizes: list[int] = []  # edges

    def joined(self) -> dict[str, Any]:
        """Returns the batch."""
        if not self._nodes:
            self._counts = self._told_counts()
        fields: dict[str, Any] = {}

        def node_rows(values: Sequence[Any], _key: Any) -> Any:
            parts = parts_of(values)
            self._counts = self._counts or [len(part) for part in parts]
            self._check(parts, self._counts, "nodes")
            return joined(parts, self._leaves)

        def edge_rows(values: Sequence[Any], _key: Any) -> Any:
            parts = parts_of(values)
            self._check(parts, self._sizes, "edges")
            return joined(parts, self._leaves)

        steps = (
            (self._nodes, node_rows),
            ([self._edge_index], lambda values, _key: self._edges_of(values)),
            (self._edges, edge_rows),
            (
                [name for name in self._graphs[0] if name not in (*self._nodes, self._edge_index, *self._edges)],
                lambda values, _key: collated_by(values, self._functions),
            ),
        )
        for names, step in steps:
            fields |= structure.fields_named(self._graphs, names, step)
        first = np.cumsum([0, *self._counts])
        batch = tensors.empty((int(first[-1]),), _INT64)
        batch[...] = np.repeat(np.arange(len(self._counts)), self._counts)
        ptr = tensors.empty((len(first),), _INT64)
        ptr[...] = first
        in_order = {name: fields[name] for name in self._graphs[0]}
        return {**in_order, "batch": self._leaves.leaf(batch), "ptr": self._leaves.leaf(ptr)}

    def _told_counts(self) -> list[int]:
        if "num_nodes" not in self._graphs[0]:
            raise MissingFieldError(
                f"the number of nodes of a graph is unknown: its fields are {list(self._graphs[0])}. Name a field with "
                "a row for each node in nodes=, or give each sample a field 'num_nodes'."
            )
        num_nodes = structure.fields_named(self._graphs, ["num_nodes"], lambda values, _key: [*map(int, values)])
        counts: list[int] = num_nodes["num_nodes"]
        return counts

    def _edges_of(self, values: Sequence[Any]) -> Any:
        """Returns the edges of all graphs, shape (2, edges), with nodes numbered through."""
        each = [_as_edges(value, place) for place, value in enumerate(values)]
        self._sizes = [edges.shape[1] for edges in each]
        out = tensors.empty((2, sum(self._sizes)), _INT64)
        begin = offset = 0
        for place, (edges, count) in enumerate(zip(each, self._counts, strict=True)):
            if edges.size and not 0 <= (low := edges.min()) <= (high := edges.max()) < count:
                wrong = low if low < 0 else high
                raise BatchError(
                    f"an edge of sample {place} of the batch leads to node {wrong}, but the graph has the nodes 0 to "
                    f"{count - 1}: check the dataset, or name a field with a row for each node in nodes=.",
                    places=[place],
                )
            end = begin + edges.shape[1]
            np.add(edges, offset, out=out[:, begin:end], dtype=_INT64, casting="unsafe")
            begin, offset = end, offset + count
        return self._leaves.leaf(out)

    @staticmethod
    def _check(parts: Sequence[Any], counts: Sequence[int], what: str) -> None:
        for place, (part, count) in enumerate(zip(parts, counts, strict=True)):
            if len(part) != count:
                raise BatchError(
                    f"sample {place} of the batch has {count} {what}, but shape {tuple(part.shape)} here: expected a "
                    f"row for each of the {what}. A field with one value for the graph does not belong into {what}=.",
                    places=[place],
                )


def _fields_of(sample: Any, batch: Sequence[Any]) -> Mapping[str, Any]:
    """Returns the fields of a sample: a mapping's, a dataclass's, a named tuple's, or an object's attributes."""
    if isinstance(sample, Mapping):
        return sample
    if dataclasses.is_dataclass(sample):
        return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    if hasattr(sample, "__dict__") and not is_tensor(sample):
        return {name: value for name, value in vars(sample).items() if not name.startswith("_")}
    raise mismatch.unequal_types(batch)


def _as_edges(value: Any, place: int) -> Array:
    edges = as_array(value) if is_tensor(value) else np.asarray(value)
    if edges.shape[:1] != (2,) or edges.ndim != 2:
        raise BatchError(
            f"the edges of sample {place} of the batch have shape {edges.shape}, expected (2, edges): a row of sources "
            "and a row of targets. Transpose pairs; a graph without edges has shape (2, 0).",
            places=[place],
        )
    if edges.dtype.kind not in "iu" and edges.size:
        raise BatchError(
            f"the edges of sample {place} of the batch are {edges.dtype}, expected integers: numbers of nodes.",
            places=[place],
        )
    return edges


def parts_of(batch: Sequence[Any]) -> list[Any]:
    """Returns arrays over the samples' memory, or tensors if NumPy cannot hold one; shapes differ in dimension 0 only.

    Raises:
        LeafTypeError: a value holds no numbers.
    """
    parts = [_part(value, batch) for value in batch]
    if not all(isinstance(part, np.ndarray) for part in parts):
        parts = [as_tensor(part) for part in parts]
    if any(part.ndim == 0 for part in parts):
        raise BatchError("a single number cannot be joined to others: expected one row for each node or edge")
    if len({tuple(part.shape[1:]) for part in parts}) > 1:
        raise mismatch.unequal_shapes(parts, "They may differ in their first dimension only: check the dataset.")
    return parts


def joined(parts: Sequence[Any], leaves: NumpyLeaves) -> Any:
    """Returns one leaf of the parts from `parts_of`: shape (sum of the lengths, *shape of a row)."""
    if not isinstance(parts[0], np.ndarray):
        import torch

        return leaves.of_tensor(torch.cat(list(parts)))
    dtype = common_dtype({part.dtype for part in parts}, parts)
    leaves.accept(dtype)
    out = tensors.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype)
    np.concatenate(parts, out=out, casting="unsafe")
    return leaves.leaf(out)


def _part(value: Any, batch: Sequence[Any]) -> Any:
    if is_tensor(value):
        try:
            return value.numpy()
        except (RuntimeError, TypeError):
            return value  # with a gradient, on a device, or of a dtype that NumPy lacks
    try:
        part = np.asarray(value)
    except ValueError as cause:
        raise BatchError(f"a list that is no array cannot be joined to others: {cause}") from cause
    if part.dtype.kind not in "biufc":
        raise mismatch.unequal_types(batch)
    return part
