"""Benches measure a loader that a function makes, and that of a script, setting by setting. No torch is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.diagnostics.settings.setting_bench import BenchedLoader, ScriptBench, SettingBench, TargetBench
from stoker.diagnostics.settings.setting_trial import LoaderSetting
from stoker.errors import ProgramFailedError, TargetError

MODULE = """
    import os, time
    from stoker import DataLoader, Dataset, get_worker_info

    class Rows(Dataset):
        def __len__(self): return 400
        def __getitem__(self, index):
            if get_worker_info() is not None and get_worker_info().num_workers == 3:
                os._exit(5)
            time.sleep(0.0005)
            return index

    def make(): return DataLoader(Rows(), batch_size=8, output="numpy")
    def kept(): return DataLoader(Rows(), 8, num_workers=2, persistent_workers=True, output="numpy")
    def sends(): os._exit(4)
    def fails(): raise OSError("no such disk")
    rows = Rows()
    foreign = type("Foreign", (), {"dataset": rows, "batch_size": 1, "__iter__": lambda self: iter(())})()

    if __name__ == "__main__":
        for _ in DataLoader([1, 2, 3], output="numpy"):
            pass
        for _ in range(2):
            for batch in make():
                time.sleep(0.001)
    """


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_TORCH", "0")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train_of_a_test.py"
    path.write_text(dedent(MODULE))
    return path


def check(bench: SettingBench) -> BenchedLoader:
    loader = bench.open()
    assert loader.present == LoaderSetting(0, None, 1, 8) and loader.dataset == "Rows"
    present = bench.measure(loader.present, 0.1)
    assert present.failure is None and 0 < present.rate < 3000
    faster = bench.measure(LoaderSetting(2, 2, 1, 4), 0.1)
    assert faster.failure is None and faster.rate > 0 and faster.setting.batch_size == 4
    assert faster.first > 0 and faster.batches >= 4
    return loader


def test_loader_that_a_function_makes() -> None:
    with TargetBench("train_of_a_test:make", step=0.001) as bench:
        check(bench)
        threads = bench.measure(LoaderSetting(1, None, 4, 8), 0.1)
        assert threads.failure is None
        assert bench.taken > 0


def test_loader_of_a_script(module: Path) -> None:
    with ScriptBench([sys.executable, str(module)], "torch", 0.1) as bench:
        loader = check(bench)
        assert loader.name == "train_of_a_test.py:24" and loader.threads


def test_dataset_gets_stokers_loader() -> None:
    with TargetBench("train_of_a_test:rows", batch_size=5) as bench:
        loader = bench.open()
        assert loader.present == LoaderSetting(0, None, 1, 5) and loader.threads


def test_kept_workers_are_part_of_the_setting() -> None:
    with TargetBench("train_of_a_test:kept") as bench:
        present = bench.open().present
        assert present == LoaderSetting(2, 2, 1, 8, True)
        assert bench.measure(present, 0.05).failure is None
        assert bench.measure(LoaderSetting(0, None, 1, 8), 0.05).failure is None
        assert bench.measure(present, 0.05).failure is None


def test_setting_that_fails_is_a_trial_and_the_next_goes_on() -> None:
    with TargetBench("train_of_a_test:make") as bench:
        bench.open()
        failure = bench.measure(LoaderSetting(3, 2, 1, 8), 0.1).failure
        assert failure is not None and "WorkerDiedError" in failure
        assert bench.measure(LoaderSetting(1, 2, 1, 8), 0.1).failure is None


def test_setting_that_takes_too_long_is_a_trial() -> None:
    with TargetBench("train_of_a_test:make", step=600.0) as bench:
        bench.open()
        failure = bench.measure(LoaderSetting(0, None, 1, 8), 0.1, patience=0.2).failure
        assert failure == "it had not given enough batches in time"
        bench._step = 0.0
        assert bench.measure(LoaderSetting(0, None, 1, 8), 0.1).failure is None  # by another process


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("train_of_a_tset:make", TargetError, "did you mean train_of_a_test?"),
        ("train_of_a_test:mkae", TargetError, "did you mean make?"),
        ("train_of_a_test:fails", ProgramFailedError, "OSError: no such disk"),
        ("train_of_a_test:sends", ProgramFailedError, "exit code 4"),
        ("train_of_a_test:foreign", ProgramFailedError, "has no num_workers"),
    ],
)
def test_target_that_makes_no_loader(name: str, kind: type[Exception], said: str) -> None:
    with TargetBench(name) as bench, pytest.raises(kind, match=said.replace("?", r"\?")):
        bench.open()


@pytest.mark.parametrize(
    ("text", "site", "said"),
    [
        ("raise OSError('no such disk')", None, "OSError: no such disk"),
        ("print('nothing to do')", None, "no loader was iterated over.*nothing to do"),
        (MODULE, "train.py:99", "no loader is iterated over at train.py:99: there are train_of_a_test.py:"),
    ],
)
def test_script_without_a_loader(text: str, site: str | None, said: str, module: Path) -> None:
    module.write_text(dedent(text))
    with (
        ScriptBench([sys.executable, str(module)], "torch", 0.1, site) as bench,
        pytest.raises(ProgramFailedError, match=said),
    ):
        bench.open()
