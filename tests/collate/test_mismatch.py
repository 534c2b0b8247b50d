"""Samples that make no batch: the error names the field, the samples by position, what each has, and a way out."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker import collate
from stoker.errors import BatchError, LeafTypeError, MissingFieldError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Target:
    boxes: Any


@dataclasses.dataclass
class Labelled(Target):
    label: int = 0


def said(batch: list[Any], kind: type[BatchError] = BatchError) -> str:
    """The message, which is the same for every output."""
    messages = set()
    for collation in (collate.default_collate, collate.numpy_collate, collate.deferred_collate):
        with pytest.raises(kind) as caught:
            collation(batch)
        messages.add(str(caught.value))
    assert len(messages) == 1
    return messages.pop()


def test_mismatch_of_shapes_names_the_samples() -> None:
    batch = [{"image": np.zeros((3, 4, 6 if at == 2 else 5))} for at in range(5)]
    assert said(batch) == (
        'sample["image"]: stack expects each tensor to be equal size, but got (3, 4, 5) in samples 0-1 and 3-4 and '
        "(3, 4, 6) in sample 2 of the batch. Make them one size in the dataset, or pad them: "
        "collate_fn=stoker.PadCollator(dims=(2,))."
    )


def test_the_padding_collator_that_is_advised_takes_the_samples() -> None:
    for batch in ([np.zeros(2), np.zeros(3)], [np.zeros((1, 4, 6)), np.zeros((1, 5, 7)), np.zeros((1, 4, 5))]):
        advice = re.search(r"PadCollator\(.*?\)(?=\.)", said(batch))
        assert advice is not None
        assert eval(advice[0], {"PadCollator": collate.PadCollator})(batch).values.shape[0] == len(batch)


def test_dataclasses_of_two_classes() -> None:
    """The second one's label has no place in the first one's class."""
    message = said([Target(1), Labelled(2, 3)], LeafTypeError)
    assert "Target'> in sample 0" in message and "Labelled'> in sample 1" in message


def test_mismatch_of_dimensions_names_the_samples() -> None:
    assert "in their number of dimensions" in said([np.zeros(2), np.zeros((2, 1))])


def test_dtypes_without_a_common_dtype_are_refused() -> None:
    message = said([{"x": np.zeros(2, np.uint16)}, {"x": np.zeros(2, np.int32)}])
    assert message.startswith('sample["x"]: Promotion for uint16, uint32, uint64 types is not supported: ')
    assert "uint16 in sample 0 and int32 in sample 1" in message


def test_mismatch_of_keys_names_the_samples() -> None:
    message = said([{"a": {"x": 1}}, {"a": {"x": 1}}, {"a": {"y": 1}}], MissingFieldError)
    assert message == (
        "sample[\"a\"]: key 'x' is in sample 0 of the batch, but not in sample 2, which has ['y']. Give every sample "
        "the same keys, or give a collate_fn that adds missing keys."
    )
    with pytest.raises(KeyError):
        collate.default_collate([{"a": 1}, {}])


def test_fields_that_are_not_set() -> None:
    bare = object.__new__(Target)
    message = said([[0, Target(1)], [0, Target(1)], [0, bare]], MissingFieldError)
    assert message == (
        "sample[1]: field 'boxes' is set in sample 0 of the batch, but not in sample 2. Give every sample the same "
        "fields, or give a collate_fn that adds missing fields."
    )
    assert "<class 'int'> in sample 1 " in said([Target(1), 5, bare], LeafTypeError)


def test_numbers_without_a_common_type() -> None:
    message = said([1.5, 2 + 3j], LeafTypeError)
    assert "<class 'float'> in sample 0 and <class 'complex'> in sample 1" in message
    assert "<class 'int'> in sample 0 and <class 'numpy.ndarray'> in sample 1" in said([1, np.zeros(2)], LeafTypeError)


@pytest.mark.parametrize("other", [5, [1], "ab"])
def test_a_mapping_among_other_things(other: Any) -> None:
    message = said([({"a": 1}, 0), (other, 0)], LeafTypeError)
    assert message.startswith("sample[0]: ") and f"<class 'dict'> in sample 0 and {type(other)} in sample 1" in message


@pytest.mark.parametrize("other", [5, {0: 1, 1: 2}, "ab", {1, 2}])
def test_a_sequence_among_other_things(other: Any) -> None:
    message = said([{"l": [1, 2]}, {"l": other}], LeafTypeError)
    assert (
        message.startswith('sample["l"]: ') and f"<class 'list'> in sample 0 and {type(other)} in sample 1" in message
    )


def test_mismatch_of_lengths_names_the_samples() -> None:
    message = said([([1, 2], 0), ([1, 2, 3], 0), ([1], 0)])
    assert message.startswith("sample[0]: each element in list of batch should be of equal size, but got length 2 in ")
    assert "length 3 in sample 1 and length 1 in sample 2 of the batch" in message and "PadCollator()" in message


def test_named_tuples_lose_no_field() -> None:
    assert "length 3 in sample 1" in said([Point(1, 2), (1, 2, 3)])  # type: ignore[list-item]


def test_the_path_is_written_as_one_would_write_it() -> None:
    bad, good = np.zeros(3), np.zeros(2)
    for wrap, path in (
        (lambda leaf: [0, Target(leaf)], "sample[1].boxes"),
        (lambda leaf: {"a": Point(0, {7: leaf})}, 'sample["a"].y[7]'),
        (lambda leaf: leaf, "stack expects"),
    ):
        assert said([wrap(good), wrap(bad)]).startswith(path)


def test_a_sample_that_is_none() -> None:
    message = said([np.zeros(2), None, np.zeros(2), None], LeafTypeError)
    assert "<class 'NoneType'> in samples 1 and 3 of the batch" in message and "statement is missing" in message
    assert said([None, 1], LeafTypeError).startswith("default_collate: batch must contain tensors, numpy arrays, ")


def test_none_in_a_mapping() -> None:
    message = said([{"id": 1, "caption": None}, {"id": 2, "caption": "x"}], LeafTypeError)
    assert message.startswith(
        'sample["caption"]: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; '
        "found <class 'NoneType'> in sample 0 and <class 'str'> in sample 1 of the batch. "
    )


def test_mismatch_of_unknown_types_names_the_type() -> None:
    message = said([{"c": 1j}, {"c": 2j}], LeafTypeError)
    assert "found <class 'complex'> in samples 0-1 of the batch" in message and "default_collate_fn_map" in message


def test_long_lists_are_cut() -> None:
    every_other = [np.zeros(2 + at % 2) for at in range(1000)]
    assert "samples 0, 2, 4, 6, 8, 10, 12, 14 and others" in said(every_other)
    all_different = [np.zeros(at) for at in range(1000)]
    assert "and 992 more of the batch" in said(all_different)


def test_mismatch_errors_can_be_pickled() -> None:
    with pytest.raises(MissingFieldError) as caught:
        collate.default_collate([{"a": {"x": 1}}, {"a": {}}])
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is MissingFieldError and str(again) == str(caught.value) and again.path == '["a"]'
    assert str(MissingFieldError("only words")) == "only words"


def test_errors_of_containers_and_users_are_left_alone() -> None:
    class Odd(dict[str, Any]):
        def __copy__(self) -> Odd:
            raise OSError("not to be copied")

    with pytest.raises(OSError, match="not to be copied"):
        collate.default_collate([Odd(a=1)])


def test_samples_that_were_not_awaited() -> None:
    async def sample() -> int:
        return 1

    made = sample()
    assert "those of torch's StackDataset are by stoker.StackDataset" in said([(made,)], LeafTypeError)
    made.close()
