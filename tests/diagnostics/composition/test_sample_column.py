"""Labels and lengths that a dataset or a sampler holds, without a call of the user's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.composition import epoch_notes
from stoker.diagnostics.composition.epoch_notes import class_names_of, labels_of, length_of, lengths_of


class Photos:
    classes = ("cat", "dog")

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        raise AssertionError


class Loader:
    sampler = batch_sampler = None

    def __init__(self, dataset: Any, **attributes: Any) -> None:
        self.dataset = dataset
        vars(self).update(attributes)


@pytest.mark.parametrize("labels", [[1, 0, 1], (1, 0, 1), np.array([1, 0, 1], np.uint8), [np.int64(1), 0, 1]])
def test_labels_of_a_dataset(labels: Any) -> None:
    found = labels_of(Loader(Photos(targets=labels)))
    assert found is not None and found.take([2, 1]) == [1, 0]
    assert found.counts() == ({1: 2, 0: 1}, 3) and found.source == "dataset.targets"
    assert class_names_of(Loader(Photos())) == ["cat", "dog"]


@pytest.mark.parametrize(
    "labels", [["a", "b"], [0.5], np.array([0.5]), np.zeros((2, 2), int), [], [True, False], "01", 7]
)
def test_other_values_are_no_labels(labels: Any) -> None:
    assert labels_of(Loader(Photos(targets=labels))) is None


def test_a_property_is_not_read() -> None:
    class Slow(Photos):
        @property
        def targets(self) -> list[int]:
            raise AssertionError

        @property
        def classes(self) -> list[str]:  # type: ignore[override]
            raise AssertionError

    loader = Loader(Slow())
    assert labels_of(loader) is lengths_of(loader) is class_names_of(loader) is length_of(loader) is None


def test_too_many_values_are_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = labels_of(Loader(Photos(labels=list(range(1001)))))
    assert found is not None and found.source == "dataset.labels" and found.counts() is None
    monkeypatch.setattr(epoch_notes, "COUNTED", 10)
    found = labels_of(Loader(Photos(labels=[0, 1] * 50)))
    assert found is not None and found.counts() == ({0: 10}, 10)


def test_labels_of_subsets_and_stokers_datasets() -> None:
    pytest.importorskip("torch")
    from torch.utils.data import Subset, TensorDataset

    import stoker

    photos = Photos(targets=[5, 6, 7, 8])
    inner = stoker.Subset(photos, [3, 2, 1])  # type: ignore[arg-type, var-annotated]
    for indices in ([2, 0], np.array([2, 0])):
        subset = Subset(inner, indices)  # type: ignore[arg-type, var-annotated]
        found = labels_of(Loader(subset))
        assert found is not None and len(found) == 2 and found.take([0, 1]) == [6, 8]
        assert found.counts() == ({6: 1, 8: 1}, 2)
        assert class_names_of(Loader(subset)) == ["cat", "dog"]
    assert length_of(Loader(inner)) == 3 and length_of(Loader([1, 2])) == 2
    assert length_of(Loader(photos)) is None
    torch = pytest.importorskip("torch")
    assert length_of(Loader(TensorDataset(torch.zeros(6)))) == 6
    labels = Photos(targets=torch.tensor([1, 0]))
    found = labels_of(Loader(labels))
    assert found is not None and found.take([1, 0]) == [0, 1]


def test_lengths_of_samplers() -> None:
    pytest.importorskip("torch")
    import stoker

    sampler = stoker.BucketBatchSampler([3, 1, 2, 5] * 8, batch_size=2, buckets=2)
    found = lengths_of(Loader(Photos(), batch_sampler=sampler))
    assert found is not None and found.take([0, 3]) == [3, 5] and found.source == "BucketBatchSampler.lengths"
    classes = stoker.BalancedBatchSampler([0, 1] * 8, 2, 2)
    labels = labels_of(Loader(Photos(), batch_sampler=classes))
    assert labels is not None and labels.source == "BalancedBatchSampler.labels"

    class Grouped:
        def __init__(self) -> None:
            self.lengths = [2.5, 3]

    found = lengths_of(Loader(Photos(), sampler=Grouped()))
    assert found is not None and found.take([0, 1]) == [2.5, 3]
