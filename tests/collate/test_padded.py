from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.collate import PadCollator, Padded, TensorLeaf
from stoker.errors import BatchError, LeafTypeError

TOKENS = [{"ids": [1, 2, 3], "n": 3}, {"ids": [4], "n": 1}]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Item:
    ids: Any


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: leaf.tolist() for key, leaf in batch.items()}


def test_lists_are_padded_beside_their_masks() -> None:
    assert as_lists(PadCollator()(TOKENS)) == {
        "ids": [[1, 2, 3], [4, 0, 0]],
        "ids_mask": [[True, True, True], [True, False, False]],
        "n": [3, 1],
    }


def test_pad_collator_follows_its_options() -> None:
    assert as_lists(PadCollator(-1, side="left", multiple_of=4)(TOKENS)) == {
        "ids": [[-1, 1, 2, 3], [-1, -1, -1, 4]],
        "ids_mask": [[False, True, True, True], [False, False, False, True]],
        "n": [3, 1],
    }
    assert as_lists(PadCollator(max_length=2, mask=None)(TOKENS)) == {"ids": [[1, 2], [4, 0]], "n": [3, 1]}
    assert as_lists(PadCollator(max_length=2, mask=None, side="left")(TOKENS))["ids"] == [[2, 3], [0, 4]]
    assert as_lists(PadCollator(max_length=2, multiple_of=4, mask=".real")(TOKENS)) == {
        "ids": [[1, 2, 0, 0], [4, 0, 0, 0]],
        "ids.real": [[True, True, False, False], [True, False, False, False]],
        "n": [3, 1],
    }


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    side=st.sampled_from(["left", "right"]),
    multiple_of=st.integers(1, 4),
    max_length=st.none() | st.integers(1, 9),
    width=st.integers(0, 2),
)
def test_values_lie_where_the_mask_says(
    lengths: list[int], side: Any, multiple_of: int, max_length: int | None, width: int
) -> None:
    batch = [np.arange(length * width, dtype=np.float32).reshape(length, width) + 1 for length in lengths]
    collate = PadCollator(-7, side=side, multiple_of=multiple_of, max_length=max_length, output="numpy")
    values, mask = collate(batch)
    cut = [length if max_length is None else min(length, max_length) for length in lengths]
    assert values.dtype == np.float32 and mask.dtype == np.bool_ and values.shape == (*mask.shape, width)
    assert mask.shape[1] % multiple_of == 0 and max(cut) <= mask.shape[1] < max(cut) + multiple_of
    assert (values[~mask] == -7).all() and mask.sum(1).tolist() == cut
    for row, kept, sample, length in zip(values, mask, batch, cut, strict=True):
        own = sample[:length] if side == "right" else sample[len(sample) - length :]
        assert np.array_equal(row[kept], own)
        edge = kept[:length] if side == "right" else kept[len(kept) - length :]
        assert edge.all()


def test_only_named_fields_are_padded_each_with_its_value() -> None:
    batch = [
        {"ids": [1], "labels": [1], "image": np.ones((2, 2))},
        {"ids": [1, 2], "labels": [1, 2], "image": np.ones((2, 2))},
    ]
    out = PadCollator({"ids": 0, "labels": -100})(batch)
    assert out["ids"].tolist() == [[1, 0], [1, 2]] and out["labels"].tolist() == [[1, -100], [1, 2]]
    assert set(out) == {"ids", "ids_mask", "labels", "labels_mask", "image"} and tuple(out["image"].shape) == (2, 2, 2)


def test_fields_are_named_by_key_position_attribute_and_path() -> None:
    batch = [
        ([1], {"boxes": [[1.0, 2.0]]}, Point([1], 0), Item([1])),
        ([1, 2], {"boxes": []}, Point([1, 2], 0), Item([1, 2])),
    ]
    ids, target, point, item = PadCollator({0: 9, (1, "boxes"): 0.5, (2, "x"): 8, (3, "ids"): 7})(batch)
    assert type(ids) is Padded and ids.values.tolist() == [[1, 9], [1, 2]]
    assert ids.mask.tolist() == [[True, False], [True, True]]
    assert target["boxes"].tolist() == [[[1, 2]], [[0.5, 0.5]]] and target["boxes_mask"].tolist() == [[True], [False]]
    assert type(point) is Point and point.x.values.tolist() == [[1, 8], [1, 2]] and point.y.tolist() == [0, 0]
    assert type(item) is Item and item.ids.values.tolist() == [[1, 7], [1, 2]]


def test_every_batch_has_the_same_fields() -> None:
    """A batch whose samples happen to be of one size has its masks too."""
    one, many = PadCollator()(TOKENS[:1]), PadCollator()(TOKENS)
    assert set(one) == set(many) and one["ids_mask"].tolist() == [[True, True, True]]


def test_images_are_padded_in_both_directions() -> None:
    batch = [np.ones((3, 2, 4), np.uint8), np.ones((3, 3, 1), np.uint8)]
    values, mask = PadCollator(255, dims=(1, 2))(batch)
    assert tuple(values.shape) == (2, 3, 3, 4) and tuple(mask.shape) == (2, 3, 4)
    for at, (height, width) in enumerate([(2, 4), (3, 1)]):
        real = np.zeros((3, 4), np.bool_)
        real[:height, :width] = True
        assert np.array_equal(np.asarray(mask[at]), real)
        assert np.array_equal(np.asarray(values[at]), np.broadcast_to(np.where(real, 1, 255), (3, 3, 4)))


def test_other_fields_follow_the_default_rules() -> None:
    out = PadCollator()(
        [
            {"w": np.ones(2), "s": "a", "f": np.float32(1), "t": (1, "x")},
            {"w": np.ones(3), "s": "b", "f": np.float32(2), "t": (2, "y")},
        ]
    )
    assert out["s"] == ["a", "b"] and out["f"].tolist() == [1, 2] and out["t"][1] == ("x", "y")
    with pytest.raises(BatchError, match=r'^sample\["x"\]: each element in list'):
        PadCollator()([{"x": ["a"]}, {"x": ["a", "b"]}])


def test_pad_collator_chooses_the_common_dtype() -> None:
    def dtype(*samples: Any, value: float = 0) -> str:
        return str(PadCollator(value, output="numpy")(list(samples)).values.dtype)

    assert dtype([1], [2, 3]) == "int64" and dtype([1.5], []) == "float64" and dtype([], []) == "int64"
    assert dtype([True], [False, True]) == "bool" and dtype(np.ones(2, "f4"), np.ones(3, "i8")) == "float32"
    assert dtype(np.ones(2, ">i2"), np.ones(3, ">i2")) == "int16"
    assert dtype(np.ones(2, "f4"), np.ones(3, "f4"), value=float("nan")) == "float32"
    assert dtype(np.ones(2, "f4"), np.ones(3, "f4"), value=float("-inf")) == "float32"
    assert dtype(np.ones(2, "f4"), np.ones(3, "f4"), value=0.1) == "float32"


@pytest.mark.parametrize(
    ("dtype", "value"), [("u1", -100), ("i8", 0.5), ("i8", float("nan")), ("?", 2), ("i1", 1000), ("f2", -1e9)]
)
def test_a_value_that_does_not_fit_is_refused(dtype: str, value: float) -> None:
    with pytest.raises(BatchError, match=rf"padding value {re.escape(repr(value))} does not fit"):
        PadCollator(value)([np.ones(2, dtype), np.ones(3, dtype)])


def test_all_is_written_into_lent_memory(slot: Any) -> None:
    batch = PadCollator()(TOKENS)
    assert all(slot.holds(batch[key]) for key in ("ids", "ids_mask", "n")) and slot.given == [48, 6, 16]


def test_pad_collator_makes_every_output(torch_not_loaded: None) -> None:
    for output, kind in (("numpy", np.ndarray), ("deferred", TensorLeaf), (None, np.ndarray)):
        batch = PadCollator(output=output)(TOKENS)  # type: ignore[arg-type]
        assert {type(leaf) for leaf in batch.values()} == {kind}
    with pytest.raises(LeafTypeError, match="can't convert"):
        PadCollator(output="deferred")([np.ones(2, np.longdouble)])


def test_pad_collator_pads_tensors(slot: Any) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        batch = PadCollator()([torch.ones(2, dtype=dtype), torch.ones(3, dtype=dtype)])
        assert batch.values.dtype == dtype and batch.values.tolist() == [[1, 1, 0], [1, 1, 1]]
        assert batch.mask.dtype == torch.bool and slot.holds(batch.mask)
        start = slot.buffer.ctypes.data
        assert start <= batch.values.data_ptr() < start + len(slot.buffer)
    assert type(PadCollator(output="numpy")([torch.ones(2), torch.ones(3)]).values) is np.ndarray
    mixed = PadCollator()([torch.ones(2, dtype=torch.bfloat16), [1, 2, 3], []])
    assert mixed.values.dtype == torch.bfloat16 and mixed.mask.sum(1).tolist() == [2, 3, 0]
    for dtype in (torch.int64, torch.float16):
        rows = [torch.ones(2, dtype=dtype, requires_grad=dtype.is_floating_point), torch.ones(3, dtype=dtype)]
        with pytest.raises(BatchError, match="does not fit"):
            PadCollator(0.5 if dtype is torch.int64 else 1e9)(rows)


def test_padded_tensors_stay_on_their_device(slot: Any) -> None:
    torch = pytest.importorskip("torch")
    values, mask = PadCollator()([torch.ones(2, device="meta"), torch.ones(3, device="meta")])
    assert values.device.type == mask.device.type == "meta" and values.shape == mask.shape == (2, 3)
    assert slot.given == [6]  # the mask's way there


def test_gradients_flow_through_padding() -> None:
    torch = pytest.importorskip("torch")
    short, long = torch.ones(2, requires_grad=True), torch.ones(3)
    values, _ = PadCollator()([short, long])
    values.sum().backward()
    assert short.grad.tolist() == [1, 1] and values.tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("collator", "batch", "said"),
    [
        (PadCollator(), [np.ones((2, 3)), np.ones((3, 4))], r"\(2, 3\) in sample 0 .*PadCollator\(dims=\(0, 1\)\)"),
        (PadCollator(), [np.ones(2), np.ones((2, 1))], "number of dimensions"),
        (PadCollator(dims=(0, 1)), [np.ones((2, 1)), np.ones(2)], "number of dimensions"),
        (PadCollator({"x": 0}), [{"x": 1}], r'sample\["x"\]: there is no dimension 0 to pad in shape \(\)'),
        (PadCollator({"x": 0}), [{"x": "a"}], r'sample\["x"\]: .*found <class \'str\'>'),
        (PadCollator({"x": 0, "y": 0}), [{"x": [1]}], r"names \['y'\], but the samples have no such fields"),
        (PadCollator(), [{"x": [1], "x_mask": 1}], 'the mask of "x" would replace the field "x_mask"'),
        (PadCollator({"x": 0}), [{"x": [[1], [1, 2]]}], r'sample\["x"\]: a list that is no array'),
        (PadCollator(), [[1], None], "found <class 'list'> in sample 0 and <class 'NoneType'> in sample 1"),
    ],
)
def test_field_that_cannot_be_padded_is_refused(collator: PadCollator, batch: list[Any], said: str) -> None:
    with pytest.raises(BatchError, match=said):
        collator(batch)


@pytest.mark.parametrize(
    "arguments",
    [
        {"side": "top"},
        {"multiple_of": 0},
        {"max_length": 0},
        {"max_length": 1.5},
        {"dims": ()},
        {"dims": (1, 0)},
        {"dims": (-1,)},
    ],
    ids=str,
)
def test_bad_options_are_refused_when_built(arguments: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PadCollator(**arguments)


@pytest.mark.parametrize(
    "batch", [[[2**53 + 1, 2**63], [1]], [[2**63], [2**63 + 1]], [[1, 2**70], [3]], [[True, 2**63]]], ids=str
)
def test_integers_of_more_than_64_bits_are_no_floats(batch: list[Any]) -> None:
    with pytest.raises(BatchError, match=r"Overflow when unpacking long long: \d+ in the list to be padded"):
        PadCollator()(batch)
