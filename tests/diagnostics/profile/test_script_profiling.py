"""Programs that are profiled: as they are, up to enough batches of a loader, and never with more than an epoch has."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stoker.diagnostics.profile.script_profiling import ScriptProfile, ScriptProfiling
from stoker.errors import ProgramFailedError

HEAD = """
    import os, sys, time
    import numpy as np
    from stoker import DataLoader, Dataset

    class Photos(Dataset):
        stoker_protocol = True
        def __init__(self, size=120, seconds=0.001): self.size, self.seconds = size, seconds
        def __len__(self): return self.size
        def describe(self, index): return f"photo-{index}.jpg"
        def __getitem__(self, index):
            time.sleep(self.seconds if index != 13 else 0.3)
            return np.full(4, index)

    class Others(Photos):
        pass

    def loader(dataset, **options):
        return DataLoader(dataset, batch_size=4, output="numpy", **options)
    """


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)


def profiled(text: str, batches: int = 20, site: str | None = None, head: str = HEAD) -> ScriptProfiling:
    Path("train.py").write_text(dedent(head) + dedent(text))
    profiling = ScriptProfiling([sys.executable, "train.py"], batches, site)
    profiling.run(lambda known: None)
    assert not list(Path("temporary").iterdir())
    return profiling


def result_of(text: str, batches: int = 20, **more: Any) -> ScriptProfile:
    profiling = profiled(text, batches, **more)
    assert profiling.failure is None and profiling.result is not None
    return profiling.result


@pytest.mark.parametrize("workers", [0, 2])
def test_loop_is_measured_and_replayed_inside_its_epoch(workers: int) -> None:
    text = f"""
        batches, log = 0, open("log", "w")
        try:
            for batch in loader(Photos(100), num_workers={workers}):
                batches += 1
                log.write(f"{{batch.min()}} ")
                batch += 1000  # a step may change what it gets
                time.sleep(0.002)
        finally:
            log.write(f"finally {{batches}}")
            log.close()
        """
    found = result_of(text, 25)
    profile = found.profile
    assert (profile.batches, profile.samples, profile.num_workers) == (20, 80, workers)
    assert profile.held is not None and profile.held.count == 5 and profile.is_measured and found.inferred is None
    assert profile.held.median >= 0.002 <= profile.step.median
    assert (13, "photo-13.jpg") in [(sample.index, sample.description) for sample in profile.slowest]
    assert profile.stages["fetch"].count == 20 and len(profile.workers) == max(1, workers)
    assert (found.site, found.engine, found.is_own, found.is_over, found.others) == (
        *("train.py:23", "stoker", True, True),
        (),
    )
    expected = [*range(0, 80, 4), *[4] * 5]
    assert Path("log").read_text() == " ".join(map(str, expected)) + " finally 25"


def test_most_waited_loader_is_shown_and_another_can_be_chosen() -> None:
    text = """
        quick, slow = loader(Others(24, 0)), loader(Photos(seconds=0.002))
        for epoch in range(3):
            for batch in quick: time.sleep(0.001)
            for batch in slow: pass
        """
    found = result_of(text, 40)
    assert (found.site, found.ended_by, found.is_over) == ("train.py:24", None, True)
    assert found.profile.dataset == "Photos" and [site for site, _ in found.others] == ["train.py:23"]
    assert (found.profile.epochs, found.profile.batches) == (2, 40) and found.profile.held is not None
    other = result_of(text, 12, site="train.py:23")
    assert (other.site, other.profile.dataset, other.is_over) == ("train.py:23", "Others", True)
    assert (other.profile.epochs, other.profile.batches) == (2, 9) and other.profile.held is not None


def test_another_loader_may_end_the_program() -> None:
    text = """
        for epoch in range(9):
            for batch in loader(Photos(16, 0.02)): pass
            for batch in loader(Others(120, 0)): pass
        """
    found = result_of(text)
    assert (found.site, found.ended_by, found.is_over) == ("train.py:22", "train.py:23", False)
    assert found.profile.batches == 4 and found.inferred == "the loader gave 4 of 20 batches"


def test_short_epochs_count_together_with_their_starts() -> None:
    text = """
        for epoch in range(40):
            for batch in loader(Photos(16, 0), num_workers=1, prefetch_factor=4): pass
        """
    found = result_of(text, 20)
    profile = found.profile
    assert (profile.batches, profile.epochs, profile.held) == (20, 5, None)
    assert found.inferred is not None and "an epoch has 4 batches" in found.inferred
    assert 0 < profile.starts <= profile.wait.seconds and profile.wait.count == 19
    assert sum(use.units for use in profile.workers) == 20


@pytest.mark.parametrize(
    ("text", "batches", "why"),
    [
        ("for batch in loader(Photos()): pass", 30, "gave 30 of 90 batches"),
        (
            "class Odd: pass\nfor batch in loader(Photos(), collate_fn=lambda samples: [Odd()]): pass",
            20,
            "a batch holds an object (Odd) of which no copy can be made safely",
        ),
        (
            "import threading\ndef run():\n    for batch in loader(Photos()): pass\n"
            "thread = threading.Thread(target=run)\nthread.start()\nthread.join()",
            20,
            "takes its batches in a thread",
        ),
    ],
)
def test_why_the_gain_is_inferred(text: str, batches: int, why: str) -> None:
    found = result_of(dedent(HEAD) + text, 90 if batches == 30 else 20, head="")
    assert found.profile.batches == batches and not found.profile.is_measured
    assert found.inferred is not None and why in found.inferred


def test_program_that_fails_on_a_repeated_batch_has_not_failed() -> None:
    text = """
        seen = set()
        for batch in loader(Photos()):
            if batch[0, 0] in seen: raise ValueError("seen before")
            seen.add(batch[0, 0])
        """
    found = result_of(text)
    assert (found.is_over, found.profile.batches) == (True, 20)
    assert found.profile.held is None or found.profile.held.count == 1


def test_program_that_fails_keeps_its_measurements() -> None:
    text = """
        for number, batch in enumerate(loader(Photos())):
            if number == 10: raise ValueError("no good")
        """
    profiling = profiled(text)
    assert profiling.failure == "it ended with exit code 1: ValueError: no good"
    assert profiling.result is not None and profiling.result.profile.batches == 11


def test_failed_sample_is_counted() -> None:
    text = """
        class Bad(Photos):
            def __getitem__(self, index): return 1 // (index - 9)
        batches = iter(loader(Bad()))
        while True:
            try: next(batches)
            except ZeroDivisionError: pass
        """
    assert result_of(text).profile.errors == 1


def test_program_that_swallows_the_end_gets_no_further_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.diagnostics.profile.script_profiling.GRACE", 0.2)
    text = """
        given = 0
        while True:
            try:
                for batch in loader(Photos(seconds=0)):
                    given += 1
                    open("given", "w").write(str(given))
            except SystemExit:
                time.sleep(0.01)
        """
    assert result_of(text, 10).profile.batches == 10
    assert Path("given").read_text() == "15"


@pytest.mark.parametrize(
    ("text", "site", "said"),
    [
        ("print('hello')", None, "no loader gave a batch: .* last line was: hello"),
        ("raise OSError('no data')", None, "failed before a loader gave a batch: .* exit code 1: OSError: no data"),
        (
            "for batch in loader(Photos()): pass",
            "x.py:3",
            "no loader is iterated over at x.py:3: there are train.py:20",
        ),
        ("for batch in loader([]): pass", None, "no loader gave a batch"),
    ],
)
def test_nothing_to_profile(text: str, site: str | None, said: str) -> None:
    with pytest.raises(ProgramFailedError, match=said):
        profiled(dedent(HEAD) + text, site=site, head="")


def test_interrupt_keeps_what_was_measured() -> None:
    text = """
        for batch in loader(Photos(4000, 0.001), num_workers=1): pass
        """
    Path("train.py").write_text(dedent(HEAD) + dedent(text))
    profiling = ScriptProfiling([sys.executable, "train.py"], 1000)

    def interrupt(known: Any) -> None:
        if known.loaders and known.loaders[0].summary().batches >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiling.run(interrupt)
    assert profiling.result is not None and 10 <= profiling.result.profile.batches < 1000
    assert not profiling.result.is_over and not list(Path("temporary").iterdir())


def test_sampler_without_a_length_is_not_asked_for_it() -> None:
    text = """
        class Odd:
            def __iter__(self): return iter(range(0, 120, 2))
            def __len__(self): raise NotImplementedError("it is not known")
        for batch in loader(Photos(seconds=0), sampler=Odd()): time.sleep(0.001)
        """
    found = result_of(text, 10)
    assert (found.profile.batches, found.is_over) == (10, True) and found.profile.held is not None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are counted by /proc")
def test_workers_end_before_steps_on_the_held_batch() -> None:
    text = """
        children = []
        try:
            for batch in loader(Photos(100, 0), num_workers=2):
                with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
                    children.append(len(file.read().split()))
        finally:
            with open("children", "w") as file:
                file.write(" ".join(map(str, children)))
        """
    assert result_of(text).profile.held is not None
    children = list(map(int, Path("children").read_text().split()))
    assert len(children) == 25 and children[0] > 0 == children[-5] == children[-1]


def test_objects_of_the_program_end_at_its_exit() -> None:
    """A file that only the dataset refers to is flushed when nothing refers to the dataset."""
    text = """
        class Logs(Photos):
            def __init__(self): super().__init__(120, 0); self.log = open("log", "w")
            def __getitem__(self, index): self.log.write("x"); return index
        def main():
            for batch in loader(Logs()): time.sleep(0.001)
        main()
        """
    assert result_of(text).profile.batches == 20
    assert len(Path("log").read_text()) >= 80


TORCH = """
    import time
    import torch.utils.data as data

    class Photos(data.Dataset):
        def __len__(self): return 100
        def __getitem__(self, index): return torch.full((3,), index), index

    class Odd(data.DataLoader):
        def __init__(self, dataset):
            super().__init__(dataset, 4)
            self._dataset_kind = data._DatasetKind.Iterable
    import torch
    """


def test_torch_loader_is_measured_on_stokers_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("STOKER_TORCH")
    text = """
        for images, labels in data.DataLoader(Photos(), 4, shuffle=True):
            images.mul_(2)
            time.sleep(0.01)
        """
    found = result_of(text, head=TORCH)
    assert (found.engine, found.is_own, found.profile.batches) == ("stoker", False, 20)
    assert found.profile.held is not None and found.profile.verdict.kind in ("compute-bound", "balanced")


@pytest.mark.long
def test_loader_that_stays_torchs_has_no_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("STOKER_TORCH")
    found = result_of("for batch in Odd(list(range(200))): time.sleep(0.001)", head=TORCH)
    assert found.engine == "torch" and found.refused is not None and "stays on torch's engine" in found.refused
    assert (found.profile.batches, found.profile.samples, found.profile.stages["fetch"].count) == (20, 80, 0)
    assert found.profile.held is not None
