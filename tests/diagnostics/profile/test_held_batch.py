"""Copies of a held batch: what a step changes in one does not reach the next."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.profile.profiling import fresh, shared_part

Pair = namedtuple("Pair", "images labels")


@dataclass(frozen=True)
class Boxes:
    corners: Any


class Batch(OrderedDict[str, Any]):
    pass


def test_containers_and_arrays_are_copied_and_keep_their_types() -> None:
    array, other = np.arange(3), object()
    batch = Batch(pair=Pair(array, ["a"]), boxes=Boxes(array), rest=(array, other, None, 5, b"x"), plain={"x": [array]})
    batch.note = "kept"  # type: ignore[attr-defined]
    copy = fresh(batch)
    assert type(copy) is Batch and copy.note == "kept" and type(copy["pair"]) is Pair and list(copy) == list(batch)
    copy["pair"].images[:] = 9
    copy["boxes"].corners[:] = 9
    copy["plain"]["x"].append(1)
    copy.pop("rest")
    assert array.tolist() == [0, 1, 2] and batch["plain"]["x"] == [array] and batch["rest"][1] is other
    assert fresh(batch)["rest"][1] is other


def test_tensors_are_copied() -> None:
    torch = pytest.importorskip("torch")
    batch = [torch.ones(2), torch.ones(2, requires_grad=True)]
    copy = fresh(batch)
    copy[0].mul_(5)
    assert batch[0].tolist() == [1, 1] and not copy[1].requires_grad


def test_a_mapping_that_cannot_be_copied_becomes_a_dict() -> None:
    class Odd(dict[str, Any]):
        def __copy__(self) -> Any:
            raise TypeError("no copies")

    assert type(fresh(Odd(x=1))) is dict and fresh("text") == "text"


def test_objects_that_would_be_shared_are_named() -> None:
    whole = {"a": (1, "x", None, np.arange(3)), "boxes": Boxes([np.float32(1.5)]), "pair": Pair(b"x", 2.5)}
    assert shared_part(whole) is None
    assert shared_part([whole, {"b": Boxes({1, 2})}]) == "set"
    assert shared_part(np.array([object()])) == "object array"
