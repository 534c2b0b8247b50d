"""Epochs advance: by themselves, or as the user says; also those that are cut out of an order without an end."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker import DataLoader
from stoker.errors import IteratorClosedError, QuarantineError, SamplerError
from stoker.samplers import BatchSampler, DistributedSampler, RandomSampler

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU
SOME = settings(max_examples=max(20, settings().max_examples // 3))

WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "worker_method": "thread", "persistent_workers": True},
]
EVERYWHERE = pytest.mark.parametrize("workers", WORKERS, ids=str)


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, **settings})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def flat(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


# Who offers a set_epoch is told


class Told(stoker.Dataset[Any]):
    """A sample is the epoch that the dataset was told, in the process that makes it."""

    stoker_protocol = True

    epoch = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ToldStream(stoker.IterableDataset[Any]):
    stoker_protocol = True
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 6)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Silent(Told):
    """Does not say which epoch it was told."""

    @property
    def epoch(self) -> Any:
        raise AttributeError

    told = 0

    def set_epoch(self, epoch: int) -> None:
        self.told = epoch

    def __getitem__(self, index: int) -> int:
        return self.told


class Shared(Told):
    """As Hugging Face's streams: a number that is written in place, as `_epoch`."""

    class Number:
        value = 0

        def __index__(self) -> int:
            return self.value

    def __init__(self) -> None:
        self._epoch = self.Number()

    @property
    def epoch(self) -> Any:
        raise AttributeError

    def set_epoch(self, epoch: int) -> None:
        self._epoch.value = int(epoch)

    def __getitem__(self, index: int) -> int:
        return self._epoch.value


class Current(Silent):
    """Says it under the name that litdata's streams give it."""

    current_epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.current_epoch = self.told = epoch


class Wrapper(Silent):
    """Passes it on to what it reads, which keeps it as a `Value` of multiprocessing's would."""

    class Reader:
        def __init__(self) -> None:
            self.epoch = SimpleNamespace(value=0)

        def set_epoch(self, epoch: int) -> None:
            self.epoch.value = epoch

    def __init__(self) -> None:
        self.reader = self.Reader()

    def set_epoch(self, epoch: int) -> None:
        self.reader.set_epoch(epoch)

    def __getitem__(self, index: int) -> int:
        return self.reader.epoch.value


ALL_TOLD: list[Any] = [Told, ToldStream, Silent, Shared, Current, Wrapper]


def epochs_of(some: Any, count: int) -> list[int]:
    """Returns the epochs of `passes` passes."""
    return [epoch for _ in range(count) for epoch in sorted(set(flat(some)))]


@EVERYWHERE
@pytest.mark.parametrize("kind", ALL_TOLD)
@pytest.mark.filterwarnings("ignore:ToldStream does not share")
def test_set_epoch_reaches_a_nested_dataset(kind: Any, workers: dict[str, Any]) -> None:
    with loader(kind(), batch_size=2, **workers) as some:
        assert epochs_of(some, 3) == [0, 1, 2]
        if kind is not Silent:
            some.dataset.set_epoch(10)
            assert epochs_of(some, 3) == [10, 11, 12]
        some.load_state_dict(through_json(some.state_dict()))
        assert epochs_of(some, 1) == [3 if kind is Silent else 13]


@pytest.mark.parametrize("kind", ALL_TOLD)
def test_set_epoch_before_the_first_epoch_holds(kind: Any) -> None:
    dataset = kind()
    dataset.set_epoch(4)
    assert epochs_of(loader(dataset), 2) == ([0, 1] if kind is Silent else [4, 5])


def distributed(theirs: bool) -> Any:
    if theirs:
        return pytest.importorskip("torch").utils.data.DistributedSampler
    return DistributedSampler


def expected(sampler: Any, *epochs: int) -> list[list[int]]:
    """What the sampler gives in these epochs by itself."""
    orders = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return orders


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "torch's"])
@pytest.mark.parametrize("form", ["sampler", "batch_sampler"])
class TestSamplers:
    @pytest.fixture
    def some(self, theirs: bool, form: str) -> Any:
        self.alone = distributed(theirs)(range(20), 2, 1)
        self.sampler = distributed(theirs)(range(20), 2, 1)
        return self.make(self.sampler, form)

    def make(self, sampler: Any, form: str) -> Any:
        given = sampler if form == "sampler" else BatchSampler(sampler, 1, False)
        return loader(range(20), **{form: given})

    def test_samplers_advance_by_themselves(self, some: Any) -> None:
        assert [flat(some) for _ in range(3)] == expected(self.alone, 0, 1, 2)

    def test_set_epoch_of_a_sampler_is_obeyed(self, some: Any) -> None:
        received = []
        for epoch in (0, 1, 5, 5, 0, 0, 3, 4):
            self.sampler.set_epoch(epoch)
            received.append(flat(some))
        assert received == expected(self.alone, 0, 1, 5, 5, 0, 0, 3, 4)

    def test_set_epoch_is_obeyed_after_a_look_at_the_first_batch(self, some: Any) -> None:
        """A pass more than those that the user counts, and on one rank only perhaps."""
        self.sampler.set_epoch(0)
        next(iter(some))
        received = []
        for epoch in range(3):
            self.sampler.set_epoch(epoch)
            received.append(flat(some))
        assert received == expected(self.alone, 0, 1, 2)

    def test_an_epoch_that_the_script_sets_stays(self, some: Any) -> None:
        """As with torch's loader: from then on it is the script's to set."""
        received = [flat(some)]
        self.sampler.set_epoch(7)
        received += [flat(some) for _ in range(2)]
        self.sampler.set_epoch(8)
        received += [flat(some) for _ in range(2)]
        assert received == expected(self.alone, 0, 7, 7, 8, 8)

    def test_the_loaders_set_epoch_takes_it_back(self, some: Any) -> None:
        self.sampler.set_epoch(7)
        received = [flat(some), flat(some)]
        some.set_epoch(3)
        received += [flat(some), flat(some)]
        assert received == expected(self.alone, 7, 7, 3, 4)

    def test_a_resumed_run_counts_on(self, some: Any, theirs: bool, form: str) -> None:
        self.sampler.set_epoch(7)
        flat(some)
        self.sampler.set_epoch(8)
        iterator = iter(some)
        first = [next(iterator) for _ in range(3)]
        state = through_json(some.state_dict())
        again = self.make(distributed(theirs)(range(20), 2, 1), form)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert [flat(first) + flat(again), flat(again)] == expected(self.alone, 8, 9)

    def test_a_resumed_run_obeys(self, some: Any, theirs: bool, form: str) -> None:
        flat(some)
        state = through_json(some.state_dict())
        sampler = distributed(theirs)(range(20), 2, 1)
        again = self.make(sampler, form)
        again.load_state_dict(state)
        sampler.set_epoch(11)
        assert [flat(again), flat(again)] == expected(self.alone, 11, 11)

    def test_a_pickled_loader_counts_on(self, some: Any) -> None:
        some.set_epoch(7)
        flat(some)
        again = pickle.loads(pickle.dumps(some))
        assert [flat(again), flat(some), flat(again)] == expected(self.alone, 8, 8, 9)

    def test_a_pickled_loader_leaves_the_scripts_epoch(self, some: Any) -> None:
        self.sampler.set_epoch(7)
        flat(some)
        again = pickle.loads(pickle.dumps(some))
        assert [flat(again), flat(some), flat(again)] == expected(self.alone, 7, 7, 7)


class TestOneAfterAnother:
    """A loader for each epoch, or a run that goes back to its checkpoint, with the sampler that there was."""

    @staticmethod
    def sampler() -> Any:
        return stoker.DistributedSampler(range(20), 2, 0)

    def test_a_new_loader_says_which_epoch_it_is(self) -> None:
        kept, received = self.sampler(), []
        for number in (0, 1, 2, 1):
            some = loader(range(20), sampler=kept)
            some.set_epoch(number)
            received.append(flat(some))
        assert received == expected(self.sampler(), 0, 1, 2, 1)

    def test_a_run_goes_back_to_its_checkpoint(self) -> None:
        kept = self.sampler()
        some = loader(range(20), sampler=kept, batch_size=2)
        flat(some)
        iterator = iter(some)
        next(iterator)
        state, rest = some.state_dict(), flat(iterator)
        flat(some)
        again = loader(range(20), sampler=kept, batch_size=2)
        again.load_state_dict(state)
        assert flat(again) == rest

    def test_last_set_epoch_call_is_obeyed(self) -> None:
        kept = self.sampler()
        flat(loader(range(20), sampler=kept))
        some = loader(range(20), sampler=kept)
        some.set_epoch(3)
        kept.set_epoch(5)
        assert [flat(some), flat(some)] == expected(self.sampler(), 5, 5)


def test_epoch_given_to_a_dataset_is_a_plain_integer() -> None:
    dataset = Told()
    some = loader(dataset)
    list(some), list(some)
    assert (dataset.epoch, repr(dataset.epoch), json.dumps(dataset.epoch)) == (1, "1", "1")
    assert type(pickle.loads(pickle.dumps(dataset.epoch))) is int


def test_a_sampler_that_advances_itself_is_left_alone() -> None:
    class Advancing:
        stoker_protocol = True
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            self.epoch += 1
            return iter([self.epoch])

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    some = loader(range(9), sampler=Advancing())
    assert [flat(some) for _ in range(3)] == [[1], [2], [3]]


# Orders without an end


def piece_by_piece(n: int, pieces: int, **settings: Any) -> list[list[int]]:
    some = loader(range(n), shuffle=True, **settings)
    return [flat(some) for _ in range(pieces)]


@SOME
@given(
    n=st.integers(1, 30), size=st.none() | st.integers(1, 40), pieces=st.integers(1, 6), batches=st.integers(1, 9),
    seed=st.none() | st.integers(0, 9),
)  # fmt: skip
def test_pieces_are_one_order_of_whole_passes(n: int, size: int | None, pieces: int, batches: int, seed: Any) -> None:
    made: dict[str, Any] = {"batch_size": size, "seed": seed, "shuffle": True}
    if size is None:
        made["collate_fn"] = lambda sample: [sample]
    some = loader(range(n), batches_per_epoch=batches, **made)
    epochs = [list(some) for _ in range(pieces)]
    assert len(some) == batches
    assert {len(epoch) for epoch in epochs} == {batches}
    assert {len(batch) for epoch in epochs for batch in epoch} == {size or 1}
    whole = flat(flat(epochs))
    for start in range(0, len(whole) - n + 1, n):
        assert sorted(whole[start : start + n]) == list(range(n))


def test_each_pass_has_its_own_order() -> None:
    (whole,) = piece_by_piece(50, 1, batch_size=10, batches_per_epoch=40, seed=1)
    assert len({tuple(whole[start : start + 50]) for start in range(0, 400, 50)}) == 8


def test_length_of_the_pieces_does_not_change_the_order() -> None:
    settings: dict[str, Any] = {"batch_size": 4, "seed": 1}
    short, long = (flat(piece_by_piece(9, 60 // cut, batches_per_epoch=cut, **settings)) for cut in (3, 20))
    assert short == long


def make_piece(form: str, n: int, size: int, **settings: Any) -> Any:
    made = {"shuffle": True, "batch_size": size}
    if form == "sampler":
        made = {"sampler": RandomSampler(range(n)), "batch_size": size}
    elif form == "batch sampler":
        made = {"batch_sampler": BatchSampler(RandomSampler(range(n)), size, False)}
    return loader(range(n), **made, **settings)


@pytest.mark.parametrize("form", ["shuffle", "sampler", "batch sampler"])
@SOME
@given(
    n=st.integers(1, 20), size=st.integers(1, 6), batches=st.integers(1, 5),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)  # fmt: skip
def test_pieces_are_resumed_and_broken_off(form: str, n: int, size: int, batches: int, counts: list[int]) -> None:
    """Each piece begins where it would have, also if the one before it was left early."""

    def make() -> Any:
        return make_piece(form, n, size, batches_per_epoch=batches, seed=5)

    whole, first = make(), make()
    plain = [list(whole) for _ in range(len(counts) + 2)]
    for number, count in enumerate(counts):
        count = min(count, batches)
        iterator = iter(first)
        assert list(itertools.islice(iterator, count)) == plain[number][:count]
        again = make()
        again.load_state_dict(through_json(first.state_dict()))
        assert again.state_dict() == first.state_dict()
        assert [list(again), list(again)] == [plain[number][count:], plain[number + 1]]
        if not count:  # a piece of which nothing was asked has not begun
            next(iterator)


def test_pieces_stay_one_order_without_a_seed() -> None:
    first = loader(range(10), shuffle=True, batch_size=3, batches_per_epoch=4)
    iterator = iter(first)
    next(iterator)
    state = through_json(first.state_dict())
    following = [list(iterator), list(first), list(first)]
    again = loader(range(10), shuffle=True, batch_size=3, batches_per_epoch=4)
    again.load_state_dict(state)
    assert [list(again), list(again), list(again)] == following
    between = loader(range(10), shuffle=True, batch_size=3, batches_per_epoch=4)
    between.load_state_dict(through_json(first.state_dict()))
    assert list(between) == list(first)


@SOME
@given(n=st.integers(1, 20), sizes=st.permutations([1, 2, 3, 6]), stop=st.integers(0, 3))
def test_pieces_of_all_ranks_make_those_of_one_rank(n: int, sizes: list[int], stop: int) -> None:
    """12 samples over all ranks, on as many ranks as there happen to be."""
    settings: dict[str, Any] = {"shuffle": True, "batches_per_epoch": 3, "seed": 2}
    single = loader(range(n), batch_size=12, **settings)
    plain = [list(single) for _ in range(3)]
    state = None
    received: list[list[Any]] = []
    for count in sizes[:2]:
        world = [
            loader(range(n), batch_size=12 // count, distributed="pad", num_replicas=count, rank=rank, **settings)
            for rank in range(count)
        ]
        if state is not None:
            for some in world:
                some.load_state_dict(state)
        steps = [list(itertools.islice(some, stop if state is None else None)) for some in world]
        states = [through_json(some.state_dict()) for some in world]
        received += [flat(zip(*batches, strict=True)) for batches in zip(*steps, strict=True)]
        assert all(other == states[0] for other in states)
        state = states[0]
    following = [list(some) for some in world]
    received += [flat(zip(*batches, strict=True)) for batches in zip(*following, strict=True)]
    assert received == [*plain[0], *plain[1]]


@EVERYWHERE
def test_pieces_are_the_same_with_workers(workers: dict[str, Any]) -> None:
    with loader(range(10), shuffle=True, batch_size=3, batches_per_epoch=4, seed=1, **workers) as some:
        assert [flat(some) for _ in range(3)] == piece_by_piece(10, 3, batch_size=3, batches_per_epoch=4, seed=1)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sampler": [0, 1]}, "the list .* can only be iterated from its start"),
        ({"batch_sampler": [[0, 1]]}, "the list .* can only be iterated from its start"),
    ],
)
def test_an_order_that_is_walked_has_its_own_end(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SamplerError, match=told):
        loader(range(9), batches_per_epoch=4, **settings)


def test_a_stream_has_its_own_end() -> None:
    with pytest.raises(SamplerError, match=r"ToldStream is a stream, .* itertools\.islice"):
        loader(ToldStream(), batches_per_epoch=4)
    with pytest.raises(SamplerError, match=r"ToldStream is a stream, .* dataset\.shard"):
        loader(ToldStream(), distributed="pad")


def test_whole_batches_are_not_cut() -> None:
    from stoker.samplers.balanced import BalancedBatchSampler

    sampler = BalancedBatchSampler([0, 1] * 20, 2, 2)
    with pytest.raises(SamplerError, match="BalancedBatchSampler, whose passes hold whole batches"):
        loader(range(40), batch_sampler=sampler, batches_per_epoch=4)


def test_empty_order_of_pieces_ends() -> None:
    with pytest.raises(SamplerError, match="there are no samples"):
        loader([], batches_per_epoch=4)


@pytest.mark.parametrize("number", [0, -1, 1.5, "3"])
def test_pieces_of_no_size(number: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="batches_per_epoch should be"):
        loader(range(9), batches_per_epoch=number)


def test_epochs_that_were_not_begun_do_not_count() -> None:
    some = loader(range(9), shuffle=True, seed=1)
    iter(some), iter(some)
    assert list(some) == list(loader(range(9), shuffle=True, seed=1))


def test_ranks_agree_without_a_seed_whatever_their_generators() -> None:
    shares = []
    for rank in range(3):
        np.random.seed(rank)
        loader = DataLoader(range(30), shuffle=True, distributed="exact", rank=rank, num_replicas=3, output="numpy")
        shares += [int(batch[0]) for batch in loader]
    assert sorted(shares) == list(range(30))


def test_ranks_are_read_when_an_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's child may have half of its environment before it joins the others."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    loader = DataLoader(range(10), distributed="drop", output="numpy")
    with pytest.raises(ValueError, match="RANK is not set"):
        next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    assert [int(batch[0]) for batch in loader] == [1, 3, 5, 7, 9]
    assert "this is rank 1 of 2 (RANK and WORLD_SIZE" in loader.describe()


def test_a_sampler_of_two_loaders_has_the_length_of_each() -> None:
    sampler = stoker.SequentialSampler(range(8))
    alone = DataLoader(range(8), sampler=sampler, batch_size=2)
    shared = DataLoader(range(8), sampler=sampler, batch_size=2, distributed="pad", num_replicas=4, rank=0)
    assert len(alone) == len(list(alone)) == 4
    assert len(shared) == len(list(shared)) == 1


def test_a_batch_sampler_may_count_positions_in_numpys_integers() -> None:
    class Known(stoker.Sampler[Any]):
        stoker_protocol = True

        def __iter__(self) -> Iterator[Any]:
            return iter([[0, 1], [2, 3]])

        def __len__(self) -> int:
            return 2

        def batches(self, key: int) -> Any:
            return self

        def batch(self, number: int) -> list[int]:
            return [2 * number, 2 * number + 1]

        def position(self, number: int) -> Any:
            return np.cumsum([0, 2])[number]

    def collated(samples: list[int]) -> list[int]:
        return samples

    assert list(DataLoader(range(4), batch_sampler=Known(), collate_fn=collated)) == [[0, 1], [2, 3]]


class InEpochs:
    """A sampler that is walked; its indices say the epoch."""

    stoker_protocol = True

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        for place in range(12):
            yield 100 * self.epoch + place


class Indices(stoker.Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("settings", [{"sampler": InEpochs}, {"shuffle": True, "seed": 3}], ids=["walked", "computed"])
def test_set_epoch_behind_iter_leaves_the_place_that_was_loaded(settings: Any) -> None:
    def new() -> Any:
        return loader(
            Indices(), batch_size=2, **{name: kind() if kind is InEpochs else kind for name, kind in settings.items()}
        )

    first = new()
    iterator = iter(first)
    next(iterator), next(iterator)
    state = first.state_dict()
    undisturbed = new()
    undisturbed.set_epoch(1)
    wanted = list(undisturbed)
    for when in ("before", "behind"):
        resumed = new()
        resumed.load_state_dict(state)
        if when == "before":
            resumed.set_epoch(1)
        iterator = iter(resumed)
        if when == "behind":
            resumed.set_epoch(1)
        again = new()
        again.load_state_dict(through_json(resumed.state_dict()))
        assert list(iterator) == wanted
        assert list(again) == wanted


# Epochs that cannot begin

PERSISTENT: dict[str, Any] = {"num_workers": 1, "worker_method": "thread", "persistent_workers": True, "timeout": 20}


def test_an_epoch_that_could_not_begin_has_moved_no_sampler(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    made = loader(Indices(), batch_size=2, sampler=InEpochs(), quarantine=folder / "bad.jsonl", **PERSISTENT)
    iterator = iter(made)
    next(iterator)
    state = made.state_dict()
    wanted = list(iterator)
    made.load_state_dict(state)
    iterator = iter(made)
    (folder / "bad.jsonl").unlink()
    folder.rmdir()
    with pytest.raises(QuarantineError):
        next(iterator)
    folder.mkdir()
    assert list(iterator) == wanted
    made.close()


def test_sampler_that_fails_at_iter_leaves_no_waiter() -> None:
    class Once:
        """Fails at its third `iter()`: torch's loader calls it twice for the first epoch of its workers."""

        begun = 0

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[list[int]]:
            self.begun += 1
            if self.begun == 3:
                raise OSError("once")
            return iter([[2 * place, 2 * place + 1] for place in range(6)])

    made = loader(Indices(), batch_sampler=Once(), **PERSISTENT)
    iterator = iter(made)
    first = next(iterator)
    with pytest.raises(OSError, match="once"):
        iter(made)
    with pytest.raises(IteratorClosedError, match="OSError at the beginning of its next epoch"):
        next(iterator)
    again = iter(made)
    assert next(again) == first and len(list(again)) == 5
    made.close()
