"""Under `stoker.install()` the samples, their order and the global generator are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:'pin_memory' argument",
    "ignore:thread '.*' of this process",  # the frameworks of other tests start threads
)


class Numbers(data.Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


class Drawing(Numbers):
    """Draws from the global generator, from which the next epoch's order follows without workers."""

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(()))


class Grouped(data.BatchSampler):
    def __init__(self) -> None:
        super().__init__(data.RandomSampler(range(20)), 3, False)

    def __iter__(self) -> Iterator[list[int]]:
        held: dict[int, list[int]] = {}
        for index in self.sampler:
            held.setdefault(index % 3, []).append(index)
            if len(held[index % 3]) == 3:
                yield held.pop(index % 3)
        yield from held.values()


def seeded() -> Any:
    return torch.Generator().manual_seed(7)


KINDS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "drop_last": {"batch_size": 3, "shuffle": True, "drop_last": True},
    "generator": {"batch_size": 4, "shuffle": True, "generator": seeded},
    "no batches": {"batch_size": None, "shuffle": True},
    "weighted": {"batch_size": 4, "sampler": lambda: data.WeightedRandomSampler(torch.arange(1.0, 21.0), 20)},
    "subset": {"batch_size": 4, "sampler": lambda: data.SubsetRandomSampler(range(3, 15))},
    "replacement": {"batch_size": 4, "sampler": lambda: data.RandomSampler(range(20), replacement=True)},
    "rank": {"batch_size": 4, "sampler": lambda: data.DistributedSampler(range(20), 2, 1, seed=3)},
    "batch sampler": {"batch_sampler": Grouped},
    "list of batches": {"batch_sampler": lambda: [[1, 2], [3], [4, 5, 6]]},
    "collate_fn": {"batch_size": 4, "collate_fn": lambda: sum},
    "pinned": {"batch_size": 4, "shuffle": True, "pin_memory": True},
}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "two": {"num_workers": 2},
    "kept": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    "init": {"num_workers": 2, "worker_init_fn": lambda: _init, "timeout": 30},
}


def _init(worker: int) -> None:
    torch.manual_seed(worker)


def made(kind: dict[str, Any], workers: dict[str, Any], dataset: Any = None) -> Any:
    given = {name: value() if callable(value) else value for name, value in {**kind, **workers}.items()}
    return data.DataLoader(Numbers() if dataset is None else dataset, **given)


def run(loader: Any, other: Any) -> list[Any]:
    """Returns the batches of three epochs of two loaders, the second one left early, and the generator after each."""
    torch.manual_seed(1)
    found: list[Any] = []
    for epoch in range(3):
        found.append([_plain(batch) for batch in loader])
        found.append(torch.rand(1).item())
        for number, batch in enumerate(other):
            found.append(_plain(batch))
            if number == epoch:
                break
        found.append(torch.rand(1).item())
    for each in (loader, other):
        if getattr(each._iterator, "_shutdown_workers", None):
            each._iterator._shutdown_workers()
            each._iterator = None
    return found


def _plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_order_and_generator_are_torchs(kind: str, workers: str) -> None:
    torchs = run(made(KINDS[kind], WORKERS[workers]), made(KINDS["shuffled"], WORKERS[workers]))
    with stoker.install(images=False):
        ours = run(made(KINDS[kind], WORKERS[workers]), made(KINDS["shuffled"], WORKERS[workers]))
    assert ours == torchs


def test_draws_of_samples_without_workers_are_torchs() -> None:
    """They are of the training process, whose generator the order follows from."""

    def run() -> list[Any]:
        torch.manual_seed(1)
        loader = made(KINDS["shuffled"], {}, Drawing())
        return [[value.tolist() for value in batch] for _ in range(3) for batch in loader]

    torchs = run()
    with stoker.install(images=False):
        assert run() == torchs


def test_distributed_sampler_keeps_the_scripts_epoch(installed: stoker.Installation) -> None:
    sampler = data.DistributedSampler(range(20), 2, 0, seed=1)
    loader = data.DataLoader(Numbers(), 4, sampler=sampler, num_workers=1)
    orders = []
    for epoch in (0, 0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append([int(i) for batch in loader for i in batch])
    assert orders[0] == orders[1] == orders[3] != orders[2]
    orders = [[int(i) for batch in loader for i in batch] for _ in range(2)]
    assert orders[0] == orders[1], "no set_epoch by the script, none by the loader"


class Counting(Numbers):
    """Has methods of the names that Stoker calls if they are offered, with another meaning."""

    calls = 0
    stoker_protocol = False

    def set_epoch(self, *_: Any) -> None:
        self.calls += 1

    shard = gather = describe = fingerprint = set_epoch


def test_no_method_of_the_users_is_called_by_name(installed: stoker.Installation) -> None:
    dataset = Counting()
    sampler = data.DistributedSampler(range(20), 1, 0)
    calls: list[int] = []
    sampler.set_epoch = calls.append
    for workers in (0, 1):
        assert len(list(data.DataLoader(dataset, 4, sampler=sampler, num_workers=workers))) == 5
    assert dataset.calls == 0 and calls == []


def test_own_order_is_stokers_permutation() -> None:
    with stoker.install(images=False, order="stoker"):
        loader = data.DataLoader(Numbers(), 4, shuffle=True, num_workers=1)
        assert sorted(int(i) for batch in loader for i in batch) == list(range(20))
        state = loader.state_dict()
        assert state["kind"]["order"].startswith("RandomSampler/") and len(str(state)) < 1000
        walked = data.DataLoader(Numbers(), 4, sampler=data.RandomSampler(range(20), generator=seeded()))
        assert walked.state_dict()["kind"]["order"].startswith("walked from")


def test_resume_in_mid_epoch_is_exact(installed: stoker.Installation) -> None:
    torch.manual_seed(5)
    loader = made(KINDS["shuffled"], WORKERS["two"])
    running = iter(loader)
    seen = [int(i) for _ in range(2) for i in next(running)]
    state = loader.state_dict()
    rest = [int(i) for batch in running for i in batch]
    torch.manual_seed(99)
    again = made(KINDS["shuffled"], {"num_workers": 1})
    again.load_state_dict(state)
    assert [int(i) for batch in again for i in batch] == rest
    assert sorted(seen + rest) == list(range(20))


# Streams


class Whole(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Shared(Whole):
    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        return iter(range(10)) if info is None else iter(range(info.id, 10, info.num_workers))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [3, None])
def test_stream_that_shares_itself_out_is_torchs(workers: int, batch_size: int | None) -> None:
    def run() -> list[Any]:
        return [_plain(batch) for batch in data.DataLoader(Shared(), batch_size, num_workers=workers)]

    torchs = run()
    with stoker.install(images=False):
        assert run() == torchs


def test_stream_that_every_worker_reads_is_reported_once() -> None:
    torchs = [batch.tolist() for batch in data.DataLoader(Whole(), 3, num_workers=2)]
    with stoker.install(images=False):
        loader = data.DataLoader(Whole(), 3, num_workers=2)
        with pytest.warns(stoker.StokerWarning, match="each of the 2 workers reads the whole stream") as told:
            ours = [batch.tolist() for batch in loader]
        assert len(told) == 1
        assert ours == torchs == [batch.tolist() for batch in loader], "no second warning, which would be an error"


def test_stream_longer_than_its_length_is_reported() -> None:
    class Short(Whole):
        def __len__(self) -> int:
            return 5

    with stoker.install(images=False):
        loader = data.DataLoader(Short(), None)
        assert len(loader) == 5
        with pytest.warns(UserWarning, match="was reported to be 5"):
            assert len(list(loader)) == 10


def test_datapipes_are_shuffled_and_shared_out() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    for shuffle in (True, False):
        pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
        with stoker.install(images=False):
            loader = data.DataLoader(pipe, 2, shuffle=shuffle, num_workers=2)
            found = [int(i) for batch in loader for i in batch]
        assert sorted(found) == list(range(8))
        assert shuffle or found == [0, 2, 1, 3, 4, 6, 5, 7]
