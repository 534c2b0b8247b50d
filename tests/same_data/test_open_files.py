"""A file that a script leaves open is whole after its end, as with torch's loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import sys
{imported}

class Numbers{base}:
    def __len__(self): return 12
    def __getitem__(self, index): return float(index)

def make(): return DataLoader(Numbers(), batch_size=4, num_workers=int(sys.argv[1]))

if __name__ == "__main__":
    log = open("log.txt", "w")
    for batch in make(): log.write(f"{{batch.tolist()}}\\n")
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("base", ["", "(Dataset)"])
def test_log_that_is_left_open_is_whole(base: str, workers: str, tmp_path: Path) -> None:
    logs = []
    for imported in ("from torch.utils.data import DataLoader, Dataset", "from stoker import DataLoader, Dataset"):
        (tmp_path / "train.py").write_text(SCRIPT.format(imported=imported, base=base))
        command = [sys.executable, "train.py", workers]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stderr) == (0, "")
        logs.append((tmp_path / "log.txt").read_text())
    assert logs[0] == logs[1] and logs[0].count("\n") == 3
