from __future__ import annotations

import pickle
from typing import Any

import pytest

from stoker import collate

OUTPUTS: list[Any] = ["torch", "numpy", "deferred"]
COLLATE = [collate.default_collate, collate.numpy_collate, collate.deferred_collate]
CONVERT = [collate.default_convert, collate.numpy_convert, collate.deferred_convert]


@pytest.mark.parametrize("family", [COLLATE, CONVERT])
def test_each_function_has_one_of_its_kind_for_each_output(family: Any) -> None:
    for fn in family:
        assert [collate.for_output(fn, output) for output in OUTPUTS] == family


def test_torchs_own_functions_are_known() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert [collate.for_output(data.default_collate, output) for output in OUTPUTS] == COLLATE
    assert [collate.for_output(data.default_convert, output) for output in OUTPUTS] == CONVERT


def test_users_functions_are_their_own() -> None:
    def mine(batch: Any) -> Any:
        return batch

    assert all(collate.for_output(mine, output) is mine for output in OUTPUTS)


def test_a_padding_collator_differs_in_its_output_alone() -> None:
    given = collate.PadCollator({"x": 1}, side="left")
    for output in OUTPUTS:
        assert collate.for_output(given, output) == collate.PadCollator({"x": 1}, side="left", output=output)
    assert given.output is None


@pytest.mark.parametrize("output", OUTPUTS)
def test_collators_can_be_pickled(output: Any) -> None:
    for fn in (collate.default_collate, collate.default_convert, collate.PadCollator()):
        answer = collate.for_output(fn, output)
        assert pickle.loads(pickle.dumps(answer)) == answer
