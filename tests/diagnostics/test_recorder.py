"""The recorder's file: complete lines, bounded, and apart for each process."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stoker.diagnostics import recorder as recorders
from stoker.diagnostics.measurements import Measurements, write_trace
from stoker.diagnostics.recorder import Recorder, bytes_in, described, samples_in


class FakeLoader:
    dataset = (1, 2)
    batch_size = 4
    batch_sampler = ()
    num_workers = 0


def test_many_batches_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "SINGLE", 10)
    recorder = Recorder(str(tmp_path))
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.0)
    for number in range(10_000):
        recorder.batch(record, number + 0.5, number + 1.0, 4)
    recorder.end(record, 10_000.0, 10_000.5)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    summary = known.loaders[0].summary()
    assert (summary.batches, summary.samples) == (10_000, 40_000)
    assert summary.waited == pytest.approx(5_000.5)
    assert len(known.loaders[0].epochs[0].spans) > 10


def test_few_records_of_a_fast_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "SINGLE", 10)
    recorder = Recorder(str(tmp_path))
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.0)
    for number in range(10_000):
        recorder.batch(record, number * 1e-5, number * 1e-5 + 5e-6, 4)
    recorder.flush()
    assert len((tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()) < 20


def test_forked_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    loader = FakeLoader()
    recorder.batch(recorder.begin(loader, "a.py:1", 0.0, 0.1), 0.1, 0.2, 4)
    recorder.flush()
    pid = os.fork()
    if not pid:
        recorder.batch(recorder.begin(loader, "a.py:1", 1.0, 1.1), 1.1, 1.2, 4)
        recorder.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    assert sorted(loader.about["pid"] for loader in known.loaders) == sorted([pid, os.getpid()])
    assert [loader.summary().batches for loader in known.loaders] == [1, 1]


def test_incomplete_line_is_left_for_later(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.batch(recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1), 0.1, 0.2, 4)
    recorder.flush()
    path = tmp_path / f"{os.getpid()}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    known = Measurements()
    known.read(str(tmp_path))
    assert known.loaders[0].summary().batches == 0
    path.write_bytes(whole)
    known.read(str(tmp_path))
    assert known.loaders[0].summary().batches == 1


def test_full_disk_ends_the_recording_not_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(str(tmp_path / "gone"))
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1)
    recorder.flush()
    recorder.batch(record, 1.0, 2.0, 4)
    recorder.flush()
    assert capsys.readouterr().err.count("is no longer measured") == 1


def test_program_that_closes_all_descriptors_keeps_its_own_file(tmp_path: Path) -> None:
    """As daemons do. The program opens a file of its own by the number that any file of the recorder would have had."""
    (tmp_path / "records").mkdir()
    pid = os.fork()
    if not pid:
        recorder = Recorder(str(tmp_path / "records"))
        record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1)
        recorder.flush()
        os.closerange(3, 256)
        own = os.open(tmp_path / "own", os.O_WRONLY | os.O_CREAT)
        os.write(own, b"mine")
        recorder.batch(record, 0.1, 0.2, 4)
        recorder.flush()
        os._exit(own != 3)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "own").read_bytes() == b"mine"
    known = Measurements()
    known.read(str(tmp_path / "records"))
    assert known.loaders[0].summary().batches == 1


def test_records_wait_for_a_free_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(str(tmp_path))
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(recorder, "_opened", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        recorder.flush()
    recorder.batch(record, 0.1, 0.2, 4)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    assert known.loaders[0].summary().batches == 1


def test_deleted_records_keep_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    recorder = Recorder(str(folder))
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1)
    recorder.batch(record, 0.1, 0.2, 4)
    recorder.flush()
    known = Measurements()
    known.read(str(folder))
    assert not known.lost
    (folder / f"{os.getpid()}.jsonl").unlink()  # a new one would lack its beginning
    recorder.batch(record, 0.3, 0.4, 4)
    recorder.flush()
    assert not list(folder.iterdir()) and "is no longer measured" in capsys.readouterr().err
    folder.rmdir()
    known.read(str(folder))
    assert known.lost and known.loaders[0].summary().batches == 1


def test_closed_standard_error_ends_the_recording_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    recorder = Recorder(str(tmp_path / "gone"))
    recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1)
    recorder.flush()


def test_trace_is_strictly_nested_on_each_track(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    record = recorder.begin(FakeLoader(), "a.py:1", 1.0, 1.1)
    for number in range(3):
        recorder.batch(record, 2.0 + number, 2.5 + number, 4)
    recorder.end(record, 5.0, 5.1)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    write_trace(known, str(tmp_path / "trace"))
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    spans = [(event["ts"], event["ts"] + event["dur"], event["name"]) for event in events if event["ph"] == "X"]
    assert [name for *_, name in spans] == [
        *(
            "epoch 0",
            "iter()",
            "wait for batch 0",
            "step",
            "wait for batch 1",
            "step",
            "wait for batch 2",
            "step",
            "end",
        )
    ]
    (begin, end, _), *inner = spans
    assert all(begin <= low <= high <= end for low, high, _ in inner)
    assert all(before[1] <= after[0] + 1e-6 for before, after in itertools.pairwise(inner))


@dataclass
class KeysAndValues:
    keys: int = 3
    values: int = 4


class Odd:
    """A batch of a program, one of whose attributes raises or is of another kind than that of arrays."""

    def __init__(self, name: str, value: Any) -> None:
        self._odd = name, value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name != self._odd[0]:
            raise AttributeError(name)
        if isinstance(self._odd[1], Exception):
            raise self._odd[1]
        return self._odd[1]


ODD = [
    KeysAndValues(),
    *[Odd(name, RuntimeError("not now")) for name in ("shape", "nbytes", "keys", "is_nested")],
    *[Odd("shape", shape) for shape in (7, (None,), lambda: (3,))],
    Odd("keys", lambda: []),
    Odd("is_nested", True),
]


@pytest.mark.parametrize("batch", ODD)
def test_an_odd_batch_counts_as_one_sample(batch: Any) -> None:
    assert samples_in(batch, single=False) == 1 and samples_in([batch], single=False) == 1
    assert bytes_in(batch) == 0 and bytes_in([batch, b"1234"]) == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors_are_counted() -> None:
    torch = pytest.importorskip("torch")
    sparse = torch.eye(5)[:3].to_sparse()
    assert samples_in([sparse, torch.zeros(3)], single=False) == 3
    assert bytes_in([sparse, torch.zeros(3)]) >= 12
    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)])
    assert samples_in([nested], single=False) == 2 and bytes_in([nested, torch.zeros(3)]) >= 12


def test_a_property_that_raises_is_not_described() -> None:
    class Raises(FakeLoader):
        @property
        def pin_memory(self) -> bool:
            raise RuntimeError("not before the process group is there")

        @property
        def dataset(self) -> Any:  # type: ignore[override]
            raise RuntimeError("not yet")

    assert described(Raises())["pin_memory"] is None and described(Raises())["dataset"] == "NoneType"
