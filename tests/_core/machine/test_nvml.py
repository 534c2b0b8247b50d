"""GPUs as the driver shows them, by a stand-in for its library; the real one where there is a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from stoker._core.machine.gpu_activity import LIBRARY, GpuReading, Nvml
from tests.nvml_driver import FakeDriver


def has_driver() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def opened(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Nvml:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    nvml = Nvml.opened()
    assert nvml is not None
    return nvml


def test_readings_have_the_figures_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(gpus=2)
    nvml = opened(monkeypatch, driver)
    assert nvml.readings() == [GpuReading("NVIDIA Z1", 0.37, 60 << 30, 20 << 30, 80 << 30)] * 2
    assert nvml.uuids == ["GPU-10a1", "GPU-20a1"]
    nvml.close()
    assert not driver.is_open


def test_figures_that_the_driver_does_not_tell_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.unknown = 3
    nvml = opened(monkeypatch, driver)
    assert nvml.readings() == [GpuReading("NVIDIA Z1")]
    nvml.close()


def test_gpu_that_cannot_be_opened_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(gpus=2)
    monkeypatch.setattr(driver, "nvmlDeviceGetHandleByIndex_v2", lambda number, handle: 15)
    assert opened(monkeypatch, driver).readings() == [GpuReading("cannot be read (code 15)")] * 2


def test_driver_that_does_not_start_has_a_code_and_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(monkeypatch, FakeDriver(9))
    assert (nvml.code, nvml.readings(), nvml.uuids) == (9, [], [])
    nvml.close()


def test_there_is_nothing_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert Nvml.opened() is None


@pytest.mark.leaves_behind("the driver's library keeps its devices open")
@pytest.mark.skipif(not has_driver(), reason="needs a GPU")
def test_real_gpu_has_a_name_and_memory() -> None:
    nvml = Nvml.opened()
    assert nvml is not None and nvml.code == 0
    for reading in nvml.readings():
        assert reading.name and reading.busy is not None and 0 <= reading.busy <= 1
        assert reading.used is not None and reading.total is not None and 0 < reading.used < reading.total
    assert all(uuid.startswith("GPU-") for uuid in nvml.uuids)
    nvml.close()


def test_link_of_a_gpu_is_as_fast_as_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithLink(FakeDriver):
        generation = 5

        def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, generation: Any) -> int:
            generation._obj.value = self.generation
            return 0

        def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, width: Any) -> int:
            width._obj.value = 16
            return self.unknown

    driver = WithLink()
    assert opened(monkeypatch, driver).readings()[0].bus == pytest.approx(63e9, rel=0.01)
    driver.generation = 9
    assert opened(monkeypatch, driver).readings()[0].bus is None
    driver.generation, driver.unknown = 4, 3
    assert opened(monkeypatch, driver).readings()[0].bus is None
    assert opened(monkeypatch, FakeDriver()).readings()[0].bus is None  # a driver without these functions
