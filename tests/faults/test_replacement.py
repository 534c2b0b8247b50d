"""A death costs a retry, not the run: the batches are bit for bit those of a calm run, in order, and nothing stays."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import ChainDataset, DataLoader, IterableDataset, StokerWarning, WorkerDiedError, get_worker_info
from stoker._engine.fork import trainer
from stoker.errors import StreamLostError
from tests.faults.runs import Once

N = 60


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Numbers:
    """Sample k is k and three random numbers; some samples do something more."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self._at = at or {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index in self._at:
            self._at[index]()
        return np.array([index, random.random(), np.random.rand()]), np.full(20_000, index)


def loader(dataset: Any, birth: str = "fork", **settings: Any) -> Any:
    default = {"batch_size": 4, "num_workers": 2, "output": "numpy", "multiprocessing_context": birth, "seed": 5}
    if not isinstance(dataset, IterableDataset):
        default["shuffle"] = True
    return DataLoader(dataset, **default | settings)


def bytes_of(batches: Any) -> list[bytes]:
    return [b"".join(np.asarray(leaf).tobytes() for leaf in batch) for batch in batches]


CALM: list[bytes] = []


def calm() -> list[bytes]:
    if not CALM:
        CALM.extend(bytes_of(loader(Numbers(), num_workers=0, multiprocessing_context=None)))
    return CALM


def workers_of(zygote: int) -> list[int]:
    """Its children, once there is one."""
    while True:
        found = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        if found:
            return [int(pid) for pid in found]


def kill_a_worker(zygote: int) -> None:
    while True:
        with contextlib.suppress(ProcessLookupError):  # buried since it was named
            os.kill(workers_of(zygote)[0], signal.SIGKILL)
            return


def ended(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], 20)[0]
    finally:
        os.close(descriptor)


DEATHS: dict[str, Callable[[], object]] = {
    "killed": die,
    "crashed": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "left": lambda: os._exit(3),
}


@pytest.mark.parametrize("death", DEATHS)
def test_while_it_makes_a_sample(death: str, birth: str, tmp_path: Path) -> None:
    dataset = Numbers({17: Once(tmp_path / "died", DEATHS[death])})
    with pytest.warns(StokerWarning, match=r"exited unexpectedly.*while it made batch \d+.*\n.*was replaced"):
        assert bytes_of(loader(dataset, birth)) == calm()
    assert (tmp_path / "died").exists()


def test_worker_that_dies_in_its_init_function_is_replaced(birth: str, tmp_path: Path) -> None:
    once = Once(tmp_path / "died", die)
    with pytest.warns(StokerWarning, match="was replaced"):
        assert bytes_of(loader(Numbers(), birth, worker_init_fn=lambda number: once())) == calm()


def test_while_it_collates(tmp_path: Path) -> None:
    once = Once(tmp_path / "died", die)

    def collate(samples: list[Any]) -> Any:
        once()
        return tuple(np.stack(leaves) for leaves in zip(*samples, strict=True))

    with pytest.warns(StokerWarning, match="was replaced"):
        assert bytes_of(loader(Numbers(), collate_fn=collate)) == calm()


@pytest.mark.parametrize("settings", [{}, {"prefetch_factor": 1}, {"in_order": False}, {"num_workers": 1}], ids=str)
def test_workers_are_killed_from_outside(settings: dict[str, Any]) -> None:
    iterator = iter(loader(Numbers(), **settings))
    batches = []
    with pytest.warns(StokerWarning, match="was replaced"):
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number in (2, 5, 9):
                kill_a_worker(iterator._backend.pids[0])
    assert sorted(bytes_of(batches)) == sorted(calm())
    if "in_order" not in settings:
        assert bytes_of(batches) == calm()


def test_the_zygote_is_killed(birth: str) -> None:
    iterator = iter(loader(Numbers(), birth))
    batches = []
    with pytest.warns(StokerWarning, match=r"the helper process \(pid \d+\).*\nAnother helper process is started"):
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number in (3, 8):
                os.kill(iterator._backend.pids[0], signal.SIGKILL)
    assert bytes_of(batches) == calm()  # those that lay in the dead one's memory too


def test_zygote_deaths_with_batches_between_are_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is replaced at once: what kills, and may pass, is not there all the time."""
    pauses: list[float] = []
    monkeypatch.setattr(trainer.time, "sleep", pauses.append)
    iterator = iter(loader(Numbers(), max_restarts=100))
    batches = []
    with pytest.warns(StokerWarning, match="Another helper process is started"):
        for batch in iterator:
            batches.append(batch)
            if iterator._backend._life.has_answered:  # what came may be the last one's
                os.kill(iterator._backend.pids[0], signal.SIGKILL)
                ended(iterator._backend.pids[0])
    assert bytes_of(batches) == calm()
    assert len(pauses) > 1
    assert set(pauses) == {0.0}


def test_deaths_of_workers_and_zygotes_are_counted_together() -> None:
    iterator = iter(loader(Numbers(), max_restarts=2))
    next(iterator)
    with pytest.warns(StokerWarning):
        for _ in range(2):
            before = set(workers_of(iterator._backend.pids[0]))
            kill_a_worker(iterator._backend.pids[0])
            while len(before - set(iterator._backend.pids)) < 1:
                next(iterator)
        os.kill(iterator._backend.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="the helper process"):
            list(iterator)


def test_a_new_zygote_knows_of_the_deaths_before_it() -> None:
    iterator = iter(loader(Numbers(), max_restarts=2))
    next(iterator)
    with pytest.warns(StokerWarning):
        for _ in range(2):
            before = iterator._backend.pids[0]
            os.kill(before, signal.SIGKILL)
            while iterator._backend.pids[0] == before:
                next(iterator)
        while not workers_of(iterator._backend.pids[0]):
            next(iterator)
        kill_a_worker(iterator._backend.pids[0])
        with pytest.raises(WorkerDiedError, match="is killed by signal"):
            list(iterator)


def test_zygote_and_workers_are_killed_together() -> None:
    iterator = iter(loader(Numbers()))
    batches = [next(iterator)]
    zygote = iterator._backend.pids[0]
    os.kill(zygote, signal.SIGSTOP)
    for pid in workers_of(zygote):
        os.kill(pid, signal.SIGKILL)
    os.kill(zygote, signal.SIGKILL)
    ended(zygote)
    with pytest.warns(StokerWarning, match="Another helper process is started"):
        batches += iterator
    assert bytes_of(batches) == calm()


def test_the_zygote_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PULSE", 0.05)
    monkeypatch.setattr(trainer, "HUNG", 0.3)
    iterator = iter(loader(Numbers()))
    batches = [next(iterator)]
    os.kill(iterator._backend.pids[0], signal.SIGSTOP)
    with pytest.warns(StokerWarning, match="gave no sign of life"):
        batches += iterator
    assert bytes_of(batches) == calm()


def test_batches_in_the_users_hands_outlive_a_zygote() -> None:
    iterator = iter(loader(Numbers()))
    kept = [next(iterator) for _ in range(3)]
    os.kill(iterator._backend.pids[0], signal.SIGKILL)
    with pytest.warns(StokerWarning, match="Another helper process is started"):
        kept += iterator
    for batch in kept:
        batch[1][:, 1:] += 1  # changes this batch alone
    assert [int(batch[1][0, 0]) for batch in kept] == [int(batch[0][0, 0]) for batch in kept]
    assert all((batch[1][:, 1] == batch[1][:, 0] + 1).all() for batch in kept)


def test_persistent_workers_between_epochs() -> None:
    with loader(Numbers(), persistent_workers=True) as several:
        calm_loader = loader(Numbers(), num_workers=0, multiprocessing_context=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StokerWarning)
            for _ in range(3):
                iterator = iter(several)
                batches = []
                for batch in iterator:
                    batches.append(batch)
                assert bytes_of(batches) == bytes_of(calm_loader)
                kill_a_worker(iterator._backend.pids[0])


def test_a_sample_that_always_kills_ends_the_run_with_its_story() -> None:
    iterator = iter(loader(Numbers({30: die}), shuffle=False))
    batches = []
    with pytest.warns(StokerWarning), pytest.raises(WorkerDiedError, match=r"(?s)Killed.*at sample 30"):
        for batch in iterator:
            batches.append(batch)
    assert [int(batch[0][0, 0]) for batch in batches] == list(range(0, 28, 4))


def test_a_dataset_that_always_kills_ends_soon() -> None:
    dataset = Numbers(dict.fromkeys(range(N), die))
    with pytest.warns(StokerWarning), pytest.raises(WorkerDiedError, match="is killed by signal"):
        next(iter(loader(dataset)))


def test_one_warning_tells_of_all_deaths(tmp_path: Path) -> None:
    dataset = Numbers({index: Once(tmp_path / str(index), die) for index in (3, 25, 50)})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert bytes_of(loader(dataset)) == calm()
    assert len(told) == 1 and "(max_restarts=5)" in str(told[0].message)
    assert Path(told[0].filename).name == Path(__file__).name


@pytest.mark.parametrize("bad", [-1, True, "many"])
def test_max_restarts_is_a_count(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="max_restarts"):
        loader(Numbers(), max_restarts=bad)


# Streams


class Plain(IterableDataset[Any]):
    """Knows nothing of workers or states."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self._at = at or {}

    def __iter__(self) -> Iterator[Any]:
        for number in range(40):
            if number in self._at:
                self._at[number]()
            yield np.array([number, random.random()]), np.full(20_000, number)


class Keeping(Plain):
    """Shares itself out among the workers, and knows where it stands."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        super().__init__(at)
        self._next: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        if self._next is None:
            self._next = info.id
        while self._next < 40:
            number, self._next = self._next, self._next + info.num_workers
            if number in self._at:
                self._at[number]()
            yield np.array([number, random.random()]), np.full(20_000, number)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class Sharing(Plain):
    """Shares itself out among the workers, and does not know where it stands."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for number in range(info.id, 40, info.num_workers):
            if number in self._at:
                self._at[number]()
            yield np.array([number, random.random()]), np.full(20_000, number)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("at", [0, 1, 5, 22, 39])
@pytest.mark.parametrize("kind", [Plain, Keeping, Sharing])
def test_a_stream_goes_on_where_it_stood(kind: type[Plain], at: int, tmp_path: Path) -> None:
    expected = bytes_of(loader(kind()))
    assert bytes_of(loader(kind({at: Once(tmp_path / "died", die)}))) == expected
    assert (tmp_path / "died").exists()


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("kind", [Plain, Keeping])
def test_streams_outlive_their_zygote(kind: type[Plain]) -> None:
    expected = bytes_of(loader(kind()))
    iterator = iter(loader(kind()))
    batches = []
    for number, batch in enumerate(iterator):
        batches.append(batch)
        if number == 3:
            os.kill(iterator._backend.pids[0], signal.SIGKILL)
    assert bytes_of(batches) == expected


class Shuffled(Plain):
    """The order of what follows its first sample is drawn behind that."""

    def __init__(self, first: int, at: dict[int, Callable[[], object]] | None = None) -> None:
        super().__init__(at)
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        yield np.array([self._first, 0.0])
        numbers = list(range(self._first + 1, self._first + 13))
        random.shuffle(numbers)
        for place, number in enumerate(numbers):
            if self._first + place in self._at:
                self._at[self._first + place]()
            yield np.array([number, random.random()])


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("at", [0, 7, 100, 106])
def test_a_part_of_a_chain_goes_on_in_its_order(at: int, tmp_path: Path) -> None:
    calm = [batch[:, 0].astype(int).tolist() for batch in loader(ChainDataset([Shuffled(0), Shuffled(100)]))]
    assert sorted(number for batch in calm for number in batch) == [*range(13), *range(100, 113)]
    parts = [Shuffled(first, {at: Once(tmp_path / "died", die)}) for first in (0, 100)]
    assert [batch[:, 0].astype(int).tolist() for batch in loader(ChainDataset(parts))] == calm
    assert (tmp_path / "died").exists()


def read(iterator: Iterator[Any]) -> tuple[list[int], list[str]]:
    """The numbers in a stream's batches, and what was told of streams that were lost."""
    numbers: list[int] = []
    errors = []
    while True:
        try:
            numbers += next(iterator)[0][:, 0].astype(int).tolist()
        except StreamLostError as error:
            errors.append(str(error))
        except StopIteration:
            break
    return numbers, errors


class Anew(Plain):
    """Shares itself out, and gives its samples in an order that cannot be repeated."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        numbers = list(range(info.id, 40, info.num_workers))
        random.Random(os.urandom(8)).shuffle(numbers)
        for place, number in enumerate(numbers):
            if place in self._at and info.id == 1:
                self._at[place]()
            yield np.array([number, place]), np.full(20_000, number)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_a_stream_that_cannot_go_on_says_what_is_lost(tmp_path: Path) -> None:
    """Nothing is skipped or repeated without a word, and the other worker's stream goes on."""
    numbers, errors = read(iter(loader(Anew({10: Once(tmp_path / "died", die)}))))
    assert len(errors) == 1 and "worker 1 died" in errors[0] and "8 samples had been delivered" in errors[0]
    assert len(numbers) == len(set(numbers)) == 20 + 8 and set(range(0, 40, 2)) < set(numbers)


class OnlyOnce(Plain):
    """What it has read is gone, as out of a queue."""

    def __init__(self, pipe: int, at: Callable[[], object]) -> None:
        super().__init__({9: at})
        self._pipe = pipe

    def __iter__(self) -> Iterator[Any]:
        while line := os.read(self._pipe, 4):
            number = int(line)
            if number in self._at:
                self._at[number]()
            yield np.array([number, 0.0]), np.full(20_000, number)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_one_sample_shows_that_a_stream_cannot_be_reread(tmp_path: Path) -> None:
    """To find out that it cannot be read again."""
    out, into = os.pipe()
    try:
        os.write(into, b"".join(b"%04d" % number for number in range(40)))
        os.close(into)
        once = OnlyOnce(out, Once(tmp_path / "died", die))
        numbers, errors = read(iter(loader(once, num_workers=1, shard="none")))
        assert len(errors) == 1 and "seen at its 1. one" in errors[0] and "8 samples had been delivered" in errors[0]
        assert numbers == list(range(8))
        assert int(os.read(out, 4)) in (11, 12)  # 8 and 9 with the worker, 10 for this; one more if that is a batch's
    finally:
        os.close(out)


class Records(IterableDataset[int]):
    """A generator, in an order of its own or in one that cannot be repeated."""

    def __init__(self, first: int, length: int, anew: bool = False) -> None:
        self._numbers, self._anew = list(range(first, first + length)), anew

    def __iter__(self) -> Iterator[int]:
        if self._anew:
            random.Random(os.urandom(8)).shuffle(self._numbers)
        yield from self._numbers


class Dying:
    """Calls back at the twelfth sample."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call, self._calls = call, 0

    def __call__(self, number: int) -> int:
        self._calls += 1
        if self._calls == 12:
            self._call()
        return number


FOLDER: list[Path] = []
BELOW: dict[str, Callable[[Any], Any]] = {
    "alone": lambda stream: stream,
    "chain": lambda stream: ChainDataset([Records(100, 5), stream]),
    "shuffle": lambda stream: stoker.ShuffleDataset(stream, 8),
    "interleave": lambda stream: stoker.InterleaveDataset([stream, Records(100, 9)], open_at_once=2),
    "mix": lambda stream: stoker.MixDataset([stream, Records(100, 9)], [1, 1], stop="drop"),
    "window": lambda stream: stoker.MapDataset(stoker.WindowDataset(stream, 1), sum),
    "zip": lambda stream: stoker.MapDataset(stoker.ZipDataset(stream, Records(100, 40)), min),
    "cache": lambda stream: stoker.CacheDataset(stream, folder=tempfile.mkdtemp(dir=FOLDER[0]), key="records"),
    "pack": lambda stream: stoker.MapDataset(
        stoker.PackDataset(stoker.MapDataset(stream, lambda number: [number]), 1), lambda row: int(row["tokens"][0])
    ),
    "chain of shuffle": lambda stream: ChainDataset([Records(100, 5), stoker.ShuffleDataset(stream, 4)]),
}


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("below", BELOW)
def test_wrapped_generators_go_on_if_they_repeat_their_samples(below: str, anew: bool, tmp_path: Path) -> None:
    """Else nothing is lost or doubled without a word."""

    FOLDER[:] = [tmp_path]

    def made(call: Callable[[], object]) -> Any:
        return stoker.MapDataset(BELOW[below](Records(0, 30, anew)), Dying(call))

    calm = flat(loader(made(print), num_workers=1))
    numbers: list[int] = []
    errors = []
    iterator = iter(loader(made(Once(tmp_path / "died", die)), num_workers=1))
    while True:
        try:
            numbers += next(iterator).tolist()
        except StreamLostError as error:
            errors.append(str(error))
        except StopIteration:
            break
    assert (tmp_path / "died").exists()
    if anew:
        assert len(errors) == 1 and "worker 0 died" in errors[0]
        assert len(numbers) == len(set(numbers)) < len(calm)
    else:
        assert not errors and numbers == calm


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


class Picking(Plain):
    """Draws its order from a generator that it holds, and that goes on from epoch to epoch."""

    def __init__(self, epoch: int, at: Callable[[], object]) -> None:
        super().__init__({21: at})
        self._rng, self._left = np.random.default_rng(0), epoch

    def __iter__(self) -> Iterator[Any]:
        self._left -= 1
        for place, number in enumerate(self._rng.permutation(40)):
            if self._left == 0 and place in self._at:
                self._at[place]()
            yield np.array([number, place]), np.full(20_000, number)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("epoch", [1, 2])
def test_stream_is_reread_only_with_its_generator_at_the_start(epoch: int, tmp_path: Path) -> None:
    with loader(Picking(epoch, Once(tmp_path / "died", die)), persistent_workers=True) as several:
        for _ in range(epoch):
            numbers, errors = read(iter(several))
    assert len(numbers) == len(set(numbers))
    assert (len(errors), len(numbers) == 40) == ((0, True) if epoch == 1 else (1, False))


class CannotSay(Sharing):
    """Shares itself out among the workers, and fails to say where it stands."""

    def state_dict(self) -> Any:
        raise OSError("the connection is closed")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("birth", ["fork", "forkserver"])
def test_stream_whose_state_failed_is_not_restarted(birth: str, tmp_path: Path) -> None:
    numbers, errors = read(iter(loader(CannotSay({21: Once(tmp_path / "died", die)}), birth)))
    assert len(errors) == 1 and "the connection is closed" in errors[0] and "8 samples had been delivered" in errors[0]
    assert sorted(numbers) == sorted([*range(0, 40, 2), *range(1, 17, 2)])
