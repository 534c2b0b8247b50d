"""Where forkserver is the default, as on Linux from Python 3.14 on: workers are clean without being asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """if True:
    import multiprocessing
    import os
    import threading

    import stoker

    class Squares:
        def __init__(self, factor=1):
            self.factor = factor

        def __len__(self):
            return 12

        def __getitem__(self, index):
            return self.factor * index**2

    class Held(Squares):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    multiprocessing.set_start_method("forkserver")
    loader = stoker.DataLoader(Squares(), 4, num_workers=2, output="numpy")
    assert "clean" in loader.describe(), loader.describe()
    for _ in range(2):
        assert [n for batch in loader for n in batch.tolist()] == [n**2 for n in range(12)]
    doubles = stoker.MapDataset(Squares(3), lambda square: 2 * square)
    loader = stoker.DataLoader(doubles, 4, num_workers=1, persistent_workers=True, output="numpy")
    for _ in range(2):
        assert [n for batch in loader for n in batch.tolist()] == [6 * n**2 for n in range(12)]
    loader.close()
    try:
        list(stoker.DataLoader(Held(), 4, num_workers=1))
    except stoker.errors.CannotSendError as error:
        assert "lock" in str(error), error
    else:
        raise AssertionError
    forked = stoker.DataLoader(Held(), 4, num_workers=1, multiprocessing_context="fork", output="numpy")
    assert sum(map(len, forked)) == 12
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_clean_workers_by_default_give_the_same(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, "-W", "error", program], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "done\n", ran.stderr
