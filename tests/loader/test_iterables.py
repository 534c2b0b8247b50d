"""Streams: batches of the workers in turn, and who shares samples out among them."""

from __future__ import annotations

import copy
import queue
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import ShardingError, StokerWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
]

PROCESSES: dict[str, Any] = {"num_workers": 2}
THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
BOTH = pytest.mark.parametrize("workers", [PROCESSES, THREADS], ids=str)


class Unequal(stoker.IterableDataset[int]):
    """Worker i gives `lengths[i]` samples."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        worker = 0 if info is None else info.id
        for number in range(self.lengths[worker]):
            yield 100 * worker + number


class Plain(stoker.IterableDataset[int]):
    """Never asks who reads it."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Late(stoker.IterableDataset[int]):
    """Asks when it is too late."""

    def __iter__(self) -> Iterator[int]:
        yield 0
        stoker.get_worker_info()
        yield 1
        yield 2


class Noisy(stoker.IterableDataset[Any]):
    """Samples with augmentation, in an order of its own."""

    def __iter__(self) -> Iterator[Any]:
        numbers = list(range(10))
        random.shuffle(numbers)
        for number in numbers:
            yield number, random.random()


class Sharded(Plain):
    """Knows how to give a shard, as Hugging Face's datasets do."""

    stoker_protocol = True

    def shard(self, num_shards: int, index: int) -> Iterator[int]:
        return iter(range(index * 100, index * 100 + 3))


class Stumbling(stoker.IterableDataset[int]):
    """An iterator that raises, and goes on when it is asked again."""

    def __iter__(self) -> Iterator[int]:
        class Numbers:
            number = -1

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> int:
                self.number += 1
                if self.number == 3:
                    raise ValueError("sample 3 is broken")
                if self.number == 6:
                    raise StopIteration
                return self.number

        return Numbers()


def flat(loader: Any) -> list[Any]:
    return [sample for batch in loader for sample in (batch if isinstance(batch, list) else [batch])]


@pytest.mark.parametrize("lengths", [[5, 3], [1, 6], [0, 4], [4, 0], [0, 0], [2, 9, 5], [7, 0, 1]], ids=str)
@pytest.mark.parametrize("settings", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}], ids=str)
@pytest.mark.parametrize("method", ["process", "thread"])
def test_stream_batches_come_from_workers_in_turn(lengths: Any, settings: Any, method: Any) -> None:
    torch = pytest.importorskip("torch")
    settings = {"num_workers": len(lengths), "collate_fn": list, **settings}
    ours = list(stoker.DataLoader(Unequal(lengths), worker_method=method, **settings))

    settings["num_workers"] = 0  # torch's workers take some tenths of a second to end, so their rule is played here
    iterators = [iter(torch.utils.data.DataLoader(_One(lengths, i), **settings)) for i in range(len(lengths))]
    turns = []
    while iterators:
        for iterator in list(iterators):
            batch = next(iterator, None)
            if batch is None:
                iterators.remove(iterator)
            else:
                turns.append(batch)
    assert ours == turns


class _One(Unequal):
    def __init__(self, lengths: list[int], worker: int) -> None:
        super().__init__(lengths)
        self.worker = worker

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.worker, 100 * self.worker + self.lengths[self.worker]))


def test_turns_are_those_of_torchs_own_workers() -> None:
    torch = pytest.importorskip("torch")
    for lengths in ([5, 2], [1, 4]):
        settings: dict[str, Any] = {"num_workers": 2, "batch_size": 2, "collate_fn": list}
        assert list(stoker.DataLoader(Unequal(lengths), **settings)) == list(
            torch.utils.data.DataLoader(Unequal(lengths), **settings)
        )


@BOTH
def test_single_samples_of_a_stream(workers: Any) -> None:
    loader = stoker.DataLoader(Unequal([3, 1]), batch_size=None, output="numpy", **workers)
    assert [int(sample) for sample in loader] == [0, 100, 1, 2]


@BOTH
def test_stream_without_sharding_is_sharded_with_one_warning(workers: Any) -> None:
    loader = stoker.DataLoader(Plain(), collate_fn=list, batch_size=2, **workers)
    with pytest.warns(StokerWarning, match="Plain does not share its samples out") as caught:
        first = list(loader)
        second = list(loader)
    assert [warning.filename for warning in caught] == [__file__]
    assert first == second == [[0, 2], [1, 3], [4, 6], [5, 7], [8], [9]]


@BOTH
def test_each_worker_reads_all_of_an_unsharded_stream(workers: Any) -> None:
    loader = stoker.DataLoader(Plain(3), collate_fn=list, shard="none", **workers)
    assert flat(loader) == [0, 0, 1, 1, 2, 2]


@BOTH
def test_a_stream_with_an_init_function_is_never_strided(workers: Any) -> None:
    def init(worker: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        info.dataset.length = 2 + worker

    assert flat(stoker.DataLoader(Plain(), collate_fn=list, worker_init_fn=init, **workers)) == [0, 0, 1, 1, 2]


@BOTH
def test_a_stream_that_asks_torchs_function_is_never_strided(workers: Any) -> None:
    torch = pytest.importorskip("torch")

    class Asks(stoker.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = torch.utils.data.get_worker_info()
            return iter(range(info.id, 6, info.num_workers))

    assert flat(stoker.DataLoader(Asks(), collate_fn=list, **workers)) == list(range(6))


@BOTH
def test_a_stream_of_torchs_class(workers: Any) -> None:
    torch = pytest.importorskip("torch")

    class Theirs(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    with pytest.warns(StokerWarning, match="Theirs does not share"):
        assert flat(stoker.DataLoader(Theirs(), collate_fn=list, **workers)) == [0, 1, 2, 3]
    assert flat(stoker.DataLoader(Theirs(), collate_fn=list)) == [0, 1, 2, 3]


@BOTH
def test_stream_of_one_worker_is_not_sharded(workers: Any) -> None:
    assert flat(stoker.DataLoader(Plain(3), collate_fn=list, **{**workers, "num_workers": 1})) == [0, 1, 2]


@BOTH
def test_a_dataset_that_knows_its_shards_is_asked(workers: Any) -> None:
    assert flat(stoker.DataLoader(Sharded(), collate_fn=list, **workers)) == [0, 100, 1, 101, 2, 102]


class SharesItselfToo(stoker.IterableDataset[int]):
    """Has a method shard() and calls get_worker_info(), as Hugging Face's streams do."""

    stoker_protocol = True
    shards_itself: bool | None = True

    def __init__(self, numbers: range = range(12)) -> None:
        self.numbers = numbers
        self.begun = 0

    def shard(self, num_shards: int, index: int) -> Any:
        part = copy.copy(self)
        part.numbers = self.numbers[index::num_shards]
        return part

    def mine(self) -> range:
        info = stoker.get_worker_info()
        return self.numbers if info is None else self.numbers[info.id :: info.num_workers]

    def __iter__(self) -> Iterator[int]:
        while self.begun < len(mine := self.mine()):
            self.begun += 1
            yield mine[self.begun - 1]
        self.begun = 0


class GivesShards(SharesItselfToo):
    """Does not ask."""

    shards_itself = None

    def mine(self) -> range:
        return self.numbers


def named_by_worker(number: int) -> int:
    info = stoker.get_worker_info()
    assert info is None or info.id >= 0
    return number


AROUND: dict[str, Any] = {
    "bare": lambda stream: stream,
    "mapped": lambda stream: stoker.MapDataset(stream, int),
    "shuffled": lambda stream: stoker.ShuffleDataset(stoker.MapDataset(stream, int), 3),
    "in a chain": lambda stream: stoker.MapDataset(stoker.ChainDataset([stream, stream]), int),
    "a rank's": lambda stream: stoker.MapDataset(stream, int).shard(2, 1),
}


@BOTH
@pytest.mark.parametrize("kind", [SharesItselfToo, GivesShards])
@pytest.mark.parametrize("around", AROUND)
def test_a_stream_with_shards_is_shared_out_once(around: str, kind: Any, workers: Any) -> None:
    stream = AROUND[around](kind())
    whole = sorted(flat(stoker.DataLoader(stream, collate_fn=list)))
    with stoker.DataLoader(stream, collate_fn=list, persistent_workers=True, **workers) as loader:
        assert [sorted(flat(loader)) for _ in range(2)] == [whole, whole]
    assert len(whole) == {"in a chain": 24, "a rank's": 6}.get(around, 12)


@BOTH
def test_a_function_over_shards_may_ask(workers: Any) -> None:
    stream = stoker.MapDataset(GivesShards(), named_by_worker)
    assert flat(stoker.DataLoader(stream, collate_fn=list, **workers)) == list(range(12))


@pytest.mark.parametrize("kind", [SharesItselfToo, GivesShards])
def test_a_stream_with_shards_that_raises_at_first_goes_on(kind: Any) -> None:
    class Stumbles(kind):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            self.left = iter([None, *self.mine()])
            return self

        def __next__(self) -> int:
            number = next(self.left)
            if number is None:
                raise ValueError("torn")
            return number  # type: ignore[no-any-return]

    loader = stoker.DataLoader(Stumbles(), collate_fn=list, on_error="skip", **THREADS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)
        assert sorted(flat(loader)) == list(range(12))
    assert loader.report().epoch.quarantined == 2


@BOTH
def test_each_part_of_a_chain_is_shared_out_by_itself(workers: Any) -> None:
    chain = stoker.ChainDataset([Unequal([2, 3]), Plain(3), Sharded()])
    loader = stoker.DataLoader(chain, collate_fn=list, **workers)
    with pytest.warns(StokerWarning, match="Plain does not share") as caught:
        samples = flat(loader)
    assert len(caught) == 2
    assert any("guesses that Unequal shares" in str(warning.message) for warning in caught)
    assert sorted(samples) == sorted([0, 1, 100, 101, 102, 0, 1, 2, 0, 1, 2, 100, 101, 102])


@BOTH
def test_stream_that_asks_for_its_worker_late_is_an_error(workers: Any) -> None:
    iterator = iter(stoker.DataLoader(Late(), collate_fn=list, **workers))
    with pytest.warns(StokerWarning), pytest.raises(ShardingError, match="after its first sample"):
        list(iterator)
    iterator.close()
    assert flat(stoker.DataLoader(Late(), collate_fn=list, shard="none", **workers)) == [0, 0, 1, 1, 2, 2]


@BOTH
def test_a_collator_may_ask(workers: Any) -> None:
    def collate(samples: list[int]) -> list[int]:
        assert stoker.get_worker_info() is not None
        return samples

    with pytest.warns(StokerWarning):
        assert sorted(flat(stoker.DataLoader(Plain(9), collate_fn=collate, **workers))) == list(range(9))


def test_strided_stream_is_augmented_alike_by_any_workers() -> None:
    def samples(workers: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StokerWarning)
            return sorted(flat(stoker.DataLoader(Noisy(), collate_fn=list, num_workers=workers, seed=3)))

    assert samples(2) == samples(3)
    assert [number for number, _ in samples(2)] == list(range(10))
    assert len({noise for _, noise in samples(2)}) == 10


@pytest.mark.parametrize("workers", [{}, PROCESSES, THREADS], ids=str)
def test_a_collator_draws_anew_for_each_batch(workers: Any) -> None:
    def collate(samples: list[int]) -> list[float]:
        return [stoker.sample_rng().random_generator.random()]

    loader = stoker.DataLoader(Unequal([6, 6]), 2, collate_fn=collate, seed=1, **workers)
    first, second = flat(loader), flat(loader)
    assert len({*first, *second}) == len(first) + len(second)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_stream_goes_on_after_a_sample_that_raises(workers: Any) -> None:
    told: list[Any] = []
    iterator = iter(stoker.DataLoader(Stumbling(), collate_fn=list, **workers))
    while True:
        try:
            told += next(iterator)
        except StopIteration:
            break
        except ValueError as error:
            assert "sample 3 is broken" in str(error)
            told.append("error")
    assert told == [0, 1, 2, "error", 4, 5]


@pytest.mark.parametrize("workers", [{}, PROCESSES, THREADS], ids=str)
def test_a_stream_that_never_ends_is_not_read_far_ahead(workers: Any) -> None:
    class Endless(stoker.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = stoker.get_worker_info()
            number, step = (0, 1) if info is None else (info.id, info.num_workers)
            while True:
                assert number < 40
                yield number
                number += step

    with iter(stoker.DataLoader(Endless(), collate_fn=list, **workers)) as iterator:
        assert [next(iterator) for _ in range(10)] == [[i] for i in range(10)]


@BOTH
def test_persistent_workers_read_a_stream_anew_in_each_epoch(workers: Any) -> None:
    with stoker.DataLoader(Unequal([3, 1]), collate_fn=list, persistent_workers=True, **workers) as loader:
        assert flat(loader) == flat(loader) == [0, 100, 1, 2]
        next(iter(loader))
        assert flat(loader) == [0, 100, 1, 2]


@pytest.mark.parametrize("in_order", [True, False])
def test_unequal_streams_in_any_order(in_order: bool) -> None:
    loader = stoker.DataLoader(Unequal([9, 2, 4]), collate_fn=list, num_workers=3, in_order=in_order)
    assert sorted(flat(loader)) == sorted([*range(9), 100, 101, 200, 201, 202, 203])


# Who asks which worker it is, and who only wants its generators


class Rolling(stoker.IterableDataset[Any]):
    """Wants the generators of its worker, and does not ask which worker it is."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(12):
            info = stoker.get_worker_info()
            rng = stoker.sample_rng() if info is None else info.rng
            assert rng is not None
            yield number, rng.random_generator.random()


@BOTH
def test_a_stream_that_wants_only_generators_is_shared_out(workers: Any) -> None:
    alone = flat(stoker.DataLoader(Rolling(), collate_fn=list, seed=3))
    with pytest.warns(StokerWarning, match="Rolling does not share"):
        samples = flat(stoker.DataLoader(Rolling(), collate_fn=list, seed=3, **workers))
    assert sorted(samples) == alone  # each once, with the numbers that it draws without workers


class Called(stoker.IterableDataset[int]):
    """Calls, and does not let on what for: it may know by other means which part is its own."""

    def __iter__(self) -> Iterator[int]:
        stoker.get_worker_info()
        return iter(range(3))


@BOTH
def test_a_call_whose_purpose_is_not_seen_counts_as_asking(workers: Any) -> None:
    with pytest.warns(StokerWarning, match=r"it calls get_worker_info\(\) before its first sample"):
        assert flat(stoker.DataLoader(Called(), collate_fn=list, **workers)) == [0, 0, 1, 1, 2, 2]


class ReadsAhead(stoker.IterableDataset[int]):
    """Asks, and shares itself out, in a thread of its own."""

    def __iter__(self) -> Iterator[int]:
        read: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=[read]).start()
        return iter(read.get, None)

    def _read(self, read: queue.SimpleQueue[int | None]) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        for number in range(info.id, 8, info.num_workers):
            read.put(number)
        read.put(None)


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_stream_may_shard_itself_in_a_thread_of_a_worker(context: str) -> None:
    loader = stoker.DataLoader(ReadsAhead(), collate_fn=list, multiprocessing_context=context, **PROCESSES)
    assert sorted(flat(loader)) == list(range(8))


class Rolled(stoker.IterableDataset[Any]):
    """Shares itself out, and draws from a generator for each sample, its first one too."""

    def __iter__(self) -> Iterator[Any]:
        info = stoker.get_worker_info()
        assert info is not None
        for number in range(info.id, 12, info.num_workers):
            yield number, random.random()


@pytest.mark.parametrize("count", [2, 4])
def test_first_samples_of_workers_do_not_share_their_numbers(count: int) -> None:
    samples = flat(stoker.DataLoader(Rolled(), collate_fn=list, seed=3, num_workers=count))
    assert sorted(number for number, _ in samples) == list(range(12))
    assert len({drawn for _, drawn in samples}) == 12
    assert samples == flat(stoker.DataLoader(Rolled(), collate_fn=list, seed=3, num_workers=count))


# Generators that a stream holds


class PickedInStep(stoker.IterableDataset[int]):
    """Draws the order of all samples in each worker, from a generator of its own, and keeps every n-th."""

    def __init__(self, share: Any = None) -> None:
        self.rng = np.random.default_rng(0)
        self.share = share

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        first, step = self.share or ((0, 1) if info is None else (info.id, info.num_workers))
        left = list(range(40))
        for place in range(40):
            number = left.pop(self.rng.integers(len(left)))
            if place % step == first:
                yield number


def test_workers_may_draw_alike_from_a_generator_of_the_stream() -> None:
    samples = flat(stoker.DataLoader(PickedInStep(), collate_fn=list, num_workers=2))
    assert samples != sorted(samples) == list(range(40))


def test_ranks_may_draw_alike_from_a_generator_of_the_stream() -> None:
    loaders = [stoker.DataLoader(PickedInStep((rank, 2)), collate_fn=list, seed=rank) for rank in range(2)]
    epochs = [[sample for loader in loaders for sample in flat(loader)] for _ in range(2)]
    assert [sorted(samples) for samples in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]  # the generator goes on


def test_a_generator_of_the_collators_is_seeded_for_each_batch() -> None:
    class Noise:
        def __init__(self, stream: Any) -> None:
            self.stream, self.own = stream, np.random.default_rng(2)

        def __call__(self, samples: list[int]) -> list[Any]:
            return [(*samples, self.own.random())]

    stream = PickedInStep()
    noise = [drawn for _, drawn in flat(stoker.DataLoader(stream, collate_fn=Noise(stream), num_workers=2, seed=1))]
    assert len(set(noise)) == 40
    assert sorted(number for number, _ in flat(stoker.DataLoader(stream, collate_fn=Noise(stream), num_workers=2))) == (
        list(range(40))
    )


class Failing(stoker.IterableDataset[int]):
    """Some samples raise; those behind them come."""

    def __init__(self, bad: set[int], length: int = 12, shares: bool = False) -> None:
        self.bad, self.length, self.shares = bad, length, shares

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info() if self.shares else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.next, self.step = first, step
        return copy.copy(self)

    def __next__(self) -> int:
        number, self.next = self.next, self.next + self.step
        if number >= self.length:
            raise StopIteration
        if number in self.bad:
            raise OSError(number)
        return number


def drawn_by_the_collator(samples: list[Any]) -> list[Any]:
    return [*samples, random.random()]


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_collator_draws_new_numbers_for_each_stream_batch() -> None:
    def loader(workers: int) -> Any:
        return stoker.DataLoader(
            Plain(), batch_size=2, num_workers=workers, collate_fn=drawn_by_the_collator, seed=3, output="numpy"
        )

    drawn = [batch[-1] for batch in loader(3)]
    assert len({*drawn}) == len(drawn) >= 3
    first = loader(3)
    iterator = iter(first)
    before = [next(iterator)[-1] for _ in range(2)]
    second = loader(2)
    second.load_state_dict(first.state_dict())
    drawn = [*before, *(batch[-1] for batch in second)]
    assert len({*drawn}) == len(drawn)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("shares", [False, True])
@BOTH
def test_failing_stream_sample_is_named_by_its_place(workers: Any, shares: bool, tmp_path: Path) -> None:
    """Of a stream that shares itself out each worker counts its own."""
    path = tmp_path / "bad.jsonl"
    loader = stoker.DataLoader(
        Failing({0, 1, 5}, shares=shares),
        batch_size=2,
        on_error="skip",
        max_error_rate=None,
        quarantine=path,
        collate_fn=list,
        **workers,
    )
    seen = sorted(number for batch in loader for number in batch)
    assert seen == [2, 3, 4, 6, 7, 8, 9, 10, 11]
    records = stoker.quarantine(path)
    assert sorted(record.position for record in records) == ([0, 0, 2] if shares else [0, 1, 5])
    assert len(records) == loader.report().epoch.quarantined == 3


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize(
    ("size", "length", "bad"),
    [(1, 8, {1, 2, 3}), (2, 8, {3, 4, 5, 6, 7}), (2, 5, {0, 1, 2, 3, 4})],
    ids=["in a row", "at the end", "all"],
)
def test_replacement_in_a_stream_is_counted_once(size: int, length: int, bad: set[int], tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    loader = stoker.DataLoader(
        Failing(bad, length),
        batch_size=size,
        on_error="replace",
        max_errors=None,
        max_error_rate=None,
        quarantine=path,
        collate_fn=list,
    )
    seen = [number for batch in loader for number in batch]
    assert seen == [number for number in range(length) if number not in bad]
    counts = loader.report().epoch
    assert min(counts.delivered, counts.replaced, counts.quarantined) >= 0
    assert counts.delivered + counts.replaced == len(seen)
    assert counts.replaced + counts.quarantined == len(bad)
    outcomes = [record.outcome for record in stoker.quarantine(path)]
    assert outcomes.count("replaced") == counts.replaced and len(outcomes) == len(bad)
