"""`threads_per_worker`: several samples at once in each worker process, and otherwise all as with one."""

from __future__ import annotations

import gc
import os
import random
import select
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, SkipSample, StokerWarning, WorkerDiedError, get_worker_info, sample_rng
from tests.faults.runs import Samples, crashes, fates, is_killed, story
from tests.faults.runs import loader as faulty

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork"),
]

FORK: dict[str, Any] = {"multiprocessing_context": "fork", "output": "numpy"}
LONGEST = 20.0


class Made:
    """Sample k is what a function makes of k, in whatever thread it is asked."""

    def __init__(self, make: Callable[[int], Any], length: int = 24) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def epoch(
    make: Callable[[int], Any],
    threads: int = 4,
    batch: int | None = 4,
    workers: int = 1,
    length: int = 24,
    **settings: Any,
) -> list[Any]:
    """All samples of an epoch."""
    settings = {**FORK, "collate_fn": list, **settings}
    with DataLoader(Made(make, length), batch, num_workers=workers, threads_per_worker=threads, **settings) as loader:
        return [sample for batch in loader for sample in batch]


def rng() -> random.Random:
    return sample_rng().random_generator


# How many at once


def test_samples_of_a_batch_are_made_at_once() -> None:
    together = threading.Barrier(4)

    def make(index: int) -> int:
        together.wait(LONGEST)  # until three others are here as well
        return index

    assert epoch(make) == list(range(24))


@pytest.mark.parametrize("batch", [1, 2, 3, None])
def test_threads_go_on_with_the_next_batches(batch: int) -> None:
    together = threading.Barrier(6)

    def make(index: int) -> list[int]:
        together.wait(LONGEST)
        return [index]

    found = epoch(make, threads=6, batch=batch)
    assert [sample if batch is None else sample[0] for sample in found] == list(range(24))


@pytest.mark.parametrize("around", [lambda data: stoker.Subset(data, range(24)), stoker.StackDataset])
def test_threads_go_on_inside_a_wrapping_stoker_dataset(around: Callable[[Any], Any]) -> None:
    together = threading.Barrier(8)

    def make(index: int) -> int:
        together.wait(LONGEST)
        return index

    loader = DataLoader(around(Made(make)), 4, num_workers=1, threads_per_worker=8, **FORK)
    assert np.concatenate([np.ravel(batch) for batch in loader]).tolist() == list(range(24))


def test_worker_runs_at_most_threads_per_worker_samples() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def make(index: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        select.select([], [], [], 0.001)
        with lock:
            running[0] -= 1
        return most[0]

    assert max(epoch(make, threads=3, batch=8)) <= 3


def test_the_dataset_is_one_and_the_trainer_has_no_thread() -> None:
    before = set(sys._current_frames())
    dataset = Made(lambda index: (id(dataset), threading.get_ident(), os.getpid()))
    with DataLoader(dataset, 8, num_workers=1, threads_per_worker=4, collate_fn=list, **FORK) as loader:
        samples = [sample for batch in loader for sample in batch]
        assert set(sys._current_frames()) == before
    identities, _, pids = zip(*samples, strict=True)
    assert set(identities) == {id(dataset)}
    assert len(set(pids)) == 1 and os.getpid() not in pids


def test_each_thread_knows_its_worker() -> None:
    torchs = pytest.importorskip("torch.utils.data").get_worker_info

    def make(index: int) -> Any:
        mine, theirs = get_worker_info(), torchs()
        assert mine is not None and theirs is mine
        return mine.id, mine.num_workers, mine.worker_method, type(mine.dataset).__name__

    assert set(epoch(make, workers=2)) <= {(worker, 2, "multiprocessing", "Made") for worker in range(2)}


def test_torchs_operators_run_in_one_thread_each() -> None:
    torch = pytest.importorskip("torch")
    assert set(epoch(lambda index: torch.get_num_threads(), workers=2)) == {1}


@pytest.mark.parametrize(
    "settings", [{"threads_per_worker": 2}, {"worker_method": "thread", "num_workers": 2}], ids=repr
)
def test_a_sample_may_import_torch_beside_others(settings: dict[str, Any], tmp_path: Path) -> None:
    """While a module is being imported other threads find it half made, with nothing in it."""
    program = tmp_path / "program.py"
    program.write_text(
        """if True:
        import sys, threading
        import numpy as np, stoker
        sys.went_on = threading.Event()
        class Data:
            def __len__(self):
                return 16
            def __getitem__(self, index):
                if index == 0:
                    import torch
                if index == 5:
                    sys.went_on.set()
                return {"array": np.array([index]), "number": index}
        settings = {"num_workers": 1, "prefetch_factor": 8, **eval(sys.argv[1])}
        loader = stoker.DataLoader(Data(), 2, output="numpy", **settings)
        assert [batch["number"].tolist() for batch in loader] == [[n, n + 1] for n in range(0, 16, 2)]
        """
    )
    half_made = tmp_path / "torch.py"
    half_made.write_text(f"import sys\nassert sys.went_on.wait({LONGEST})\n")
    said = subprocess.run(
        [sys.executable, str(program), repr(settings)],
        env={**os.environ, "STOKER_TORCH": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert said.returncode == 0, said.stderr


def test_batch_fetched_in_one_call_uses_one_thread() -> None:
    class AtOnce(Made):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            assert threading.current_thread() is threading.main_thread()
            return [(index, random.random()) for index in indices]

    def run(**settings: Any) -> list[Any]:
        loader = DataLoader(AtOnce(int), 4, seed=3, collate_fn=list, output="numpy", **settings)
        return [sample for batch in loader for sample in batch]

    assert run(num_workers=1, threads_per_worker=4) == run()  # global generators are seeded, as ever


def test_gathered_batches_and_those_of_other_collators() -> None:
    data = stoker.TensorDataset(np.arange(24))
    for collate_fn in (None, list):
        runs = [
            [np.asarray(batch).tolist() for batch in DataLoader(data, 4, collate_fn=collate_fn, **FORK | how)]
            for how in ({"num_workers": 2, "threads_per_worker": 4}, {"multiprocessing_context": None})
        ]
        assert runs[0] == runs[1]


# Randomness


@pytest.mark.filterwarnings("ignore:threads_per_worker=. has no effect")
@pytest.mark.parametrize("batch", [1, 5, None])
def test_numbers_follow_from_the_place_of_a_sample(batch: int | None) -> None:
    def make(index: int) -> Any:
        own = sample_rng()
        return index, own.random_generator.random(), float(own.numpy_generator.random())

    settings: dict[str, Any] = {"batch": batch, "shuffle": True, "seed": 7}
    if batch is None:
        settings["collate_fn"] = lambda sample: [sample]
    model = epoch(make, threads=1, **settings)
    assert len({sample[1] for sample in model}) == 24
    assert epoch(make, threads=3, **settings) == model
    assert epoch(make, threads=8, workers=3, **settings) == model
    assert epoch(make, threads=8, workers=2, prefetch_factor=1, **settings) == model
    assert epoch(make, workers=0, **settings | {"multiprocessing_context": None}) == model


def shared(index: int) -> float:
    return random.random()


def test_global_generators_warn_once() -> None:
    with pytest.warns(StokerWarning) as caught:
        epoch(shared, workers=2)
    (warning,) = caught
    assert "that all threads of a worker share: Python's global one" in str(warning.message)
    assert warning.filename == __file__


def test_generators_of_the_dataset_warn_once_and_differ() -> None:
    """Generators that the dataset holds cause one warning, and no two workers draw the same."""
    held = np.random.default_rng(0)
    with pytest.warns(StokerWarning, match="one that the dataset holds") as caught:
        drawn = epoch(lambda index: float(held.random()), workers=2, batch=1)
    assert len(caught) == 1
    assert len(set(drawn)) == 24


@pytest.mark.slow
def test_torch_generator_of_a_lazy_import_is_watched() -> None:
    program = """if True:
        import sys, warnings, stoker
        class Late:
            def __len__(self): return 8
            def __getitem__(self, index):
                import torch
                return float(torch.rand(()))
        warnings.simplefilter("error")
        settings = dict(num_workers=1, threads_per_worker=2, multiprocessing_context="fork", output="numpy")
        try:
            list(stoker.DataLoader(Late(), 2, **settings))
        except stoker.StokerWarning as warning:
            print(warning)
    """
    import subprocess

    pytest.importorskip("torch")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "torch's global one" in ran.stdout, ran.stderr


def test_no_warning_without_draws_or_if_the_user_opted_in() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch(int)
        epoch(shared, seeding="worker")
        epoch(shared, worker_init_fn=random.seed)  # they are the user's then
        epoch(lambda index: rng().random())


def test_a_collator_draws_as_with_one_thread() -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return [(sample, random.random(), rng().random()) for sample in samples]

    runs = [epoch(int, threads, seed=3, collate_fn=collate) for threads in (1, 4)]
    assert runs[0] == runs[1]


# Epochs


@pytest.mark.parametrize("persistent", [False, True])
def test_dataset_gets_the_epoch_before_its_samples_begin(persistent: bool) -> None:
    class Told(Made):
        stoker_protocol = True
        number = -1

        def set_epoch(self, number: int) -> None:
            self.number = number

    told = Told(lambda index: told.number)
    settings = {**FORK, "collate_fn": list, "persistent_workers": persistent}
    with DataLoader(told, 2, num_workers=1, threads_per_worker=6, **settings) as loader:
        for number in range(3):
            assert [sample for batch in loader for sample in batch] == [number] * 24


def test_dataset_gets_the_epoch_after_an_abandoned_one() -> None:
    class Told(Made):
        stoker_protocol = True
        number = -1

        def set_epoch(self, number: int) -> None:
            self.number = number

    def make(index: int) -> int:
        select.select([], [], [], 0.001)  # work
        return told.number

    told = Told(make, 100)
    settings = {**FORK, "collate_fn": list, "persistent_workers": True}
    with DataLoader(told, 2, num_workers=1, threads_per_worker=6, **settings) as loader:
        for number in range(10):
            iterator = iter(loader)
            assert [next(iterator) for _ in range(5)] == [[number] * 2] * 5


def test_threaded_loader_resumes_in_the_middle_of_an_epoch() -> None:
    def make() -> Any:
        return DataLoader(range(40), 3, shuffle=True, seed=1, num_workers=2, threads_per_worker=4, **FORK)

    whole = [batch.tolist() for batch in make()]
    first = make()
    iterator = iter(first)
    begun = [next(iterator).tolist() for _ in range(5)]
    second = make()
    second.load_state_dict(first.state_dict())
    assert begun + [batch.tolist() for batch in second] == whole
    iterator.close()  # type: ignore[attr-defined]


def test_little_memory_stops_no_thread() -> None:
    """Batches that are made ahead wait for the earlier ones to be delivered."""
    samples = [np.full(1 << 18, index, np.uint8) for index in range(24)]
    with DataLoader(
        samples, 2, num_workers=2, threads_per_worker=6, memory_budget=4 << 20, timeout=LONGEST, **FORK
    ) as loader:
        for number, batch in enumerate(loader):
            assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]


def test_workers_retire_and_are_replaced() -> None:
    with pytest.warns(StokerWarning, match="max_samples_per_worker"):
        assert epoch(int, workers=2, max_samples_per_worker=5) == list(range(24))


# Faults


def test_first_of_several_failing_samples_is_named() -> None:
    later = threading.Event()

    def make(index: int) -> int:
        if index == 7:
            later.set()
            raise KeyError(index)
        if index == 5:
            later.wait(LONGEST)
            raise ValueError(f"sample {index} is broken")
        return index

    with DataLoader(Made(make), 8, num_workers=1, threads_per_worker=4, **FORK) as loader:
        iterator = iter(loader)
        with pytest.raises(ValueError, match="in DataLoader worker process 0, at sample 5") as caught:
            next(iterator)
        assert 'raise ValueError(f"sample {index} is broken")' in str(caught.value)
        assert next(iterator).tolist() == list(range(8, 16))


def test_the_policy_is_asked_in_order_by_one_thread(tmp_path: Path) -> None:
    asked = tmp_path / "asked"

    def decide(record: Any) -> Any:
        assert threading.current_thread() is threading.main_thread()
        with asked.open("a") as file:
            file.write(f"{record.index} ")
        return "skip" if record.index % 2 else "replace"

    def make(index: int) -> Any:
        if index in (2, 5, 6, 11):
            raise ValueError(index)
        return index, rng().random()

    settings: dict[str, Any] = {"on_error": decide, "seed": 1, "max_error_rate": None}
    with pytest.warns(StokerWarning):
        runs = [epoch(make, threads, 8, **settings) for threads in (1, 4)]
    assert runs[0] == runs[1]
    assert asked.read_text().split() == ["2", "5", "6", "11"] * 2


def test_sample_is_fetched_once_even_if_others_are_skipped() -> None:
    calls: list[int] = []

    def make(index: int) -> int:
        calls.append(index)
        if index == 3:
            raise SkipSample("not wanted")
        return calls.count(index)

    assert epoch(make, batch=8) == [1] * 23


class Counted:
    """Knows how many there are of its kind."""

    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1
        self.beside = Counted.alive

    def __del__(self) -> None:
        Counted.alive -= 1


def test_raised_error_keeps_no_batch_alive() -> None:
    def make(index: int) -> Counted:
        gc.disable()
        if index % 4 == 3:
            raise ValueError(index)
        return Counted()

    policy = {"on_error": "skip", "max_error_rate": None, "collate_fn": lambda samples: [one.beside for one in samples]}
    with pytest.warns(StokerWarning):
        beside = [epoch(make, threads, length=200, **policy) for threads in (1, 4)]
    assert max(beside[1]) <= 3 * 3 + max(beside[0])  # those of three batches


KILLERS = {5: crashes, 22: is_killed, 23: lambda index: os._exit(1)}


@pytest.mark.slow
@pytest.mark.parametrize("birth", ["fork", "forkserver", "spawned"])
@pytest.mark.parametrize(("workers", "policy"), [(1, "skip"), (2, "replace"), (2, "raise")])
@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_a_sample_that_kills_is_found(workers: int, policy: str, birth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever batches its worker had begun: they are made again, sample by sample."""
    if birth == "spawned":  # as where there is no fork
        monkeypatch.delattr(os, "fork")

    def run(faults: Any, **settings: Any) -> Any:
        made = faulty(Samples(faults), on_error=policy, shuffle=True, **settings)
        return story(made), fates(made)

    def dies(index: Any) -> None:
        raise WorkerDiedError("a worker died")

    context = {} if birth == "spawned" else {"multiprocessing_context": birth}
    killers = KILLERS if birth == "fork" else {5: crashes, 22: crashes}
    assert run(killers, num_workers=workers, threads_per_worker=6, **context) == run(dict.fromkeys(killers, dies))


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_killing_sample_among_threads_is_found_in_three_deaths() -> None:
    """The first one says that it is among some; the batches beside it are made once more, and that is all."""
    events: list[Any] = []
    settings = {"on_error": "skip", "on_event": events.append, "max_restarts": 1}
    made = faulty(Samples({13: crashes}), num_workers=1, threads_per_worker=6, **FORK, **settings)
    assert [index for batch in story(made) for index in batch[0]] == [index for index in range(48) if index != 13]
    assert [event.kind for event in events] == ["death", "death", "poison_sample", "error"]


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_a_patch_of_samples_that_kill_ends_no_run() -> None:
    bad = range(10, 34, 3)
    made = faulty(Samples(dict.fromkeys(bad, crashes)), on_error="skip", num_workers=3, threads_per_worker=4, **FORK)
    assert [index for batch in story(made) for index in batch[0]] == [index for index in range(48) if index not in bad]


def test_a_death_that_ends_the_run_says_what_is_known() -> None:
    made = DataLoader(Samples({2: crashes}), 8, num_workers=1, threads_per_worker=4, max_restarts=0, **FORK)
    told = r"while it made batch 0, sample \d, or another sample that was made at the same time \(threads_per_worker,"
    with pytest.raises(WorkerDiedError, match=told):
        next(iter(made))


def test_sample_that_exits_the_interpreter_ends_its_worker() -> None:
    made = DataLoader(
        Samples({2: lambda index: sys.exit(4)}), 8, num_workers=1, threads_per_worker=4, max_restarts=0, **FORK
    )
    with pytest.raises(WorkerDiedError, match="exit code 4"):
        next(iter(made))


def hangs(index: Any) -> None:
    select.select([], [], [])


def test_a_sample_that_hangs_is_named_with_its_stack() -> None:
    events: list[Any] = []
    settings = {"stall_warning": 0.1, "stall_action": "restart", "on_event": events.append, "on_error": "skip"}
    made = faulty(Samples({9: hangs}), num_workers=2, threads_per_worker=4, **FORK, **settings)
    with pytest.warns(StokerWarning):
        assert [index for batch in story(made) for index in batch[0]] == [index for index in range(48) if index != 9]
    first, *_ = (event for event in events if event.kind == "stall")
    assert "sample 9, or another sample that was made at the same time" in first.message
    assert "in hangs" in first.message


def test_a_timeout_ends_the_wait() -> None:
    loader = DataLoader(Samples({0: hangs}), 4, num_workers=1, threads_per_worker=4, timeout=0.2, **FORK)
    with loader, pytest.raises(stoker.errors.LoaderTimeoutError):
        next(iter(loader))


@pytest.mark.parametrize("birth", ["fork", "spawned"])
def test_closing_waits_for_no_sample(birth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if birth == "spawned":
        monkeypatch.delattr(os, "fork")
    context = {} if birth == "spawned" else {"multiprocessing_context": "fork"}
    faults = dict.fromkeys(range(4, 48), hangs)
    iterator = iter(DataLoader(Samples(faults), 4, num_workers=2, threads_per_worker=8, output="numpy", **context))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined] # that nothing is left is the fixture's to see


# Arguments


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"threads_per_worker": 0}, ValueError, "positive integer"),
        ({"threads_per_worker": "a"}, TypeError, "integer"),
        ({"threads_per_worker": None}, TypeError, "integer"),
        ({"threads_per_worker": 4, "worker_method": "thread", "num_workers": 2}, ValueError, "use num_workers=8"),
    ],
    ids=str,
)
def test_invalid_threads_per_worker_is_refused(settings: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        DataLoader(range(4), **settings)


def test_streams_are_read_by_one_thread() -> None:
    class Stream(stoker.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    with pytest.raises(ValueError, match="a stream is read by one thread"):
        DataLoader(Stream(), num_workers=1, threads_per_worker=2)


@pytest.mark.filterwarnings("ignore:threads_per_worker=8 has no effect")
def test_no_thread_is_started_without_workers() -> None:
    loader = DataLoader(Made(lambda index: threading.get_ident(), 4), threads_per_worker=8, collate_fn=list)
    assert {sample for batch in loader for sample in batch} == {threading.get_ident()}
    assert loader.prefetch_factor is None


@pytest.mark.parametrize(
    ("batch", "threads", "ahead"), [(64, 1, 2), (64, 16, 3), (8, 16, 4), (None, 16, 18), (16, 16, 3)]
)
def test_enough_batches_are_ahead_for_the_threads(batch: int | None, threads: int, ahead: int) -> None:
    loader = DataLoader(range(100), batch, num_workers=2, threads_per_worker=threads)
    assert loader.prefetch_factor == ahead
    wished = DataLoader(range(100), batch, num_workers=2, threads_per_worker=threads, prefetch_factor=1)
    assert wished.prefetch_factor == 1
    sampler = stoker.BatchSampler(range(100), batch or 1, False)
    again = DataLoader(range(100), batch_sampler=sampler, num_workers=2, threads_per_worker=threads)
    assert again.prefetch_factor == ahead
    unknown = DataLoader(range(100), batch_sampler=[[1, 2]], num_workers=2, threads_per_worker=threads)
    assert unknown.prefetch_factor == (2 if threads == 1 else 3)
