"""The rivals and limits of the benchmarks do what they are said to do, each where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("the figures come from /proc", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Numbered:
    """Images that show their index, which is their class too."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index


def measured(name: str, **arguments: Any) -> dict[str, Any]:
    """The figures of one measurement, as a round makes it."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--measure", json.dumps(arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return figures


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports modules of the benchmarks, which are programs beside each other and no package."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.parametrize("processes", [False, True])
def test_the_limit_makes_every_sample_of_each_batch(modules: Any, processes: bool) -> None:
    bare = modules("bare")
    seen = [batch[:, 0].tolist() for batch in bare.batches(Numbered(), 16, 5, 2, processes)]
    # Writers do not wait for the reader: a row may be of a later batch already
    assert [len(batch) for batch in seen] == [16] * 5
    assert set().union(*seen) <= set(range(20))


@pytest.mark.parametrize("rival", ["nodes", "grain", "spdl_threads"])
def test_a_rival_gives_the_samples_in_another_order(modules: Any, rival: str) -> None:
    rivals = modules("rivals")
    pytest.importorskip({"nodes": "torchdata", "grain": "grain", "spdl_threads": "spdl"}[rival])
    batches = getattr(rivals, rival)(Numbered(), 5, 0 if rival != "spdl_threads" else 1)
    seen: list[int] = []
    for _ in range(4):
        images, labels = next(batches)
        assert [int(image[0, 0, 0]) for image in images] == [int(label) for label in labels]
        seen += map(int, labels)
    if hasattr(batches, "close"):
        batches.close()
    assert sorted(seen) == list(range(20)) != seen


@pytest.mark.long
@pytest.mark.parametrize(("name", "arguments"), [("rows", {"rows": 10_000}), ("dicts", {})])
@pytest.mark.parametrize("rival", ["nodes", "Grain"])
def test_a_rival_is_counted(name: str, arguments: dict[str, Any], rival: str) -> None:
    pytest.importorskip({"nodes": "torchdata", "Grain": "grain"}[rival])
    figures = measured(name, rival=rival, workers=0, seconds=0.01, **arguments)
    assert all(figures[name] >= 0 for name in ("batches/s", "CPU-ms per batch", "MB, all processes"))


@pytest.mark.slow
def test_a_rival_begins_an_epoch() -> None:
    pytest.importorskip("grain")
    assert measured("order", rival="Grain", n=10**10)["ms to the first batch"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rival", "package"),
    [
        ("stoker, threads", "torch"),
        ("nodes, processes", "torchdata"),
        ("nodes, threads", "torchdata"),
        pytest.param("Grain", "grain", marks=pytest.mark.long),  # its processes take a minute to start
        ("SPDL, threads", "spdl"),
        ("SPDL, processes", "spdl"),
    ],
)
def test_a_rival_makes_batches_of_photographs(rival: str, package: str, photographs: Path) -> None:
    pytest.importorskip(package)
    assert measured("images", rival=rival, data=str(photographs), train=False, batches=6)["images/s"] > 0


@pytest.mark.slow
def test_a_rival_that_is_not_there_is_named(photographs: Path) -> None:
    figures = measured("images", rival="DALI", data=str(photographs), train=False, batches=6)
    assert set(figures.values()) == {"needs a GPU"}
    if importlib.util.find_spec("tensorflow") is None:
        figures = measured("images", rival="tf.data", data=str(photographs), train=False, batches=6)
        assert set(figures.values()) == {"not installed"}


def test_the_quick_form_leaves_the_other_loaders_out(modules: Any) -> None:
    rivals, method = modules("rivals"), modules("method")
    goals = [method.Goal("rate", other, at_least=1) for other in ("torch", "bare", "SPDL, threads")]
    case = method.Case("c", {name: {} for name in ("stoker", "torch", "bare", "SPDL, threads", "tf.data")}, goals)
    (left,) = rivals.left_out([case])
    assert list(left.rivals) == ["stoker", "torch", "bare"]
    assert left.goals == goals[:2]


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for package in ("PIL", "psutil", "rich", "typer"):
        pytest.importorskip(package)
    from PIL import Image

    for label in ("dark", "light"):
        for number in range(8):
            path = tmp_path / "photos" / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (160, 120), label + "gray").save(path)
    return tmp_path / "photos"
