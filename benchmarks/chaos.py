"""Does an epoch end, and with the same samples, while everything goes wrong?

A dataset of samples that cost some 20 us, in batches of 64, shuffled, four worker processes. Every 100 ms one of them,
taken at random, is killed (SIGKILL), and every second time another is stopped (SIGSTOP) and left so. One sample in
1,000 raises, one in 10,000 reads at address 0. The loader has `on_error="skip"`, `stall_action="restart"` after half a
second, a quarantine file, and restarts without an end.

Each run is compared with one without workers, without faults and with the same seed: a good sample that did not come
is lost, one that came again is doubled, and a batch differs if what is in it is not, bit for bit and in order, what
the calm run's batch of that number has of good samples. The checksum is that of all good samples, in order. Beside it
stand the same epoch with the bad samples alone, and a calm one. A run that met no fault where one was meant is no
measurement.

Torch's loader, on the same dataset and with the same luck, gets as far as its first fault: shown is what that is. It
runs in a process of its own, which is ended after ten seconds. Each fault alone stands beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import method
import numpy as np
from method import Case, Figures, Goal

WORKERS, BATCH = 4, 64
SAMPLES = 100_000
EVERY = 0.1  # seconds from one death to the next
STALL = 0.5  # seconds: a batch takes 2 ms
GIVEN_UP = 10.0  # seconds after which torch's loader is ended
SECONDS, BATCHES, ENDS = "seconds", "batches delivered", "ends with"
LOST, DOUBLED, DIFFER = "good samples lost", "samples doubled", "batches that differ"
UNRECORDED = "bad samples that are not in the quarantine once"
FAULTS = ("a worker is killed", "a worker is stopped", "a sample raises", "a sample segfaults")


def cases(options: argparse.Namespace) -> list[Case]:
    samples = SAMPLES // 5 if options.quick else SAMPLES
    goals = [Goal(name, at_most=0) for name in (LOST, DOUBLED, DIFFER, UNRECORDED)]
    rivals = {"stoker": FAULTS, "torch": FAULTS, "bad samples alone": FAULTS[2:], "calm": ()}
    chaos = {
        name: {"rival": "torch" if name == "torch" else "stoker", "samples": samples, "faults": faults}
        for name, faults in rivals.items()
    }
    alone = {
        fault: {rival: {"rival": rival, "samples": SAMPLES // 2, "faults": [fault]} for rival in ("stoker", "torch")}
        for fault in FAULTS
    }
    return [
        Case("an epoch among faults", chaos, goals),
        *(Case(f"one fault: {fault}", rivals) for fault, rivals in alone.items()),
    ]


def measure(rival: str, samples: int, faults: list[str], alone: bool = False) -> Figures:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if rival == "torch":
        return torch_epoch(samples, faults) if alone else torch_until_its_first_fault(samples, faults)
    return stoker_epoch(samples, faults)


class Samples:
    """A sample is its index, and numbers that are drawn. Some are bad, where that is wanted."""

    def __init__(self, length: int, faults: list[str]) -> None:
        self.length = length
        self.raises, self.crashes = (fault in faults for fault in FAULTS[2:])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.crashes and index % 10_000 == 321:
            ctypes.string_at(0)
        if self.raises and index % 1000 == 7:
            raise OSError(f"sample {index} is truncated")
        sample = np.sort(np.random.rand(512))[:128]
        sample[0] = index
        return sample

    def bad(self) -> list[int]:
        raise_at = range(7, self.length, 1000) if self.raises else ()
        crash_at = range(321, self.length, 10_000) if self.crashes else ()
        return sorted([*raise_at, *crash_at])


class Torment(threading.Thread):
    """Meets the workers, which are the children of a process, at random.

    Args:
        parent: their parent.
        faults: what it does to them. Both: for the whole epoch; one alone: once.
    """

    def __init__(self, parent: int, faults: list[str]) -> None:
        super().__init__(daemon=True)
        self._parent = parent
        self._kills, self._stops = (fault in faults for fault in FAULTS[:2])
        self._ended = threading.Event()
        self._chance = random.Random(0)

    def run(self) -> None:
        meetings = 0
        while (self._kills or self._stops) and not self._ended.wait(EVERY):
            meetings += 1
            if self._kills:
                self._meet(signal.SIGKILL)
            if self._stops and (not self._kills or meetings % 2):
                self._meet(signal.SIGSTOP)
            if not (self._kills and self._stops):
                return

    def _meet(self, number: signal.Signals) -> None:
        running = list(self._running())
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(running), number)

    def _running(self) -> Iterator[int]:
        for pid in Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "RSD":
                    yield int(pid)

    def __enter__(self) -> Torment:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()


# Ours


def stoker_epoch(samples: int, faults: list[str]) -> Figures:
    import stoker

    dataset = Samples(samples, faults)
    bad = Samples(samples, list(FAULTS)).bad() if len(faults) != 1 else dataset.bad()
    calm = Received(bad)
    for batch in stoker.DataLoader(Samples(samples, []), BATCH, shuffle=True, seed=0, output="numpy"):
        calm.take(batch)
    with tempfile.TemporaryDirectory() as folder:
        quarantine = Path(folder, "bad.jsonl")
        loader = stoker.DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            seed=0,
            output="numpy",
            num_workers=WORKERS,
            on_error="skip",
            max_errors=None,
            max_error_rate=None,
            max_restarts=1 << 30,
            stall_warning=STALL,
            stall_action="restart",
            quarantine=quarantine,
        )
        received = Received(bad)
        began = time.perf_counter()
        iterator: Any = iter(loader)
        with Torment(iterator._backend.pids[0], faults):
            for batch in iterator:
                received.take(batch)
        seconds = time.perf_counter() - began
        lines = [json.loads(line)["index"] for line in quarantine.read_text().splitlines()]
    events = loader.report().event_counts
    deaths = sum(events.get(kind, 0) for kind in ("death", "poison_sample"))
    if not deaths and (dataset.crashes or {*faults} & {*FAULTS[:2]}):
        raise SystemExit(f"no worker has met its fault: {faults}")
    counts = received.counts(samples)
    good = np.ones(samples, bool)
    good[bad] = False
    return {
        SECONDS: seconds,
        BATCHES: len(received.sums),
        LOST: int((counts[good] == 0).sum()),
        DOUBLED: int((counts > 1).sum()),
        DIFFER: sum(ours != theirs for ours, theirs in zip(received.sums, calm.sums, strict=True)),
        UNRECORDED: sum(lines.count(index) != 1 for index in {*dataset.bad(), *lines}),
        "bad samples in the quarantine": len(lines),
        "deaths survived": deaths,
        "of them, ended for a stall": events.get("stall", 0),
        "checksum": f"{zlib.crc32(repr(received.sums).encode()):08x}",
        ENDS: "its end",
    }


class Received:
    """What came of an epoch.

    Args:
        bad: samples that are not looked at.

    Attributes:
        sums: of each batch's good samples.
    """

    def __init__(self, bad: list[int]) -> None:
        self._bad = np.array(bad, float)
        self._indices: list[Any] = []
        self.sums: list[int] = []

    def take(self, batch: Any) -> None:
        indices = batch[:, 0]
        self._indices.append(indices.astype(int))
        self.sums.append(zlib.crc32(batch[~np.isin(indices, self._bad)].tobytes()))

    def counts(self, samples: int) -> Any:
        """How often each sample came."""
        return np.bincount(np.concatenate(self._indices), minlength=samples)


# Torch's


def torch_until_its_first_fault(samples: int, faults: list[str]) -> Figures:
    """In a process of its own, which is ended with all that it has started."""
    arguments = {"rival": "torch", "samples": samples, "faults": faults, "alone": True}
    command = [sys.executable, __file__, "--measure", json.dumps(arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        deadline = threading.Timer(GIVEN_UP, os.killpg, (process.pid, signal.SIGKILL))
        deadline.start()
        try:
            *said, last = process.stdout.readlines() or [""]
        finally:
            deadline.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # workers that are stopped
    if last.startswith("{"):
        figures: Figures = json.loads(last)
        return figures
    return {SECONDS: None, BATCHES: len(said), ENDS: f"nothing, after {GIVEN_UP:g} s"}


def torch_epoch(samples: int, faults: list[str]) -> Figures:
    """As far as it gets; says each batch."""
    import torch.utils.data

    loader = torch.utils.data.DataLoader(Samples(samples, faults), BATCH, shuffle=True, num_workers=WORKERS)
    ends, batches = "its end", 0
    began = time.perf_counter()
    iterator = iter(loader)
    with Torment(os.getpid(), faults):
        try:
            for batches, _ in enumerate(iterator, 1):  # noqa: B007 - looked at afterwards
                print("batch", flush=True)
        except Exception as error:
            seconds = time.perf_counter() - began
            *_, last = str(error).strip().splitlines()
            name = type(error).__name__
            ends = f"{name}: {last.removeprefix(f'{name}: ')}"
            ends = re.sub(r"DataLoader worker \(pid(\(s\))? [\d, ]*\) ", "worker ", ends)
    return {SECONDS: seconds if ends != "its end" else time.perf_counter() - began, BATCHES: batches, ENDS: ends}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
