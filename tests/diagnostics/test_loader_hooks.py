"""The hooks measure torch's and Stoker's loaders, and leave no trace when they are undone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker._core.machine.gpu_activity import GpuReading, GpuSample
from stoker.device import accelerator
from stoker.diagnostics.loader_hooks import LoaderHooks
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Measurements
from stoker.diagnostics.recorder import Recorder, samples_in
from stoker.diagnostics.run_findings import copies_of, finding_lines, findings_of_loaders
from tests.ownership import moved

data = pytest.importorskip("torch.utils.data")
stoker_loader = pytest.importorskip("stoker.loader.dataloader")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(str(tmp_path))
    hooks = LoaderHooks(recorder)
    hooks.observe()
    hooks.measure("torch.utils.data.dataloader")
    yield recorder
    hooks.undo()
    recorder.flush()


def measured(recorder: Recorder, folder: Path) -> Measurements:
    recorder.flush()
    known = Measurements()
    known.read(str(folder))
    return known


@pytest.mark.parametrize("kind", [data.DataLoader, stoker_loader.DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_hooks_count_batches_and_samples(kind: type, workers: int, recorder: Recorder, tmp_path: Path) -> None:
    loader = kind(list(range(10)), batch_size=4, num_workers=workers)
    assert [len(batch) for _ in range(2) for batch in loader] == [4, 4, 2] * 2
    (found,) = measured(recorder, tmp_path).loaders
    summary = found.summary()
    assert (summary.epochs, summary.batches, summary.samples) == (2, 6, 20)
    assert found.about["num_workers"] == workers
    assert found.about["engine"] == ("stoker" if kind is stoker_loader.DataLoader else "torch")
    assert found.about["site"].startswith("test_loader_hooks.py:")
    assert sum(span.batches for span in found.epochs[0].spans) == 3
    assert found.epochs[0].spans[-1].batches == 0  # the end


def test_copies_to_a_device_are_found(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    device = accelerator.InOrderDevice(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
    for _ in stoker_loader.DataLoader(list(range(10)), batch_size=4, device="mps"):
        pass
    known = measured(recorder, tmp_path)
    assert known.loaders[0].copies["bytes"] == 80
    (line,) = finding_lines(known, known.loaders)
    assert line.endswith(": 80 bytes of 3 batches were copied to the device.")
    found = findings_of_loaders(known)[0]["copies"]
    assert found["batches"] == 3 and found["bus"] is None and line.endswith(found["text"])


def test_copies_of_a_loop_that_ends_no_epoch(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    device = accelerator.InOrderDevice(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
    iterator = iter(stoker_loader.DataLoader(list(range(100)), batch_size=4, device="mps"))
    for _ in range(9):
        next(iterator)
    assert measured(recorder, tmp_path).loaders[0].copies["batches"] == 8


def gpus(busy: float) -> list[GpuSample]:
    """A GPU of PCI Express 5 that the program uses for 10 s."""
    readings = [GpuReading("Z1", busy, (place > 0) << 30, 0, 80 << 30, 63e9) for place in range(11)]
    return [GpuSample(float(place), (reading,)) for place, reading in enumerate(readings)]


@pytest.mark.parametrize("busy", [0.5, 0.99])
def test_copies_beside_the_bus(busy: float) -> None:
    """Augmentation on a GPU that is the limit would be a mistake."""
    counts = {"batches": 9, "bytes": 9e9, "staged": 0, "seconds": 0.2, "stalled": 0.05, "timed": 9e9, "registered": 4}
    known = Measurements()
    known.gpus = gpus(busy)
    found = copies_of(known, MeasuredLoader({"site": "a.py:1"}, [EpochSpans(0.0, 9.0)], copies=counts))
    assert found is not None and found["bus"] == 63e9 and "45.0 GB/s of the 63 of its bus, 75%" in found["text"]
    assert ("leave them to the workers" in found["text"]) == (busy > 0.95)


def test_other_machines_are_named(recorder: Recorder, tmp_path: Path) -> None:
    loader = stoker_loader.DataLoader(list(range(10)), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    iterator._dispatcher.came_from("b (10.0.0.2)", 2_000_000)
    iterator._dispatcher.stored((3 << 20, 1 << 30, 4 << 30))
    pool = {"name": "train", "ranks": 2, "own_seconds": 1.0, "all_seconds": 4.0}
    recorder.note({"loader": 0, "machines": {**iterator.machines, "pool": pool}})
    next(iterator)  # the loop is left before its end
    known = measured(recorder, tmp_path)
    line, store, shared = finding_lines(known, known.loaders)
    assert shared.endswith(": pool 'train', shared by 2 rank(s); this one has had 25% of the time of its workers.")
    assert store.endswith(": object store of Ray: 3.0 MiB put by this loader; 1.0 GiB of 4.0 GiB used on all machines.")
    assert ": b (10.0.0.2): 1 batches, 1.9 MiB over the network (" in line and line.endswith(" MB/s).")
    found = findings_of_loaders(known)[0]["machines"]
    assert found["machines"] == {"b (10.0.0.2)": {"batches": 1, "bytes": 2_000_000}} and len(found["text"]) == 3
    assert found["notes"] == found["text"][1:] and found["batches"] == 2


def test_engine_is_stokers_where_the_iterator_is(recorder: Recorder, tmp_path: Path) -> None:
    def loaders() -> list[Any]:
        return [kind(list(range(3)), batch_size=4) for kind in (stoker_loader.DataLoader, data.DataLoader)]

    ours, theirs = (type(iter(loader)) for loader in loaders())
    again = loaders()
    with moved(ours), pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "__module__", "stoker.loader.iterator")  # a user's class may be named so
        assert [len(list(loader)) for loader in again] == [1, 1]
    known = measured(recorder, tmp_path).loaders
    assert [found.about["engine"] for found in known] == ["stoker", "torch"] * 2


def test_quick_batches_of_changing_kinds_are_all_counted(recorder: Recorder, tmp_path: Path) -> None:
    import torch

    kinds = [
        torch.zeros(3),
        torch.zeros(()),
        [torch.zeros(2, 5), torch.zeros(2)],
        ["a", "b", "c", "d"],
        [],
        {"x": torch.zeros(6)},
        np.zeros((7, 1)),
        torch.nn.Parameter(torch.zeros(8)),
    ]
    samples = 3 + 1 + 2 + 4 + 1 + 6 + 7 + 8
    loader = data.DataLoader(list(range(2000 * len(kinds))), collate_fn=lambda indices: kinds[indices[0] % len(kinds)])
    assert sum(1 for _ in loader) == len(loader)
    known = measured(recorder, tmp_path).loaders[0]
    assert (known.summary().batches, known.summary().samples) == (len(loader), 2000 * samples)
    assert len(known.epochs[0].spans) < len(loader) / 2
    assert [samples_in(kind, False) for kind in kinds] == [3, 1, 2, 4, 1, 6, 7, 8]


class SleepingDataset(data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


def test_mark_of_the_epoch_is_that_of_the_loader_that_works(tmp_path: Path) -> None:
    """A sample may be made by a loader of its own, in the same process."""
    recorder = Recorder(str(tmp_path))
    hooks = LoaderHooks(recorder, detailed=True)
    hooks.measure("torch.utils.data.dataloader")
    seen: list[str | None] = []

    class Sees(data.Dataset):
        def __init__(self, inner: object = None) -> None:
            self.inner = inner

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            seen.append(recorder.mark)
            if self.inner is not None:
                list(self.inner)  # type: ignore[call-overload]
                seen.append(recorder.mark)
            return index

    try:
        list(data.DataLoader(Sees(data.DataLoader(Sees()))))
    finally:
        hooks.undo()
    outer, inner, again = seen
    assert outer == again != inner and None not in seen and recorder.mark is None


def test_waiting_and_steps_are_told_apart(recorder: Recorder, tmp_path: Path) -> None:
    for _ in data.DataLoader(SleepingDataset(), batch_size=2):
        time.sleep(0.04)
    summary = measured(recorder, tmp_path).loaders[0].summary()
    assert 0.08 <= summary.waited < summary.spent - 0.16
    assert summary.share == summary.waited / summary.spent
    assert summary.first >= 0.02


def test_broken_epoch_and_persistent_workers(recorder: Recorder, tmp_path: Path) -> None:
    loader = data.DataLoader(list(range(10)), num_workers=1, persistent_workers=True)
    for count, _ in enumerate(loader):
        if count == 2:
            break
    assert len(list(loader)) == 10
    del loader
    (found,) = measured(recorder, tmp_path).loaders
    assert [sum(span.batches for span in epoch.spans) for epoch in found.epochs] == [3, 10]


def test_error_of_a_sample_reaches_the_program(recorder: Recorder) -> None:
    class BadDataset(data.Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        list(data.DataLoader(BadDataset()))


def test_loaders_of_one_line_are_summed_up(recorder: Recorder, tmp_path: Path) -> None:
    for _ in range(5):
        list(data.DataLoader([1, 2, 3]))
    (found,) = measured(recorder, tmp_path).loaders
    assert (found.made, found.summary().batches) == (5, 15)


def test_subclass_that_wraps_iteration_is_measured_once(recorder: Recorder, tmp_path: Path) -> None:
    class Repeating(data.DataLoader):
        def __iter__(self) -> Iterator[object]:
            for _ in range(2):
                yield from super().__iter__()

    assert len(list(Repeating([1, 2, 3]))) == 6
    (found,) = measured(recorder, tmp_path).loaders
    assert (found.summary().epochs, found.summary().batches) == (2, 6)


def test_undo_puts_the_methods_back(tmp_path: Path) -> None:
    before = dict(vars(data.DataLoader))
    hooks = LoaderHooks(Recorder(str(tmp_path)))
    hooks.measure("torch.utils.data.dataloader")
    assert vars(data.DataLoader)["__iter__"] is not before["__iter__"]
    hooks.undo()
    assert dict(vars(data.DataLoader)) == before


def test_undo_leaves_a_later_patch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = data.DataLoader.__iter__
    hooks = LoaderHooks(Recorder(str(tmp_path)))
    hooks.measure("torch.utils.data.dataloader")

    def theirs(self: object) -> Iterator[int]:
        return iter([1])

    data.DataLoader.__iter__ = theirs
    hooks.undo()
    assert data.DataLoader.__iter__ is theirs
    data.DataLoader.__iter__ = original


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (np.zeros((4, 2)), 4),
        ([np.zeros((3, 2)), np.zeros(3)], 3),
        ({"text": ["a", "b"], "label": np.zeros(2)}, 2),
        ({}, 1),
        ([], 1),
        (np.float32(1), 1),
        (object(), 1),
    ],
)
def test_samples_of_a_batch_are_its_first_length(batch: object, samples: int) -> None:
    assert samples_in(batch, single=False) == samples
    assert samples_in(batch, single=True) == 1


class SlowSampler:
    """Indices that take 2 ms each."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        for index in range(20):
            time.sleep(0.002)
            yield index


@pytest.mark.parametrize("kind", [data.DataLoader, stoker_loader.DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_time_inside_the_sampler(kind: Any, workers: int, recorder: Recorder, tmp_path: Path) -> None:
    loader = kind(list(range(20)), batch_size=2, sampler=SlowSampler(), num_workers=workers)
    assert len(list(loader)) == 10
    (found,) = measured(recorder, tmp_path).loaders
    assert found.about["sampler"] == "SlowSampler"
    least = 0.04 if kind is data.DataLoader else 0.02  # what Stoker's loader asks for in iter() is not counted
    assert least <= found.sampled <= found.summary().waited


class Derived(data.DataLoader):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)


@pytest.mark.parametrize("kind", [data.DataLoader, Derived, stoker_loader.DataLoader])
def test_line_that_made_the_loader(kind: Any, tmp_path: Path) -> None:
    recorder, before = Recorder(str(tmp_path)), stoker_loader.DataLoader.__init__
    hooks = LoaderHooks(recorder)
    hooks.observe()
    hooks.measure("torch.utils.data.dataloader")
    hooks.note_makers("stoker.loader.dataloader")
    try:
        line = sys._getframe().f_lineno + 1
        loaders = [kind(list(range(4))) for _ in range(2)]
        for loader in loaders:
            assert len(list(loader)) == 4
    finally:
        hooks.undo()
    (found,) = measured(recorder, tmp_path).loaders
    assert found.made == 2 and found.about["made_at"] == f"test_loader_hooks.py:{line}" != found.about["site"]
    assert stoker_loader.DataLoader.__init__ is before, "undone"
