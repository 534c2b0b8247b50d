"""Datasets with `async def __getitem__`: several samples in flight in each worker, and otherwise all as ever."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, SkipSample, StokerWarning, get_worker_info, sample_rng
from stoker._engine.fork import forked_process, trainer
from stoker.errors import EventLoopError, LoaderTimeoutError
from stoker.loader._job import async_samples
from tests.faults.runs import crashes

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU

FORK: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {**FORK, "num_workers": 2},
}
on_all = pytest.mark.parametrize("how", BACKENDS.values(), ids=BACKENDS)
in_workers = pytest.mark.parametrize("how", [BACKENDS["threads"] | {"num_workers": 1}, FORK], ids=["thread", "process"])


@pytest.fixture(autouse=True)
def no_loop_of_this_thread() -> Iterator[None]:
    """Without a worker the event loop stays with its thread, for the next epoch."""
    yield
    gc.collect()
    async_samples._of_thread.close()


class Awaited:
    """Sample k is what a function makes of k."""

    def __init__(self, make: Callable[[int], Any], length: int = 24) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    async def __getitem__(self, index: int) -> Any:
        return await self.make(index)


async def itself(index: int) -> int:
    await asyncio.sleep(0)
    return index


def epoch(make: Callable[[int], Any], batch: int | None = 4, length: int = 24, **settings: Any) -> list[Any]:
    """All samples of an epoch."""
    settings = {"collate_fn": list if batch else lambda sample: [sample], "output": "numpy", **settings}
    with DataLoader(Awaited(make, length), batch, **settings) as loader:
        return [sample for batch in loader for sample in batch]


class Meeting:
    """Lets nobody go on before `number` are here."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.here: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        self.here.append(asyncio.get_running_loop().create_future())
        if len(self.here) == self.number:
            for future in self.here:
                future.set_result(None)
            self.here = []
        else:
            await self.here[-1]


# How many at once


@on_all
def test_samples_of_a_batch_are_in_flight_together(how: dict[str, Any]) -> None:
    meetings: dict[Any, Meeting] = {}

    async def make(index: int) -> int:
        await meetings.setdefault(asyncio.get_running_loop(), Meeting(8)).wait()
        return index

    with DataLoader(Awaited(make, 32), 8, output="numpy", **how) as loader:
        assert np.concatenate([*loader]).tolist() == list(range(32))


@in_workers
@pytest.mark.parametrize("batch", [1, 3, None])
def test_samples_in_flight_cross_batches(how: dict[str, Any], batch: int | None) -> None:
    meeting = Meeting(6)

    async def make(index: int) -> int:
        await meeting.wait()
        return index

    assert epoch(make, batch, concurrency=6, **how) == list(range(24))


@on_all
@pytest.mark.parametrize(("settings", "most"), [({}, 16), ({"concurrency": 3}, 3), ({"concurrency": 1}, 1)], ids=str)
def test_no_more_than_concurrency_are_in_flight(how: dict[str, Any], settings: dict[str, Any], most: int) -> None:
    flying: dict[Any, int] = {}

    async def make(index: int) -> int:
        loop = asyncio.get_running_loop()
        flying[loop] = flying.get(loop, 0) + 1
        seen = flying[loop]
        await asyncio.sleep(0.001)
        flying[loop] -= 1
        return seen

    assert max(epoch(make, 32, 64, **how, **settings)) == most


class InOneCall(Awaited):
    async def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(await self.make(index), sample_rng().random_generator.random()) for index in indices]


@on_all
def test_batches_fetched_in_one_call_are_awaited(how: dict[str, Any]) -> None:
    class Plain(Awaited):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [(index, sample_rng().random_generator.random()) for index in indices]

    runs = [
        [*DataLoader(kind(itself), 4, seed=1, collate_fn=list, output="numpy", **settings)]
        for kind, settings in ((Plain, {}), (InOneCall, how), (InOneCall, {**how, "concurrency": 1}))
    ]
    assert runs[0] == runs[1] == runs[2]


# Randomness


async def draws(index: int) -> Any:
    own, numbers = sample_rng(), []
    for _ in range(3):
        await asyncio.sleep(random.SystemRandom().random() / 1000)
        numbers.append(own.random_generator.random())
    numbers.append(await asyncio.create_task(drawn_later()))
    numbers.append(await asyncio.to_thread(lambda: float(sample_rng().numpy_generator.random())))
    return index, numbers


async def drawn_later() -> float:
    await asyncio.sleep(0)
    info = get_worker_info()
    return (sample_rng() if info is None or info.rng is None else info.rng).random_generator.random()


@on_all
@pytest.mark.parametrize("batch", [5, None])
def test_numbers_follow_from_a_samples_place(how: dict[str, Any], batch: int | None) -> None:
    settings: dict[str, Any] = {"batch": batch, "shuffle": True, "seed": 7}
    model = epoch(draws, concurrency=1, **settings)
    assert len({sample[1][0] for sample in model}) == 24
    assert epoch(draws, concurrency=8, **settings, **how) == model


@on_all
def test_a_sample_knows_its_worker_after_an_await(how: dict[str, Any]) -> None:
    async def make(index: int) -> Any:
        await asyncio.sleep(0)
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers, info.worker_method)

    method = {"thread": "thread"}.get(how.get("worker_method", ""), "multiprocessing")
    known = {(number, 2, method) for number in range(2)} if how else {None}
    assert set(epoch(make, 1, **how)) <= known


def test_a_leaked_task_draws_nothing_of_later_samples() -> None:
    leaked: list[Any] = []

    async def leaks(index: int) -> float:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(0)
                sample_rng().random_generator.random()

        if index == 0:
            leaked.append(asyncio.create_task(go_on()))
        await asyncio.sleep(0.002)
        return sample_rng().random_generator.random()

    async def alone(index: int) -> float:
        return sample_rng().random_generator.random()

    assert epoch(leaks, seed=3)[1:] == epoch(alone, seed=3)[1:]
    leaked[0].cancel()
    async_samples._of_thread.get().run_until_complete(asyncio.gather(*leaked, return_exceptions=True))


@pytest.mark.parametrize("how", [BACKENDS["serial"], FORK], ids=["serial", "process"])
def test_global_generators_cause_one_warning(how: dict[str, Any]) -> None:
    async def make(index: int) -> float:
        await asyncio.sleep(0)
        return random.random()

    with pytest.warns(StokerWarning) as caught:
        epoch(make, **how)
    (warning,) = caught
    assert "that all samples in flight share: Python's global one. With concurrency=16" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch(make, seeding="worker", **how)
        assert epoch(make, concurrency=1, seed=1, **how) == epoch(make, concurrency=1, seed=1)


def test_global_generators_of_threads_cause_a_warning() -> None:
    async def make(index: int) -> float:
        await asyncio.sleep(0.001 * (index % 3))
        return random.random()

    with pytest.warns(StokerWarning, match="of Python moved while a worker thread made its first samples"):
        epoch(make, length=400, **BACKENDS["threads"] | {"num_workers": 1})


# Faults


@on_all
def test_first_failing_sample_is_that_of_the_batch(how: dict[str, Any]) -> None:
    ended: list[str] = []

    async def make(index: int) -> int:
        try:
            await asyncio.sleep({5: 0.01, 7: 0.0}.get(index, 0.001))
            if index in (5, 7):
                raise ValueError(f"sample {index} is broken")
            if index == 6:
                await asyncio.sleep(3600)
            return index
        finally:
            ended.append(f"{index}")

    with DataLoader(Awaited(make), 8, output="numpy", **how) as loader:
        iterator = iter(loader)
        with pytest.raises(ValueError, match="sample 5 is broken"):
            next(iterator)
        assert next(iterator).tolist() == list(range(8, 16))
    assert how.get("multiprocessing_context") or "6" in ended


@on_all
@pytest.mark.parametrize("concurrency", [1, 8])
def test_policy_is_asked_in_order(how: dict[str, Any], concurrency: int) -> None:
    asked: list[Any] = []

    def decide(record: Any) -> Any:
        asked.append(record.index)
        return "skip" if record.index % 2 else "replace"

    async def make(index: int) -> Any:
        await asyncio.sleep(0)
        if index in (2, 5, 6, 11):
            raise ValueError(index)
        return index, sample_rng().random_generator.random()

    settings: dict[str, Any] = {"on_error": decide, "seed": 1, "max_error_rate": None}
    with pytest.warns(StokerWarning):
        model, found = (
            epoch(make, 8, concurrency=1, **settings),
            epoch(make, 8, concurrency=concurrency, **settings, **how),
        )
    assert found == model
    assert how or asked == [2, 5, 6, 11] * 2


@on_all
def test_each_sample_is_asked_for_once(how: dict[str, Any]) -> None:
    calls: list[int] = []

    async def make(index: int) -> int:
        calls.append(index)
        await asyncio.sleep(0)
        if index == 3:
            raise SkipSample("not wanted")
        return calls.count(index)

    assert epoch(make, 8, **how) == [1] * 23


@on_all
def test_a_cancelled_sample_is_an_error_of_its_own(how: dict[str, Any]) -> None:
    async def make(index: int) -> int:
        if index == 2:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return index

    with pytest.warns(StokerWarning):
        assert epoch(make, on_error="skip", max_error_rate=None, **how) == [0, 1, *range(3, 24)]


@on_all
def test_sample_that_cancels_all_tasks_stops_no_other(how: dict[str, Any]) -> None:
    async def make(index: int) -> int:
        if index == 2:
            for task in asyncio.all_tasks():
                task.cancel()
        return index  # no await: the others are between two samples

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)
        found = epoch(make, on_error="skip", max_errors=None, max_error_rate=None, **how)
    assert set(found) <= {*range(24)} and len(found) >= 8


def test_an_error_of_the_loop_itself_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(async_samples.InFlight, "put", broken)
    with pytest.raises(MemoryError):
        epoch(itself)


def test_sample_that_swallows_its_cancellation_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_samples, "CANCELLED", 0.05)
    release: list[asyncio.Event] = []

    async def make(index: int) -> int:
        if index == 0:
            await asyncio.sleep(0)
            raise KeyError(index)
        if index == 1:
            release.append(asyncio.Event())
            while not release[0].is_set():
                try:
                    await release[0].wait()
                except asyncio.CancelledError:
                    continue
        return index

    with DataLoader(Awaited(make), 4, concurrency=2, output="numpy") as loader:
        iterator = iter(loader)
        with pytest.raises(KeyError):
            next(iterator)
        assert next(iterator).tolist() == [4, 5, 6, 7]
        release[0].set()
        assert np.concatenate([*iterator]).tolist() == list(range(8, 24))


@pytest.mark.parametrize("how", [{}, FORK], ids=["serial", "process"])
def test_sample_that_exits_the_interpreter_ends_the_loop(how: dict[str, Any]) -> None:
    async def make(index: int) -> int:
        await asyncio.sleep(0)
        return sys.exit(4) if index == 2 else index

    with pytest.raises(stoker.WorkerDiedError if how else SystemExit):
        epoch(make, max_restarts=0, **how)


def test_ctrl_c_cancels_and_loses_no_batch() -> None:
    cancelled: list[int] = []
    interrupted: list[int] = []

    async def make(index: int) -> int:
        if index == 5 and not interrupted:
            interrupted.append(index)
            raise KeyboardInterrupt
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            cancelled.append(index)
            raise
        return index

    iterator = iter(DataLoader(Awaited(make), 8, output="numpy"))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert cancelled == [0, 1, 2, 3, 4]
    assert np.concatenate([*iterator]).tolist() == list(range(24))


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_killing_sample_in_flight_is_found_in_three_deaths() -> None:
    async def make(index: int) -> int:
        await asyncio.sleep(0)
        return crashes(index) if index == 13 else index

    events: list[Any] = []
    settings = {"on_error": "skip", "on_event": events.append, "max_restarts": 1}
    assert epoch(make, **FORK, **settings) == [index for index in range(24) if index != 13]
    assert [event.kind for event in events] == ["death", "death", "poison_sample", "error"]


async def hangs(index: int) -> int:
    if index == 9:
        await deeper()
    return index


async def deeper() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on a busy machine has time to write its stacks: it is asked until it has."""
    for module in (forked_process, trainer):
        monkeypatch.setattr(module, "STACKS", 30.0)


@in_workers
@pytest.mark.usefixtures("patient")
@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_a_sample_that_hangs_is_named_with_its_awaits(how: dict[str, Any]) -> None:
    with pytest.raises(stoker.errors.StalledError) as caught:
        epoch(hangs, stall_warning=0.5, stall_action="raise", **how)
    assert "sample 9, or another sample that was made at the same time" in str(caught.value)
    assert f'{os.path.basename(__file__)}", line {deeper.__code__.co_firstlineno + 1} in deeper' in str(caught.value)
    assert f"line {hangs.__code__.co_firstlineno + 2} in hangs" in str(caught.value)


@in_workers
@pytest.mark.usefixtures("patient")
def test_a_timeout_ends_the_wait_for_samples_in_flight(how: dict[str, Any]) -> None:
    with DataLoader(Awaited(hangs), 4, output="numpy", timeout=100, **how) as loader:
        iterator: Any = iter(loader)
        assert [next(iterator).tolist(), next(iterator).tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        iterator._timeout = 1  # only now: a worker on a busy machine takes longer to begin
        with pytest.raises(LoaderTimeoutError, match="in deeper"):
            next(iterator)


def test_samples_in_flight_are_cancelled_when_a_worker_ends(tmp_path: Any) -> None:
    async def make(index: int) -> int:
        if index < 4:
            return index
        (tmp_path / f"{index} begins").touch()
        try:
            await asyncio.sleep(3600)
        finally:
            (tmp_path / f"{index} ends").touch()
        return index

    iterator = iter(DataLoader(Awaited(make), 4, output="numpy", **FORK))
    next(iterator)
    while not [*tmp_path.glob("* begins")]:
        pass
    iterator.close()  # type: ignore[attr-defined]
    assert len([*tmp_path.glob("* ends")]) == len([*tmp_path.glob("* begins")])


def test_samples_in_flight_are_cancelled_when_a_thread_ends() -> None:
    begun, ended = [], []

    async def make(index: int) -> int:
        if index < 4:
            return index
        begun.append(index)
        try:
            await asyncio.sleep(0.05 if index < 8 else 3600)
        finally:
            ended.append(index)
        return index

    iterator = iter(DataLoader(Awaited(make), 4, num_workers=1, worker_method="thread", output="numpy"))
    next(iterator)
    while len(begun) < 8:
        pass
    iterator.close()  # type: ignore[attr-defined]
    assert sorted(ended) == sorted(begun)


# Inside others


async def pair(index: int) -> Any:
    return index, sample_rng().random_generator.random()


def doubled(sample: Any) -> Any:
    return 2 * sample[0], sample[1], sample_rng().random_generator.random()


AROUND: dict[str, Callable[[Any], Any]] = {
    "Subset": lambda data: stoker.Subset(data, range(23, -1, -1)),
    "ConcatDataset": lambda data: stoker.ConcatDataset([stoker.Subset(data, [1, 2]), data]),
    "StackDataset": lambda data: stoker.StackDataset(data, range(24)),
    "StackDataset by name": lambda data: stoker.StackDataset(a=data, b=data),
    "ZipDataset": lambda data: stoker.ZipDataset(range(24), data),
    "MapDataset": lambda data: stoker.MapDataset(data, doubled),
    "MixDataset": lambda data: stoker.MixDataset([data, data], [2, 1]),
    "ViewsDataset": lambda data: stoker.ViewsDataset(data, 2, lambda sample, view: (*sample, view)),
    "ViewsDataset grouped": lambda data: stoker.ViewsDataset(data, 2, grouped=True),
    "RetryDataset": stoker.RetryDataset,
    "RateLimitDataset": lambda data: stoker.RateLimitDataset(data, 1e6),
    "CacheDataset": lambda data: stoker.CacheDataset(data, memory=1 << 20),
}


@pytest.mark.parametrize("name", AROUND)
def test_samples_inside_stokers_datasets_are_awaited(name: str) -> None:
    class Model:
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> Any:
            return index, sample_rng().random_generator.random()

    settings: dict[str, Any] = {"seed": 5, "shuffle": True, "collate_fn": list, "output": "numpy"}
    model = [*DataLoader(AROUND[name](Model()), 4, **settings)]
    for how in ({}, {"num_workers": 1, "worker_method": "thread"}):
        around = AROUND[name](Awaited(pair))
        assert "awaited" in DataLoader(around, 4).describe()
        for _ in range(2):  # the second time from a cache
            found = [*DataLoader(around, 4, **settings, **how)]
            assert found == model


def test_documents_that_are_awaited_are_packed() -> None:
    async def document(index: int) -> list[int]:
        return [index] * (index % 5)

    lengths = [index % 5 for index in range(24)]
    rows = [stoker.PackDataset(data, 8, lengths) for data in (Awaited(document), [[i] * (i % 5) for i in range(24)])]
    found, model = ([row["tokens"].tolist() for row in DataLoader(each, None, output="numpy")] for each in rows)
    assert found == model


def test_awaited_samples_are_tried_again_with_their_numbers() -> None:
    failed: set[int] = set()

    async def make(index: int) -> Any:
        number = sample_rng().random_generator.random()
        await asyncio.sleep(0)
        if index % 3 == 0 and index not in failed:
            failed.add(index)
            raise ConnectionError(index)
        return index, number

    data = stoker.RetryDataset(Awaited(make), wait=0.001)
    settings: dict[str, Any] = {"seed": 5, "collate_fn": list, "output": "numpy"}
    assert [*DataLoader(data, 4, **settings)] == [*DataLoader(Awaited(make), 4, **settings)]
    assert len(failed) == 8


class Around:
    """A user's: no `async def`, but what it returns is awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@on_all
def test_samples_inside_a_users_dataset_are_awaited(how: dict[str, Any]) -> None:
    async def make(index: int) -> Any:
        before = sample_rng().random_generator.random()
        await asyncio.sleep(0.001)
        return index, before, sample_rng().random_generator.random()

    settings: dict[str, Any] = {"seed": 1, "output": "numpy", "shuffle": True}
    model, found = (
        [[leaf.tolist() for leaf in batch] for batch in DataLoader(data, 4, **more, **settings)]
        for data, more in ((Awaited(make), {}), (Around(Awaited(make)), how))
    )
    assert found == model


# Arguments


def test_a_running_event_loop_is_an_error_with_the_way_out() -> None:
    async def notebook() -> Any:
        with pytest.raises(EventLoopError, match="num_workers=1"):
            iter(DataLoader(Awaited(itself), 4))
        return [*DataLoader(Awaited(itself), 4, collate_fn=list, output="numpy", **FORK)]

    assert asyncio.run(notebook()) == [[n, n + 1, n + 2, n + 3] for n in range(0, 24, 4)]


class AsStream:
    async def __aiter__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("dataset", "settings", "kind", "words"),
    [
        (range(4), {"concurrency": 4}, ValueError, "range has no `async def __getitem__`"),
        (Awaited(itself), {"concurrency": -1}, ValueError, "concurrency"),
        (Awaited(itself), {"concurrency": "4"}, TypeError, "concurrency"),
        (Awaited(itself), {"threads_per_worker": 4, "num_workers": 1}, ValueError, "use concurrency=4"),
        (AsStream(), {}, TypeError, "`async def __getitem__`, of which each worker"),
    ],
    ids=["no async", "number", "type", "threads", "stream"],
)
def test_wrong_arguments_are_refused(dataset: Any, settings: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        DataLoader(dataset, **settings)


def test_concurrency_of_0_leaves_the_awaiting_to_the_collate_fn() -> None:
    def collate(samples: list[Any]) -> list[Any]:
        async def all_of() -> list[Any]:
            return await asyncio.gather(*samples)

        return asyncio.run(all_of())

    assert epoch(itself, concurrency=0, collate_fn=collate) == list(range(24))


@pytest.mark.parametrize("own", [True, False], ids=["own collate_fn", "torch's"])
def test_installed_loaders_await_where_torchs_would_fail(own: bool) -> None:
    torch = pytest.importorskip("torch")

    def collate(samples: list[Any]) -> list[Any]:
        async def all_of() -> list[Any]:
            return await asyncio.gather(*samples)

        return asyncio.run(all_of())

    with stoker.install(images=False):
        loader = torch.utils.data.DataLoader(Awaited(itself), 4, collate_fn=collate if own else None)
        assert [int(sample) for batch in loader for sample in batch] == list(range(24))


def test_sessions_of_samples_outlive_an_epoch() -> None:
    """Without a worker: what is bound to the event loop is still usable."""
    loops = set()

    async def make(index: int) -> int:
        loops.add(asyncio.get_running_loop())
        return index

    for _ in range(2):
        epoch(make)
    assert len(loops) == 1


LEFT = """
import asyncio, sys, stoker

class Dataset:
    def __len__(self):
        return 8

    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return index

def collate(samples):
    if sys.argv[1] == "error":
        raise ValueError
    return samples

batches = iter(stoker.DataLoader(Dataset(), 2, collate_fn=collate, output="numpy"))
try:
    next(batches)
except ValueError:
    pass
"""


@pytest.mark.parametrize("how", ["break", "error"])
def test_a_program_that_ends_in_an_epoch_says_nothing(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT, how], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
