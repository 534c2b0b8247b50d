"""Streams in streams that share themselves out among the workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import ChainDataset, FilterDataset, InterleaveDataset, MapDataset, MixDataset, ZipDataset, from_iterable
from stoker.datasets.cache import CacheDataset
from stoker.errors import ShardingError
from stoker.testing.streams import Numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
    pytest.mark.filterwarnings("ignore:.*does not share its samples out"),
]
BOTH = pytest.mark.parametrize("method", ["process", "thread"])


class Asking(stoker.IterableDataset[int]):
    """Shares itself out, when its first sample is asked for."""

    def __init__(self, start: int, stop: int) -> None:
        self.numbers = range(start, stop)

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        yield from self.numbers if info is None else self.numbers[info.id :: info.num_workers]


class AskingAtOnce(Asking):
    """Shares itself out, when it is opened."""

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__()))


class Rolling(Asking):
    """Wants to know nothing that tells the workers apart."""

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        assert info is None or info.rng is not None
        return iter(self.numbers)


def loaded(dataset: Any, method: str = "thread", **settings: Any) -> list[Any]:
    """The samples of an epoch with two workers, sorted."""
    settings = {"batch_size": 2, "num_workers": 2, "worker_method": method, "collate_fn": list, **settings}
    with stoker.DataLoader(dataset, **settings) as loader:
        return sorted(sample for batch in loader for sample in batch)


@pytest.mark.parametrize(
    ("asking", "method"), [(Asking, "thread"), (AskingAtOnce, "thread"), (AskingAtOnce, "process")]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda one, other: ZipDataset(one, other),
        lambda one, other: ZipDataset(other, one),
        lambda one, other: ZipDataset(one, range(4)),
        lambda one, other: ZipDataset(range(4), FilterDataset(one, str)),
        lambda one, other: MixDataset([one, other], [1, 1], "drop"),
        lambda one, other: MixDataset([range(4), one], [1, 1], "repeat"),
        lambda one, other: MapDataset(ChainDataset([one, other]), abs),
        lambda one, other: MapDataset(ChainDataset([other, one]), abs),
        lambda one, other: ZipDataset(ChainDataset([one, other])),
        lambda one, other: ZipDataset(InterleaveDataset([other, one], 2)),
        lambda one, other: InterleaveDataset([ZipDataset(other, one)], 2),
    ],
)
def test_combined_streams_shard_together_or_not_at_all(make: Callable[..., Any], asking: Any, method: str) -> None:
    with pytest.raises(ShardingError, match=r"some call get_worker_info\(\)"):
        loaded(make(asking(0, 4), from_iterable(range, 10, 14)), method, on_error="skip")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda one, other: ZipDataset(one, other), [(i, 10 + i) for i in range(6)]),
        (lambda one, other: MixDataset([one, other], [1, 1], "drop"), [*range(6), *range(10, 16)]),
        (lambda one, other: MapDataset(ChainDataset([one, other]), abs), [*range(6), *range(10, 16)]),
        (lambda one, other: InterleaveDataset([ChainDataset([one, other])], 1), [*range(6), *range(10, 16)]),
    ],
)
@pytest.mark.parametrize("kind", [Asking, AskingAtOnce, Rolling])
def test_combined_streams_share_if_all_do_or_none(make: Callable[..., Any], expected: Any, kind: Any) -> None:
    assert loaded(make(kind(0, 6), kind(10, 16))) == expected


@BOTH
def test_a_stream_of_a_shared_interleave_gives_all_its_samples(method: str) -> None:
    assert loaded(InterleaveDataset([Rolling(0, 9), Rolling(9, 20)], 2), method) == [*range(20)]
    dataset = InterleaveDataset([MapDataset(Asking(0, 9), abs), Asking(9, 20)], 2)
    with pytest.raises(ShardingError, match="streams of an InterleaveDataset"):
        loaded(dataset, method, on_error="skip")
    assert loaded(dataset, method, shard="none") == [*range(20)]


def test_sharding_is_not_checked_for_one_worker_or_none() -> None:
    dataset = ZipDataset(Asking(0, 4), range(4))
    for workers in (0, 1):
        assert loaded(dataset, num_workers=workers) == [(i, i) for i in range(4)]


def test_sharding_by_the_user_is_not_checked() -> None:
    dataset = ZipDataset(Asking(0, 4), Numbers(2))
    assert loaded(dataset, shard="none") == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_resumed_stream_keeps_its_share() -> None:
    """Streams that are resumed by a state of their own may know their share by that, and ask no more."""

    class Knowing(Asking):
        at: Any = None

        def __iter__(self) -> Iterator[int]:
            if self.at is None:
                info = stoker.get_worker_info()
                assert info is not None
                self.at = [info.id, info.num_workers]
            while self.at[0] < len(self.numbers):
                self.at[0] += self.at[1]
                yield self.numbers[self.at[0] - self.at[1]]

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    def make() -> Any:
        parts = ChainDataset([Knowing(0, 4), Asking(10, 14)])
        return stoker.DataLoader(
            ZipDataset(parts), batch_size=1, num_workers=2, worker_method="thread", collate_fn=list, prefetch_factor=1
        )

    with make() as loader:
        samples = iter(loader)
        given = [next(samples), next(samples)]
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        given += list(loader)
    assert sorted(sample for batch in given for (sample,) in batch) == [0, 1, 2, 3, 10, 11, 12, 13]


def _kept(dataset: Any, folder: Path) -> CacheDataset[Any]:
    return CacheDataset(dataset, folder=folder, key="k")


@BOTH
@pytest.mark.parametrize("asking", [Asking, AskingAtOnce])
def test_a_cache_keeps_no_share_as_if_it_were_the_whole(tmp_path: Path, asking: Any, method: str) -> None:
    dataset = _kept(asking(0, 20), tmp_path)
    for _ in range(2):
        with pytest.raises(ShardingError, match="CacheDataset was given a stream"):
            loaded(dataset, method, on_error="skip")
    assert list(dataset) == [*range(20)]
    assert loaded(_kept(Rolling(0, 20), tmp_path / "rolling")) == [*range(20)]


@pytest.mark.filterwarnings("ignore:A stream that cannot say:stoker.StokerWarning")
def test_cache_begun_whole_is_not_continued_by_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.datasets.cache._CHUNK", 10)
    dataset = _kept(Asking(0, 20), tmp_path)
    samples = iter(dataset)
    assert [next(samples) for _ in range(5)] == [*range(5)]
    with pytest.raises(ShardingError, match="CacheDataset was given a stream"):
        loaded(dataset)


@BOTH
def test_cache_of_user_sharding_is_kept_for_each_worker(tmp_path: Path, method: str) -> None:
    def cut(worker: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        source = info.dataset.dataset
        source.numbers = source.numbers[worker :: info.num_workers]

    settings: Any = {"worker_init_fn": cut, "multiprocessing_context": "fork"} if method == "process" else {}
    if settings:
        for _ in range(2):
            assert loaded(_kept(Numbers(20), tmp_path), method, **settings) == [*range(20)]
    for _ in range(2):
        assert loaded(_kept(Asking(0, 20), tmp_path / "none"), method, shard="none") == [*range(20)]
    assert loaded(_kept(Numbers(20), tmp_path / "twice"), method, shard="none") == sorted([*range(20)] * 2)


def test_sharding_done_by_torch_is_kept_for_each_worker(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    settings: Any = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}
    for _ in range(2):
        theirs = torch.utils.data.DataLoader(_kept(Asking(0, 20), tmp_path), **settings)
        assert sorted(theirs) == [*range(20)]


def test_shares_of_a_shared_cache_have_one_file(tmp_path: Path) -> None:
    assert loaded(_kept(from_iterable(range, 20), tmp_path)) == [*range(20)]
    assert len(os.listdir(tmp_path)) == 1
