"""Accelerate's loaders on Stoker's engine: its batches, and exact resume without reading anything again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import StateMismatchError
from stoker.loader._epoch.ranks import RankSlice, World

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.data_loader import BatchSamplerShard, prepare_data_loader  # noqa: E402
from accelerate.utils import DataLoaderConfiguration, set_seed  # noqa: E402

from stoker.integrations.accelerate import (  # noqa: E402
    Checkpointed,
    SharedBatches,
    prepare,
    skip_first_batches,
)
from tests.integrations.launching import launched  # noqa: E402
from tests.loader._state.edits import edited  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of others


class Counting(stoker.Dataset[Any]):
    """Counts its reads, in this process."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor(index)


class CountingStream(stoker.IterableDataset[Any]):
    """A stream that says where it stands, and counts what it reads."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0
        self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        begin, self.at = self.at, 0
        for number in range(begin, self.length):
            self.at = number + 1
            self.reads += 1
            yield torch.tensor(number)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def accelerator_of(**conf: Any) -> Any:
    set_seed(5)
    return accelerate.Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**conf))


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def all_of(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in batch]


# The batches


SIZES = [(n, b, w) for n in (1, 5, 16, 22, 24) for b in (2, 4, 6) for w in (1, 2, 3)]


@pytest.mark.parametrize("how", list(itertools.product((False, True), repeat=3)), ids=str)
def test_the_shares_are_accelerates(how: tuple[bool, bool, bool]) -> None:
    split, even, drop_last = how
    compared = 0
    for samples, size, ranks in SIZES:
        if split and size % ranks:
            continue
        theirs, ours = [], []
        for rank in range(ranks):
            batches = stoker.BatchSampler(stoker.SequentialSampler(range(samples)), size, drop_last)
            theirs.append(list(BatchSamplerShard(batches, ranks, rank, split, even)))
            shared = SharedBatches(batches, ranks, rank, split, even)
            known = shared.batches(0)
            share = RankSlice(len(known), 0, World(rank, ranks), shared.mode)
            ours.append([known.batch(int(number)) for number in share.positions(0, len(share))])
        sizes = [[len(batch) for batch in batches] for batches in theirs]
        assert [[len(batch) for batch in batches] for batches in ours] == sizes, (samples, size, ranks)
        whole = samples // (size * (1 if split else ranks))  # rounds without a sample that comes twice
        assert [batches[:whole] for batches in ours] == [batches[:whole] for batches in theirs]
        assert set(itertools.chain(*map(all_of, ours))) == set(itertools.chain(*map(all_of, theirs)))
        compared += 1
    assert compared > 20


def test_batches_that_cannot_be_split_are_refused() -> None:
    batches = stoker.BatchSampler(stoker.SequentialSampler(range(9)), 3, False)
    with pytest.raises(ValueError, match="fixed size that 2 ranks divide evenly, but BatchSampler has batch_size=3"):
        SharedBatches(batches, 2, 0, True, True)


@pytest.mark.parametrize("even", [True, False])
def test_another_number_of_ranks_goes_on(even: bool) -> None:
    def ranks(number: int) -> list[stoker.DataLoader[Any]]:
        loaders = []
        for rank in range(number):
            batches = stoker.BatchSampler(stoker.RandomSampler(range(50)), 4, False)
            shared = SharedBatches(batches, number, rank, False, even)
            how = {"distributed": shared.mode, "num_replicas": number, "rank": rank, "seed": 3}
            loaders.append(stoker.DataLoader(range(50), batch_sampler=shared, **how))
        return loaders

    before = ranks(2)
    seen = [all_of(lists(itertools.islice(loader, 2))) for loader in before]
    states = [loader.state_dict() for loader in before]
    assert states[0] == states[1]
    for loader in ranks(3):
        loader.load_state_dict(states[0])
        seen.append(all_of(lists(loader)))
    numbers = list(itertools.chain(*seen))
    assert set(numbers) == set(range(50))
    if not even:
        assert len(numbers) == 50


def test_the_batches_of_one_rank_are_the_loaders() -> None:
    accelerator = accelerator_of()
    loader = stoker.DataLoader(range(10), 4, shuffle=True, seed=2, num_workers=1)
    prepared = prepare(accelerator, loader)
    alone = stoker.DataLoader(range(10), 4, shuffle=True, seed=2)
    assert prepared.base_dataloader is loader
    assert [lists(prepared) for _ in range(2)] == [lists(alone) for _ in range(2)]
    assert (len(prepared), prepared.total_batch_size, prepared.total_dataset_length) == (3, 4, 10)
    assert accelerator.prepare(prepared) is prepare(accelerator, prepared) is prepared
    assert sum(other is prepared for other in accelerator._dataloaders) == 1


def test_a_loader_of_torchs_is_taken_over() -> None:
    theirs = torch.utils.data.DataLoader(range(10), 4)
    for loader in (theirs, prepare_data_loader(theirs)):
        accelerator = accelerator_of()
        accelerator._dataloaders.append(loader)
        prepared = prepare(accelerator, loader)
        assert isinstance(prepared.base_dataloader, stoker.DataLoader)
        assert lists(prepared) == lists(theirs)


def test_a_loader_that_shares_itself_out_is_refused() -> None:
    loader = stoker.DataLoader(range(10), distributed="pad", num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="leave distributed= out of a loader that is prepared"):
        prepare(accelerator_of(), loader)
    with pytest.raises(TypeError, match="from_torch needs"):
        prepare(accelerator_of(), [1, 2])


# Resume


CONFIGURATIONS: list[dict[str, Any]] = [{}, {"dispatch_batches": True}, {"use_seedable_sampler": True}]


@pytest.mark.parametrize("conf", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_late_step_is_resumed_without_a_read(conf: dict[str, Any], seed: int | None, tmp_path: Path) -> None:
    def made() -> tuple[Any, Any, Counting]:
        accelerator, dataset = accelerator_of(**conf), Counting(20_000)
        return accelerator, prepare(accelerator, stoker.DataLoader(dataset, 10, shuffle=True, seed=seed)), dataset

    accelerator, loader, _ = made()
    batches = iter(loader)
    seen = all_of(lists(itertools.islice(batches, 1_800)))
    accelerator.save_state(str(tmp_path))
    following = [next(batches).tolist() for _ in range(3)]
    accelerator, again, dataset = made()
    accelerator.load_state(str(tmp_path))
    assert dataset.reads == 0
    rest = lists(again)
    assert dataset.reads == 2_000
    assert rest[:3] == following
    assert sorted(seen + all_of(rest)) == list(range(20_000))
    batches.close()


def test_step_a_million_is_found_in_the_seed() -> None:
    accelerator, dataset = accelerator_of(), Counting(80_000_000)
    loader = prepare(accelerator, stoker.DataLoader(dataset, 8, shuffle=True, seed=3))
    loader.set_epoch(2)
    skipped = skip_first_batches(loader, 1_000_000)
    batches = iter(skipped)
    ours = next(batches).tolist()
    assert dataset.reads <= 16  # Accelerate fetches one batch ahead
    alone = stoker.DataLoader(range(80_000_000), 8, shuffle=True, seed=3)
    alone.load_state_dict(edited(alone.state_dict(), epoch=2, batches=1_000_000, position=8_000_000))
    assert ours == next(iter(alone)).tolist()
    batches.close()


@pytest.mark.parametrize("conf", [{}, {"dispatch_batches": True}], ids=str)
def test_skipped_batches_come_again_in_the_next_epoch(conf: dict[str, Any]) -> None:
    loader = prepare(accelerator_of(**conf), stoker.DataLoader(range(20), 2, shuffle=True, seed=3))
    epochs = [lists(loader) for _ in range(3)]
    loader = prepare(accelerator_of(**conf), stoker.DataLoader(range(20), 2, shuffle=True, seed=3))
    loader.set_epoch(1)
    assert [lists(skip_first_batches(loader, 7)), lists(loader)] == [epochs[1][7:], epochs[2]]


def test_other_loaders_are_skipped_by_accelerate() -> None:
    assert lists(skip_first_batches(torch.utils.data.DataLoader(range(6), 2), 1)) == [[2, 3], [4, 5]]
    loader = prepare(accelerator_of(), stoker.DataLoader(range(6), 2, shuffle=True))  # no seed, and no state
    assert sum(map(len, lists(skip_first_batches(loader, 1)))) == 4


def test_a_stream_is_resumed_without_a_read(tmp_path: Path) -> None:
    accelerator = accelerator_of()
    loader = prepare(accelerator, stoker.DataLoader(CountingStream(4_000), 4))
    assert type(loader).__name__ == "PreparedDispatcher"
    batches = iter(loader)
    seen = all_of(lists(itertools.islice(batches, 700)))
    accelerator.save_state(str(tmp_path))
    batches.close()
    accelerator, stream = accelerator_of(), CountingStream(4_000)
    loader = prepare(accelerator, stoker.DataLoader(stream, 4))
    accelerator.load_state(str(tmp_path))
    assert seen + all_of(lists(loader)) == list(range(4_000))
    assert stream.reads == 4_000 - 2_800


def test_a_state_between_epochs_begins_the_next(tmp_path: Path) -> None:
    accelerator = accelerator_of()
    loader = prepare(accelerator, stoker.DataLoader(range(20), 2, shuffle=True, seed=3))
    epochs = [lists(loader) for _ in range(2)]
    accelerator.save_state(str(tmp_path))
    epochs.append(lists(loader))
    accelerator = accelerator_of()
    loader = prepare(accelerator, stoker.DataLoader(range(20), 2, shuffle=True, seed=3))
    accelerator.load_state(str(tmp_path))
    accelerator.save_state(str(tmp_path / "again"))  # before a batch was given
    assert lists(loader) == epochs[2]
    accelerator = accelerator_of()
    loader = prepare(accelerator, stoker.DataLoader(range(20), 2, shuffle=True, seed=3))
    accelerator.load_state(str(tmp_path / "again"))
    assert lists(loader) == epochs[2]


def test_a_state_of_other_data_is_refused(tmp_path: Path) -> None:
    accelerator = accelerator_of()
    loader = prepare(accelerator, stoker.DataLoader(range(20), 2))
    accelerator.save_state(str(tmp_path))
    accelerator = accelerator_of()
    other = prepare(accelerator, stoker.DataLoader(range(21), 2))
    with pytest.raises(StateMismatchError, match="samples was 20 and is 21"):
        accelerator.load_state(str(tmp_path))
    with pytest.raises(StateMismatchError, match="parts of a stream that 3 ranks have read, and there are 1"):
        Checkpointed(other).load_state_dict({"ranks": [{}, {}, {}]})
    assert len(loader) == 10


def test_a_loader_that_is_gone_leaves_an_empty_state() -> None:
    accelerator = accelerator_of()
    prepare(accelerator, stoker.DataLoader(range(20), 2))
    accelerator.free_memory()
    assert accelerator._custom_objects[-1].state_dict() == {"ranks": []}


# Two ranks


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launched("accelerate_ranks.py", 2, str(tmp_path_factory.mktemp("checkpoints")))


def both(told: list[dict[str, Any]], name: str, part: str) -> list[int]:
    return [sample for rank in told for batch in rank[name][part] for sample in batch]


def test_the_dispatcher_is_exact_in_six_setups(two_ranks: list[dict[str, Any]]) -> None:
    names = [name for name in two_ranks[0] if name.startswith("dispatch")]
    assert len(names) == 6
    for name in names:
        seen = both(two_ranks, name, "before") + both(two_ranks, name, "after")
        assert sorted(seen) == list(range(48)), name
        _, split, steps = name.split()
        assert len(both(two_ranks, name, "before")) == int(steps) * (4 if split == "True" else 8)


def test_two_ranks_resume_their_shares(two_ranks: list[dict[str, Any]]) -> None:
    names = [name for name in two_ranks[0] if name.startswith("shard")]
    assert len(names) == 16
    for name in names:
        before, after = both(two_ranks, name, "before"), both(two_ranks, name, "after")
        samples = int(name.split()[2])
        assert set(before) | set(after) == set(range(samples)), name
        repeated = 0 if samples == 48 or "even" in name else 2  # of 22, to make even batches
        assert len(before) + len(after) == samples + repeated, name


def test_two_ranks_resume_a_stream(two_ranks: list[dict[str, Any]]) -> None:
    for name in ("stream dispatched", "stream shared"):
        assert sorted(both(two_ranks, name, "before") + both(two_ranks, name, "after")) == list(range(48)), name


def test_rank_0_alone_writes_the_state(two_ranks: list[dict[str, Any]]) -> None:
    files = two_ranks[0]["files"]
    assert [name for name in files if "custom_checkpoint" in name] == ["custom_checkpoint_0.pkl"]
    assert not [name for name in files if "dl_state_dict" in name]


def test_metrics_count_each_sample_once(two_ranks: list[dict[str, Any]]) -> None:
    for rank in two_ranks:
        assert [sample for batch in rank["metrics"] for sample in batch] == list(range(22))
