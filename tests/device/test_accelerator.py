"""A device by torch, as far as it can be asked without one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from stoker import DataLoader
from stoker.device import accelerator
from stoker.device.accelerator import CopyDevice, InOrderDevice
from stoker.device.copies import moved_by_itself
from stoker.errors import DeviceError

torch = pytest.importorskip("torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("workers", [0, 1])
def test_device_that_is_not_there(workers: int) -> None:
    loader = DataLoader([1, 2, 3], device="cuda", num_workers=workers)
    iterator = iter(loader)
    with pytest.raises(DeviceError, match=r"device='cuda:0' is not there: torch finds no such device\. Name one"):
        next(iterator)
    assert loader.report().epoch.delivered == 0
    iterator.close()


def test_device_with_too_high_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, current_device=lambda: 1)
    monkeypatch.setattr(torch, "cuda", module)
    accelerator.accelerator_of.cache_clear()
    assert accelerator.numbered(torch.device("cuda")) == torch.device("cuda", 1)
    assert accelerator.numbered(torch.device("cuda", 0)) == torch.device("cuda", 0)
    with pytest.raises(DeviceError, match=r"2 such devices are there \(numbers from 0\)"):
        accelerator.accelerator_of(torch.device("cuda", 2))


def test_forked_process_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def forked() -> int:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …")

    module = SimpleNamespace(is_available=lambda: True, device_count=forked)
    monkeypatch.setattr(torch, "cuda", module)
    accelerator.accelerator_of.cache_clear()
    with pytest.raises(DeviceError, match="was forked from one that uses CUDA"):
        accelerator.accelerator_of(torch.device("cuda", 0))


def test_device_whose_copies_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mps`: here the CPU is the device."""
    device = InOrderDevice(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
    rows = [(torch.full((40_000,), float(number)), number) for number in range(6)]
    for workers in (0, 2):
        loader = DataLoader(rows, 2, device="mps", num_workers=workers)
        assert [labels.tolist() for _, labels in loader] == [[0, 1], [2, 3], [4, 5]]
        assert loader.report().copies["staged"] == 0


class Source(torch.Tensor):
    """Tells how it is copied."""

    calls: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append((function.__name__, args[2:], kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_device_without_events_is_waited_for() -> None:
    """`mps` reads the memory of a `non_blocking` copy later, and a slot would be written again meanwhile."""
    Source.calls.clear()
    device = InOrderDevice(torch.device("cpu"))
    device.copy(torch.zeros(3), torch.ones(3).as_subclass(Source), at_once=True)
    moved_by_itself(torch.ones(3).as_subclass(Source), device, [])
    assert [name for name, _, _ in Source.calls] == ["copy_", "to"]
    assert not any(True in args or kwargs.get("non_blocking") for _, args, kwargs in Source.calls)


@pytest.mark.parametrize("kind", ["mps", "xpu", "hpu"])
def test_devices_of_other_kinds_that_are_not_there(kind: str) -> None:
    accelerator.accelerator_of.cache_clear()
    with pytest.raises(DeviceError, match=f"device='{kind}(:0)?' is not there: torch finds no such device"):
        next(iter(DataLoader([1, 2, 3], device=kind)))


class Runtime:
    """CUDA's runtime, which refuses memory of 13 bytes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", address))
        return 2 * (size == 13)

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0

    def cudaGetErrorString(self, code: int) -> str:
        return "out of memory"


def test_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, made = Runtime(), []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: made.append(1))
    module = SimpleNamespace(
        get_device_properties=lambda _: SimpleNamespace(total_memory=80, is_integrated=0),
        Stream=lambda _: object(),
        device=lambda _: nullcontext(),
    )
    device = CopyDevice(torch.device("cuda", 0), module)
    assert device.registers and device.memory == 80
    assert device.register(4096, 10) is None
    device.unregister(4096)
    assert runtime.calls == [("register", 4096), ("unregister", 4096)]
    with pytest.raises(AttributeError):  # the failure is cleared by a kernel, and here there is none
        device.register(4096, 13)
    assert made == [1]


@pytest.mark.parametrize(("kind", "name"), [("cuda", "is_integrated"), ("xpu", "is_integrated_gpu")])
def test_integrated_gpu_pins_nothing(kind: str, name: str) -> None:
    properties = SimpleNamespace(total_memory=80, **{name: 1})
    module: Any = SimpleNamespace(get_device_properties=lambda _: properties, Stream=lambda _: object())
    device = CopyDevice(torch.device(kind, 0), module)
    assert not device.pins and not device.registers
