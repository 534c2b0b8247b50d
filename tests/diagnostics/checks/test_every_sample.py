"""A check of all samples finds the bad ones, and goes on where it was interrupted."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.diagnostics.checks.every_sample import check_samples
from stoker.errors import TargetError


class Rows(stoker.Dataset[Any]):
    """Rows of which some are bad."""

    stoker_protocol = True

    def __init__(self, number: int = 60, **bad: Any) -> None:
        self.number = number
        self.bad = {int(name[1:]): value for name, value in bad.items()}

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        value = self.bad.get(index, {"image": np.zeros((3, 8, 8), np.float32), "label": index % 10})
        if isinstance(value, Exception):
            raise value
        return os._exit(3) if value == "dies" else value

    def describe(self, index: int) -> str:
        return f"row {index}"


GOOD = {"image": np.zeros((3, 8, 8), np.float32), "label": 1}


def reasons(path: str) -> dict[Any, str]:
    return {one.index: str(one.exception) for one in stoker.quarantine(path)}


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_found(workers: int, tmp_path: Path) -> None:
    bad = {
        "_3": FileNotFoundError(2, "No such file", "photo.jpg"),
        "_17": {**GOOD, "image": np.zeros((1, 8, 8), np.float32)},
        "_18": {**GOOD, "image": np.zeros((3, 8, 8), np.uint8)},
        "_40": {"image": GOOD["image"]},
        "_41": {**GOOD, "label": 10},
    }
    if workers:
        bad["_50"] = "dies"
    path = str(tmp_path / "bad.jsonl")
    done = check_samples(Rows(**bad), path, workers=workers, labels=10)
    assert (done.samples, done.found, done.began_at) == (60, len(bad), 0)
    found = reasons(path)
    assert sorted(found) == sorted(int(name[1:]) for name in bad)
    assert found[3].startswith("FileNotFoundError")
    others = f"{58 - bool(workers)} of {59 - bool(workers)} samples have (3, 8, 8)"
    assert found[17] == f"InconsistentSample: image has the shape (1, 8, 8), and {others}"
    assert "image has the type uint8 ndarray" in found[18]
    assert "the sample has the fields image, and" in found[40]
    assert found[41] == "InconsistentSample: label is 10, and there are 10 classes"
    described = {one.index: one.description for one in stoker.quarantine(path) if one.kind == "exception"}
    assert described == {index: f"row {index}" for index in found if index != 50}
    assert len(stoker.quarantine(path).without(Rows())) == 60 - len(bad)
    assert not os.path.exists(f"{path}.state")


def test_good_dataset_leaves_an_empty_file(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.jsonl")
    assert check_samples(Rows(), path, workers=0).found == 0
    assert check_samples(Rows(), path, workers=0).found == 0, "and may be checked again"
    assert not len(stoker.quarantine(path))


def test_shapes_that_vary_are_no_fault(tmp_path: Path) -> None:
    some = {f"_{index}": {**GOOD, "image": np.zeros((3, 8, index), np.float32)} for index in range(1, 40)}
    assert check_samples(Rows(**some), str(tmp_path / "bad.jsonl"), workers=0).found == 0


def test_interrupted_check_goes_on(tmp_path: Path) -> None:
    path, bad = str(tmp_path / "bad.jsonl"), {"_3": ValueError("damaged"), "_50": {**GOOD, "label": 11}}

    def interrupt(done: int, of: int) -> None:
        if done >= 32:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        check_samples(Rows(**bad), path, workers=0, labels=10, on_progress=interrupt)
    assert os.path.exists(f"{path}.state")
    with pytest.raises(TargetError, match="60 samples and 10 classes, and this is one of 61 samples"):
        check_samples(Rows(61), path, workers=0, labels=10)
    done = check_samples(Rows(**bad), path, workers=0, labels=10)
    assert (done.began_at, done.found) == (32, 2)
    assert sorted(reasons(path)) == [3, 50] and not os.path.exists(f"{path}.state")


def test_check_that_ends_before_its_first_batch_begins_again(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.jsonl")

    class Interrupted(Rows):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    bad = {"_3": ValueError("damaged")}
    with pytest.raises(KeyboardInterrupt):
        check_samples(Interrupted(**bad), path, workers=0)
    done = check_samples(Rows(**bad), path, workers=0)
    assert (done.began_at, done.found, len(reasons(path))) == (0, 1, 1)


def test_labels_of_many_classes_are_all_judged(tmp_path: Path) -> None:
    class Labels(Rows):
        def __getitem__(self, index: int) -> Any:
            return {"label": 9999 if index == 1499 else index}

    path = str(tmp_path / "bad.jsonl")
    check_samples(Labels(1500), path, workers=0, labels=2000)
    assert list(reasons(path)) == [1499]


def test_the_order_of_keys_is_no_fault(tmp_path: Path) -> None:
    turned = {"_7": dict(reversed(GOOD.items()))}
    assert check_samples(Rows(**turned), str(tmp_path / "bad.jsonl"), workers=0).found == 0


def test_damaged_pillow_image_is_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    good = tmp_path / "good.png"
    image.fromarray(np.arange(40_000, dtype=np.uint8).reshape(200, 200)).save(good)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:300])

    class Opened(Rows):
        def __getitem__(self, index: int) -> Any:
            name = "cut.png" if index == 7 else "good.png"
            return image.open(io.BytesIO((tmp_path / name).read_bytes()))

    path = str(tmp_path / "bad.jsonl")
    check_samples(Opened(12), path, workers=0)
    assert list(reasons(path)) == [7]


def test_other_files_and_streams_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("of a training\n")
    with pytest.raises(TargetError, match="name another file"):
        check_samples(Rows(), str(path), workers=0)
    assert path.read_text() == "of a training\n"
    with pytest.raises(TargetError, match="no length or no index"):
        check_samples(iter(()), str(tmp_path / "new.jsonl"), workers=0)


def test_full_disk_ends_a_check_and_loses_no_sample(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.jsonl")
    rows = Rows(**{f"_{index}": ValueError("x" * 500) for index in range(0, 60, 2)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"the check cannot write, after \d+ of 60 samples. Free space on the disk"):
            check_samples(rows, path, workers=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert check_samples(rows, path, workers=0).found == 30


class AwaitedRows(Rows):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return super().__getitem__(index)


@pytest.mark.leaves_behind("the event loop of this thread stays for its next samples")
@pytest.mark.parametrize("workers", [0, 1])
def test_awaited_samples_are_checked(workers: int, tmp_path: Path) -> None:
    bad = {"_3": OSError("no such object"), "_17": {"image": GOOD["image"]}}
    path = str(tmp_path / "bad.jsonl")
    assert check_samples(AwaitedRows(**bad), path, workers=workers).found == 2
    assert sorted(reasons(path)) == [3, 17]
