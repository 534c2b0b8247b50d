"""ddp.py, started by torchrun: stopped within an epoch on two ranks, it goes on with three as if nothing had been."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
LINE = re.compile(r"epoch (\d+) of 2, step (\d+): (\d+) digits on (\d+) ranks, loss (\S+), (\d+) of (\d+) recognised")
WITHIN = 100.0  # seconds


def run(ranks: int, *arguments: object) -> tuple[list[tuple[int, ...]], list[float], list[int]]:
    """Returns, for each line: epoch, step, digits, ranks and digits to validate; the losses; how many were recognised.

    All processes are one session: no rank stays when one of them hangs.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    process = subprocess.Popen(
        [*torchrun, str(EXAMPLE), "--epochs", "2", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=WITHIN)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, output
    lines = [match.groups() for match in LINE.finditer(output)]
    return (
        [tuple(map(int, (*line[:4], line[6]))) for line in lines],
        [float(line[4]) for line in lines],
        [int(line[5]) for line in lines],
    )


@pytest.mark.long
def test_ddp_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    file = tmp_path / "digits.pt"
    whole, losses, right = run(1)
    # Of 357 digits two ranks have 179 and 178: in batches of 89 one more batch for the first.
    stop = ["--stop-after", 17, "--checkpoint", file, "--workers", 1, "--val-batch-size", 178]
    before, losses_before, right_before = run(2, *stop)
    after, losses_after, right_after = run(3, "--resume", file)

    assert whole == [(1, 12, 1440, 1, 357), (2, 24, 1440, 1, 357)]
    assert before == [(1, 12, 1440, 2, 357), (2, 17, 600, 2, 357)]
    assert after == [(2, 24, 840, 3, 357)]
    epoch_2 = (600 * losses_before[1] + 840 * losses_after[0]) / 1440
    assert [losses_before[0], epoch_2] == pytest.approx(losses, abs=1e-3)  # sums have another order on more ranks
    assert [right_before[0], right_after[0]] == pytest.approx(right, abs=1)
    assert right[1] / 357 > 0.75


def test_ddp_example_runs_without_torchrun() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    alone = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, env=environment)
    assert alone.returncode == 2
    assert "start it by `torchrun --nproc-per-node 2 examples/ddp.py`" in alone.stderr
