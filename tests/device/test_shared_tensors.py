"""A CUDA tensor of the dataset is one memory of the training process and its clean workers, as with torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
    import sys
    import torch
    import {module} as data

    class Table(data.Dataset):
        def __init__(self):
            self.rows = torch.arange(64, device="cuda")

        def __len__(self):
            return 64

        def __getitem__(self, index):
            found = int(self.rows[index])
            self.rows[index] = -found
            torch.cuda.synchronize()
            return found

    if __name__ == "__main__":
        table = Table()
        loader = data.DataLoader(table, batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1])
        print([batch.tolist() for batch in loader])
        print(table.rows.tolist())
    """


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("birth", ["spawn", "forkserver"])
def test_workers_share_a_cuda_tensor(birth: str, tmp_path: Path) -> None:
    printed = []
    for module in ("torch.utils.data", "stoker"):
        path = tmp_path / f"with_{module.partition('.')[0]}.py"
        path.write_text(dedent(PROGRAM.format(module=module)))
        run = subprocess.run([sys.executable, path, birth], capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stderr
        printed.append(run.stdout)
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[1] == str([-number for number in range(64)])
