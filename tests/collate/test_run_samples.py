"""The samples of a run of rows, taken out of their batch, collate with any others as they did before."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker.collate import Compiled, form_of, samples_of


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Record:
    x: Any
    y: Any


def samples(number: int) -> list[Any]:
    """Of each kind of leaf and structure that has rows, and both dtypes of some."""
    image = np.full((3, 2), number, np.float32 if number % 2 else np.float64)
    return [
        {"image": image, "label": number, "name": f"{number}.jpg", "raw": b"%d" % number},
        (float(number), number % 2 == 1, [np.int16(number), np.full(2, number, np.uint8)]),
        Pair(image, Record(number, {"deep": image})),
        Record(Pair(number, number / 2), str(number)),
    ]


@pytest.mark.parametrize("output", ["numpy", None])
@pytest.mark.parametrize("kind", range(4))
def test_samples_are_taken_out_of_a_collated_run(kind: int, output: Any) -> None:
    if output is None:
        pytest.importorskip("torch")
    run = [samples(number)[kind] for number in (1, 3, 5)]
    rows = Compiled(output).rows(run)
    assert rows is not None
    taken = samples_of(form_of(run[0]), rows)
    assert repr(taken) == repr(run)
    assert [type(one) for one in taken] == [type(one) for one in run]


def test_tensors_are_taken_out_of_a_collated_run() -> None:
    torch = pytest.importorskip("torch")
    for output in ("numpy", None):
        run = [(torch.full((2,), number), torch.tensor(number)) for number in range(3)]
        taken = samples_of(form_of(run[0]), Compiled(output).rows(run))  # type: ignore[arg-type]
        assert repr(taken) == repr(run)
