"""Starts the ranks of a job as programs, beside this file, with gloo on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LONGEST = 110.0  # seconds; under the limit of a test


def launched(program: str, ranks: int, *arguments: str) -> list[Any]:
    """Returns what each rank has written as JSON into the file that is its last argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    common["CUDA_VISIBLE_DEVICES"] = ""  # gloo: with a GPU, Accelerate would give each rank its own
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{rank}.json" for rank in range(ranks)]
        logs = [(Path(folder) / f"{rank}.log").open("w+") for rank in range(ranks)]
        running = [
            subprocess.Popen(
                [sys.executable, HERE / program, *arguments, files[rank]],
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=logs[rank],
                stderr=subprocess.STDOUT,
            )
            for rank in range(ranks)
        ]
        codes = [_ended(process) for process in running]
        told = ""
        for log in logs:
            log.seek(0)
            told += log.read()
            log.close()
        assert codes == [0] * ranks, told
        return [json.loads(file.read_text()) for file in files]


def _ended(process: subprocess.Popen[bytes]) -> int | str:
    """Returns the exit code of a rank; ends one that takes too long."""
    try:
        return process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "took too long"
