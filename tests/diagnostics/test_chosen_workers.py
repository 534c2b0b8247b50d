"""`stoker run --engine stoker --auto`: the numbers of workers that were chosen, from the program to the last lines."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.diagnostics.cli import main
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.recorder import Recorder
from stoker.diagnostics.run_findings import engine_lines
from stoker.diagnostics.worker_hooks import FaultHooks, note_workers
from stoker.events import WorkersChosen


class Loader:
    """Any."""

    dataset = ()
    batch_size = 4


def test_latest_choice_of_each_loader_is_shown(tmp_path: Path) -> None:
    recorder, loaders = Recorder(str(tmp_path)), [Loader(), Loader(), Loader()]
    for loader, engine, line in zip(loaders, ["stoker", "torch", "stoker"], [10, 20, 30], strict=True):
        mark = recorder.new_mark()
        recorder.begin(loader, f"train.py:{line}", 0.0, 1.0, engine, mark)
        recorder.mark = mark
        if loader is loaders[0]:
            recorder.note({"chosen": "num_workers=2 of the program is 8 at first", "mark": mark})
            FaultHooks(recorder).heed(WorkersChosen(message="it is 3", number=3, most=8, seconds={}))
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    first, torchs, other = known.loaders
    assert (first.chosen, torchs.chosen, other.chosen) == ("it is 3", None, None)
    assert list(engine_lines(known)) == [
        f"Stoker's engine ran {first.name}, {other.name}.",
        f"{first.name}: it is 3.",
        f"{torchs.name}: stayed on torch's engine; a warning of the program says why.",
    ]


def test_loader_that_is_none_of_torchs_has_no_choice(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import stoker.integrations.install

    assert stoker.integrations.install
    recorder = Recorder(str(tmp_path))
    note_workers(recorder, Loader(), recorder.new_mark())
    recorder.flush()
    assert not list(tmp_path.iterdir())


PROGRAM = """
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return index

    if __name__ == "__main__":
        for _ in DataLoader(Rows(), 4, num_workers=1):
            pass
        for _ in DataLoader(Rows(), 4):
            pass
    """


@pytest.mark.slow
def test_the_end_says_what_was_chosen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    os.environ.pop("STOKER_TORCH", None)
    program = tmp_path / "train.py"
    program.write_text(dedent(PROGRAM))
    assert main(["run", "--engine", "stoker", "--auto", str(program)]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "Stoker's engine ran all loaders." in said
    assert "train.py:12: num_workers=1 of the program is " in said
    assert "train.py:14: num_workers=0 is kept: the loop may look at what its dataset does in this process" in said


def test_auto_needs_the_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("")
    assert main(["run", "--auto", str(tmp_path / "train.py")]) == 1
    assert "add --engine stoker" in capfd.readouterr().err
