"""Many loaders, and many batches, in one process: nothing of them accumulates in it, nor in its workers.

What a process holds is read from /proc by the program itself: descriptors, mappings, memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = pytest.mark.slow

LINES = """
import resource

limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 4096), limit))

def held_by(pid, *fields):
    '''How many descriptors and mappings a process has, and the KiB of memory that begin with these words.'''
    memory = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    kib = sum(int(words[1]) for words in memory if words[0].startswith(fields))
    mappings = len(Path(f"/proc/{pid}/maps").read_text().splitlines())
    return len(os.listdir(f"/proc/{pid}/fd")), mappings, kib

def descendants():
    '''Pids of all processes of this program's session but its own, corpses too.'''
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[3]) == os.getpid() != pid:
            found.append(pid)
    return found

def all_gone():
    '''Waits until there is no process but this one.'''
    until = time.monotonic() + 2
    while left := descendants():
        try:
            descriptor = os.pidfd_open(left[0])
        except ProcessLookupError:
            continue
        poll = select.poll()  # there are more descriptors than select() can tell apart
        poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, 1000 * (until - time.monotonic())))
        os.close(descriptor)
        assert time.monotonic() < until, left
    gc.collect()

def opened():
    it = iter(loader(Data(), num_workers=1))
    batch = next(it)
    assert batch[1, -1] == 1
    return it, batch

def held():
    all_gone()
    return held_by(os.getpid(), "Anonymous:")

def check(before, after):
    assert after[0] == before[0], (before, after)
    assert after[1] <= before[1] + 8, (before, after)
    assert after[2] <= before[2] + 1024, (before, after)
"""


def ended(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, birth: str, lines: str, says: Sequence[str] = ()
) -> tuple[int, str]:
    """Runs these lines behind `LINES`, which say these words; the program's exit status and standard error."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)  # the Makefile's: a huge page counts whole at its first touch
    (tmp_path / "scratch").mkdir()
    program = start(birth, LINES + dedent(lines))
    for word in says:
        program.hears(word)
    end: tuple[int, str] = program.end()
    print(end[1])  # pytest shows it where something fails
    assert list((tmp_path / "scratch").iterdir()) == []
    return end


@pytest.mark.parametrize(("birth", "number"), [("fork", 200), ("forkserver", 3)])
def test_loaders_that_are_opened_and_dropped(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, birth: str, number: int
) -> None:
    """One batch of each is taken, and the last ten are kept for a while."""
    lines = f"""
    from collections import deque
    for _ in range(3):
        opened()
    before = held()
    kept = deque(maxlen=10)
    for done in range({number}):
        kept.append(opened()[1])
        if done % 50 == 0:
            say("opened")  # machines are busy: each of these words is waited for
    assert held()[0] == before[0]
    assert all((batch[1] == 1).all() for batch in kept)
    kept.clear()
    check(before, held())
    """
    assert ended(start, tmp_path, monkeypatch, birth, lines, ["opened"] * -(-number // 50)) == (0, "")


@pytest.mark.long
def test_200_loaders_at_once(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the first time leaves room in Python's memory, as anything does."""
    lines = """
    def all_at_once():
        iterators = []
        for _ in range(4):
            iterators += [opened()[0] for _ in range(50)]
            say("opened")
        assert len(descendants()) == 400
        for it in iterators:
            assert next(it)[1, -1] == 3

    all_at_once()
    before = held()
    all_at_once()
    check(before, held())
    """
    assert ended(start, tmp_path, monkeypatch, "fork", lines, ["opened"] * 8) == (0, "")


def test_10000_batches(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of the same workers, with batches in slots and without. What is held after 1,000 is held at the end.

    Two later batches are kept at any time. The bound of the arena is what can be under way, kept and spare: it may be
    reached late.
    """
    lines = """
    from collections import deque

    class Mixed(Data):
        def __len__(self):
            return 5000
        def __getitem__(self, index):
            return np.full(20_000 if index % 2 else 10, index)

    def measured(it):
        gc.collect()
        return [held_by(pid, "Anonymous:") for pid in (os.getpid(), *it._backend.pids)]

    SLOT, MOST = 160 << 10, 4 + 3 + 3 + 2
    # With `timeout` each batch has a slot of its own: those of runs have room for several
    data = loader(Mixed(), batch_size=1, shuffle=True, persistent_workers=True, timeout=60)
    done, total, kept = 0, 0, deque(maxlen=3)
    for _ in range(2):
        it = iter(data)
        for batch in it:
            kept.append(batch)
            total += int(batch[0, -1])
            done += 1
            if done % 500 == 0:
                say("reached")
            if done == 1000:
                before = measured(it)
        after = measured(it)
    assert done == 10_000 and total == 5000 * 4999
    assert len(before) == len(after) == 4
    for (descriptors, mappings, memory), now in zip(before, after):
        assert now[0] == descriptors, (before, after)
        assert now[1] <= mappings + 8, (before, after)
        assert now[2] <= memory + 1024, (before, after)
    assert os.fstat(it._backend._life.arena[0]).st_size <= MOST * SLOT
    """
    assert ended(start, tmp_path, monkeypatch, "fork", lines, ["reached"] * 20) == (0, "")
