"""The checks of a dataset and of a loader, on real ones."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.checks import OF_DATA, dataset
from stoker.diagnostics.checks.finding import Finding
from stoker.diagnostics.target import Target


def found_in(data: Any, loader: Any = None, module: Any = sys) -> dict[str, Finding]:
    target = Target("train:dataset", module, data, loader)
    return {finding.name: finding for check in OF_DATA for finding in check(target)}


class Holding(list[int]):
    """A dataset with one attribute."""

    def __init__(self, held: object = None) -> None:
        super().__init__(range(10))
        self.held = held


def test_plain_dataset_is_fine() -> None:
    assert {name: finding.level for name, finding in found_in(Holding()).items()} == {
        **{"samples": "fine", "sample sent": "fine", "dataset sent": "fine"},
        **{"Python objects": "fine", "random numbers": "fine"},
    }


def test_time_of_a_sample_and_its_share_of_the_cpu() -> None:
    class Sleeping(Holding):
        def __getitem__(self, index: Any) -> Any:
            time.sleep(0.01)
            return super().__getitem__(index)

    what = found_in(Sleeping())["samples"].what
    count, rest = what.split("; ")
    assert count == "10 samples"
    assert 10 <= float(rest.split(" ms")[0]) < 100
    assert float(rest.split(", ")[1].partition("%")[0]) < 50


def test_sample_that_raises_is_a_problem() -> None:
    found = found_in([np.zeros(3), object(), lambda: None])
    assert found["sample sent"].level == "problem"
    assert "cannot be pickled" in found["sample sent"].what

    class Broken(Holding):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("no such disk")

    assert found_in(Broken())["samples"].what == "a sample cannot be fetched: OSError: no such disk"


def test_stream_is_looked_at_from_its_beginning() -> None:
    def endless() -> Any:
        while True:
            yield np.zeros(1000)

    what = found_in(endless())["samples"].what
    assert what.startswith(tuple("0123456789")) and "samples" not in what


def test_empty_dataset_is_a_problem() -> None:
    assert found_in([])["samples"].level == "problem"


def test_expensive_sample_is_advice() -> None:
    rows = [[{"word": str(number), "place": number} for number in range(5000)]]
    sent = found_in(rows)["sample sent"]
    assert sent.level == "advice" and "of the time to make it" in sent.what


def test_object_that_cannot_be_sent_is_named_by_its_path() -> None:
    sent = found_in(Holding({"lock": threading.Lock()}))["dataset sent"]
    assert sent.level == "problem" and sent.what.startswith("dataset.held['lock']")


def test_python_objects_are_counted_for_each_worker() -> None:
    loader = types.SimpleNamespace(num_workers=4, batch_size=None)
    copied = found_in(Holding([(number, str(number)) for number in range(100_000)]), loader)["Python objects"]
    assert copied.level == "advice"
    assert copied.what.startswith("dataset.held holds 100,000 rows of Python objects")
    assert "4 workers: up to" in copied.what and copied.mend.startswith("stoker.columns(dataset.held)")


def test_generator_of_the_datasets_own_is_a_problem() -> None:
    assert found_in(Holding(np.random.default_rng(0)))["random numbers"].what.endswith("of its own (Generator)")
    assert found_in(Holding(random.Random(0)))["random numbers"].level == "problem"


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        ("36 35 0:33 / /data rw - nfs4 server:/export rw", "advice", "nfs4, mounted at /data: on another machine"),
        ("36 35 0:33 / /data rw - fuse.sshfs host:/ rw", "advice", "fuse.sshfs, mounted at /data: on another machine"),
        ("36 35 0:33 / / rw - overlay overlay rw", "advice", "overlay, mounted at /: in the layers of a container"),
        ("36 35 0:33 / /data rw - ext4 /dev/sda1 rw", "fine", "ext4, mounted at /data"),
        ("36 35 0:33 / /dat rw - nfs server:/ rw", "fine", "unknown, mounted at /"),
    ],
)
def test_file_system_under_the_data(line: str, level: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "read", lambda path: line + "\n")
    monkeypatch.setattr(dataset.os.path, "exists", lambda path: True)
    found = found_in(Holding("/data/train"))["files in /data/train"]
    assert (found.level, found.what) == (level, said)


def test_paths_inside_a_list_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    assert f"files in {tmp_path}/a.jpg" in found_in(Holding([(str(tmp_path / "a.jpg"), 0)] * 10))


def test_last_batch_of_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(list(range(65)), batch_size=32)
    network = types.SimpleNamespace(model=torch.nn.Sequential(torch.nn.BatchNorm1d(3)), other=torch.nn.Linear(1, 1))
    alone = found_in(loader.dataset, loader)["last batch"]
    assert alone.level == "advice" and alone.mend.startswith("drop_last=True")
    seen = found_in(loader.dataset, loader, network)["last batch"]
    assert seen.level == "problem" and seen.what.endswith("and model has BatchNorm")
    dropping = torch.utils.data.DataLoader(list(range(65)), batch_size=32, drop_last=True)
    assert found_in(dropping.dataset, dropping, network)["last batch"].level == "fine"


def test_pillow_images_travel_less_well_than_arrays() -> None:
    image = pytest.importorskip("PIL.Image")
    photos = [(image.new("RGB", (4, 4)), number) for number in range(3)]
    assert "numpy.asarray(image)" in str(found_in(photos)["Pillow images"].mend)
    assert "Pillow images" not in found_in([(np.zeros(4), number) for number in range(3)])


def test_awaited_samples_are_measured() -> None:
    class Awaited(Holding):
        async def __getitem__(self, index: Any) -> Any:
            await asyncio.sleep(0)
            return np.zeros(250) if index < 9 else 1 / 0

    assert found_in(Awaited())["samples"].level == "fine"
    assert found_in(Awaited())["sample sent"].what.startswith("2.1 KiB")
