"""Tensors, and torch's own classes, keep to the protocol of gathering: `stoker.testing.gather`."""

from __future__ import annotations

import pytest

from stoker.datasets import ConcatDataset, StackDataset, Subset, TensorDataset
from stoker.testing.gather import GatherSuite

torch = pytest.importorskip("torch")
import torch.utils.data as theirs  # noqa: E402

RNG = torch.Generator().manual_seed(0)
ROWS = torch.rand(23, 4, generator=RNG)
LABELS = torch.randint(-5, 5, (23,), generator=RNG)
DTYPES = ["float32", "bfloat16", "float64", "float16", "int8", "uint8", "int64", "int16", "bool", "complex64"]


@pytest.mark.parametrize("dataset", [ROWS.to(getattr(torch, name)) for name in DTYPES if name != "bfloat16"])
class TestTensors(GatherSuite):
    pass


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(ROWS, LABELS),
        TensorDataset(ROWS, LABELS.numpy()),
        TensorDataset(ROWS.T.contiguous().T, LABELS[::1], ROWS[:, ::2]),
        TensorDataset(torch.empty(23, 0), torch.rand(23, 1, 2, 1)),
        theirs.TensorDataset(ROWS, LABELS),
        theirs.Subset(theirs.TensorDataset(ROWS), [5, -1, 5, 0]),
        Subset(theirs.TensorDataset(ROWS), torch.tensor([5, 1, 5, 0])),
        theirs.random_split(TensorDataset(ROWS), [3, 20])[1],
        theirs.StackDataset(a=ROWS, b=theirs.TensorDataset(LABELS)),
        StackDataset(ROWS, LABELS),
        ConcatDataset([TensorDataset(ROWS), theirs.TensorDataset(ROWS + 1)]),
        theirs.ConcatDataset([ROWS, theirs.Subset(ROWS, range(9))]),
    ],
    ids=lambda dataset: type(dataset).__module__.split(".")[0] + type(dataset).__name__,
)
class TestDatasets(GatherSuite):
    pass


@pytest.mark.parametrize("dataset", [TensorDataset(ROWS.bfloat16())])
class TestWhatNumPyLacks(GatherSuite):
    """Gathered for torch; for NumPy the general path refuses it, and says so."""

    def test_gather_of_torch_dtypes_gives_the_collated_samples(self, dataset: TensorDataset) -> None:
        from stoker import collate

        found = self.gathers(dataset)
        batch = collate.gathering(collate.default_collate, dataset, found)([3, -1])  # type: ignore[misc]
        assert torch.equal(batch[0], ROWS.bfloat16()[[3, -1]])
        assert collate.gathering(collate.numpy_collate, dataset, found)([3, -1]) is collate.NOT_GATHERED  # type: ignore[misc]
