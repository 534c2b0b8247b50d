from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DuplicateKeyError, RecordError, ShardError, StateFormatError, StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.tar import stream as stream_module
from stoker.sources.tar.index import index_shards
from stoker.sources.tar.stream import TarStream
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite
from tests.sources.tar.shards import numbered, numbers_of, write_numbered, write_shard


class TestTarStream(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = write_numbered(tmp_path, [5, 1, 8], size=5000)
        return lambda: TarStream(paths)

    def delete(self, dataset: TarStream) -> str:
        for path in dataset.shards:
            os.unlink(path)
        return os.path.dirname(dataset.shards[0])


class TestResumedTarStream(StreamSuite):
    @pytest.fixture(params=["in order", "shuffled", "with a buffer", "few shards", "an index"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(stream_module, "PIECES", 4)
        few = request.param in ("few shards", "an index")
        paths = write_numbered(tmp_path, [7] if few else [3, 1, 2, 3], size=3000)
        if request.param == "an index":
            index_shards(paths)
        options: dict[str, Any] = {"shuffled": {"shuffle": True}, "with a buffer": {"buffer_size": 3}}
        return lambda: TarStream(paths, seed=5, **options.get(request.param, {}))


def test_samples_come_in_the_order_of_the_shards(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [5, 1, 4])
    assert numbers_of(TarStream(f"{tmp_path}/s{{000..002}}.tar")) == list(range(10))
    sample = next(iter(TarStream(paths, decode=False)))
    assert sample == {"__key__": "00000", "__url__": paths[0], "txt": b"0", "bin": bytes(10)}


def test_order_differs_between_epochs_and_seeds(tmp_path: Path) -> None:
    stream = TarStream(write_numbered(tmp_path, [2] * 20), shuffle=True)
    first = numbers_of(stream)
    stream.set_epoch(1)
    second = numbers_of(stream)
    third = numbers_of(TarStream(f"{tmp_path}/*.tar", shuffle=True, seed=1))
    assert sorted(first) == sorted(second) == sorted(third) == list(range(40))
    assert len({tuple(first), tuple(second), tuple(third), tuple(range(40))}) == 4


@pytest.mark.parametrize("shards", [[1], [2], [500], [7, 0, 30], [100, 1]])
@pytest.mark.parametrize("shares", [1, 2, 7, 256])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_shares_hold_each_sample_once(tmp_path: Path, shards: list[int], shares: int, is_indexed: bool) -> None:
    paths = [path for path, count in zip(write_numbered(tmp_path, shards), shards, strict=True) if count]
    if is_indexed:
        index_shards(paths)
    stream = TarStream(paths)
    parts = [numbers_of(stream.shard(shares, index)) for index in range(shares)]
    assert sorted(number for part in parts for number in part) == list(range(sum(shards)))


def test_one_shard_is_shared_out_fairly(tmp_path: Path) -> None:
    stream = TarStream(write_numbered(tmp_path, [2000]))
    sizes = [len(numbers_of(stream.shard(8, index))) for index in range(8)]
    assert max(sizes) < 1.1 * min(sizes), sizes
    assert stream.num_shards >= 256


def test_large_sample_leaves_pieces_empty(tmp_path: Path) -> None:
    members = [("a.bin", bytes(1000)), ("b.bin", bytes(500_000)), ("c.bin", b"")]
    stream = TarStream(write_shard(tmp_path / "a.tar", members))
    keys = [sample["__key__"] for index in range(5) for sample in stream.shard(5, index)]
    assert sorted(keys) == ["a", "b", "c"]


@pytest.mark.parametrize("workers", [1, 2])
def test_state_is_loaded_with_other_workers(tmp_path: Path, workers: int) -> None:
    paths = write_numbered(tmp_path, [30, 30], size=2000)

    def loader(number: int) -> Any:
        stream = TarStream(paths, shuffle=True)
        return DataLoader(stream, batch_size=4, num_workers=number, seed=1, collate_fn=list)

    with loader(workers) as first:
        batches = iter(first)
        given = [number for _ in range(6) for number in numbers_of(next(batches))]
        state = first.state_dict()
    with loader(3 - workers) as second:
        second.load_state_dict(state)
        rest = [number for batch in second for number in numbers_of(batch)]
    assert sorted(given + rest) == list(range(60))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_one_shard(tmp_path: Path, ranks: int) -> None:
    paths = write_numbered(tmp_path, [60])
    found: list[int] = []
    for rank in range(ranks):
        stream = TarStream(paths).shard(num_shards=ranks, index=rank)
        with DataLoader(stream, batch_size=5, num_workers=2, collate_fn=list) as loader:
            found += [number for batch in loader for number in numbers_of(batch)]
    assert sorted(found) == list(range(60))


def test_truncated_shard_is_raised_once_and_the_next_follows(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4, 3, 2], size=5000)
    os.truncate(paths[1], 9000)
    iterator, found, errors = iter(TarStream(paths)), [], []
    while True:
        try:
            found += numbers_of([next(iterator)])
        except StopIteration:
            break
        except ShardError as error:
            errors.append(str(error))
    assert found == [0, 1, 2, 3, 4, 7, 8]
    (message,) = errors
    assert paths[1] in message and "ends at byte 9000" in message and "key '00005'" in message


def test_missing_and_empty_shards_are_errors(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [2, 0, 2, 2])
    stream = TarStream(paths)
    os.unlink(paths[2])
    iterator = iter(stream)
    assert numbers_of([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(ShardError, match=r"s001\.tar has no samples"):
        next(iterator)
    with pytest.raises(FileNotFoundError, match=r"s002\.tar"):
        next(iterator)
    assert numbers_of(iterator) == [4, 5]


def test_damaged_samples_are_skipped_by_policy(tmp_path: Path) -> None:
    members = [("a.cls", b"1"), ("b.cls", b"x"), ("c.cls", b"2"), ("c.CLS", b"3"), ("d.cls", b"4"), ("a.cls", b"5")]
    stream = TarStream(write_shard(tmp_path / "a.tar", members))
    iterator, found, errors = iter(stream), [], []
    while True:
        try:
            found.append(next(iterator)["cls"])
        except StopIteration:
            break
        except (RecordError, DuplicateKeyError) as error:
            errors.append(type(error))
    assert found == [1, 4, 5]
    assert errors == [RecordError, DuplicateKeyError]


def test_second_sample_of_a_key_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PIECES", 1)
    stream = TarStream(write_shard(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    iterator = iter(stream)
    assert [next(iterator)["__key__"], next(iterator)["__key__"]] == ["a", "b"]
    with pytest.raises(DuplicateKeyError, match="second sample with the key 'a'"):
        next(iterator)


def test_state_of_another_shard_is_refused(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3, 3], size=3000)
    stream = TarStream(paths)
    iterator = iter(stream)
    next(iterator)
    next(iterator)
    state = stream.state_dict()
    write_shard(Path(paths[0]), numbered(range(3), 100))
    changed = TarStream(paths)
    changed.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"stands at byte \d+ of .*s000\.tar"):
        next(iter(changed))
    fewer = TarStream(paths[:1])
    fewer.load_state_dict({"shards": {"0/1": {**state["shards"]["0/1"], "done": "0", "begun": [[0, "x"]]}}})
    with pytest.raises(StateFormatError, match="a byte and a size of a shard"):
        iter(fewer)


def test_random_transforms_repeat_with_the_seed(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [12])

    def drawn(workers: int) -> list[float]:
        stream = TarStream(paths, transform=lambda sample: (sample["txt"], random.random()))
        with DataLoader(stream, batch_size=3, num_workers=workers, seed=4, collate_fn=list) as loader:
            return [pair for batch in loader for pair in batch]

    assert drawn(0) == drawn(1)


def test_arguments_are_checked(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [1])
    with pytest.raises(ValueError, match="buffer_size is -1"):
        TarStream(paths, buffer_size=-1)
    with pytest.raises(TypeError, match="decode is a str"):
        TarStream(paths, decode="rgb")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"decode\['png'\] cannot be called"):
        TarStream(paths, decode={"png": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="transform is a int"):
        TarStream(paths, transform=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        TarStream(f"{tmp_path}/missing.tar")
