"""A limit of batches ends the program at the request after them; short epochs count as wholes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.settings.batch_limit import BatchLimit, EnoughBatches, LimitedRecorder


class OneLoader:
    def __init__(self, dataset: object = ()) -> None:
        self.dataset = dataset
        self.batch_size = 4
        self.batch_sampler = ()


def epoch(recorder: LimitedRecorder, loader: OneLoader, site: str, times: list[float], ends: bool = True) -> None:
    """An epoch whose batches are received at these times."""
    record = recorder.begin(loader, site, times[0] - 1, times[0] - 1)
    for time in times:
        recorder.batch(record, time - 0.01, time, 4)
    if ends:
        recorder.end(record, times[-1], times[-1])


def recorder_of(folder: Path, **limit: Any) -> LimitedRecorder:
    return LimitedRecorder(str(folder), BatchLimit.of_text(BatchLimit(**limit).as_text()))


def read(folder: Path) -> Measurements:
    known = Measurements()
    known.read(str(folder))
    return known


def test_the_request_after_the_last_batch_ends_the_program(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, batches=3)
    with pytest.raises(EnoughBatches) as ended:
        epoch(recorder, OneLoader(), "train.py:3", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert ended.value.code == 0
    known = read(tmp_path)
    assert (known.enough, known.loaders[0].summary().batches) == (3.0, 3)
    with pytest.raises(EnoughBatches):  # a program that goes on is ended again
        recorder.begin(OneLoader(), "train.py:9", 6.0, 6.0)
    recorder.flush()


def test_the_end_of_an_epoch_ends_the_program_too(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, batches=3)
    with pytest.raises(EnoughBatches):
        epoch(recorder, OneLoader(), "train.py:3", [1.0, 2.0, 3.0])
    assert read(tmp_path).loaders[0].epochs[0].spans[-1].batches == 0
    recorder.flush()


def test_loaders_of_one_line_count_together_and_others_do_not(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, batches=4, site="train.py:3", dataset="list")
    epoch(recorder, OneLoader([]), "train.py:3", [1.0, 2.0])
    epoch(recorder, OneLoader([]), "test.py:9", [3.0 + n for n in range(9)])
    epoch(recorder, OneLoader({}), "train.py:3", [13.0 + n for n in range(9)])
    with pytest.raises(EnoughBatches):
        epoch(recorder, OneLoader([]), "train.py:3", [31.0, 32.0])
    recorder.flush()


def test_seconds_count_after_the_warm_start(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, seconds=2.0, skip=2, least=3)
    with pytest.raises(EnoughBatches):
        epoch(recorder, OneLoader(), "train.py:3", [1.0, 5.0, 5.5, 6.0, 6.9, 7.0, 8.0])
    assert read(tmp_path).enough == 7.0
    recorder.flush()


def test_a_second_epoch_is_measured_to_its_end(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, seconds=2.0, skip=1, least=3)
    epoch(recorder, OneLoader(), "train.py:3", [1.0, 1.5, 2.0])
    with pytest.raises(EnoughBatches):
        epoch(recorder, OneLoader(), "train.py:3", [3.0, 3.5, 4.0, 4.5])
    lines = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sum(isinstance(line, list) and line[4] for line in lines) == 7
    recorder.flush()
