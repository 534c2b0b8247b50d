"""Fields of samples: types, shapes with their ranges, numbers, and bytes."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.peek.fields import fields_of, leaves


@dataclass
class Boxes:
    corners: Any
    name: str


Pair = namedtuple("Pair", "image label")


def test_paths_of_nested_samples() -> None:
    sample = {"a": [1, 2], "b": (np.zeros(2), "x"), "c": Boxes(3, "n"), "d": Pair(4, 5), "e": {}, "f": [{"g": 1}]}
    assert [path for path, _ in leaves(sample)] == [
        "['a']",
        "['b'][0]",
        "['b'][1]",
        "['c'].corners",
        "['c'].name",
        "['d'].image",
        "['d'].label",
        "['e']",
        "['f'][0]['g']",
    ]


def test_shapes_that_differ_are_ranges() -> None:
    arrays = [np.zeros((3, 20, 9), np.uint8), np.ones((3, 10, 9), np.uint8), np.zeros(4, np.float32)]
    field = fields_of(arrays)[""]
    assert field.shape == "4 or 3 x 10..20 x 9"
    assert (field.dtypes, field.range, field.count) == ({"uint8": 2, "float32": 1}, "0..1", 3)
    assert field.size == 3 * 20 * 9 + 3 * 10 * 9 + 16


def test_numbers_texts_and_bytes() -> None:
    found = fields_of([{"n": 1.5, "t": "é", "b": b"\xff\xd8\xff\xe0"}, {"n": None, "t": "", "b": b"ab"}])
    assert (found["['n']"].missing, found["['n']"].range) == (1, "1.5")
    assert (found["['t']"].shape, found["['t']"].size) == ("0..1", 2)
    assert (found["['b']"].dtypes, found["['b']"].shape) == ({"JPEG": 1}, "2..4")


def test_not_finite_numbers_are_left_out() -> None:
    field = fields_of([np.array([np.nan, 2.0, np.inf]), float("nan")])[""]
    assert (field.low, field.high) == (2.0, 2.0)


def test_odd_values() -> None:
    found = fields_of([[10**400, 1], object(), [], {1, 2}, np.array("x"), 5 + 1j])
    assert found[""].count == 6 and found[""].as_dict()["types"]["object"] == 1


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    field = fields_of([torch.ones(2, dtype=torch.bfloat16)])[""]
    assert (field.dtypes, field.range, field.shape) == ({"torch.bfloat16": 1}, "1", "2")
