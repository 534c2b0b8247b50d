"""`stoker run` and `stoker compare` where there are GPUs: by a stand-in for the driver, and on a real one."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker._core.machine import gpu_activity
from stoker._core.machine.gpu_activity import CONTEXT
from stoker.diagnostics.cli import main
from tests.diagnostics.cli.commands.test_run import TRAINS, script
from tests.nvml_driver import FakeDriver

ON_GPU = """
    import torch
    from stoker import DataLoader
    weights = torch.randn(4096, 4096, device="cuda")
    for batch in DataLoader(list(range(300)), batch_size=1):
        for _ in range(20):
            weights = torch.nn.functional.normalize(weights @ weights)
        torch.cuda.synchronize()
    """


class GrowingDriver(FakeDriver):
    """A program takes memory at each look."""

    def nvmlDeviceGetMemoryInfo(self, handle: object, memory: object) -> int:
        self.used += CONTEXT
        return super().nvmlDeviceGetMemoryInfo(handle, memory)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> GrowingDriver:
    found = GrowingDriver()
    monkeypatch.setattr(gpu_activity, "INTERVAL", 0.01)
    load = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name, *rest, **more: found if name == gpu_activity.LIBRARY else load(name, *rest, **more)
    )
    monkeypatch.setenv("STOKER_TORCH", "0")
    monkeypatch.setenv("COLUMNS", "140")
    return found


def test_table_and_report_show_the_gpu(
    driver: GrowingDriver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    assert main(["run", "--report", str(report), script(tmp_path, TRAINS), "1"]) == 0
    _, err = capfd.readouterr()
    assert "GPU 0: NVIDIA Z1, busy 37% of the program's time, at most " in err
    header, row = (line.split() for line in err.splitlines() if line.startswith(("loader ", "train.py:8 ")))
    assert header[-2:] == ["GPU", "busy"] and row[-1] == "37%"
    assert "GPU 0, NVIDIA Z1" in report.read_text()
    assert not driver.is_open


def test_json_has_the_gpu_of_the_run_and_of_each_loader(
    driver: GrowingDriver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--json", script(tmp_path, TRAINS), "0"]) == 0
    known = json.loads(capfd.readouterr().out)
    (gpu,), (loader,) = known["gpus"], known["loaders"]
    assert (gpu["number"], gpu["name"]) == (0, "NVIDIA Z1")
    assert [gpu["busy"], loader["gpu_busy"]] == pytest.approx([0.37, 0.37])
    assert gpu["peak_memory"] > (60 << 30)


def test_gpu_that_the_program_does_not_use_is_not_shown(
    driver: GrowingDriver, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["run", "--json", script(tmp_path, TRAINS), "0"]) == 0
    known = json.loads(capfd.readouterr().out)
    assert known["gpus"] == [] and known["loaders"][0]["gpu_busy"] is None


def test_compare_shows_the_gpu_under_both_engines(
    driver: GrowingDriver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = script(tmp_path, TRAINS.replace("from stoker import", "from torch.utils.data import"))
    assert main(["compare", "--json", "--batches", "10", "--rounds", "1", path, "1"]) == 0
    figure = json.loads(capfd.readouterr().out)["figures"]["GPU busy"]
    assert [figure[engine]["median"] for engine in ("torch", "stoker")] == pytest.approx([0.37, 0.37])


@pytest.mark.leaves_behind("torch keeps what it opened of the GPU")
def test_run_measures_a_real_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    report = tmp_path / "report.html"
    assert main(["run", "--json", "--report", str(report), script(tmp_path, ON_GPU)]) == 0
    known = json.loads(capfd.readouterr().out)
    (gpu,), (loader,) = known["gpus"], known["loaders"]
    assert gpu["name"] == torch.cuda.get_device_name()
    assert gpu["peak_memory"] > CONTEXT
    assert 0.3 < loader["gpu_busy"] <= 1
    assert gpu["name"] in report.read_text()
