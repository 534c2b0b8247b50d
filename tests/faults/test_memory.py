"""Memory that does not suffice is an exception with numbers, never a kill; and `/dev/shm` does not matter."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups import limited_to

LIMIT = 512


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of `LIMIT` MiB below this process's own."""
    yield from limited_to(LIMIT)


def kills(cgroup: Path) -> int:
    for name in ("memory.oom_control", "memory.events"):
        if (cgroup / name).exists():
            found = re.search(r"^oom_kill (\d+)", (cgroup / name).read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
    raise AssertionError


def within(cgroup: Path) -> list[str]:
    """A command that runs the one behind it in the cgroup."""
    return ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]


BATCHES = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

class Grows:
    '''Batch k is of SIZES[k] MiB; its samples are views of one small row, so that only batches need memory.'''
    def __init__(self, sizes):
        self.sizes = sizes
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, index):
        row = np.full((1, 1 << 17), index, np.float64)  # 1 MiB
        return np.broadcast_to(row, (self.sizes[index], 1 << 17))
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_do_not_fit(start: Any, birth: str, cgroup: Path, workers: int) -> None:
    program = start(
        birth,
        BATCHES
        + f"""
from stoker import MemoryLimitError
it = iter(loader(Grows([20, 20, 20, 800, 20]), batch_size=1, num_workers={workers}))
kept = [next(it) for _ in range(3)]
try:
    next(it)
except MemoryLimitError as error:
    assert isinstance(error, MemoryError) and isinstance(error, RuntimeError)
    say("error", str(error).replace(chr(10), " "))
after = next(it)
assert [int(batch[0, 19, -1]) for batch in kept + [after]] == [0, 1, 2, 4]
""",
        before=within(cgroup),
    )
    message = " ".join(program.hears("error"))
    assert program.end() == (0, "")
    assert kills(cgroup) == 0
    assert re.search(r"cannot reserve 8\d\d\.\d MiB .* are available of 512\.0 MiB \(limited by memory cgroup", message)
    assert "smaller batch_size" in message


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_fit_one_by_one_are_all_delivered(start: Any, cgroup: Path, workers: int) -> None:
    """Work ahead takes what there is, and waits for the rest; who asks for batches in turn gets them all."""
    program = start(
        "fork",
        BATCHES
        + f"""
it = iter(loader(Grows([90] * 12), batch_size=1, num_workers={workers}, prefetch_factor=4))
seen = []
for batch in it:
    seen.append(int(batch[0, -1, -1]))
    del batch
assert seen == list(range(12)), seen
""",
        before=within(cgroup),
    )
    assert program.end() == (0, "")
    assert kills(cgroup) == 0


def test_kept_batches_until_nothing_is_left(start: Any, cgroup: Path) -> None:
    program = start(
        "fork",
        BATCHES
        + """
from stoker import MemoryLimitError
it = iter(loader(Grows([40] * 30), batch_size=1))
kept = []
try:
    for batch in it:
        kept.append(batch)
except MemoryLimitError:
    say("kept", len(kept))
assert [int(batch[0, -1, -1]) for batch in kept] == list(range(len(kept)))
""",
        before=within(cgroup),
    )
    assert 3 <= int(program.hears("kept")[0]) <= LIMIT // 40
    assert program.end() == (0, "")
    assert kills(cgroup) == 0


@pytest.mark.parametrize("samples", [4, 128])
def test_kept_batches_of_samples_that_several_workers_make(start: Any, birth: str, cgroup: Path, samples: int) -> None:
    """What workers hold of samples, and still will, is left to them; who is refused gives back what it held."""
    program = start(
        birth,
        f"""
from stoker import MemoryLimitError
class Batches:
    '''Of 80 MiB, without a view: each sample has memory of its own.'''
    def __len__(self):
        return 12 * {samples}
    def __getitem__(self, index):
        return np.full(10 * (1 << 20) // {samples}, index // {samples}, np.float64)
it = iter(loader(Batches(), batch_size={samples}, num_workers=4))
kept, refused = [], 0
for _ in range(12):
    try:
        kept.append(next(it))
    except MemoryLimitError:
        refused += 1
say("refused", refused)
assert kept and all((batch == batch[0, 0]).all() for batch in kept)
""",
        before=within(cgroup),
    )
    assert 0 < int(program.hears("refused")[0]) < 12
    assert program.end() == (0, "")
    assert kills(cgroup) == 0


PRIVATE = """
class Samples:
    '''Four of them are a batch of SIZE MiB.'''
    def __len__(self):
        return 4 * 12
    def __getitem__(self, index):
        return np.full(SIZE * (1 << 17) // 4, index // 4, np.float64)

class Fetched(Samples):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

class Whole:
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return np.full((4, SIZE * (1 << 17) // 4), index, np.float64)

def stack(samples):
    return np.stack(samples)

def begin(worker):
    pass

told = []
more = dict(num_workers=4, on_event=lambda event: told.append(event.kind))
HOW = {
    "collate_fn": lambda: loader(Samples(), batch_size=4, collate_fn=stack, **more),
    "worker_init_fn": lambda: loader(Samples(), batch_size=4, collate_fn=stack, worker_init_fn=begin, **more),
    "__getitems__": lambda: loader(Fetched(), batch_size=4, **more),
    "whole": lambda: loader(Whole(), batch_size=None, **more),
}
"""


@pytest.mark.parametrize(
    ("how", "size"), [("collate_fn", 80), ("worker_init_fn", 40), ("__getitems__", 80), ("whole", 80)]
)
def test_workers_with_large_private_batches_take_turns(
    start: Any, birth: str, cgroup: Path, how: str, size: int
) -> None:
    """All four would take more than there is, without a batch being kept; those that have had their turn also with what
    `malloc` keeps for the next."""
    program = start(
        birth,
        f"SIZE = {size}\n"
        + PRIVATE
        + f"""
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    made = HOW["{how}"]()
    seen = []
    for batch in made:
        assert (batch == batch[0, 0]).all()
        seen.append(int(batch[0, 0]))
        del batch
assert seen == list(range(12)), seen
assert "death" not in told, told
assert told.count("memory_throttled") == 1 and "memory throttled" in str(made.report())
say("warned", *[str(one.message) for one in warned if "workers at once" in str(one.message)])
""",
        before=within(cgroup),
    )
    message = " ".join(program.hears("warned"))
    assert program.end() == (0, "")
    assert kills(cgroup) == 0
    told = re.search(
        r"memory for \d of 4 workers at once: one takes up to (\d+) MiB .* left of 512 \(limited by memory", message
    )
    assert told is not None and size <= int(told[1]) < 3 * size


def test_batch_too_large_for_any_worker_is_refused_at_once(start: Any, birth: str, cgroup: Path) -> None:
    """All are kept. What a `collate_fn` takes beside its samples is known of those before."""
    program = start(
        birth,
        "SIZE = 60\n"
        + PRIVATE
        + """
from stoker import MemoryLimitError
warnings.simplefilter("ignore")
it, kept, refused = iter(HOW["collate_fn"]()), [], []
for _ in range(12):
    try:
        kept.append(next(it))
    except MemoryLimitError as error:
        refused.append(str(error).replace(chr(10), " "))
assert kept and all((batch == batch[0, 0]).all() for batch in kept)
assert "death" not in told, told
say("refused", refused[-1])
kept.clear()
""",
        before=within(cgroup),
    )
    message = " ".join(program.hears("refused"))
    assert program.end() == (0, "")
    assert kills(cgroup) == 0
    assert re.search(r"cannot reserve \d+\.\d MiB .* are available of 512\.0 MiB \(limited by memory cgroup", message)
    assert "before a worker began the batch" in message and "smaller batch_size" in message


def test_stream_keeps_the_samples_of_a_refused_batch(start: Any, birth: str, cgroup: Path) -> None:
    """Its next batch has the same samples, also where it goes on from the state of that moment. What was refused when
    it was made is lost, as in any loader."""
    program = start(
        birth,
        "SIZE = 60\n"
        + PRIVATE
        + """
from stoker import IterableDataset, MemoryLimitError
class Stream(IterableDataset):
    at = 0
    def __iter__(self):
        while self.at < 4 * 12:
            self.at += 1
            yield Samples()[self.at - 1]
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]
warnings.simplefilter("ignore")
make = lambda: loader(Stream(), batch_size=4, num_workers=1, collate_fn=stack)
made, state = make(), None
it = iter(made)
kept, seen, begun, not_begun = [], [], 0, 0
while True:
    try:
        batch = next(it)
    except StopIteration:
        break
    except MemoryLimitError as error:
        if "before a worker began the batch" in str(error):
            not_begun += 1
            kept.clear()
            state, until = made.state_dict(), len(seen)
        else:
            begun += 1
            kept.append(np.ones(5 << 20))  # 40 MiB less for the next
        continue
    seen.append(int(batch[0, 0]))
    kept.append(batch)
    del batch
assert seen == sorted(set(seen)) and len(seen) == 12 - begun, (seen, begun)
kept.clear()
again = make()
again.load_state_dict(state)
assert [int(batch[0, 0]) for batch in again][:12 - begun - until] == seen[until:], (seen, until)
say("not_begun", not_begun)
""",
        before=within(cgroup),
    )
    assert int(program.hears("not_begun")[0]) > 0
    assert program.end() == (0, "")
    assert kills(cgroup) == 0


def test_workers_begin_one_by_one_with_little_memory_left(start: Any, cgroup: Path) -> None:
    """The first shows what a batch takes only when it has been made, and there is less than 1 GiB for each."""
    program = start(
        "fork",
        """
import multiprocessing
all_there = multiprocessing.Barrier(2)
class Meet:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        all_there.wait(30)
        return np.int64(index)
assert [int(batch[0]) for batch in loader(Meet(), batch_size=1, num_workers=2)] == [0, 1]
""",
        before=within(cgroup),
    )
    assert program.end() == (0, "")


def test_samples_that_exceed_memory_end_only_the_worker(start: Any, birth: str, cgroup: Path) -> None:
    """No loader can refuse what a dataset takes for itself. Also where the trainer is larger than a worker, and after
    one has been replaced."""
    program = start(
        birth,
        """
class Greedy:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 5:
            self.taken = [np.ones(1 << 22) for _ in range(16)]  # 512 MiB
        return np.full(1 << 17, index, np.float64)  # 1 MiB
it = iter(loader(Greedy(), batch_size=1, num_workers=1, prefetch_factor=1))
kept = [next(it)]
mine = np.ones(36 << 20)  # 288 MiB
kept += [next(it) for _ in range(4)]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        next(it)
    except RuntimeError as error:
        say("error", str(error).replace(chr(10), " "))
kept += [next(it) for _ in range(2)]
assert [int(batch[0, -1]) for batch in kept] == [0, 1, 2, 3, 4, 6, 7]
""",
        before=within(cgroup),
    )
    message = " ".join(program.hears("error"))
    assert program.end() == (0, "")
    assert kills(cgroup)
    assert "is killed by signal: Killed" in message and "out of memory" in message and "sample 5" in message


def test_a_small_dev_shm(start: Any, birth: str) -> None:
    """4 workers and batches of 38 MB complete an epoch beside a /dev/shm of 64 MB."""
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"]).returncode:
        pytest.skip("no mount namespace can be made here")
    program = start(
        birth,
        BATCHES
        + """
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 << 20
it = iter(loader(Grows([38] * 16), batch_size=1, num_workers=4))
assert [int(batch[0, -1, -1]) for batch in it] == list(range(16))
""",
        before=["unshare", "-m", "sh", "-c", mount, "sh"],
    )
    assert program.end() == (0, "")
