"""The default collation where it needs no torch to be judged; `test_against_torch` compares it with torch's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker import collate
from stoker.errors import BatchError, LeafTypeError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Item:
    image: Any
    label: int
    name: str = "none"
    area: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        assert self.image.ndim == 2, "checks one sample, not a batch"
        self.area = float(self.image.size)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: Any


@dataclasses.dataclass
class Output(OrderedDict[str, Any]):
    """A dataclass that is a mapping is collated as one."""

    logits: Any = None


COLLATIONS = [collate.default_collate, collate.numpy_collate, collate.deferred_collate]


@pytest.mark.parametrize("collation", COLLATIONS)
def test_numbers_strings_and_structures(collation: Any) -> None:
    batch = [
        ({"i": 1, "f": 1.5, "b": True}, "a", [b"x", Point(1, 2)]),
        ({"i": 2, "f": 2, "b": False}, "b", [b"y", (3, 4)]),
    ]
    numbers, strings, (blobs, point) = collation(batch)
    kinds = {key: (str(leaf.dtype).removeprefix("torch."), leaf.tolist()) for key, leaf in numbers.items()}
    assert kinds == {"i": ("int64", [1, 2]), "f": ("float64", [1.5, 2.0]), "b": ("bool", [True, False])}
    assert strings == ("a", "b") and blobs == (b"x", b"y")
    assert type(point) is Point and point.x.tolist() == [1, 3] and point.y.tolist() == [2, 4]


@pytest.mark.parametrize("collation", COLLATIONS)
def test_dataclasses_keep_their_class(collation: Any) -> None:
    batch = collation([Item(np.ones((2, 3)), 1), Item(np.zeros((2, 3)), 2, "second")])
    assert type(batch) is Item and tuple(batch.image.shape) == (2, 2, 3)
    assert batch.label.tolist() == [1, 2] and batch.name == ["none", "second"] and batch.area.tolist() == [6.0, 6.0]
    for kind in (Frozen, Slotted):
        nested = collation([{"at": kind(1)}, {"at": kind(2)}])
        assert type(nested["at"]) is kind and nested["at"].value.tolist() == [1, 2]


def test_dataclasses_that_are_mappings_are_collated_as_mappings() -> None:
    output = Output()
    output["logits"] = 3
    assert collate.default_collate([output, output])["logits"].tolist() == [3, 3]
    with pytest.raises(LeafTypeError, match="found <class 'type'>"):
        collate.default_collate([Item, Item])


def test_samples_are_left_as_they_were() -> None:
    samples = [{"x": np.zeros(2), "l": [1, 2]}, {"x": np.ones(2), "l": [3, 4]}]
    batch = collate.default_collate(samples)
    batch["x"][...] = 7
    assert samples[0]["l"] == [1, 2] and samples[0]["x"].tolist() == [0, 0] and samples[1]["x"].tolist() == [1, 1]


@pytest.mark.parametrize("collation", COLLATIONS)
def test_every_leaf_is_written_into_lent_memory_once(collation: Any, slot: Any) -> None:
    samples = [{"x": np.full((3, 2), at, np.float32), "t": (at, 0.5), "s": np.int16(at), "n": "a"} for at in range(4)]
    batch = collation(samples)
    leaves = [batch["x"], *batch["t"], batch["s"]]
    assert all(map(slot.holds, leaves))
    assert slot.given == [4 * 3 * 2 * 4, 4 * 8, 4 * 8, 4 * 2]
    assert batch["x"][3].tolist() == [[3, 3]] * 3 and batch["s"].tolist() == [0, 1, 2, 3]


def test_tensors_are_written_into_lent_memory_once(slot: Any) -> None:
    torch = pytest.importorskip("torch")
    images = [torch.rand(4, 5, 3).permute(2, 0, 1) for _ in range(3)]
    for collation in COLLATIONS:
        slot.given.clear()
        batch = collation(images)
        assert slot.holds(batch) and slot.given == [3 * 60 * 4]
        assert np.array_equal(np.asarray(batch), np.stack([image.numpy() for image in images]))
    bfloat = collate.default_collate([torch.ones(2, dtype=torch.bfloat16)])
    assert slot.given[-1] == 4 and bfloat.dtype == torch.bfloat16


def test_numpy_output_takes_every_dtype() -> None:
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    records = np.array([(1, 2.0)], "i4,f8")
    for array in (days, records, np.array(["a", "bc"]), np.array([None, {}], object), np.ones(2, np.longdouble)):
        batch = collate.numpy_collate([(array,), (array,)])[0]
        assert batch.dtype == array.dtype and batch.shape == (2, *array.shape) and (batch[1] == array).all()


def test_numpy_output_holds_numbers_beside_objects_as_objects() -> None:
    batch = collate.numpy_collate([np.array([None, "a"], object), np.array([1.0, 2.0])])
    assert batch.dtype == object and batch.tolist() == [[None, "a"], [1.0, 2.0]]


def test_numpy_output_says_what_numpy_cannot_hold() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(LeafTypeError, match=r'sample\["x"\]: .*BFloat16.*output="torch"'):
        collate.numpy_collate([{"x": torch.ones(2, dtype=torch.bfloat16)}])


def test_deferred_leaves_are_marked(torch_not_loaded: None, slot: Any) -> None:
    batch = collate.deferred_collate(
        [{"x": np.ones(2, np.float32), "i": 1, "n": "a"}, {"x": np.ones(2), "i": 2, "n": "b"}]
    )
    assert type(batch["x"]) is collate.TensorLeaf and type(batch["i"]) is collate.TensorLeaf
    assert slot.holds(batch["x"]) and batch["x"].dtype == np.float64 and batch["n"] == ["a", "b"]


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (np.array(["a"]), "found <U1"),
        (np.array([None]), "found object"),
        (np.ones(2, "M8[s]"), r"can't convert np.ndarray of type numpy.datetime64"),
        (np.ones(2, np.longdouble), r"can't convert np.ndarray of type numpy\.\w+"),
        (2**63, "Overflow when unpacking long long: 9223372036854775808 in sample 0"),
    ],
    ids=str,
)
def test_deferred_leaves_are_refused_where_they_are_no_tensors(torch_not_loaded: None, leaf: Any, said: str) -> None:
    with pytest.raises(BatchError, match=r'^sample\["x"\]: .*' + said):
        collate.deferred_collate([{"x": leaf}])


@pytest.mark.parametrize("large", [[2**63], [1, -(2**70)], [True, 2**64]])
def test_integer_of_more_than_64_bits_is_refused_as_by_torch(large: list[int]) -> None:
    theirs = pytest.importorskip("torch").utils.data.default_collate
    for collated in (theirs, collate.default_collate):
        with pytest.raises(ValueError, match="Overflow when unpacking long"):
            collated(large)


def test_without_torch_leaves_are_arrays(torch_not_loaded: None) -> None:
    batch = collate.default_collate([{"x": np.ones(2), "i": 1}])
    assert type(batch["x"]) is np.ndarray and type(batch["i"]) is np.ndarray


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_deferred_or_numpy_collation_does_not_load_torch() -> None:
    program = """
import sys
import numpy as np
from stoker import collate
batch = [{"x": np.ones(2), "i": 1}]
collate.deferred_collate(batch), collate.numpy_collate(batch), collate.PadCollator(output="deferred")(batch)
collate.deferred_convert(batch[0]), collate.for_output(collate.default_collate, "deferred"), collate.write_in_place()
print("torch" in sys.modules)
"""
    assert run(program) == "False"


def test_a_program_can_say_that_it_wants_no_tensors() -> None:
    program = "from stoker import collate; print(type(collate.default_collate([1])).__name__)"
    assert run(program, STOKER_TORCH="0") == "ndarray"


def test_user_code_in_a_clean_worker_gets_tensors() -> None:
    pytest.importorskip("torch")
    program = """
from stoker._core import nominal
from stoker import collate
nominal.prefer_none()
print(type(collate.default_collate([1])).__name__)
"""
    assert run(program) == "Tensor"


def test_samples_that_differ_from_most_are_named() -> None:
    usual = {"x": np.ones(3), "y": 1}
    for odd in ({"x": np.ones(4), "y": 1}, {"x": np.ones(3), "y": None}, {"y": 1}, None, {"x": np.ones(3), "y": 2**70}):
        for places in ([2], [0, 3]):
            batch = [odd if place in places else usual for place in range(6)]
            if odd == {"y": 1} and 0 in places:
                continue  # a key that the first has not is none
            with pytest.raises(BatchError) as caught:
                collate.numpy_collate(batch)
            assert list(caught.value.places) == places, odd
