"""The states of all ranks in one: another number of ranks goes on, each sample once."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker import DataLoader
from stoker.errors import StateFormatError, StateMismatchError
from stoker.loader._epoch import ranks as worlds
from stoker.loader._state import merging, schema
from stoker.testing.streams import Numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
]
SOME = settings(max_examples=max(20, settings().max_examples // 5))
LENGTHS = (9, 5, 14, 3, 6, 1, 8)
EVERY = sorted(100 * number + place for number, length in enumerate(LENGTHS) for place in range(length))


def numbers(shard: int) -> Any:
    return stoker.MapDataset(Numbers(LENGTHS[shard]), lambda place: 100 * shard + place)


def interleaved(rank: int, ranks: int) -> Any:
    streams = [numbers(shard) for shard in range(len(LENGTHS))]
    return stoker.InterleaveDataset(streams, open_at_once=2, seed=1).shard(num_shards=ranks, index=rank)


class Files(stoker.IterableDataset[Any]):
    """Shares its files out by rank and worker, and names all that it was ever told of."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.read: dict[str, int] = {}
        self.loaded: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        self.read, self.loaded = self.loaded, {}
        info = stoker.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(len(LENGTHS))[self.rank :: self.ranks][worker::workers]:
            while (place := self.read.get(str(number), 0)) < LENGTHS[number]:
                self.read[str(number)] = place + 1
                yield 100 * number + place

    def state_dict(self) -> Any:
        return {"shards": dict(self.read)}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = dict(state["shards"])


SOURCES = pytest.mark.parametrize("source", [interleaved, Files])


def loaders(source: Any, ranks: int, workers: int = 0, **how: Any) -> list[Any]:
    how = {"seed": 5, **how, **({"num_workers": workers, "worker_method": "thread"} if workers else {})}
    return [
        stoker.DataLoader(source(rank, ranks), output="numpy", shard="auto", **{**how, "seed": how["seed"] + rank})
        for rank in range(ranks)
    ]


def read(loader: Any, count: int | None) -> list[int]:
    iterator = iter(loader)
    received = [int(sample) for batch in itertools.islice(iterator, count) for sample in batch]
    iterator.close()
    return received


LEG = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 3))


@SOURCES
@SOME
@given(legs=st.lists(LEG, min_size=1, max_size=4), last=LEG, size=st.integers(1, 3))
def test_any_number_of_ranks_goes_on(source: Any, legs: Any, last: Any, size: int) -> None:
    received: list[int] = []
    state: Any = {"epoch": 0}
    for ranks, workers, count in [*legs, (*last[:2], None)]:
        together = loaders(source, ranks, workers, batch_size=size)
        if "kind" in state:
            for loader in together:
                loader.load_state_dict(state)
        for loader in together:
            received += read(loader, count)
        merged = json.loads(json.dumps(stoker.merge_states(loader.state_dict() for loader in together)))
        if merged["epoch"] > state["epoch"]:  # all ranks have come to the end; of some that have, the others go on
            assert sorted(received) == EVERY
            received = []
        state = merged
    assert received == []


def draws(rank: int, ranks: int) -> Any:
    def draw(number: int) -> tuple[int, int]:
        return number, int(stoker.sample_rng().random_generator.getrandbits(62))

    return stoker.MapDataset(interleaved(rank, ranks), draw)


def test_merged_state_repeats_no_sample() -> None:
    first = loaders(draws, 2, 1, batch_size=None)
    seen = [pair for loader in first for pair in itertools.islice(iter(loader), 9)]
    state = stoker.merge_states(loader.state_dict() for loader in first)
    second = loaders(draws, 3, 1, batch_size=None)
    for loader in second:
        loader.load_state_dict(state)
    seen += [pair for loader in second for pair in loader]
    assert sorted(number for number, _ in seen) == EVERY
    assert len({drawn for _, drawn in seen}) == len(EVERY)


def test_ranks_that_come_out_of_one_do_not_draw_alike() -> None:
    first = loaders(draws, 1, batch_size=None)
    seen = list(itertools.islice(iter(first[0]), 9))
    second = loaders(draws, 2, batch_size=None)
    for loader in second:
        loader.load_state_dict(stoker.merge_states([first[0].state_dict()]))
    seen += [pair for loader in second for pair in loader]
    assert sorted(number for number, _ in seen) == EVERY
    assert len({drawn for _, drawn in seen}) == len(EVERY)


@pytest.mark.filterwarnings("ignore:.* has 3 shards, too few for 4 workers")
def test_states_of_more_workers_than_shards_cannot_be_merged() -> None:
    """Each worker has read all of its rank's stream: a shard's place says nothing of what was kept."""
    first = loaders(interleaved, 2, 4, batch_size=2, worker_method="thread")
    for loader in first:
        list(itertools.islice(iter(loader), 3))
    with pytest.raises(StateMismatchError, match="if they have one for each worker"):
        stoker.merge_states(loader.state_dict() for loader in first)


def test_before_the_first_batch_it_is_the_start() -> None:
    state = stoker.merge_states(loader.state_dict() for loader in loaders(interleaved, 3))
    loader = loaders(interleaved, 1)[0]
    loader.load_state_dict(state)
    assert sorted(read(loader, None)) == EVERY


def test_merged_state_of_finished_ranks_is_empty() -> None:
    """The last batch was received, and that there is no other was not asked."""
    ranks = loaders(interleaved, 2, batch_size=100)
    open_ones = [iter(loader) for loader in ranks]
    assert sorted(int(sample) for each in open_ones for sample in next(each)) == EVERY
    state = stoker.merge_states(loader.state_dict() for loader in ranks)
    loader = loaders(interleaved, 1, batch_size=100)[0]
    loader.load_state_dict(state)
    assert read(loader, None) == []
    assert sorted(read(loader, None)) == EVERY


def test_state_of_one_rank_with_indices_is_the_merged_state() -> None:
    ranks = [
        stoker.DataLoader(range(20), shuffle=True, seed=1, distributed="exact", rank=rank, num_replicas=2)
        for rank in range(2)
    ]
    for loader in ranks:
        next(iter(loader))
    states = [loader.state_dict() for loader in ranks]
    assert stoker.merge_states(states) == states[0]
    ranks[1].load_state_dict(states[1])
    next(iter(ranks[1]))
    with pytest.raises(StateMismatchError, match="batches is 1, 2"):
        stoker.merge_states(loader.state_dict() for loader in ranks)


def test_merging_no_states_is_an_error() -> None:
    with pytest.raises(ValueError, match="got none"):
        stoker.merge_states([])


def test_no_state_of_ours() -> None:
    with pytest.raises(StateFormatError, match="no state of a Stoker loader"):
        stoker.merge_states([{}, {}])


def test_states_of_different_loaders_do_not_merge() -> None:
    small, large = loaders(interleaved, 1, batch_size=1)[0], loaders(interleaved, 1, batch_size=2)[0]
    with pytest.raises(StateMismatchError, match="batch_size is 1, 2"):
        stoker.merge_states([small.state_dict(), large.state_dict()])


def test_states_of_different_epochs_do_not_merge() -> None:
    ranks = loaders(interleaved, 2)
    read(ranks[1], None)
    read(ranks[1], 1)
    with pytest.raises(StateMismatchError, match=r"epoch is 0, 1.*before one of them begins the next"):
        stoker.merge_states(loader.state_dict() for loader in ranks)


def test_rank_that_has_ended_needs_names_of_its_shards() -> None:
    ranks = loaders(Nameless, 2)
    read(ranks[0], 1)
    read(ranks[1], None)
    with pytest.raises(StateMismatchError, match="one rank has ended epoch 0, in which others are"):
        stoker.merge_states(loader.state_dict() for loader in ranks)


def test_next_epoch_after_the_merge_of_ended_ranks_is_whole() -> None:
    """Their datasets are at the end of an epoch, and another number of ranks has others."""
    ranks = loaders(Files, 2)
    assert sorted(itertools.chain(*(read(loader, None) for loader in ranks))) == EVERY
    state = stoker.merge_states(loader.state_dict() for loader in ranks)
    again = loaders(Files, 3)
    for loader in again:
        loader.load_state_dict(state)
    assert sorted(itertools.chain(*(read(loader, None) for loader in again))) == EVERY


def test_state_of_a_part_that_is_missing_is_noticed() -> None:
    states = [loader.state_dict() for loader in loaders(interleaved, 3)]
    for some in (states[:2], [*states[:2], states[0]], states[1:]):
        with pytest.raises(StateMismatchError, match=r"needs the state of each rank once, and got those of \d of 3"):
            stoker.merge_states(some)


def test_ranks_that_read_one_part_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one tensor-parallel group: the states of all ranks, or of one in each group."""
    world = [0, 4]
    monkeypatch.setattr(worlds, "of_torch", lambda: worlds.World(*world, "torch.distributed"))
    first, states, seen = [loaders(interleaved, 2, batch_size=2)[rank // 2] for rank in range(4)], [], []
    for world[0], loader in enumerate(first):
        seen += read(loader, 3) if world[0] % 2 else read(loader, 3)[:0]
        states.append(loader.state_dict())
    assert "rank 3 of 4" in states[3]
    everyone = schema.join_states(states)
    for some in (states, states[::2], states[1:3], [everyone]):
        merged, rest = stoker.merge_states(some), []
        for loader in loaders(interleaved, 3, batch_size=2):
            loader.load_state_dict(merged)
            rest += read(loader, None)
        assert sorted(seen + rest) == EVERY
    read(first[3], 1)
    world[0] = 3
    with pytest.raises(StateMismatchError, match="two ranks read part 1 of 2, and are at batch 3 of epoch 0 and"):
        stoker.merge_states([*states[:3], first[3].state_dict()])


def test_state_of_another_part_does_not_fit() -> None:
    first, second = loaders(interleaved, 2)
    with pytest.raises(StateMismatchError, match="index was 0 and is 1"):
        second.load_state_dict(first.state_dict())
    nested = stoker.MapDataset(stoker.ShuffleDataset(interleaved(1, 2), 3), abs).shard(num_shards=3, index=2)
    kind = stoker.DataLoader(nested).state_dict()["kind"]
    assert (kind["num_shards"], kind["index"]) == (6, 5)


def test_index_ranks_of_which_some_have_ended_merge() -> None:
    def states(samples: int, counts: list[int]) -> list[Any]:
        how = {"shuffle": True, "seed": 1, "distributed": "exact", "num_replicas": len(counts)}
        ranks = [stoker.DataLoader(range(samples), 1, rank=rank, **how) for rank in range(len(counts))]
        for loader, count in zip(ranks, counts, strict=True):
            read(loader, count)
        return [loader.state_dict() for loader in ranks]

    for some in (states(10, [3, 3, 3, 3]), states(10, [2, 2, 3, 3])):
        merged = stoker.merge_states(some)
        assert merged == some[0]
        assert (merged["epoch"], merged["position"]) in ((0, 10), (0, 8))
    with pytest.raises(StateMismatchError, match="another is at position 4, more than one step of 4 before its end"):
        stoker.merge_states(states(10, [1, 1, 3, 3]))


class Nameless(Files):
    def state_dict(self) -> Any:
        return {"read": dict(self.read)}


def test_streams_that_do_not_name_their_shards() -> None:
    ranks = loaders(Nameless, 2)
    for loader in ranks:
        read(loader, 1)
    with pytest.raises(StateMismatchError, match="do not name their shards"):
        stoker.merge_states(loader.state_dict() for loader in ranks)


class Drawn:
    """A sampler whose state is what its generator's is: an array, and something that is no number."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < 8:
            self._at += 1
            yield self._at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at, "words": np.arange(self._at), "spare": math.nan, "parts": [(1, np.ones(2))]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


def test_states_with_different_seeds_do_not_merge() -> None:
    states = [DataLoader(range(10), batch_size=2, shuffle=True, seed=seed).state_dict() for seed in (1, 2)]
    with pytest.raises(StateMismatchError, match="seed is 1, 2"):
        stoker.merge_states(states)


def test_states_with_a_samplers_state_merge_if_equal() -> None:
    def state(batches: int) -> dict[str, Any]:
        made = DataLoader(range(10), batch_size=2, sampler=Drawn(), seed=1)
        list(itertools.islice(made, batches))
        return made.state_dict()

    assert merging._alike(stoker.merge_states([state(2), state(2)]), state(2))
    with pytest.raises(StateMismatchError, match="batches is 1, 2"):
        stoker.merge_states([state(1), state(2)])
    assert merging._alike({"a": [np.ones(2)]}, {"a": [np.ones(2)]})
    for other in ({"a": [np.zeros(2)]}, {"a": [np.ones(3)]}, {"a": [np.ones(2, int)]}, {"a": [1]}, {"a": []}, {"b": 1}):
        assert not merging._alike({"a": [np.ones(2)]}, other)
