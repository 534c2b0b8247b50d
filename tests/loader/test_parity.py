"""What a script can observe of torch's loader it observes of ours: both run in the same test."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import IteratorClosedError, LoaderTimeoutError, WorkerDiedError
from stoker.loader.record import record_of

torch = pytest.importorskip("torch")
TorchLoader = torch.utils.data.DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
]

WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}]
ALL: list[dict[str, Any]] = [*WORKERS, {"num_workers": 2, "worker_method": "thread"}]


@pytest.fixture(autouse=True)
def torchs_generator_put_back() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def as_lists(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if dataclasses.is_dataclass(value):
        return type(value), [as_lists(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return type(value), {key: as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [as_lists(item) for item in value]
    return value


def both(*arguments: Any, **settings: Any) -> tuple[Any, Any]:
    """An epoch of ours and one of torch's."""
    new = {name: settings.pop(name) for name in ("worker_method", "shard") if name in settings}
    ours = stoker.DataLoader(*arguments, **settings, **new)
    theirs = TorchLoader(*arguments, **settings)
    return [as_lists(batch) for batch in ours], [as_lists(batch) for batch in theirs]


# What batches are made of


class Point(collections.namedtuple("Point", "x y")):
    pass


@dataclasses.dataclass
class Box:
    corner: Any
    label: str | None


class Batch:
    def __init__(self, samples: list[Any]) -> None:
        self.samples = torch.as_tensor(samples)

    def pin_memory(self) -> Batch:
        return self


class Frame(dict):  # type: ignore[type-arg]
    """A mapping with more to it than its items."""


SAMPLES: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "float": lambda i: i / 2,
    "bool": lambda i: i % 2 == 0,
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i]),
    "tensor": lambda i: torch.full((2, 3), i),
    "bfloat16": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "array": lambda i: np.full((2, 3), i, dtype=np.int16),
    "scalar": lambda i: np.float32(i),
    "tuple": lambda i: (i, torch.tensor(i)),
    "list": lambda i: [i, [i, str(i)]],
    "dict": lambda i: {"image": torch.zeros(2), "label": i, "deep": {"name": "x"}},
    "mapping": lambda i: Frame(a=i),
    "namedtuple": lambda i: Point(i, torch.zeros(1)),
    "large": lambda i: (torch.full((150, 150), i), np.full((200, 100), i)),
    "empty": lambda i: torch.zeros(0),
}


class Made:
    def __init__(self, make: Callable[[int], Any], length: int = 5) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_default_collation_equals_torchs(workers: dict[str, Any]) -> None:
    def everything(index: int) -> Any:
        return {name: make(index) for name, make in SAMPLES.items()}

    ours, theirs = both(Made(everything), 2, **workers)
    assert ours == theirs


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_default_conversion_without_batches(workers: dict[str, Any]) -> None:
    def everything(index: int) -> Any:
        return {**{name: make(index) for name, make in SAMPLES.items()}, "none": None, "box": Box(np.ones(2), None)}

    ours, theirs = both(Made(everything, 2), None, **workers)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("workers", ALL, ids=str)
@pytest.mark.parametrize("make", [lambda i: {"a": None, "b": i}, lambda i: Box(i, None), lambda i: object])
def test_unknown_types_pass_through_a_users_collate_fn(make: Any, workers: dict[str, Any]) -> None:
    ours, theirs = both(Made(make), 2, collate_fn=list, **workers)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_classes_arrive_as_the_same_class(workers: dict[str, Any]) -> None:
    batch = next(iter(stoker.DataLoader(Made(lambda i: Box(i, None)), 2, collate_fn=list, **workers)))
    assert batch == [Box(0, None), Box(1, None)]
    batch = next(iter(stoker.DataLoader(Made(SAMPLES["namedtuple"]), 2, **workers)))
    assert type(batch) is Point
    assert type(next(iter(stoker.DataLoader(Made(lambda i: i), 2, collate_fn=Batch, **workers)))) is Batch


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_a_type_registered_with_torchs_collation(workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils import collate

    def boxes(batch: list[Box], *, collate_fn_map: Any = None) -> Any:
        return ["boxes", [box.label for box in batch]]

    monkeypatch.setitem(collate.default_collate_fn_map, Box, boxes)
    ours, theirs = both(Made(lambda i: {"box": Box(i, str(i)), "i": i}), 2, **workers)
    assert ours == theirs
    assert ours[0][1]["box"] == (list, ["boxes", (list, ["0", "1"])])


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_sparse_and_nested_tensors_of_a_users_collator(workers: dict[str, Any]) -> None:
    def collate(samples: list[int]) -> Any:
        rows = [torch.full((i + 1,), float(i)) for i in samples]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.eye(3).to_sparse() * samples[0], torch.nested.nested_tensor(rows)

    for sample, (sparse, nested) in enumerate(stoker.DataLoader(range(3), 1, collate_fn=collate, **workers)):
        assert sparse.is_sparse
        assert torch.equal(sparse.to_dense(), torch.eye(3) * sample)
        assert nested.is_nested
        assert [row.tolist() for row in nested.unbind()] == [[sample] * (sample + 1)]


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_torchs_own_collators_are_ours(workers: dict[str, Any]) -> None:
    from torch.utils.data import default_collate, default_convert

    ours, theirs = both(range(4), 2, collate_fn=default_collate, **workers)
    assert ours == theirs
    ours, theirs = both(range(4), None, collate_fn=default_convert, **workers)
    assert ours == theirs


class Many(Made):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("many", i) for i in indices]


class Neither(Made):
    __getitems__ = None


@pytest.mark.parametrize("dataset", [Many(lambda i: i), Neither(lambda i: i)])
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_fetching_a_batch_at_once(dataset: Any, workers: dict[str, Any]) -> None:
    for size in (2, None):
        ours, theirs = both(dataset, size, collate_fn=list if size else str, **workers)
        assert ours == theirs


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_samplers_of_all_kinds(workers: dict[str, Any]) -> None:
    data = {name: index for index, name in enumerate("abcde")}
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"sampler": list("eac")},
        lambda: {"sampler": list("eac"), "batch_size": 2, "drop_last": True},
        lambda: {"sampler": (name for name in "eac"), "batch_size": None},
        lambda: {"sampler": {"b": 1, "c": 2}, "batch_size": 3},
        lambda: {"batch_sampler": [("a", "b"), ["c"]]},
        lambda: {"batch_sampler": [{"d": 1}, iter("ab")]},
        lambda: {"dataset": range(5), "batch_sampler": torch.tensor([[3, 1], [0, 2]])},
        lambda: {"dataset": range(5), "batch_sampler": np.array([[3, 1], [0, 2]])},
        lambda: {"dataset": range(5), "sampler": torch.tensor([3, 1])},
    ]
    for settings in kinds:
        theirs = TorchLoader(**{"dataset": data, **settings()})
        ours = stoker.DataLoader(**{"dataset": data, **settings()}, **workers)
        assert [as_lists(batch) for batch in ours] == [as_lists(batch) for batch in theirs]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_explicit_random_samplers_give_torchs_order(workers: dict[str, Any]) -> None:
    def order(kind: Any, sampler: Any, generator_of_loader: bool) -> Any:
        generator = torch.Generator().manual_seed(5)
        loader = kind(
            range(20),
            4,
            sampler=sampler(range(20), generator=generator),
            generator=torch.Generator().manual_seed(6) if generator_of_loader else None,
            **workers,
        )
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    for seeded in (True, False):
        model = order(TorchLoader, torch.utils.data.RandomSampler, seeded)
        assert order(stoker.DataLoader, stoker.RandomSampler, seeded) == model
        assert order(stoker.DataLoader, torch.utils.data.RandomSampler, seeded) == model
        assert order(TorchLoader, stoker.RandomSampler, seeded) == model


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("RandomSampler", [range(9)]), ("SubsetRandomSampler", [range(9)]), ("WeightedRandomSampler", [[1.0] * 9, 9])],
)
def test_samplers_after_manual_seed(name: str, arguments: list[Any]) -> None:
    """As the guide says: ours gives torch's order outside a loader of ours, and one of the epoch's seed in it."""
    ours, theirs = getattr(stoker, name), getattr(torch.utils.data, name)

    def seeded(draw: Callable[[], Any]) -> list[int]:
        torch.manual_seed(3)
        return [int(index) for index in draw()]

    model = seeded(lambda: theirs(*arguments))
    assert seeded(lambda: ours(*arguments)) == model
    torchs = seeded(lambda: TorchLoader(range(9), None, sampler=theirs(*arguments)))
    assert seeded(lambda: stoker.DataLoader(range(9), None, sampler=theirs(*arguments))) == torchs
    first, again = (seeded(lambda: stoker.DataLoader(range(9), None, sampler=ours(*arguments))) for _ in range(2))
    assert first == again != torchs


# Reproducibility


def epoch(loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch]


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_a_seed_fixes_the_order(workers: dict[str, Any]) -> None:
    def two_epochs(**settings: Any) -> list[list[int]]:
        loader = stoker.DataLoader(range(30), 4, shuffle=True, **settings, **workers)
        return [epoch(loader), epoch(loader)]

    torch.manual_seed(0)
    first = two_epochs()
    assert first[0] != first[1]
    assert two_epochs() != first
    torch.manual_seed(0)
    assert two_epochs() == first
    generators = [torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)]
    torch.manual_seed(1)
    one = two_epochs(generator=generators[0])
    assert torch.initial_seed() == 1
    assert one == two_epochs(generator=generators[1]) != first
    numbers = [np.random.default_rng(3), np.random.default_rng(3)]
    assert two_epochs(generator=numbers[0]) == two_epochs(generator=numbers[1])
    assert two_epochs(seed=5) == two_epochs(seed=5) != first


def test_the_order_is_drawn_at_the_first_next_without_workers() -> None:
    loader = stoker.DataLoader(range(30), 4, shuffle=True)
    torch.manual_seed(0)
    iterator = iter(loader)
    torch.manual_seed(1)
    first = [batch.tolist() for batch in iterator]
    iterator = iter(loader)
    torch.manual_seed(1)
    assert [batch.tolist() for batch in iterator] == first


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}], ids=str)
def test_an_epoch_moves_the_generator_alike_with_any_workers(settings: dict[str, Any]) -> None:
    """What the trainer draws behind it repeats."""
    torch.manual_seed(0)
    list(stoker.DataLoader(range(4), **settings))
    ours = torch.rand(1)
    torch.manual_seed(0)
    list(stoker.DataLoader(range(4), 2, num_workers=1, **settings))
    assert torch.equal(torch.rand(1), ours)


class Hardest:
    """A sampler that follows the training: next comes whichever sample scores highest by now."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.steps = 0

    def __iter__(self) -> Iterator[int]:
        for _ in self.scores:
            self.steps += 1
            yield max(range(len(self.scores)), key=self.scores.__getitem__)


@pytest.mark.parametrize("kind", [stoker.DataLoader, TorchLoader])
def test_sampler_is_read_batch_by_batch_without_workers(kind: Any) -> None:
    sampler = Hardest([5.0, 4.0, 3.0, 2.0, 1.0])
    batches = iter(kind(range(5), batch_size=None, sampler=sampler))
    for step in range(5):
        index = next(batches)
        assert (index, sampler.steps) == (step, step + 1)
        sampler.scores[index] = 0.0  # it is learned
    assert list(batches) == []


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_two_iterators_are_independent(workers: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    loader = stoker.DataLoader(range(12), 3, shuffle=True, generator=generator, **workers)
    one, other = iter(loader), iter(loader)
    pairs = list(zip(one, other, strict=True))
    for side in (0, 1):
        assert sorted(int(i) for pair in pairs for i in pair[side]) == list(range(12))
    assert [pair[0].tolist() for pair in pairs] != [pair[1].tolist() for pair in pairs]


def test_dropout_is_not_disturbed_by_loading() -> None:
    def draws(loading: bool) -> list[Any]:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        iterator = iter(stoker.DataLoader(Made(lambda i: random.random() + np.random.rand() + float(torch.rand(())))))
        next(iterator)
        drawn = []
        for _ in range(3):
            if loading:
                next(iterator)
            drawn += [random.random(), np.random.rand(), float(torch.rand(()))]
        return drawn

    assert draws(True) == draws(False)


# Errors


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code, self.reason = code, reason

    def __reduce__(self) -> Any:
        return type(self), (self.code, self.reason)


class NotSent(Exception):
    def __init__(self, lock: Any, why: str) -> None:
        super().__init__(why)
        self.lock = lock


class OwnMessage(Exception):
    message = "has one"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


ERRORS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("broken"),
    "KeyError": lambda: KeyError("missing"),
    "IndexError": lambda: IndexError("beyond"),
    "OSError": lambda: FileNotFoundError(2, "No such file", "image.jpg"),
    "AssertionError": lambda: AssertionError(),
    "message": lambda: OwnMessage("own"),
}


def story(loader: Any) -> list[Any]:
    """Batches and errors in the order in which they come."""
    iterator, told = iter(loader), []
    while True:
        try:
            told.append(as_lists(next(iterator)))
        except StopIteration:
            return told
        except Exception as error:
            told.append(error)


@pytest.mark.parametrize("where", ["sample", "collate"])
@pytest.mark.parametrize("workers", ALL, ids=str)
@pytest.mark.parametrize("name", ERRORS)
def test_error_keeps_its_type_and_the_next_batch_follows(name: str, workers: dict[str, Any], where: str) -> None:
    def make(index: int) -> int:
        if index == 3 and where == "sample":
            raise ERRORS[name]()
        return index

    def collate(samples: list[int]) -> list[int]:
        if 3 in samples and where == "collate":
            raise ERRORS[name]()
        return samples

    ours = story(stoker.DataLoader(Made(make), collate_fn=collate, **workers))
    threads = workers.pop("worker_method", None) if "worker_method" in (workers := dict(workers)) else None
    theirs = story(TorchLoader(Made(make), collate_fn=collate, **workers))
    assert [type(item) for item in ours] == [type(item) for item in theirs]
    assert [item for item in ours if not isinstance(item, Exception)] == [(list, [i]) for i in (0, 1, 2, 4)]
    error = ours[3]
    if workers:
        kind = "thread" if threads else "process"
        assert f"Caught {type(error).__name__} in DataLoader worker {kind} " in str(error)
        assert 'test_parity.py", line' in str(error)
        assert ("at sample 3" if where == "sample" else "at samples 3 (1 in the batch)") in str(error)
        assert error.__cause__ is None
    else:
        assert str(error) == str(theirs[3])


@pytest.mark.parametrize("workers", WORKERS[1:], ids=str)
def test_exception_that_cannot_be_rebuilt_arrives(workers: dict[str, Any]) -> None:
    def make(index: int) -> int:
        if index == 0:
            raise TwoArguments(7, "too hot")
        if index == 1:
            raise NotSent(threading.Lock(), "with a lock")
        if index == 2:
            b"\xff".decode()
        return index

    first, second, third, fourth = story(stoker.DataLoader(Made(make, 4), **workers))
    assert (type(first), first.code, first.reason) == (TwoArguments, 7, "too hot")
    assert "at sample 0" in "".join(getattr(first, "__notes__", []))
    assert type(second) is RuntimeError
    assert "Caught NotSent in DataLoader worker process" in str(second)
    assert "with a lock" in str(second)
    assert type(third) is UnicodeDecodeError
    assert fourth == ("torch.int64", [3])


@pytest.mark.parametrize("workers", ALL[1:], ids=str)
def test_a_worker_init_fn_that_raises(workers: dict[str, Any]) -> None:
    def init(worker: int) -> None:
        if worker == 1:
            raise ZeroDivisionError("no worker 1")

    told = story(stoker.DataLoader(range(4), worker_init_fn=init, **workers))
    assert [item for item in told if not isinstance(item, Exception)] == [("torch.int64", [0]), ("torch.int64", [2])]
    assert type(told[1]) is ZeroDivisionError
    assert " 1" in str(told[1])
    assert "no worker 1" in str(told[1])


def test_failing_large_batch_names_its_first_samples() -> None:
    class All(Made):
        def __getitems__(self, indices: list[int]) -> list[int]:
            raise ValueError("the whole batch")

    with pytest.raises(ValueError, match=r"at samples 0, 1, 2, 3, 4, 5, 6, 7, … \(50 in the batch\)"):
        list(stoker.DataLoader(All(int, 100), 50, num_workers=1))


def test_a_collator_that_returns_nothing() -> None:
    for workers in ALL:
        ours, theirs = both(range(3), collate_fn=lambda samples: None, **workers)
        assert ours == theirs == [None] * 3


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_stop_iteration_in_a_sample_loses_no_batch(workers: dict[str, Any]) -> None:
    def make(index: int) -> int:
        if index == 2:
            raise StopIteration
        return index

    theirs = [as_lists(batch) for batch in TorchLoader(Made(make))]  # with workers torch needs 10 s to end here
    ours, batches = [], iter(stoker.DataLoader(Made(make), **workers))
    with pytest.raises(RuntimeError, match="raised StopIteration, which would end the epoch"):
        ours.extend(as_lists(batch) for batch in batches)
    assert ours == theirs == [("torch.int64", [0]), ("torch.int64", [1])]
    assert next(batches).tolist() == [3]


@pytest.mark.parametrize("workers", ALL[1:], ids=str)
def test_timeout_has_torchs_message(workers: dict[str, Any]) -> None:
    gate = threading.Event()

    def make(index: int) -> int:
        gate.wait(3)
        return index

    loader = stoker.DataLoader(Made(make), timeout=0.05, **workers)
    words = r"^DataLoader timed out after 0\.05 seconds"
    with iter(loader) as iterator:
        with pytest.raises(RuntimeError, match=words) as told:
            next(iterator)
        assert isinstance(told.value, LoaderTimeoutError)
        gate.set()
        if "worker_method" in workers:  # a process has a gate of its own
            assert int(next(iterator)) == 0


def test_death_of_a_worker_has_torchs_message() -> None:
    def make(index: int) -> int:
        if index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 4:
            os._exit(3)
        return index

    for sampler, how in (
        ([0, 2, 3], r"\(pid\(s\) \d+\) exited unexpectedly: DataLoader worker \(pid \d+\) is killed by signal: Killed"),
        ([0, 4, 3], r"\(pid\(s\) \d+\) exited unexpectedly with exit code 3"),
    ):
        iterator = iter(stoker.DataLoader(Made(make), sampler=sampler, num_workers=1, max_restarts=0))
        with pytest.raises(RuntimeError, match=rf"^DataLoader worker {how}") as told:
            list(iterator)
        assert isinstance(told.value, WorkerDiedError)


# Workers


@pytest.mark.parametrize("workers", ALL[1:], ids=str)
def test_worker_k_mod_n_makes_batch_k_with_an_init_function(workers: dict[str, Any]) -> None:
    def who(samples: list[int]) -> tuple[int, list[int]]:
        info = stoker.get_worker_info()
        assert info is not None
        if info.id == 0:
            time.sleep(0.003)
        return info.id, samples

    def init(worker: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        assert info.id == worker

    loader = stoker.DataLoader(range(15), 2, worker_init_fn=init, collate_fn=who, **workers)
    assert [batch[0] for batch in loader] == [k % 2 for k in range(8)]
    persistent = stoker.DataLoader(
        range(15), 2, worker_init_fn=init, collate_fn=who, persistent_workers=True, **workers
    )
    with persistent:
        for _ in range(2):
            assert [batch[0] for batch in persistent] == [k % 2 for k in range(8)]


def test_persistent_workers_keep_the_dataset_of_their_start() -> None:
    for settings, expected in (({"persistent_workers": True}, [[0, 1], [0, 1]]), ({}, [[0, 1], [10, 11]])):
        told = []
        for kind in (stoker.DataLoader, TorchLoader):
            data = [0, 1]
            loader = kind(data, num_workers=1, **settings)
            first = epoch(loader)
            data[:] = [10, 11]
            told.append([first, epoch(loader)])
            del loader
        assert told == [expected, expected]


@pytest.mark.parametrize("workers", ALL[1:], ids=str)
def test_a_second_iter_while_a_persistent_one_runs_starts_anew(workers: dict[str, Any]) -> None:
    with stoker.DataLoader(range(6), persistent_workers=True, **workers) as loader:
        first = iter(loader)
        assert [int(next(first)), int(next(first))] == [0, 1]
        second = iter(loader)
        assert second is first  # as torch's
        assert epoch(second) == list(range(6))
        assert list(first) == []
        assert epoch(loader) == list(range(6))


@pytest.mark.parametrize("workers", ALL[1:], ids=str)
def test_dropped_persistent_loader_ends_workers_without_gc(workers: dict[str, Any]) -> None:
    import gc
    import weakref

    loader = stoker.DataLoader(range(6), persistent_workers=True, **workers)
    next(iter(loader))
    iterator = weakref.ref(loader._iterator)
    gc.disable()
    try:
        del loader
        assert iterator() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_out_of_order_loses_and_doubles_nothing(workers: dict[str, Any]) -> None:
    loader = stoker.DataLoader(range(20), 2, in_order=False, **workers)
    assert sorted(epoch(loader)) == list(range(20))


def test_out_of_order_a_slow_batch_does_not_hold_the_others() -> None:
    released = threading.Event()

    def make(index: int) -> int:
        if index == 0:
            released.wait(10)
        return index

    iterator = iter(stoker.DataLoader(Made(make, 4), in_order=False, num_workers=2, worker_method="thread"))
    assert int(next(iterator)) == 1
    released.set()
    assert sorted(int(batch) for batch in iterator) == [0, 2, 3]


def test_out_of_order_a_slow_stream_does_not_hold_the_others() -> None:
    released = threading.Event()

    class Stream(stoker.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = stoker.get_worker_info()
            assert info is not None
            for index in range(10 * info.id, 10 * info.id + 10):
                if index == 10:
                    released.wait(10)
                yield index

    iterator = iter(stoker.DataLoader(Stream(), in_order=False, num_workers=2, worker_method="thread"))
    assert [int(next(iterator)) for _ in range(10)] == list(range(10))
    released.set()
    assert sorted(int(batch) for batch in iterator) == list(range(10, 20))


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_an_iterator_at_its_end_and_one_that_is_closed(workers: dict[str, Any]) -> None:
    loader = stoker.DataLoader(range(3), **workers)
    iterator = iter(loader)
    assert len(iterator) == 3
    assert iter(iterator) is iterator
    list(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(IteratorClosedError):
        next(iterator)
    with loader as entered:
        assert entered is loader
        assert epoch(loader) == [0, 1, 2]
    assert epoch(loader) == [0, 1, 2]


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_output_as_arrays(workers: dict[str, Any]) -> None:
    for batch in stoker.DataLoader(Made(SAMPLES["array"]), 2, output="numpy", **workers):
        assert type(batch) is np.ndarray
        assert batch.dtype == np.int16


@pytest.mark.parametrize("workers", ALL, ids=str)
def test_a_loader_inside_a_dataset(workers: dict[str, Any]) -> None:
    def make(index: int) -> Any:
        before = stoker.get_worker_info()
        inner = epoch(stoker.DataLoader(range(3), seed=0))
        assert stoker.get_worker_info() is before
        return [*inner, index, before is None]

    assert epoch(stoker.DataLoader(Made(make, 2), None, **workers))[3::5] == [0, 1]


# Loaders made from others


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"sampler": [4, 2]},
        {"batch_sampler": [[4], [2, 1]]},
        {"num_workers": 1, "prefetch_factor": 5, "persistent_workers": True, "multiprocessing_context": "fork"},
        {"collate_fn": list, "worker_init_fn": print, "in_order": False, "batch_size": 2},
    ],
    ids=str,
)
def test_from_torch_gives_the_same_batches(settings: dict[str, Any]) -> None:
    theirs = TorchLoader(range(10), **settings)
    with stoker.DataLoader.from_torch(theirs) as ours:
        for name in vars(stoker.DataLoader(range(10))).keys() & vars(theirs).keys() - {"_iterator", "collate_fn"}:
            if name not in ("sampler", "batch_sampler"):
                assert getattr(ours, name) == getattr(theirs, name), name
        assert [as_lists(batch) for batch in ours] == [as_lists(batch) for batch in theirs]
        assert len(ours) == len(theirs)


@pytest.mark.parametrize("given", [{}, {"prefetch_factor": 3, "persistent_workers": True, "timeout": 5}], ids=str)
def test_from_torch_without_workers_or_with_more_threads(given: dict[str, Any]) -> None:
    theirs = TorchLoader(range(4), num_workers=2, multiprocessing_context="fork", **given)
    assert epoch(stoker.DataLoader.from_torch(theirs, num_workers=0)) == [0, 1, 2, 3]
    threads = stoker.DataLoader.from_torch(theirs, threads_per_worker=16)
    ours = stoker.DataLoader(range(4), num_workers=2, threads_per_worker=16, **given)
    assert threads.prefetch_factor == ours.prefetch_factor


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 2, "shuffle": True, "seed": 5, "output": "numpy", "on_error": "skip", "max_errors": None},
        {"batch_size": None, "num_workers": 2, "worker_method": "thread", "stall_warning": None, "sampler": [1, 0]},
        {"num_workers": 2, "threads_per_worker": 8, "memory_budget": 1 << 30, "prefetch_factor": 3, "max_restarts": 1},
        {"batch_size": 2, "distributed": "drop", "rank": 0, "num_replicas": 2, "shuffle": True, "drop_last": True},
        {"batch_size": 2, "batches_per_epoch": 2, "shuffle": True, "seeding": "sample", "share_heap": False},
        {"batch_sampler": [[1], [3, 2]], "seed": 2, "quarantine": "bad.jsonl", "on_event": print},
        {"num_workers": "auto", "persistent_workers": True},
    ],
    ids=str,
)
def test_from_torch_takes_over_all_settings_of_one_of_ours(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the quarantine file is made
    first = stoker.DataLoader(range(6), **settings)
    second = stoker.DataLoader.from_torch(first)
    for name in inspect.signature(stoker.DataLoader).parameters:
        if name not in ("batch_sampler", "sampler"):
            assert getattr(second, name) == getattr(first, name), name
    assert len(second) == len(first)
    assert (record_of(second).auto is None) == (record_of(first).auto is None)
    if first.seed is not None:
        assert np.array_equal(epoch(first), epoch(second))


@pytest.mark.parametrize("wrong", [5, [1, 2], range(3)], ids=str)
def test_from_torch_refuses_an_object_that_is_no_loader(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"needs a torch.utils.data.DataLoader, but got {type(wrong).__name__}"):
        stoker.DataLoader.from_torch(wrong)


def test_from_torch_shuffles_by_our_own_order() -> None:
    generator = torch.Generator()
    ours = stoker.DataLoader.from_torch(TorchLoader(range(10), shuffle=True, generator=generator), batch_size=5)
    assert ours.generator is generator
    assert ours.shuffle is True
    assert sorted(epoch(ours)) == list(range(10))
    assert len(ours) == 2
    sampler = torch.utils.data.RandomSampler(range(10), num_samples=4, generator=generator)
    assert stoker.DataLoader.from_torch(TorchLoader(range(10), sampler=sampler)).sampler is sampler
    assert stoker.DataLoader.from_torch(TorchLoader(range(10)), shuffle=True).shuffle is True


@pytest.mark.filterwarnings("ignore:threads_per_worker=8 has no effect")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ["10 samples", "sample by sample", "0, 1, 2, …", "of 1, 10 in an epoch", "in this process", "GiB"]),
        ({"shuffle": True, "seed": 3, "batch_size": 4, "drop_last": True}, ["seed=3", "of 4, 2 in", "dropped"]),
        ({"sampler": [1]}, ["walked from BatchSampler"]),
        ({"num_workers": 1, "multiprocessing_context": "fork"}, ["1 processes, forked", "shared memory", "up to 2"]),
        ({"num_workers": 1, "multiprocessing_context": "spawn"}, ["clean interpreters", "'spawn'"]),
        ({"num_workers": 1, "worker_method": "thread"}, ["1 threads", "sample_rng()"]),
        (
            {"num_workers": 1, "threads_per_worker": 8, "batch_size": 4},
            ["8 in each", "up to 4", "sample_rng()"],
        ),
        ({"threads_per_worker": 8}, ["without workers"]),
        ({"num_workers": 1, "worker_init_fn": print, "persistent_workers": True}, ["k mod n", "kept between epochs"]),
        ({"batch_size": None}, ["single samples"]),
        ({"seeding": "worker"}, ["once for each worker"]),
    ],
    ids=str,
)
def test_describe_fits_a_screen_and_starts_nothing(settings: dict[str, Any], said: list[str]) -> None:
    loader = stoker.DataLoader(range(10), **settings)
    text = loader.describe()
    assert [words for words in said if words not in text] == []
    assert len(text.splitlines()) <= 24
    assert loader._iterator is None


class Wrapper:
    """An iterator of the user's before the loader's, as PyTorch Geometric has one: it knows nothing of ours."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return self

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.inner._reset(loader, first_iter)

    def __len__(self) -> int:
        return len(self.inner)

    def __next__(self) -> Any:
        return next(self.inner) * 10


@pytest.mark.parametrize("persistent", [False, True])
def test_subclass_may_wrap_the_iterator_in_get_iterator(persistent: bool) -> None:
    class Wrapped(stoker.DataLoader[Any]):
        def _get_iterator(self) -> Any:
            return Wrapper(super()._get_iterator())

    loader = Wrapped(range(4), batch_size=2, num_workers=1, worker_method="thread", persistent_workers=persistent)
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]
    loader.close()


def test_a_stop_iteration_of_a_listeners_does_not_end_the_epoch() -> None:
    def listener(event: Any) -> None:
        raise StopIteration

    class Bad(stoker.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise OSError
            return index

    iterator = iter(stoker.DataLoader(Bad(), batch_size=2, on_error="skip", on_event=listener))
    with pytest.raises(RuntimeError, match="raised StopIteration, which would end the epoch"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[0], [2, 3], [4, 5], [6, 7]]
