"""`pad_to=`: fields padded to the least of some sizes, with the default collation and with a `PadCollator`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker


class Texts(stoker.Dataset[Any]):
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        length = self.lengths[index]
        return {"input_ids": [*range(1, length + 1)], "other": np.full(length, 7, np.int32), "label": index}


def texts(lengths: list[int], **options: Any) -> list[Any]:
    return [*stoker.DataLoader(Texts(lengths), batch_size=2, **{"output": "numpy", **options})]


BACKENDS = {"serial": {}, "fork": {"num_workers": 2, "multiprocessing_context": "fork"}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_least_size_that_fits_is_taken(backend: str) -> None:
    batches = texts([3, 3, 5, 5, 8, 8], pad_to={"input_ids": (8, 4)}, **BACKENDS[backend])
    assert [batch["input_ids"].shape for batch in batches] == [(2, 4), (2, 8), (2, 8)]
    assert [batch["other"].shape[1] for batch in batches] == [3, 5, 8]
    assert batches[0]["input_ids"].tolist() == [[1, 2, 3, 0]] * 2 and list(batches[0]) == [
        "input_ids",
        "other",
        "label",
    ]
    assert batches[1]["label"].tolist() == [2, 3]


def test_a_pad_collator_gives_value_side_and_mask() -> None:
    collator = stoker.PadCollator({"input_ids": -1, "other": 9}, side="left", multiple_of=3)
    (batch,) = texts([2, 1], collate_fn=collator, pad_to={"input_ids": 4})
    assert batch["input_ids"].tolist() == [[-1, -1, 1, 2], [-1, -1, -1, 1]]
    assert batch["input_ids_mask"].tolist() == [[False, False, True, True], [False, False, False, True]]
    assert batch["other"].tolist() == [[9, 7, 7], [9, 9, 7]]


def test_one_value_for_all_fields_pads_the_named_to_its_size() -> None:
    (batch,) = texts([2, 1], collate_fn=stoker.PadCollator(mask=None), pad_to={"other": (3, 6)})
    assert batch["other"].tolist() == [[7, 7, 0], [7, 0, 0]] and batch["input_ids"].shape == (2, 2)


def test_tensors_and_places_are_padded() -> None:
    torch = pytest.importorskip("torch")
    samples = [(torch.ones(length, 2), length) for length in (1, 3)]
    (batch,) = stoker.DataLoader(samples, batch_size=2, pad_to={0: 5})
    assert batch[0].shape == (2, 5, 2) and batch[0].sum((1, 2)).tolist() == [2, 6] and batch[1].tolist() == [1, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_longer_batch_keeps_its_length_with_one_warning(backend: str) -> None:
    with pytest.warns(stoker.StokerWarning, match="'input_ids' that is longer than 4") as told:
        batches = texts([5, 6, 2, 2, 9, 9], pad_to={"input_ids": (2, 4), "other": 16}, **BACKENDS[backend])
    assert [batch["input_ids"].shape[1] for batch in batches] == [6, 2, 9] and len(told) == 1


def test_a_stream_warns_too() -> None:
    class Stream(stoker.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(Texts([5, 6])[place] for place in range(2))

    with pytest.warns(stoker.StokerWarning, match="longer than 4"):
        (batch,) = stoker.DataLoader(Stream(), batch_size=2, pad_to={"input_ids": 4, "other": 8})
    assert batch["other"].shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"pad_to": {"input_ids": 0}}, ValueError, "pad_to.'input_ids'. should be a positive integer"),
        ({"pad_to": {"input_ids": "long"}}, ValueError, "but got 'long'"),
        ({"pad_to": 4}, TypeError, "should be a mapping"),
        ({"pad_to": {}}, TypeError, "should be a mapping"),
        ({"pad_to": {"input_ids": 4}, "collate_fn": list}, ValueError, "pad_to needs the default collation"),
        ({"pad_to": {"input_ids": 4}, "batch_size": None}, ValueError, "pad_to needs the default collation"),
        ({"pad_to": {"input_ids": 4}, "collate_fn": stoker.PadCollator(dims=(1,))}, ValueError, "dimension 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        texts([1, 2], **options) if "batch_size" not in options else stoker.DataLoader(Texts([1]), **options)


def test_a_field_that_is_not_there_is_named() -> None:
    with pytest.raises(stoker.BatchError, match=r"names \['tokens'\]"):
        texts([2, 2], pad_to={"tokens": 4})
    with pytest.raises(stoker.BatchError, match=r"pad_to names \['label'\]"):
        texts([1, 2], collate_fn=stoker.PadCollator(), pad_to={"label": 4})


def test_a_field_that_no_sample_has_is_named_with_its_argument() -> None:
    with pytest.raises(stoker.errors.BatchError, match=r"^pad_to names \['missing'\]"):
        texts([3, 3], pad_to={"missing": 4})
