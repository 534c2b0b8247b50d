"""Libraries whose threads a fork leaves behind, used in the training process and then in workers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Prints what the trainer reads, the warnings, and what the workers read, or what is raised instead.
PROGRAM = """
import json, sys, warnings
import stoker
from stoker._engine.fork import native_pools, zygote

native_pools.LOCKED_AFTER = zygote.LOCKED_AFTER = 0.3
{source}

class Samples(stoker.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return read()

if __name__ == "__main__":
    read_here = read()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = stoker.DataLoader(Samples(), num_workers=1, multiprocessing_context=sys.argv[1], output="numpy")
        try:
            batches = [batch.item() for batch in loader]
        except Exception as error:
            batches = [type(error).__name__, str(error)]
    print(json.dumps([read_here, [str(warning.message) for warning in told], batches]), flush=True)
"""

SOURCES = {
    "obstore": """
# from files, not over HTTP: a forked child would register sockets with the epoll that it shares with the trainer, whose
# runtime then reads pointers of another process, and crashes (beside torch's loader too)
def read():
    import obstore
    from obstore.store import LocalStore

    return len(obstore.get(LocalStore({folder!r}), "file").bytes())
""",
    "polars": """
def read():
    import polars

    return polars.LazyFrame({{"x": range(100)}}).filter(polars.col("x") > 5).collect().height
""",
    "confluent_kafka": """
producer = None

def read():
    global producer
    from confluent_kafka import Producer

    producer = producer or Producer({{"test.mock.num.brokers": 1, "log_level": 0}})
    return len(producer.list_topics(timeout=0.5).brokers)
""",
}
THREADS = {"obstore": "tokio-rt-worker", "polars": "polars-0", "confluent_kafka": "rdk:main"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder of a file of 100 bytes."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    return str(tmp_path)


def run(library: str, method: str, folder: str, tmp_path: Path) -> Any:
    if importlib.util.find_spec(library) is None:  # not imported here, where its threads would stay beside other tests
        pytest.skip(f"{library} is not installed")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(source=SOURCES[library].format(folder=folder)))
    command = [sys.executable, str(program), method]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("library", THREADS)
def test_forked_workers_are_warned_of(library: str, folder: str, tmp_path: Path) -> None:
    here, told, batches = run(library, "fork", folder, tmp_path)
    cause = f"thread '{THREADS[library]}' of this process (most likely of {library}) does not survive a fork"
    assert cause in told[0] and "multiprocessing_context='forkserver'" in told[0]
    assert here and batches != [here, here]
    if library != "confluent_kafka":  # whose client times out
        assert batches[0] == "ForkDeadlockError" and cause in batches[1] and cause in told[1]


@pytest.mark.parametrize("library", THREADS)
def test_clean_workers_read_the_same(library: str, folder: str, tmp_path: Path) -> None:
    here, told, batches = run(library, "forkserver", folder, tmp_path)
    assert batches == [here, here] and told == []
