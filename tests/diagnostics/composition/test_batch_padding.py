"""Lengths in a batch, by masks and fields of lengths; never by code of the user's."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest

from stoker.collate import Padded
from stoker.diagnostics.composition.epoch_notes import lengths_in
from tests.ownership import moved, named_like

MASK = np.array([[1, 1, 0], [1, 1, 1]])
IDS = np.zeros((2, 3), np.int64)


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        ({"ids": IDS, "attention_mask": MASK}, "attention_mask"),
        ({"ids": IDS, "mask": MASK.astype(bool)}, "mask"),
        ({"ids": IDS, "mask": MASK[:, ::-1]}, "mask"),
        ({"ids": IDS, "ids_mask": MASK}, "ids_mask"),
        ({"ids": IDS, "lengths": np.array([2, 3])}, "lengths"),
        (UserDict({"attention_mask": MASK}), "attention_mask"),
        ([{"attention_mask": MASK}, np.zeros(2)], "attention_mask"),
    ],
)
def test_lengths_are_found(batch: Any, field: str) -> None:
    assert lengths_in(batch) == (3, [2, 3], field)


def test_lengths_of_tensors_and_padded_fields_are_found() -> None:
    torch = pytest.importorskip("torch")
    import stoker

    mask = torch.from_numpy(MASK)
    assert lengths_in({"attention_mask": mask}) == (3, [2, 3], "attention_mask")
    collate = stoker.PadCollator(output="torch")
    assert lengths_in(collate([torch.ones(2), torch.ones(3)])) == (3, [2, 3], "values_mask")
    assert lengths_in(collate([{"ids": torch.ones(2)}, {"ids": torch.ones(3)}])) == (3, [2, 3], "ids_mask")
    assert lengths_in({"attention_mask": mask.to("meta")}) is None


def test_padded_fields_are_those_of_stoker() -> None:
    fields = {"values": IDS, "mask": MASK.astype(bool)}
    assert lengths_in(Padded(**fields)) == (3, [2, 3], "values_mask")
    with moved(Padded):
        assert lengths_in(Padded(**fields)) == (3, [2, 3], "values_mask")
    assert lengths_in(named_like(Padded, object, **fields)()) is None
    assert lengths_in(type("Padded", (Padded,), {})(**fields)) is None


class Sly(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        {"ids": IDS},
        {"mask": np.array([[0, 1, 0], [1, 1, 1]])},  # no prefix: regions of an image
        {"attention_mask": MASK[None]},
        {"attention_mask": MASK.astype(float)},
        {"lengths": np.array([2, 9]), "ids": IDS},
        {"lengths": np.array([2, 3])},
        {"attention_mask": MASK[:0]},
        {"special_tokens_mask": MASK},
        Sly(attention_mask=MASK),
        None,
    ],
)
def test_other_batches_have_none(batch: Any) -> None:
    assert lengths_in(batch) is None
