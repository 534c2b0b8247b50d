"""Faults and growth in real runs, under both engines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.run_findings import finding_lines
from stoker.diagnostics.run_result import as_dict
from stoker.diagnostics.watched_program import ScriptRun, command_of

FAULTS = """
    import os, signal, sys, warnings
    from stoker import DataLoader, Dataset, SkipSample

    class Photos(Dataset):
        stoker_protocol = True

        def __init__(self, once):
            self.once = once

        def __len__(self):
            return 200

        def __getitem__(self, index):
            if index == 3:
                raise OSError("image file is truncated")
            if index == 5:
                raise SkipSample("too dark")
            if index == 40 and not os.path.exists(self.once):
                open(self.once, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return index

        def describe(self, index):
            return f"photos/{index:04}.jpg"

    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        loader = DataLoader(Photos(sys.argv[1]), batch_size=4, num_workers=2, on_error="skip",
                            multiprocessing_context=sys.argv[2])
        print(sum(len(batch) for batch in loader))
    """


def run(folder: Path, text: str, *arguments: str, engine: Any = "torch") -> tuple[Measurements, int]:
    path = folder / "train.py"
    path.write_text(dedent(text))
    script = ScriptRun(command_of(str(path), None, arguments), engine, stdout=subprocess.DEVNULL)
    code = script.run()
    return script.measurements, code


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_faults_of_stokers_loader(context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")
    known, code = run(tmp_path, FAULTS, str(tmp_path / "once"), context)
    assert code == 0
    (loader,) = as_dict(known)["loaders"]
    assert loader["samples"] == 198
    assert loader["faults"]["counts"] == {"sample left out": 1, "sample skipped": 1, "worker replaced": 1}
    assert loader["faults"]["causes"] == {"SIGKILL": 1}
    by_what = {one["what"]: one for one in loader["faults"]["named"]}
    assert by_what["sample left out"]["sample"] == "photos/0003.jpg" and by_what["sample left out"]["batch"] == 0
    assert by_what["worker replaced"]["worker"] in (0, 1)
    assert all(0 < one["at"] < known.until - known.begun for one in loader["faults"]["named"])
    (line,) = finding_lines(known, known.loaders)
    assert "1 worker was replaced (SIGKILL)" in line and "1 sample was left out" in line


@pytest.mark.long
@pytest.mark.parametrize("engine", ["torch", "stoker"])
def test_worker_that_is_killed_under_torchs_loader(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = FAULTS.replace("from stoker import DataLoader, Dataset, SkipSample", "from torch.utils.data import *")
    text = text.replace(', on_error="skip"', "").replace("index == 3", "index < 0").replace("index == 5", "index < 0")
    known, code = run(tmp_path, text, str(tmp_path / "once"), "fork", engine=engine)
    (loader,) = as_dict(known)["loaders"]
    if engine == "stoker":
        assert code == 0 and loader["samples"] == 200
        assert loader["faults"]["counts"] == {"worker replaced": 1}
        return
    assert code == 1
    faults = [*loader["faults"]["named"], *as_dict(known)["faults"]["named"]]
    assert len(faults) == 1 and faults[0]["what"] in ("error raised", "program failed")
    # torch's loader may first read from the socket of the dead worker, which held the batch's memory open
    assert any(sign in faults[0]["text"] for sign in ("is killed by signal: Killed", "ConnectionResetError"))


LEAKS = """
    import time
    from {library} import DataLoader, Dataset

    class Leaks(Dataset):
        kept = {kept}

        def __len__(self):
            return {samples}

        def __getitem__(self, index):
            time.sleep(0.02)
            {act}
            return index

    if __name__ == "__main__":
        loader = DataLoader(Leaks(), batch_size=4, num_workers=2, {options})
        for _ in range({epochs}):
            for batch in loader:
                pass
    """

APPENDS = {"kept": "[]", "act": "self.kept.append(bytearray(100_000))"}
READS = {
    "kept": "[(str(n), n) for n in range(1_500_000)]",
    "act": "sum(n for _, n in self.kept[500 * index : 500 * index + 500])",
    "options": "share_heap=False",
}
CACHES = {
    "kept": "{}",
    "act": "self.kept.setdefault(index, bytearray(200_000))",
    "options": "shuffle=True, persistent_workers=True",
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux")
@pytest.mark.parametrize(
    ("library", "dataset", "samples", "epochs", "cause"),
    [
        pytest.param("stoker", {**APPENDS, "options": ""}, 1500, 1, "kept", id="appends"),
        pytest.param("stoker", {**APPENDS, "options": "persistent_workers=True"}, 750, 2, "kept", id="persistent"),
        pytest.param("stoker", READS, 3000, 1, "copied", id="reads"),
        pytest.param("stoker", CACHES, 240, 8, None, id="cache"),
        pytest.param("torch.utils.data", {**APPENDS, "options": ""}, 3500, 1, "kept", id="torch's workers"),
    ],
)
def test_growth_of_workers(
    library: str,
    dataset: dict[str, str],
    samples: int,
    epochs: int,
    cause: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if library == "stoker":
        monkeypatch.setenv("STOKER_TORCH", "0")
    else:
        pytest.importorskip("torch")
    known, code = run(tmp_path, LEAKS.format(library=library, samples=samples, epochs=epochs, **dataset))
    assert code == 0
    (loader,) = as_dict(known)["loaders"]
    growth = loader["worker_growth"]
    assert (growth["cause"] if growth else None) == cause
    assert growth is None or growth["workers"] == 2
    assert [line for line in finding_lines(known, known.loaders) if "steadily" in line] == (
        [] if growth is None else [f"{growth['text']} {growth['remedy']}"]
    )
