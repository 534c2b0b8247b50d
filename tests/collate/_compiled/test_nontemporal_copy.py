"""What is copied past the caches is what would have been copied otherwise; what does not fit goes the other way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stoker import collate
from stoker._core import native
from stoker.collate import tensors
from stoker.collate._compiled import incremental as early_module

pytestmark = pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")

SHAPE = (5, 1021)  # rows that begin anywhere in a line of the cache, large enough to be written as they come


class Counted:
    """The compiled part, and how many rows it has copied."""

    def __init__(self, inner: native.Functions) -> None:
        self.rows = self.images = 0
        self._inner = inner

    def stack(self, to: int, sources: Sequence[int], size: int) -> None:
        self.rows += len(sources)
        self._inner.stack(to, sources, size)

    def planes(self, to: int, source: int, points: int) -> None:
        self.images += 1
        self._inner.planes(to, source, points)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Every size is large enough."""
    assert native.functions is not None
    counted = Counted(native.functions)
    monkeypatch.setattr(native, "functions", counted)
    monkeypatch.setattr(native, "LARGE", 1)
    return counted


def array(number: int) -> Any:
    return np.random.default_rng(number).random(SHAPE, np.float32)


def tensor(number: int) -> Any:
    return pytest.importorskip("torch").from_numpy(array(number))


MADE = {"arrays": array, "tensors": tensor}


@pytest.fixture(params=MADE)
def make(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    return MADE[request.param]


def collated(samples: Sequence[Any], lender: Any, early: bool) -> Any:
    """As a worker does it, by the plan that the batch before has left."""
    compiled = collate.compiling(collate.default_collate)
    assert isinstance(compiled, collate.Compiled)
    for _ in range(3):  # the first may load torch, which asks for another plan; the last is looked at
        compiled.begin(len(samples), None)
        compiled([sample.copy() if isinstance(sample, np.ndarray) else sample.clone() for sample in [samples[0]] * 4])
        compiled.end()
    assert compiled.is_settled == (not early)
    keep = compiled.begin(len(samples), lender, travels=True)
    kept = list(samples) if keep is None else [keep(place, sample) for place, sample in enumerate(samples)]
    try:
        with tensors.lent_by(lender):
            return compiled(kept)
    finally:
        compiled.end()


@pytest.fixture(params=[False, True], ids=["at the end", "as they come"])
def early(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(early_module, "WORTH", -1.0 if request.param else 1e9)
    return bool(request.param)


def test_rows_arrive_whole_in_lent_memory(
    make: Any, early: bool, counted: Counted, new_slot: Any, assert_same: Any
) -> None:
    lender, samples = new_slot(), [make(number) for number in range(4)]
    batch = collated(samples, lender, early)
    assert_same(batch, collate.default_collate(samples))
    assert lender.holds(batch)
    assert counted.rows == 4


def test_batch_of_this_process_is_left_in_its_caches(make: Any, counted: Counted, early: bool) -> None:
    collated([make(number) for number in range(4)], None, early)
    assert counted.rows == (4 if early else 0)  # what is written as it comes is told that it will travel


def test_few_bytes_are_copied_as_ever(
    make: Any, early: bool, counted: Counted, monkeypatch: Any, new_slot: Any
) -> None:
    monkeypatch.setattr(native, "LARGE", 1 << 30)
    collated([make(number) for number in range(4)], new_slot(), early)
    assert counted.rows == 0


def test_copy_works_without_the_compiled_part(
    make: Any, early: bool, monkeypatch: Any, new_slot: Any, assert_same: Any
) -> None:
    monkeypatch.setattr(native, "functions", None)
    monkeypatch.setattr(native, "LARGE", 1)
    samples = [make(number) for number in range(4)]
    assert_same(collated(samples, new_slot(), early), collate.default_collate(samples))


def transposed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.asfortranarray(value)
    return value.t().contiguous().t()


def test_values_that_lie_otherwise(make: Any, early: bool, counted: Counted, new_slot: Any, assert_same: Any) -> None:
    samples = [make(number) for number in range(4)]
    samples[2] = transposed(samples[2])
    assert_same(collated(samples, new_slot(), early), collate.default_collate(samples))
    assert counted.rows == (3 if early else 0)


@pytest.mark.parametrize("shape", [(128, 129, 3), (8, 16, 48, 3), (20000, 3)], ids=["images", "clips", "points"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_images_whose_channels_come_first_only_in_name(
    shape: tuple[int, ...], dtype: str, make: Any, early: bool, counted: Counted, new_slot: Any, assert_same: Any
) -> None:
    """They lie as they were decoded, each point's channels beside each other."""
    rng = np.random.default_rng(0)
    samples: list[Any] = [np.moveaxis(rng.integers(0, 2, shape).astype(dtype), -1, 0) for _ in range(4)]
    if make is tensor:
        samples = list(map(pytest.importorskip("torch").from_numpy, samples))
    batch = collated(samples, new_slot(), early)
    assert_same(batch, collate.default_collate(samples))
    assert counted.images == (4 if early else 0) and not counted.rows


OTHERS = {
    "cropped": lambda image: np.moveaxis(image[:, :-1], -1, 0),
    "mirrored": lambda image: np.moveaxis(image[:, ::-1], -1, 0),
    "on its side": lambda image: image.transpose(2, 1, 0),
    "four channels": lambda image: np.moveaxis(np.concatenate([image, image[..., :1]], -1), -1, 0),
    "three of four channels": lambda image: np.moveaxis(np.concatenate([image, image[..., :1]], -1)[..., :3], -1, 0),
    "words": lambda image: np.moveaxis(image.astype(np.int16), -1, 0),
    "channels last": lambda image: image,
}


@pytest.mark.parametrize("how", OTHERS)
def test_images_that_lie_otherwise(
    how: str, make: Any, early: bool, counted: Counted, new_slot: Any, assert_same: Any
) -> None:
    rng = np.random.default_rng(0)
    samples: list[Any] = [OTHERS[how](rng.integers(0, 256, (128, 128, 3), np.uint8)) for _ in range(4)]
    if make is tensor:
        torch = pytest.importorskip("torch")
        if how == "mirrored":
            pytest.skip("torch has no such tensors")
        samples = list(map(torch.from_numpy, samples))
    assert_same(collated(samples, new_slot(), early), collate.default_collate(samples))
    assert not counted.images


def test_an_image_of_another_kind_among_others(
    make: Any, counted: Counted, new_slot: Any, assert_same: Any, monkeypatch: Any
) -> None:
    """It lies as the others do, and is another dtype's, or negative in name."""
    monkeypatch.setattr(early_module, "WORTH", -1.0)
    rng = np.random.default_rng(0)
    samples: list[Any] = [np.moveaxis(rng.integers(0, 100, (128, 128, 3), np.int8), -1, 0) for _ in range(4)]
    if make is tensor:
        torch = pytest.importorskip("torch")
        samples = list(map(torch.from_numpy, samples))
        samples[2] = torch._neg_view(samples[2])
        assert samples[2].is_neg() and samples[2].stride() == samples[1].stride()
    else:
        samples[2] = samples[2].view(np.uint8)
    assert_same(collated(samples, new_slot(), early=True), collate.default_collate(samples))
    assert counted.images == (3 if make is tensor else 2)


@pytest.mark.parametrize(("run_of", "streams"), [(8, False), (16, True)])
def test_a_run_of_rows_is_as_large_as_its_batch(
    run_of: int, streams: bool, make: Any, counted: Counted, new_slot: Any, monkeypatch: Any
) -> None:
    """That is what its reader finds: 4 rows are made here, and others make the rest."""
    monkeypatch.setattr(early_module, "WORTH", -1.0)
    samples = [make(number) for number in range(4)]
    monkeypatch.setattr(native, "LARGE", 16 * samples[0].nbytes)
    compiled = collate.compiling(collate.default_collate)
    assert isinstance(compiled, collate.Compiled)
    for _ in range(3):  # as above
        compiled.begin(4, None, run_of=run_of)
        compiled.rows([make(number) for number in range(4)])
        compiled.end()
    keep = compiled.begin(4, new_slot(), travels=True, run_of=run_of)
    assert keep is not None
    for place, sample in enumerate(samples):
        keep(place, sample)
    compiled.end()
    assert counted.rows == (4 if streams else 0)


@pytest.mark.parametrize("what", ["negated", "conjugated", "followed by autograd", "other dtype"])
def test_negated_and_conjugated_tensors_are_copied_as_values(
    what: str, early: bool, counted: Counted, new_slot: Any, assert_same: Any
) -> None:
    torch = pytest.importorskip("torch")
    pairs = [torch.complex(tensor(number), tensor(number + 10)) for number in range(4)]
    if what == "negated":
        samples = [pair.imag.clone() for pair in pairs]
        samples[1] = torch._neg_view(samples[1])
        assert samples[1].is_neg() and samples[1].is_contiguous()
    elif what == "conjugated":
        samples = pairs
        samples[1] = samples[1].conj()
        assert samples[1].is_conj() and samples[1].is_contiguous()
    elif what == "followed by autograd":
        samples = [tensor(number) for number in range(4)]
        samples[1].requires_grad_()
    else:
        samples = [tensor(number) for number in range(4)]
        samples[1] = samples[1].double()
    expected = collate.default_collate(samples)
    batch = collated(samples, new_slot(), early)
    assert_same(batch.detach().resolve_conj(), expected.detach().resolve_conj())
    assert batch.requires_grad == expected.requires_grad
    assert counted.rows <= 3
