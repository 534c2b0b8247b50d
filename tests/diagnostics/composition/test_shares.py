"""Classes in batches beside the dataset, and padding beside a random order."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.diagnostics.composition.composition import SHOWN, NotedEpoch, class_shares, padding_shares
from tests.diagnostics.composition.test_epoch_order import epoch_of


def of_classes(labels: list[int], dataset: dict[int, int], size: int, names: list[str] | None = None) -> NotedEpoch:
    epoch = epoch_of(range(len(labels)), size)
    epoch.labels = np.array(labels)
    told = {"source": "dataset.targets", "of": 10, "counted": 10, "counts": [*map(list, dataset.items())]}
    epoch.about = {"labels": told | {"names": names}}
    return epoch


def test_shares_of_classes() -> None:
    epoch = of_classes([0, 0, 1, 1] * 5 + [0, 1, 1, 2] * 5 + [2], {0: 8, 1: 1, 2: 1}, 4, ["cat", "dog", "bird"])
    found = class_shares([epoch])
    assert found is not None
    assert [row["name"] for row in found["shares"]] == ["cat", "dog", "bird"]
    assert [row["dataset"] for row in found["shares"]] == [0.8, 0.1, 0.1]
    assert [row["batches"] for row in found["shares"]] == pytest.approx([15 / 41, 20 / 41, 6 / 41])
    assert found["farthest"]["name"] == "cat" and found["others"]["classes"] == 0
    batch = found["batch"]
    assert (batch["size"], batch["batches"], batch["classes"]) == (4, 10, [2, 2.5, 3])
    assert batch["most_frequent"] == [0.5, 0.5, 0.5]
    assert batch["classes_at_random"] == pytest.approx(1 - 0.2**4 + 2 * (1 - 0.9**4))


def test_many_classes_are_summed_up() -> None:
    found = class_shares([of_classes(list(range(100)), dict.fromkeys(range(100), 1), 10)])
    assert found is not None and len(found["shares"]) == SHOWN and found["shares"][0]["name"] == "0"
    assert found["others"]["classes"] == 70 and found["others"]["dataset"] == pytest.approx(0.7)


def test_no_labels_are_no_classes() -> None:
    assert class_shares([epoch_of(range(40))]) is None
    found = class_shares([of_classes([1, 1, 1], {1: 3}, 1)])
    assert found is not None and found["batch"] is None


def of_lengths(lengths: list[float], size: int) -> NotedEpoch:
    epoch = epoch_of(range(len(lengths)), size)
    epoch.lengths, epoch.about = np.array(lengths, float), {"lengths": "BucketBatchSampler.lengths"}
    return epoch


def test_padding_of_buckets_and_of_a_random_order() -> None:
    found = padding_shares([of_lengths([1.0] * 50 + [9.0] * 50, 10)])
    assert found is not None and found["padding"] == 0
    assert found["padding_at_random"] == pytest.approx(1 - 5 / 9, abs=0.02)  # a long one is in nearly each batch
    assert found == padding_shares([of_lengths([1.0] * 50 + [9.0] * 50, 10)])
    assert (found["shortest"], found["longest"], found["padding_measured"]) == (1, 9, None)
    assert sum(found["histogram"]["counts"]) == 100 and len(found["histogram"]["edges"]) == 25


def test_padding_of_batches_with_masks() -> None:
    epoch = NotedEpoch(0, padded=[[0, 8, [2, 4], "attention_mask"], [1, 8, [1, 1], "attention_mask"]])
    found = padding_shares([epoch])
    assert found is not None and found["source"] == "attention_mask"
    assert found["padding"] == pytest.approx(1 - 8 / 10) and found["padding_measured"] == pytest.approx(1 - 8 / 32)
    assert found["padding"] <= found["padding_at_random"]


def test_equal_lengths_and_single_samples() -> None:
    found = padding_shares([of_lengths([3.0] * 20, 5)])
    assert found is not None and (found["padding"], found["histogram"]["counts"]) == (0, [20])
    assert padding_shares([of_lengths([3.0] * 20, 1)]) is None
    assert padding_shares([of_lengths([0.0] * 20, 5)]) is None
    assert padding_shares([]) is None
