"""Signals: a worker has the program's handlers, as a child of multiprocessing has, but for those that end programs."""

from __future__ import annotations

import subprocess
import sys


def time_limit(data):
    import signal
    import time

    class Slow(Exception):
        pass

    def too_slow(number, frame):
        raise Slow

    signal.signal(signal.SIGALRM, too_slow)

    class Limited(data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                if index == 3:
                    time.sleep(60)
                return index
            except Slow:
                return -1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

    return [list(data.DataLoader(Limited(), batch_size=2, num_workers=workers)) for workers in (0, 2)]


def test_time_limits_of_samples_are_equal(same):
    same(time_limit)


def own_signals(data):
    import signal

    heard = []
    for kind in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(kind, lambda number, frame: heard.append(number))

    class Raising(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            heard.clear()
            signal.raise_signal(signal.SIGUSR1 if index % 2 else signal.SIGUSR2)
            return int(heard[0])

    return list(data.DataLoader(Raising(), batch_size=2, num_workers=2))


def test_signals_of_samples_are_equal(same):
    same(own_signals)


def signal_to_the_group(data):
    import os
    import signal

    assert os.getpid() == os.getsid(0)  # so the group has no other program in it
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))

    class Numbers(data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return index

    numbers = []
    for place, batch in enumerate(data.DataLoader(Numbers(), batch_size=2, num_workers=2)):
        numbers += batch.tolist()
        if place == 3:
            os.killpg(0, signal.SIGUSR1)
    return numbers, len(heard)


def test_a_signal_to_all_processes_ends_none(same):
    _, ours = same(signal_to_the_group)
    assert "StokerWarning" not in ours.stderr


ENDS = """
import os, signal
import stoker

heard = []
for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(kind, lambda number, frame: heard.append(number))
numbers = []
for place, batch in enumerate(stoker.DataLoader(list(range(40)), batch_size=2, num_workers=2)):
    numbers += batch.tolist()
    if place == 3:
        for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.killpg(0, kind)
assert numbers == list(range(40)) and len(heard) == 3, (numbers, heard)
"""


def test_program_that_handles_its_end_keeps_its_workers():
    """Under torch's loader a process of torch's, which serves shared memory, ends by SIGTERM."""
    ran = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, start_new_session=True)
    assert (ran.returncode, ran.stderr) == (0, "")


FAULT = """
import ctypes, signal
import stoker

for kind in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE):
    signal.signal(kind, lambda number, frame: None)

class Faulty(stoker.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        assert signal.getsignal(signal.SIGBUS) == signal.SIG_DFL
        if index == 3:
            ctypes.string_at(0)
        return index

try:
    list(stoker.DataLoader(Faulty(), batch_size=2, num_workers=2, timeout=20))
except stoker.WorkerDiedError as error:
    assert "Segmentation fault" in str(error), error
"""


def test_fault_ends_a_worker_where_the_program_handles_it():
    """A handler in Python returns to the instruction that failed, and the worker would never end."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", FAULT], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
