"""Classes are counted over all samples where the dataset knows its labels, else over those looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.peek.fields import class_balance


@pytest.mark.parametrize("targets", [[0, 1, 1, 1], np.array([0, 1, 1, 1])])
def test_targets_of_the_dataset(targets: Any) -> None:
    found = class_balance(SimpleNamespace(targets=targets, classes=["cat", "dog", "owl"]), [], 4)
    assert found is not None and found.is_whole and found.source == "dataset.targets"
    assert found.counts == {"dog": 3, "cat": 1, "owl": 0} and found.ratio == 3


@pytest.mark.parametrize(
    ("samples", "counts"),
    [
        ([("x", 1), ("y", 1), ("z", np.int64(0))], {"1": 2, "0": 1}),
        ([{"label": "a"}, {"label": "a"}], {"a": 2}),
        ([{"meta": {"cls": 3}}, {"meta": {"cls": 3}}], {"3": 2}),
    ],
)
def test_labels_of_the_samples_looked_at(samples: list[Any], counts: dict[str, int]) -> None:
    found = class_balance(None, samples, 100)
    assert found is not None and not found.is_whole and found.counts == counts


@pytest.mark.parametrize(
    "samples", [[], [1, 2], [("x", 0.5)], [("x", 1), ("y", 2)], [{"label": 1.5}], [("x", np.zeros(3))], [{"lab": 1}]]
)
def test_what_are_no_classes(samples: list[Any]) -> None:
    assert class_balance(None, samples, len(samples)) is None


def test_attributes_that_fail_or_do_not_fit() -> None:
    class Sly:
        labels = (1, 2, 3)  # of other samples

        @property
        def targets(self) -> Any:
            raise RuntimeError("not now")

    assert class_balance(Sly(), [("x", "y")], 2) is None
