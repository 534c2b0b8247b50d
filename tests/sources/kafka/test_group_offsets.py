from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stoker.datasets.shuffle_buffer import ShuffleDataset
from stoker.errors import KafkaError, StateFormatError
from stoker.loader.dataloader import DataLoader
from stoker.sources.kafka.cursor import offsets_in
from stoker.sources.kafka.stream import KafkaStream

pytest.importorskip("confluent_kafka")

THREADS = Path("/proc/self/task")
BEGINS = {("t", 0): 10, ("t", 1): 0}


def value(record: dict[str, Any]) -> str:
    return str(record["value"].decode())


def expected(counts: list[int]) -> list[str]:
    return [f"{partition}.{number}" for partition, count in enumerate(counts) for number in range(count)]


def entry(at: int, **more: Any) -> dict[str, Any]:
    return {"at": at, "end": None, "of": 2, **more}


# Offsets of states, without a broker


def test_offsets_lie_below_all_that_was_not_given() -> None:
    assert offsets_in([{"shards": {"t:0": entry(17), "t:1": entry(3)}}], BEGINS) == {("t", 0): 17, ("t", 1): 3}
    assert offsets_in([{"shards": {"t:0": entry(17)}}], BEGINS) == {("t", 0): 17}
    halves = {"t:0%2=0": entry(20), "t:0%2=1": entry(13)}
    assert offsets_in([{"shards": halves}], BEGINS) == {("t", 0): 13}
    assert offsets_in([{"shards": {"t:0%2=0": entry(20)}}], BEGINS) == {("t", 0): 10}  # the other has not begun
    before = {"t:0": entry(12, read=[[0, 2, 30], [1, 2, 12]])}
    assert offsets_in([{"shards": before}], BEGINS) == {("t", 0): 12}


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_no_record_below_an_offset_is_missing(parts: int) -> None:
    draw = random.Random(parts)
    for _ in range(50):
        shares = {f"t:1%{parts}={residue}" if parts > 1 else "t:1": draw.randrange(60) for residue in range(parts)}
        given = {
            offset for residue, at in enumerate(shares.values()) for offset in range(at) if offset % parts == residue
        }
        states = [{"shards": {name: entry(at)}} for name, at in shares.items() if at or draw.random() < 0.5]
        offset = offsets_in(states, BEGINS).get(("t", 1), 0)
        assert set(range(offset)) <= given


def test_states_of_loaders_and_combinators_are_searched() -> None:
    deep = {"workers": [None, {"stream": {"source": {"shards": {"t:1": entry(4)}}}}, {"ended": True}]}
    assert offsets_in([{"stoker": 1, "below": json.dumps(deep)}], BEGINS) == {("t", 1): 4}
    assert offsets_in([{"stoker": 1, "below": deep}], BEGINS) == {("t", 1): 4}
    other = {"shards": {"u:0": entry(4), "a/b.txt": 3, "t:9": entry(1)}}
    assert offsets_in([other, {"below": None}], BEGINS) == {}


def test_damaged_states_are_refused() -> None:
    with pytest.raises(StateFormatError, match="the state of a loader is damaged"):
        offsets_in([{"below": "{"}], BEGINS)
    with pytest.raises(StateFormatError, match="the place in t:0"):
        offsets_in([{"shards": {"t:0": entry("x")}}], BEGINS)  # type: ignore[arg-type]


# With a broker


@pytest.mark.parametrize("workers", [0, 2])
def test_a_group_continues_where_a_state_was_committed(shared_broker: Any, topic: str, workers: int) -> None:
    counts = [9, 12]
    shared_broker.fill(topic, counts)
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "group": topic}
    stream = KafkaStream(topic, **settings)
    with DataLoader(stream, batch_size=3, num_workers=workers) as loader:
        batches = iter(loader)
        given = [text for _ in range(3) for text in next(batches)]
        offsets = stream.commit(loader.state_dict())
        assert not workers or not any(path.read_text().startswith("rdk") for path in THREADS.glob("*/comm"))
        del batches
    assert shared_broker.call("committed", topic, topic, 2) == [offsets[topic, 0], offsets[topic, 1]]
    rest = KafkaStream(topic, **settings)
    assert sorted(given + list(rest)) == sorted(expected(counts))


@pytest.mark.parametrize("later", [2, 1, 0])
@pytest.mark.parametrize("counts", [[9, 12], [6, 0, 8, 7]])
def test_early_state_holds_workers_that_gave_nothing(
    shared_broker: Any, topic: str, counts: list[int], later: int
) -> None:
    """A state of two workers, of which one has given nothing, is loaded after the group has moved on."""
    shared_broker.fill(topic, counts)
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "group": topic}
    stream = KafkaStream(topic, **settings)
    with DataLoader(stream, batch_size=3, num_workers=2) as loader:
        batches = iter(loader)
        given = list(next(batches))
        state = json.loads(json.dumps(loader.state_dict()))
        assert all(next(batches) for _ in range(4))
        assert sum(stream.commit(loader.state_dict()).values()) > 6
        del batches
    with DataLoader(KafkaStream(topic, **settings), batch_size=3, num_workers=later) as resumed:
        resumed.load_state_dict(state)
        given += [text for batch in resumed for text in batch]
    assert sorted(given) == sorted(expected(counts))


def test_early_state_of_the_latest_records(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [4, 4])
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "start": "latest", "until": None}
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 2, "in_order": False, "stall_warning": None}
    with DataLoader(KafkaStream(topic, **settings), **options) as loader:
        shared_broker.fill(topic, [5, 8], begin=4)
        batches = iter(loader)
        given = list(next(batches))
        state = loader.state_dict()
        del batches
    with DataLoader(KafkaStream(topic, **settings), **options) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        given += [text for _ in range(5 + 8 - 1) for text in next(batches)]
        del batches
    assert sorted(given) == sorted(set(expected([9, 12])) - set(expected([4, 4])))


@pytest.mark.filterwarnings("ignore:the stream of .* partitions for")
def test_loader_begins_where_its_stream_was_loaded(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [9])
    again = KafkaStream(topic, servers=shared_broker.address, decode=value)
    again.load_state_dict({"shards": {f"{topic}:0": {"at": 4, "end": 9, "of": 1}}})
    with DataLoader(again, batch_size=2, num_workers=2) as loader:
        assert sorted(text for batch in loader for text in batch) == expected([9])[4:]


def test_records_in_a_shuffle_buffer_are_not_committed(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [60])
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "group": topic}
    stream = KafkaStream(topic, **settings)
    with DataLoader(ShuffleDataset(stream, buffer_size=8), batch_size=4) as loader:
        batches = iter(loader)
        given = [text for _ in range(8) for text in next(batches)]
        stream.commit(loader.state_dict())
    rest = list(KafkaStream(topic, **settings))
    assert len(rest) < 60 and set(given) | set(rest) == set(expected([60]))


def test_ranks_commit_together(shared_broker: Any, topic: str) -> None:
    counts = [8, 6, 7]
    shared_broker.fill(topic, counts)
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "group": topic}
    stream, states, given = KafkaStream(topic, **settings), [], []
    for rank in range(2):
        part = stream.shard(num_shards=2, index=rank)
        records = iter(part)
        given += [next(records) for _ in range(3)]
        states.append(part.state_dict())
        del records
    assert stream.commit(*states) == {(topic, 0): 2, (topic, 2): 1, (topic, 1): 3}
    assert sorted(given + list(KafkaStream(topic, **settings))) == sorted(expected(counts))


def test_start_is_for_partitions_without_an_offset(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [4, 4])
    shared_broker.call("commit", topic, topic, 1, 3)
    settings: dict[str, Any] = {"servers": shared_broker.address, "decode": value, "group": topic}
    assert sorted(KafkaStream(topic, **settings)) == ["0.0", "0.1", "0.2", "0.3", "1.3"]
    assert sorted(KafkaStream(topic, start={(topic, 0): 2, (topic, 1): 0}, **settings)) == ["0.2", "0.3", "1.3"]
    assert sorted(KafkaStream(topic, start="latest", **settings)) == ["1.3"]


def test_groups_that_cannot_be_used_are_refused(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [4])
    servers = shared_broker.address
    with pytest.raises(ValueError, match="the stream has no group to commit offsets to"):
        KafkaStream(topic, servers=servers).commit({})
    stream = KafkaStream(topic, servers=servers, group=topic)
    with pytest.raises(ValueError, match=f"the state has no place in {topic}"):
        stream.commit(DataLoader(stream, batch_size=2).state_dict())
    with pytest.raises(ValueError, match=r"group= is 'a' and config\['group.id'\] is 'b'"):
        KafkaStream(topic, servers=servers, group="a", config={"group.id": "b"})
    with pytest.raises(ValueError, match="group= is ''"):
        KafkaStream(topic, servers=servers, group="")
    shared_broker.call("commit", topic, topic, 0, 9)
    with pytest.raises(KafkaError, match=rf"the group stands at offset 9 of {topic}:0, which ends at 4"):
        KafkaStream(topic, servers=servers, group=topic)


def test_a_commit_that_nobody_answers_is_an_error(own_broker: Any) -> None:
    own_broker.fill("t", [4])
    stream = KafkaStream("t", servers=own_broker.address, group="g", timeout=0.5)
    own_broker.call("down")
    with pytest.raises(KafkaError, match=f"no Kafka broker of {own_broker.address} answered within 0.5 s"):
        stream.commit({"shards": {"t:0": {"at": 1, "end": 4, "of": 1}}})
