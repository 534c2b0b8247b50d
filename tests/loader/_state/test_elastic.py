"""An epoch goes on with other ranks: what was seen before and after is the whole epoch, each sample once."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.errors import SamplerError, StateMismatchError
from stoker.loader._epoch.ranks import Mode
from stoker.samplers import RandomSampler, SubsetRandomSampler
from stoker.samplers.balanced import BalancedBatchSampler
from stoker.samplers.stratified import StratifiedBatchSampler

SOME = settings(max_examples=max(25, settings().max_examples // 2))
MODES = st.sampled_from(get_args(Mode))
WORLDS = st.integers(1, 6)


class Noisy(stoker.Dataset[Any]):
    """A sample is its index, and what was drawn for it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return int(index), stoker.sample_rng().random_generator.random()


def alone(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, "seed": 3, "shuffle": True, **settings})


def ranks(size: int, dataset: Any, mode: str, **settings: Any) -> list[Any]:
    """The loaders of all ranks."""
    return [alone(dataset, distributed=mode, num_replicas=size, rank=rank, **settings) for rank in range(size)]


def interleaved(parts: list[list[Any]]) -> list[Any]:
    """The samples of all ranks in the order of their positions: the first of each rank, then the second, …"""
    missing = object()
    rows = itertools.zip_longest(*parts, fillvalue=missing)
    return [sample for row in rows for sample in row if sample is not missing]


def flat(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def one_state(world: list[Any]) -> Any:
    """The state of all ranks: they agree on it."""
    states = [loader.state_dict() for loader in world]
    assert all(state == states[0] for state in states)
    return json.loads(json.dumps(states[0]))


def goes_on(state: Any, world: list[Any]) -> list[Any]:
    for loader in world:
        loader.load_state_dict(state)
    return world


@SOME
@given(
    n=st.integers(1, 90),
    mode=MODES,
    size=st.integers(1, 5),
    legs=st.lists(st.tuples(WORLDS, st.integers(0, 3)), min_size=1, max_size=4),
    last=WORLDS,
    shuffle=st.booleans(),
)
def test_ranks_come_and_go(
    n: int, mode: Mode, size: int, legs: list[tuple[int, int]], last: int, shuffle: bool
) -> None:
    """With one batch size for a rank. What is received follows the order that a single rank would have seen."""
    dataset, seen, state = Noisy(n), [], None
    whole = flat(alone(dataset, shuffle=shuffle))
    worst = max([last, *(count for count, _ in legs)])
    if mode == "drop" and n < worst:
        return
    for count, steps in legs:
        world = ranks(count, dataset, mode, batch_size=size, shuffle=shuffle)
        if state is not None:
            goes_on(state, world)
        received = [list(itertools.islice(loader, steps)) for loader in world]
        if len({len(batches) for batches in received}) > 1 or len(seen) + steps * size * count >= n:
            return  # "exact": behind the end of some ranks and not of others; else the next epoch
        seen += interleaved(list(map(flat, received)))
        state = one_state(world)
        assert seen == whole[: len(seen)]
    world = ranks(last, dataset, mode, batch_size=size, shuffle=shuffle)
    goes_on(state, world)
    seen += interleaved([flat(loader) for loader in world])
    assert seen[:n] == whole[: len(seen)]
    if mode == "exact":
        assert len(seen) == n
    elif mode == "drop":
        assert n - worst < len(seen) <= n
    else:
        assert n <= len(seen) < n + worst
        assert [index for index, _ in seen[n:]] == [whole[place % n][0] for place in range(len(seen) - n)]


@SOME
@given(n=st.integers(24, 100), mode=MODES, before=st.sampled_from([1, 2, 3, 4, 6, 12]), data=st.data())
def test_the_global_batches_stay_if_their_size_does(n: int, mode: Mode, before: int, data: Any) -> None:
    after = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    step = data.draw(st.integers(0, n // 12))
    dataset = Noisy(n)
    whole = [set(batch) for batch in alone(dataset, batch_size=12)]
    first = ranks(before, dataset, mode, batch_size=12 // before)
    received = [list(itertools.islice(loader, step)) for loader in first]
    second = ranks(after, dataset, mode, batch_size=12 // after)
    goes_on(one_state(first), second)
    together = [set().union(*batches) for batches in zip(*received, strict=True)]
    together += [set(flat(batches)) for batches in itertools.zip_longest(*second, fillvalue=[])]
    assert together[: n // 12] == whole[: n // 12]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_next_epoch_is_that_of_the_new_ranks(mode: Mode) -> None:
    dataset = Noisy(60)
    single = alone(dataset)
    list(single)
    whole = flat(single)
    first = ranks(4, dataset, mode, batch_size=3)
    for loader in first:
        list(itertools.islice(loader, 2))
    second = goes_on(one_state(first), ranks(3, dataset, mode, batch_size=4))
    for loader in second:
        list(loader)
    assert interleaved([flat(loader) for loader in second]) == whole


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_workers_and_ranks_change_together(workers: dict[str, Any]) -> None:
    dataset = Noisy(41)
    whole = flat(alone(dataset))
    first = ranks(2, dataset, "exact", batch_size=3, **workers)
    seen = interleaved([flat(itertools.islice(loader, 4)) for loader in first])
    state = one_state(first)
    second = goes_on(state, ranks(3, dataset, "exact", batch_size=2))
    assert seen + interleaved([flat(loader) for loader in second]) == whole


def test_a_loader_that_is_alone_goes_on_with_what_ranks_began() -> None:
    dataset = Noisy(50)
    first = ranks(3, dataset, "pad", batch_size=4)
    seen = interleaved([flat(itertools.islice(loader, 2)) for loader in first])
    second = alone(dataset, batch_size=12)
    second.load_state_dict(one_state(first))
    third = flat(itertools.islice(second, 1))
    last = goes_on(second.state_dict(), ranks(4, dataset, "drop", batch_size=3))
    assert (seen + third + interleaved([flat(loader) for loader in last]))[:48] == flat(alone(dataset))[:48]


@pytest.mark.parametrize("kind", ["stratified", "balanced"])
def test_batches_that_are_known_by_number_are_shared_out_whole(kind: str) -> None:
    labels = [index % 3 for index in range(60)]

    def sampler() -> Any:
        if kind == "stratified":
            return StratifiedBatchSampler(labels, batch_size=6)
        return BalancedBatchSampler(labels, 2, 3)

    made = {"batch_sampler": sampler(), "shuffle": None}
    whole = list(alone(Noisy(60), **made))
    first = ranks(2, Noisy(60), "exact", **made)
    seen = interleaved([list(itertools.islice(loader, 2)) for loader in first])
    second = goes_on(one_state(first), ranks(3, Noisy(60), "exact", **{**made, "batch_sampler": sampler()}))
    assert seen + interleaved([list(loader) for loader in second]) == whole


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_batch_that_pads_the_last_round_is_augmented_anew(size: int) -> None:
    def sampler() -> Any:
        return stoker.BucketBatchSampler([5] * 10, batch_size=10)

    made = {"batch_sampler": sampler(), "shuffle": None}
    batches = [batch for loader in ranks(size, Noisy(10), "pad", **made) for batch in loader]
    assert [sorted(index for index, _ in batch) for batch in batches] == [list(range(10))] * size
    assert len({drawn for batch in batches for _, drawn in batch}) == 10 * size


class TellsSeed(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: Any) -> Any:
        return stoker.get_worker_info().seed, random.random()  # type: ignore[union-attr]


@pytest.mark.parametrize("seeding", ["worker", "init_fn"])
def test_workers_of_all_ranks_draw_apart(seeding: str) -> None:
    how: dict[str, Any] = {"num_workers": 1, "batch_size": 2}
    how |= {"seeding": "worker"} if seeding == "worker" else {"worker_init_fn": seeds_from_info}
    seen = [flat(loader) for loader in ranks(3, TellsSeed(), "pad", **how)]
    assert len({seed for rank in seen for seed, _ in rank}) == 3
    assert len({drawn for rank in seen for _, drawn in rank}) == 12
    assert seen[0] == flat(alone(TellsSeed(), **how))[:4]  # the first is as a loader that is alone


def seeds_from_info(number: int) -> None:
    info = stoker.get_worker_info()
    assert info is not None
    random.seed(info.seed)


# What does not fit


def _begun(size: int = 2, **settings: Any) -> Any:
    world = ranks(size, Noisy(60), "pad", **{"batch_size": 6, **settings})
    for loader in world:
        list(itertools.islice(loader, 2))
    return one_state(world)


@pytest.mark.parametrize(
    ("size", "changed", "told"),
    [
        (2, {"batch_size": 5}, "batch_size was 6 and is 5"),
        (3, {"batch_size": 5}, "batch_size was 6 and is 5"),
        (2, {"drop_last": True}, "drop_last was False and is True"),
        (2, {"seed": 4}, "seed was 3 and is 4"),
        (2, {"seed": None}, "seed was 3 and is None"),
        (2, {"shuffle": False}, "order was 'RandomSampler/1' and is 'SequentialSampler/1'"),
        (2, {"shuffle": None, "sampler": SubsetRandomSampler(range(9))}, "indices was 60 and is 9"),
        (
            2,
            {"shuffle": None, "sampler": RandomSampler(range(60), num_samples=61)},
            "indices was 60 and is 61",
        ),
        (2, {"batches_per_epoch": 4}, "batches_per_epoch was None and is 4"),
    ],
)
def test_changed_setting_of_a_state_is_named(size: int, changed: dict[str, Any], told: str) -> None:
    state = _begun()
    loader, *_ = ranks(size, Noisy(60), "pad", **{"batch_size": 6, **changed})
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=told):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_distributed_mode_is_fixed_while_ranks_may_change() -> None:
    state = _begun(2)
    with pytest.raises(StateMismatchError, match="distributed was 'pad' and is 'drop'"):
        ranks(2, Noisy(60), "drop", batch_size=6)[0].load_state_dict(state)
    ranks(3, Noisy(60), "drop", batch_size=6)[0].load_state_dict(state)


def test_a_dataset_of_another_length_is_named() -> None:
    with pytest.raises(StateMismatchError, match=r"samples was 60 and is 61\. Make"):
        ranks(2, Noisy(61), "pad", batch_size=6)[0].load_state_dict(_begun())


@pytest.mark.parametrize("given", ["attribute", "method"])
def test_a_dataset_with_another_fingerprint_is_named(given: str) -> None:
    class Printed(Noisy):
        stoker_protocol = True
        fingerprint: Any

    def printed(text: str) -> Noisy:
        dataset = Printed(60)
        dataset.fingerprint = text if given == "attribute" else lambda: text
        return dataset

    first = alone(printed("a"))
    alone(printed("a")).load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match="fingerprint was 'a' and is 'b'"):
        alone(printed("b")).load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match="fingerprint was 'a' and is None"):
        alone(Noisy(60)).load_state_dict(first.state_dict())


def test_unchecked_state_allows_another_batch_size() -> None:
    dataset = Noisy(60)
    first = ranks(2, dataset, "exact", batch_size=6)
    seen = interleaved([flat(itertools.islice(loader, 2)) for loader in first])
    second = ranks(3, dataset, "exact", batch_size=5)
    for loader in second:
        loader.load_state_dict(one_state(first), strict=False)
    assert seen + interleaved([flat(loader) for loader in second]) == flat(alone(dataset))


def test_unchecked_state_allows_another_seed() -> None:
    """The epoch is finished in the state's order, with its numbers; the next is this loader's."""
    first = alone(Noisy(20), batch_size=4)
    iterator = iter(first)
    next(iterator)
    second = alone(Noisy(20), batch_size=4, seed=9)
    second.load_state_dict(first.state_dict(), strict=False)
    other = alone(Noisy(20), batch_size=4, seed=9)
    list(other)
    assert list(second) == list(iterator)
    assert list(second) == list(other)


# Shares that are none


def test_a_rank_outside_of_the_world() -> None:
    with pytest.raises(ValueError, match=r"Invalid rank 2, rank should be in the interval \[0, 1\]"):
        alone(range(9), distributed="pad", num_replicas=2, rank=2)


def test_a_rank_that_the_launcher_sets_outside_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"RANK 3 is outside of a world of 3 ranks \(WORLD_SIZE\)"):
        next(iter(alone(range(9), distributed="drop")))


@pytest.mark.parametrize(
    "settings",
    [
        {"distributed": "drop", "num_replicas": 10},
        {"distributed": "drop", "num_replicas": 2, "batch_size": 5, "drop_last": True},
        {"distributed": "pad", "num_replicas": 2, "batch_size": 6, "drop_last": True},
        {"distributed": "exact", "num_replicas": 3, "batch_size": 4, "drop_last": True},
    ],
    ids=str,
)
def test_a_batch_that_is_larger_than_the_share_of_a_rank(settings: dict[str, Any]) -> None:
    with pytest.raises(SamplerError, match=r"leaves nothing for rank 1 of \d+ \(arguments\): there are 9 to share out"):
        alone(range(9), rank=1, **settings)


@pytest.mark.parametrize("mode", ["pad", "exact"])
def test_state_resumes_on_more_ranks_than_samples(mode: str) -> None:
    received = [flat(loader) for loader in ranks(5, range(3), mode)]
    assert [len(part) for part in received] == ([1] * 5 if mode == "pad" else [1, 1, 1, 0, 0])
    assert set(flat(received)) == {0, 1, 2}


@pytest.mark.parametrize("mode", get_args(Mode))
def test_an_empty_dataset_has_empty_shares(mode: str) -> None:
    for loader in ranks(2, [], mode, shuffle=False):
        assert (list(loader), len(loader)) == ([], 0)
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("sampler", [[0, 1, 2], iter([0])], ids=["list", "iterator"])
def test_a_sampler_that_can_only_be_walked_is_not_shared_out(sampler: Any) -> None:
    with pytest.raises(SamplerError, match="can only be iterated"):
        alone(range(9), shuffle=None, sampler=sampler, distributed="pad", num_replicas=2, rank=0)


@SOME
@given(n=st.integers(0, 60), size=st.integers(1, 7), count=WORLDS, mode=MODES, drop=st.booleans())
def test_a_loader_knows_its_length(n: int, size: int, count: int, mode: Mode, drop: bool) -> None:
    try:
        world = ranks(count, range(n), mode, batch_size=size, drop_last=drop, shuffle=False)
    except SamplerError:
        return
    for loader in world:
        assert len(loader) == len(list(loader)) == len(iter(loader))
