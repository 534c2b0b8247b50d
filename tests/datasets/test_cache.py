from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.datasets import cache
from stoker.datasets.base import Dataset
from stoker.datasets.cache import CacheDataset
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.datasets.stream import State, StreamIterator
from stoker.errors import MemoryLimitError, StateFormatError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.testing.streams import SOURCES, Numbers, StreamSuite, comparable, through_json

MEMORY = 1 << 20


class Logged(Dataset[Any]):
    """Arrays that cannot be made without a trace: each access adds a byte to a file, whatever process makes it."""

    def __init__(self, log: Path, n: int = 20) -> None:
        self.log = log
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        with open(self.log, "ab", buffering=0) as file:
            file.write(b".")
        return {"image": np.full((3, 4), index), "name": f"sample {range(self.n)[index]}"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def made(log: Path) -> int:
    """How many samples were made since this was asked last."""
    number = log.stat().st_size
    log.write_bytes(b"")
    return number


def kept(log: Path, kind: str, **arguments: Any) -> CacheDataset[Any]:
    if "memory" in kind:
        arguments["memory"] = MEMORY
    if "folder" in kind:
        arguments |= {"folder": log.parent / "cache", "key": "v1"}
    return CacheDataset(Logged(log), **arguments)


def all_of(dataset: Any) -> list[Any]:
    return [comparable(dataset[index]) for index in range(len(dataset))]


@pytest.mark.parametrize("kind", ["memory", "folder", "memory and folder"])
def test_each_sample_is_made_once(log: Path, kind: str) -> None:
    dataset = kept(log, kind)
    expected = all_of(Logged(log))
    made(log)
    for _ in range(3):
        assert all_of(dataset) == expected
    assert len(dataset) == 20
    assert made(log) == 20


def test_each_access_gives_a_sample_of_its_own(log: Path) -> None:
    dataset = kept(log, "memory")
    for _ in range(3):
        sample = dataset[4]
        assert (sample["image"] == 4).all()
        sample["image"][:] = 0  # a batch is the user's
        sample.clear()


def test_a_folder_outlives_the_program_and_memory_does_not(log: Path) -> None:
    expected = all_of(kept(log, "folder"))
    assert made(log) == 20
    assert all_of(kept(log, "folder")) == expected
    assert made(log) == 0
    both = kept(log, "memory and folder")
    assert all_of(both) == expected
    for file in (log.parent / "cache").iterdir():
        file.write_bytes(b"")  # what was found on disk is in memory now
    assert all_of(both) == expected
    assert made(log) == 0
    all_of(kept(log, "memory"))
    assert made(log) == 20


def test_key_and_length_are_part_of_the_cache(log: Path) -> None:
    all_of(kept(log, "folder"))
    made(log)
    folder = log.parent / "cache"
    all_of(CacheDataset(Logged(log), folder=folder, key="v2"))
    assert made(log) == 20
    all_of(CacheDataset(Logged(log, 10), folder=folder, key="v1"))
    assert made(log) == 10
    all_of(kept(log, "folder"))
    assert made(log) == 0
    assert len(list(folder.iterdir())) == 3


def test_sample_that_does_not_fit_is_made_each_time(log: Path) -> None:
    for arguments in ({"memory": 1500}, {"folder": log.parent / "cache", "key": "v1", "disk": 1500}):
        dataset = CacheDataset(Logged(log), **arguments)
        expected = all_of(dataset)
        assert made(log) == 20
        assert all_of(dataset) == expected
        assert 12 < made(log) < 20


def test_indices_that_are_no_numbers_from_0_on_go_to_the_source(log: Path) -> None:
    dataset = kept(log, "memory")
    for _ in range(2):
        assert (dataset[-1]["image"] == -1).all()  # as the source answers
        assert dataset[-1]["name"] == "sample 19"
    with pytest.raises(IndexError):
        dataset[20]
    by_name = CacheDataset(Named(), memory=MEMORY)
    assert by_name["a"] == "A"
    assert dataset[np.int64(3)]["name"] == "sample 3"
    made(log)
    assert dataset[3]["name"] == "sample 3"
    assert made(log) == 0


class Named(Dataset[str]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> str:
        return str(index).upper()


def test_batched_source_is_asked_for_missing_samples_only(log: Path) -> None:
    class Gathers(Logged):
        asked: list[Any] = []  # noqa: RUF012

        def __getitems__(self, indices: list[Any]) -> list[Any]:
            self.asked.append(list(indices))
            return [self[index] for index in indices]

    dataset = CacheDataset(Gathers(log), memory=MEMORY)
    expected = all_of(Logged(log))
    assert list(map(comparable, dataset.__getitems__([3, 1]))) == [expected[3], expected[1]]
    assert list(map(comparable, dataset.__getitems__([1, 2, 3, 0]))) == [expected[index] for index in (1, 2, 3, 0)]
    assert list(map(comparable, dataset.__getitems__([0, 1]))) == expected[:2]
    assert dataset.__getitems__([-1])[0]["name"] == "sample 19"
    assert Gathers.asked == [[3, 1], [2, 0], [-1]]
    assert not hasattr(kept(log, "memory"), "__getitems__")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_cache_is_shared_by_workers_of_all_epochs(log: Path, method: str) -> None:
    program = log.parent / "program.py"
    program.write_text(SHARING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STOKER_TORCH": "0"}
    command = [sys.executable, "-W", "error", str(program), str(log), method]
    subprocess.run(command, check=True, env=environment, timeout=60)
    assert 20 <= made(log) <= 30


SHARING = """
import os
import sys
from stoker.datasets.base import Dataset
from stoker.datasets.cache import CacheDataset
from stoker.loader.dataloader import DataLoader

class Logged(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 20

    def __getitem__(self, index):
        with open(self.log, "ab", buffering=0) as file:
            file.write(b".")
        return index

if __name__ == "__main__":
    dataset = CacheDataset(Logged(sys.argv[1]), memory=1 << 20)
    loader = DataLoader(dataset, batch_size=3, shuffle=True, num_workers=2, multiprocessing_context=sys.argv[2])
    made = -1
    while made != os.stat(sys.argv[1]).st_size:  # on a busy machine, one may go without for an epoch
        made = os.stat(sys.argv[1]).st_size
        assert sorted(index for batch in loader for index in batch.tolist()) == list(range(20))
    assert [dataset[index] for index in range(20)] == list(range(20))
    assert made == os.stat(sys.argv[1]).st_size
"""


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_worker_may_be_killed(log: Path, kind: str) -> None:
    class Kills(Logged):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            if index == 7 and self.log.with_name("armed").exists():
                self.log.with_name("armed").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return sample

    dataset = kept(log, kind)
    expected = all_of(Logged(log))
    made(log)
    dataset.dataset = Kills(log)
    (log.parent / "armed").touch()
    loader = DataLoader(dataset, batch_size=2, num_workers=1, output="numpy", multiprocessing_context="fork")
    with pytest.warns(StokerWarning, match="was replaced"):
        batches = list(loader)
    assert not (log.parent / "armed").exists()
    assert np.concatenate([batch["image"] for batch in batches])[:, 0, 0].tolist() == list(range(20))
    assert made(log) <= 22  # the ones before it were not made again
    assert all_of(dataset) == expected
    assert made(log) == 0


def test_a_sample_that_cannot_be_kept_is_named(log: Path) -> None:
    dataset = CacheDataset([1, lambda: 2], memory=MEMORY)
    assert dataset[0] == 1
    with pytest.raises(TypeError, match=r"sample 1 \(function\) cannot be cached, because it cannot be .*lambda"):
        dataset[1]


def test_a_sample_whose_class_has_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "Gone", type("Gone", (), {"__module__": cache.__name__}), raising=False)
    CacheDataset([cache.Gone()], folder=tmp_path, key="v1")[0]
    monkeypatch.delattr(cache, "Gone")
    with pytest.raises(RuntimeError, match=r"sample 0 was cached, but cannot be unpickled: .*Gone.* change key="):
        CacheDataset([None], folder=tmp_path, key="v1")[0]


def test_bad_arguments_are_refused_at_once(tmp_path: Path) -> None:
    samples = [1, 2]
    with pytest.raises(TypeError, match="CacheDataset was given a int, which is not a dataset"):
        CacheDataset(3, memory=MEMORY)
    with pytest.raises(ValueError, match="needs memory= "):
        CacheDataset(samples)
    with pytest.raises(ValueError, match="key is None, expected a text"):
        CacheDataset(samples, folder=tmp_path)
    with pytest.raises(TypeError, match="key is 3, expected a text"):
        CacheDataset(samples, folder=tmp_path, key=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="disk= limits the size of a file in a folder"):
        CacheDataset(samples, memory=MEMORY, disk=5)
    with pytest.raises(TypeError, match="memory is '1 GB', expected an integer"):
        CacheDataset(samples, memory="1 GB")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="memory is -1, expected at least 1"):
        CacheDataset(samples, memory=-1)
    with pytest.raises(ValueError, match="memory=40 bytes hold no sample: the index alone takes 48 bytes"):
        CacheDataset(samples, memory=40)
    with pytest.raises(ValueError, match="disk=40 bytes hold no sample"):
        CacheDataset(samples, folder=tmp_path, key="v1", disk=40)
    with pytest.raises(MemoryLimitError):
        CacheDataset(samples, memory=1 << 60)
    with pytest.raises(ValueError, match="memory= is for a dataset by index"):
        CacheDataset(Numbers(3), memory=MEMORY)
    with pytest.raises(TypeError, match="no len"):
        CacheDataset(Endless(), memory=MEMORY)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        CacheDataset(samples, folder=tmp_path / "file", key="v1")


class Endless:
    def __getitem__(self, index: Any) -> Any:
        return index


class Watched(Numbers):
    """Counts what is read of it, and fails at a sample while it is told to."""

    reads = 0
    broken = -1
    deadly = -1

    def _begin(self, state: State | None) -> StreamIterator[int]:
        return _Watching(super()._begin(state))


class _Watching(StreamIterator[int]):
    def __init__(self, numbers: StreamIterator[int]) -> None:
        self._numbers = numbers

    def __next__(self) -> int:
        number = next(self._numbers)
        Watched.reads += 1
        if number == Watched.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == Watched.broken:
            raise OSError(f"sample {number}")
        return number

    def state_dict(self) -> State:
        return self._numbers.state_dict()


def reads() -> int:
    """Since this was asked last."""
    number, Watched.reads = Watched.reads, 0
    return number


@pytest.fixture(autouse=True)
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five numbers each."""
    monkeypatch.setattr(cache, "_CHUNK", 50)
    Watched.reads = 0


@pytest.mark.parametrize("passes", ["in the first pass", "in a later pass", "after a part of a pass"])
class TestResume(StreamSuite):
    @pytest.fixture
    def make(self, passes: str, tmp_path: Path) -> Any:
        made: list[Any] = []

        def make() -> CacheDataset[int]:
            made.append(None)
            folder = tmp_path / (str(len(made)) if passes == "in the first pass" else "one")
            dataset = CacheDataset(Numbers(0, 20, num_shards=2), folder=folder, key="v1")
            before = {"in the first pass": 0, "in a later pass": 100, "after a part of a pass": 9}[passes]
            list(itertools.islice(iter(dataset), before))
            return CacheDataset(Numbers(0, 20, num_shards=2), folder=folder, key="v1")

        return make


@pytest.mark.parametrize("kind", SOURCES)
class TestResumeOfEverySource(StreamSuite):
    @pytest.fixture
    def make(self, kind: str, tmp_path: Path) -> Any:
        return lambda: CacheDataset(SOURCES[kind](13), folder=tmp_path, key="v1")


def stream(tmp_path: Path, n: int = 20, **arguments: Any) -> CacheDataset[int]:
    return CacheDataset(Watched(n), folder=tmp_path, key="v1", **arguments)


def test_a_second_pass_reads_nothing_of_the_source(tmp_path: Path) -> None:
    dataset = stream(tmp_path)
    assert list(dataset) == list(range(20))
    assert reads() == 20
    assert list(dataset) == list(stream(tmp_path)) == list(range(20))
    assert reads() == 0


def test_a_pass_that_was_left_is_gone_on_with(tmp_path: Path) -> None:
    for step in range(0, 20, 3):
        assert [number for number, _ in zip(stream(tmp_path), range(step), strict=False)] == list(range(step))
    reads()
    assert list(stream(tmp_path)) == list(range(20))
    assert reads() < 10
    assert list(stream(tmp_path)) == list(range(20))
    assert reads() == 0


def test_an_empty_stream(tmp_path: Path) -> None:
    assert list(stream(tmp_path, 0)) == list(stream(tmp_path, 0)) == []
    assert stream(tmp_path, 0).state_dict() == {}


def test_a_state_does_not_need_the_files(tmp_path: Path) -> None:
    for step in range(21):
        dataset = CacheDataset(Numbers(20), folder=tmp_path / "there", key="v1")
        samples = iter(dataset)
        assert [next(samples) for _ in range(step)] == list(range(step))
        elsewhere = CacheDataset(Numbers(20), folder=tmp_path / f"elsewhere {step}", key="v1")
        elsewhere.load_state_dict(through_json(dataset.state_dict()))
        assert list(elsewhere) == list(range(step, 20))
        assert list(elsewhere) == list(range(20))


def test_a_state_fits_chunks_that_were_cut_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    dataset = CacheDataset(Numbers(20), folder=tmp_path / "a", key="v1")
    for _ in dataset:
        states.append(through_json(dataset.state_dict()))
    for size in (10, 120):
        monkeypatch.setattr(cache, "_CHUNK", size)
        folder = tmp_path / f"b{size}"
        list(CacheDataset(Numbers(20), folder=folder, key="v1"))
        for number, state in enumerate(states):
            other = CacheDataset(Numbers(20), folder=folder, key="v1")
            other.load_state_dict(state)
            assert list(other) == list(range(number + 1, 20))


def test_sample_that_does_not_fit_on_disk_is_read_again(tmp_path: Path) -> None:
    disk = 16 + 16 * cache._CHUNKS + 500
    assert list(stream(tmp_path, disk=disk)) == list(range(20))
    assert reads() == 20
    for _ in range(2):
        assert list(stream(tmp_path, disk=disk)) == list(range(20))
        assert 0 < reads() < 15
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= disk


def test_shards_have_files_of_their_own(tmp_path: Path) -> None:
    dataset = CacheDataset(Numbers(0, 20, num_shards=4), folder=tmp_path, key="v1")
    assert dataset.num_shards == 4
    for number in (1, 2, 3):
        shards = [dataset.shard(number, index) for index in range(number)]
        assert [list(shard) for shard in shards] == [list(range(20))[index::number] for index in range(number)]
        assert [list(shard) for shard in shards] == [list(range(20))[index::number] for index in range(number)]
    assert dataset.num_shards == 4 and len(dataset) == 20


def drained(samples: Iterator[int]) -> list[int]:
    """What comes, errors left out."""
    given = []
    while True:
        try:
            given.append(next(samples))
        except OSError:
            continue
        except StopIteration:
            return given


@pytest.mark.parametrize("broken", [0, 4, 5, 7, 19])
def test_a_source_that_failed_is_asked_again(tmp_path: Path, broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "broken", broken)
    dataset = stream(tmp_path)
    samples, given, states = iter(dataset), [], [State()]
    while len(given) < 19:
        with contextlib.suppress(OSError):
            given.append(next(samples))
            states.append(through_json(dataset.state_dict()))
    assert given == [number for number in range(20) if number != broken]
    for step, state in enumerate(states):
        resumed = stream(tmp_path)
        resumed.load_state_dict(state)
        assert drained(iter(resumed)) == given[step:]
    monkeypatch.setattr(Watched, "broken", -1)
    for _ in range(2):
        assert list(stream(tmp_path)) == list(range(20))


def test_cached_stream_repeats_no_sample_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(stream(tmp_path)) == list(range(20))
    (path,) = tmp_path.iterdir()
    with open(path, "r+b") as file:  # the second chunk is lost: 5 to 9
        file.seek(32)
        file.write(bytes(16))
    monkeypatch.setattr(Watched, "broken", 7)
    assert drained(iter(stream(tmp_path))) == [number for number in range(20) if number != 7]


def test_a_sample_of_a_stream_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    odd = MapDataset(Numbers(4), lambda number: (lambda: 1) if number == 2 else number)
    samples = iter(CacheDataset(odd, folder=tmp_path, key="v1"))
    assert [next(samples), next(samples)] == [0, 1]
    with pytest.raises(TypeError, match=r"sample 2 \(function\) cannot be cached"):
        next(samples)
    assert list(samples) == [3]


@pytest.mark.parametrize("step", [3, 8, 15])
def test_a_pass_may_be_killed(tmp_path: Path, step: int) -> None:
    child = os.fork()
    if not child:
        Watched.deadly = step
        list(stream(tmp_path))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(stream(tmp_path)) == list(stream(tmp_path)) == list(range(20))
    assert reads() <= 20


def test_states_that_are_damaged_are_refused(tmp_path: Path) -> None:
    dataset = stream(tmp_path)
    next(iter(dataset))
    state = dataset.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert {name: state.pop(name) for name in ("chunk", "before", "given")} == {"chunk": 0, "before": 0, "given": 1}
    assert state.keys() == {"again"}  # what its source gave first
    state |= {"chunk": 0, "before": 0, "given": 1}
    for broken in ({"chunk": -1}, {"given": None}, {"before": 1.5}, {"source": 3}):
        dataset.load_state_dict(state | broken)
        with pytest.raises(StateFormatError):
            iter(dataset)


def test_copies_share_the_memory_and_pickles_do_not(log: Path) -> None:
    dataset = kept(log, "memory")
    all_of(dataset)
    made(log)
    all_of(copy.copy(dataset))
    assert made(log) == 0
    all_of(pickle.loads(pickle.dumps(dataset)))
    assert made(log) == 20


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_index_that_is_no_plain_number_is_not_cached(kind: str) -> None:
    rows: Any = np.arange(12).reshape(4, 3)
    indices: list[Any] = [True, np.True_, np.array([2]), np.array([1, 2]), np.array(True), slice(1, 2), ..., None]
    numbers: list[Any] = [np.int64(2), np.array(2), np.uint8(3)]
    if kind == "tensor":
        torch = pytest.importorskip("torch")
        rows = torch.from_numpy(rows)
        indices = [True, torch.tensor([2]), torch.tensor([1, 2]), torch.tensor(True), slice(1, 2), ..., None]
        numbers = [np.int64(2), torch.tensor(2)]
    cached: Any = CacheDataset(rows, memory=MEMORY)
    for index in [*indices, *numbers, *range(-4, 4)]:
        for _ in range(2):
            assert comparable(cached[index]) == comparable(rows[index])
    read = CacheDataset(rows, memory=MEMORY)
    for number in numbers:
        read[number]
        assert read._stores[0].get(int(number)) is not None, "what is a number is kept"


@pytest.mark.parametrize("given", [1, 3])
def test_source_that_gives_a_wrong_count_is_refused(given: int) -> None:
    class Wrong(Named):
        def __getitems__(self, indices: list[int]) -> list[str]:
            return [self[index] for index in range(given)]

    cached: CacheDataset[str] = CacheDataset(Wrong(), memory=MEMORY)
    with pytest.raises(ValueError, match=f"Wrong.__getitems__ gave {given} samples, expected 2"):
        cached.__getitems__([4, 5])
    assert [cached[index] for index in (4, 5)] == [Named()[4], Named()[5]]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_source_that_could_not_be_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Behind the first chunk too, where the source is opened amid an iteration."""
    monkeypatch.setattr(cache, "_CHUNK", 1)
    away = False

    def opened() -> range:
        if away:
            raise OSError("the disk is away")
        return range(4)

    def make() -> Any:
        return CacheDataset(from_iterable(opened), folder=tmp_path, key="k")

    samples = iter(make())
    assert [next(samples) for _ in range(broken)] == [*range(broken)]
    dataset, away = make(), True
    if not broken:
        with pytest.raises(OSError, match="away"):
            iter(dataset)
    else:
        samples = iter(dataset)
        assert next(samples) == 0
        for _ in range(2):
            with pytest.raises(OSError, match="away"):
                next(samples)
        away = False
        assert list(samples) == [1, 2, 3]
    away = False
    assert list(make()) == [0, 1, 2, 3]


def test_a_pass_that_was_interrupted_is_not_kept(tmp_path: Path) -> None:
    class Interrupted:
        """Ctrl-C comes once, at the sample 3, which is lost."""

        def __init__(self, at: int | None) -> None:
            self.at, self.numbers = at, iter(range(6))

        def __iter__(self) -> Interrupted:
            return self

        def __next__(self) -> int:
            number = next(self.numbers)
            if number == self.at:
                raise KeyboardInterrupt
            return number

    stream = iter(CacheDataset(from_iterable(lambda: Interrupted(3)), folder=tmp_path, key="k"))
    seen = []
    for _ in range(7):
        with contextlib.suppress(KeyboardInterrupt, StopIteration):
            seen.append(next(stream))
    assert seen == [0, 1, 2, 4, 5]
    assert list(CacheDataset(from_iterable(lambda: Interrupted(None)), folder=tmp_path, key="k")) == [0, 1, 2, 3, 4, 5]
