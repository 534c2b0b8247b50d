"""What a program prints that ends with an error: few lines, and the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.modules["torch"] = None  # quicker
import os, signal, time
from stoker import DataLoader, Dataset

how, workers, restarts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Photos(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5 and how == "sample":
            return {"a": 1}["b"]
        if index == 5 and how == "none":
            return None
        if index == 5 and how == "exit":
            os._exit(3)
        if index == 5 and how == "leave":
            sys.exit("bye")
        if index == 5 and how == "stop":
            raise KeyboardInterrupt
        if index == 5 and how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if index >= 4 and how in ("timeout", "interrupt"):
            time.sleep(60)
        return index


def collate(samples):
    if 5 in samples:
        raise ValueError("cannot be padded")
    return samples


def begin(worker):
    raise OSError("no such device")


def main():
    options = {"collate_fn": collate} if how == "collate" else {}
    if how == "init":
        options["worker_init_fn"] = begin
    if how == "timeout":
        options["timeout"] = 1
    if how == "argument":
        options["memory_budget"] = "4GB"
    for batch in DataLoader(Photos(), 2, num_workers=workers, max_restarts=restarts, **options):
        print("ready", flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def ended(program: list[str], how: str, workers: int = 2, restarts: int = 0, **environment: str) -> list[str]:
    """The lines of stderr."""
    command = [*program, how, str(workers), str(restarts)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300, env={**os.environ, **environment})
    assert done.returncode == 1
    return done.stderr.strip().splitlines()


def own(lines: list[str]) -> int:
    """The number of Stoker's frames."""
    return sum(f"{os.sep}stoker{os.sep}" in line and line.startswith("  File ") for line in lines)


@pytest.mark.parametrize(
    ("how", "first", "then"),
    [
        ("sample", "KeyError: Caught KeyError in DataLoader worker process ., at sample 5.", "KeyError: 'b'"),
        ("none", "LeafTypeError: Caught LeafTypeError in DataLoader worker process ., at samples 4, 5", "None is mi"),
        ("collate", "ValueError: Caught ValueError in DataLoader worker process ., at samples 4, 5", "be padded"),
        ("init", "OSError: Caught OSError in DataLoader worker process .", "no such device"),
        ("exit", "DataLoader worker .pid.s. [0-9]*. exited unexpectedly with exit code 3", "os._exit()"),
    ],
)
def test_an_error_in_a_worker_is_at_most_20_lines(program: list[str], how: str, first: str, then: str) -> None:
    import re

    lines = ended(program, how)
    text = "\n".join(lines)
    assert len(lines) <= 20, text
    assert own(lines) <= 2, text
    assert re.search(first, text), text
    assert how == "none" or then in text, text
    assert how != "none" or "return a value for every sample" in text.splitlines()[-1], text
    assert text.count("exited unexpectedly") <= 1 and text.count("Original Traceback") <= 1


@pytest.mark.parametrize("restarts", [0, 5])
@pytest.mark.parametrize(
    ("how", "last"), [("leave", "SystemExit: bye"), ("stop", "KeyboardInterrupt"), ("crash", " in __getitem__")]
)
def test_a_dead_worker_shows_the_users_frames(program: list[str], how: str, last: str, restarts: int) -> None:
    lines = ended(program, how, restarts=restarts)
    text = "\n".join(lines)
    assert own(lines) <= 2 and len(lines) <= (20 if restarts == 0 else 36), text
    assert any(line.endswith(last) for line in lines[-2:]), text
    assert "Extension modules" not in text and "Process stoker-worker" not in text and "zygote" not in text


@pytest.mark.parametrize("how", ["sample", "none", "collate"])
def test_an_error_in_process_shows_the_users_frames(program: list[str], how: str) -> None:
    lines = ended(program, how, 0)
    assert len(lines) <= 16 and own(lines) <= 2, "\n".join(lines)
    assert how == "none" or sum("train.py" in line for line in lines) == 3


def test_a_wrong_argument_shows_the_users_frames(program: list[str]) -> None:
    lines = ended(program, "argument", 1)
    assert len(lines) <= 14 and own(lines) <= 2 and "2**30" in lines[-1], "\n".join(lines)


def test_full_tracebacks_on_request(program: list[str]) -> None:
    assert own(ended(program, "sample", STOKER_TRACEBACK="full")) > 4


def test_a_timeout_says_where_each_worker_is(program: list[str]) -> None:
    lines = ended(program, "timeout")
    text = "\n".join(lines)
    assert own(lines) <= 2 and len(lines) <= 20, text
    assert "DataLoader timed out after 1 seconds: no batch arrived from 2 worker(s). Raise `timeout`" in text
    assert text.count("in __getitem__") + text.count("  waits for a batch to make") == 2, text


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_shows_the_users_frames(program: list[str], workers: int, times: int) -> None:
    command = [*program, "interrupt", str(workers), "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    lines = process.communicate(timeout=300)[1].strip().splitlines()
    text = "\n".join(lines)
    process.stdout.close()
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in lines[-1], text
    assert own(lines) <= (2 if times == 1 else 4) and len(lines) <= 20 * times, text
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nothing is left of the group
