"""`pin_memory=True`: what is pinned, what stays, and what is said where nothing can be pinned."""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import pytest

from stoker import DataLoader, MissingExtraError, StokerWarning
from stoker.device import pinning
from stoker.loader import iterator
from stoker.loader.record import record_of

torch = pytest.importorskip("torch")
Pair = namedtuple("Pair", "image label")


class Batch:
    """A batch type of the user's."""

    pinned = 0

    def pin_memory(self) -> Batch:
        self.pinned += 1
        return self


def test_custom_batch_types_pin_themselves_wherever_they_are() -> None:
    batch = Batch()
    assert pinning.pin({"a": [batch, (batch,)], "b": Pair(batch, "text")})["b"].image is batch
    assert batch.pinned == 3


@pytest.mark.parametrize(
    "batch",
    ["text", b"bytes", 5, None, [1, "a"], (1, 2), Pair(1, 2), {"a": 1}, OrderedDict(a=1), MappingProxyType({"a": 1})],
)
def test_object_without_tensors_keeps_value_and_type(batch: object) -> None:
    assert pinning.pin(batch) == batch and type(pinning.pin(batch)) is type(batch)


def test_attributes_of_a_mapping_are_kept() -> None:
    batch = UserDict(a=1)
    batch.epoch = 3  # type: ignore[attr-defined]
    assert pinning.pin(batch).epoch == 3


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinning_without_an_accelerator_warns() -> None:
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert not pinning.can_pin(True, "")
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no accelerator")
        assert not pinning.can_pin(True, "cuda")


@pytest.mark.leaves_behind("torch keeps what it opened of the GPU")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_are_pinned() -> None:
    assert pinning.can_pin(True, "")
    assert pinning.pin([torch.zeros(3)])[0].is_pinned()


def test_arrays_are_not_pinned_and_that_is_said() -> None:
    with pytest.warns(StokerWarning, match="NumPy arrays"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no accelerator")
        pinning.can_pin(True, "", "numpy")


def test_pinning_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[torch\]"):
        pinning.can_pin(True, "")


def test_pinning_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the loader's work, in the training loop's time."""
    clock = iter(range(1000))

    def pin(batch: object) -> object:
        for _ in range(100):
            next(clock)
        return batch

    monkeypatch.setattr(pinning, "can_pin", lambda *_: True)
    monkeypatch.setattr(pinning, "pin", pin)
    monkeypatch.setattr(iterator.time, "perf_counter", lambda: float(next(clock)))
    loader = DataLoader([1, 2, 3, 4], batch_size=4)
    assert next(iter(loader)).tolist() == [1, 2, 3, 4]
    assert record_of(loader).ledger.epoch.waited > 100


def test_nothing_is_asked_where_nothing_is_to_be_pinned() -> None:
    assert not pinning.can_pin(False, "cuda")
