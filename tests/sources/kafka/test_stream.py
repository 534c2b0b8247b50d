from __future__ import annotations

import copy
import itertools
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import KafkaError, MissingExtraError, RecordError, StateFormatError, StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.kafka import cursor as cursor_module
from stoker.sources.kafka.client_config import KafkaConfig
from stoker.sources.kafka.stream import KafkaStream, PartitionRecords
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite

pytest.importorskip("confluent_kafka")

SECRET = "correct horse"
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
IDLE_WORKERS = pytest.mark.filterwarnings("ignore:.*the stream of .* partitions for")
MANY_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have two CPUs


def values_of(records: Any) -> list[str]:
    return [record["value"].decode() for record in records]


def expected(counts: list[int]) -> list[str]:
    return [f"{partition}.{number}" for partition, count in enumerate(counts) for number in range(count)]


def value(record: dict[str, Any]) -> str:
    return str(record["value"].decode())


def refuses_threes(record: dict[str, Any]) -> str:
    if record["value"].endswith(b".3"):
        raise UnicodeError("no text")
    return value(record)


def drawn(record: dict[str, Any]) -> tuple[str, float]:
    return value(record), random.random()


@pytest.fixture(scope="session")  # a module's may be made again: pytest-xdist moves tests
def small(shared_broker: Any) -> KafkaStream:
    shared_broker.fill("small", [5, 0, 6])
    return KafkaStream("small", servers=shared_broker.address)


class TestKafkaStream(DatasetSuite):
    @pytest.fixture
    def make(self, small: KafkaStream) -> Any:
        return lambda: pickle.loads(pickle.dumps(small))


NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["records", "decoded"])
def varied(request: pytest.FixtureRequest, shared_broker: Any) -> KafkaStream:
    topic = f"varied-{next(NUMBERS)}"  # made again where pytest-xdist moves tests
    shared_broker.fill(topic, [3, 0, 4])
    return KafkaStream(topic, servers=shared_broker.address, decode=value if request.param == "decoded" else None)


class TestResumedKafkaStream(StreamSuite):
    @pytest.fixture
    def make(self, varied: KafkaStream, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(PartitionRecords, "num_shards", 3)
        return lambda: pickle.loads(pickle.dumps(varied))


def test_a_record_has_all_that_kafka_keeps(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [0, 2])
    stream = KafkaStream([topic], servers=[shared_broker.address])
    assert stream.topics == {topic: [0, 1]}
    assert list(stream)[1] == {
        "topic": topic,
        "partition": 1,
        "offset": 1,
        "key": b"key 1.1",
        "value": b"1.1",
        "timestamp": 1001,
        "headers": [("number", b"1")],
    }


def test_partitions_take_turns(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [3, 1, 2])
    stream = KafkaStream(topic, servers=shared_broker.address)
    assert values_of(stream) == ["0.0", "1.0", "2.0", "0.1", "2.1", "0.2"]


def test_the_end_is_where_the_topic_ended(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [2, 2])
    stream = KafkaStream(topic, servers=shared_broker.address)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    shared_broker.fill(topic, [2, 2], begin=2)
    assert sorted(values_of(stream)) == expected([2, 2])
    later = KafkaStream(topic, servers=shared_broker.address)
    assert len(list(later)) == 8
    later.load_state_dict(state)
    assert sorted(values_of(later)) == ["0.1", "1.0", "1.1"]
    later.load_state_dict(state)
    endless = KafkaStream(topic, servers=shared_broker.address, until=None)
    endless.load_state_dict(state)
    records = iter(endless)
    assert sorted(values_of(next(records) for _ in range(7))) == sorted(expected([4, 4]))[1:]


def test_an_endless_stream_gives_records_as_they_come(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [1, 0])
    stream = KafkaStream(topic, servers=shared_broker.address, until=None, start="latest")
    records = iter(stream)
    shared_broker.call("produce", topic, 1, ["first"])
    assert next(records)["value"] == b"first"
    shared_broker.call("produce", topic, 0, ["second"])
    assert next(records)["value"] == b"second"
    state = stream.state_dict()
    shared_broker.call("produce", topic, 0, ["third"])
    stream.load_state_dict(state)
    assert next(iter(stream))["value"] == b"third"


def test_a_silent_partition_does_not_hold_up_others(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [2, 40])
    stream = KafkaStream(topic, servers=shared_broker.address, until=None, decode=value)
    with DataLoader(stream, batch_size=2, num_workers=2, in_order=False) as loader:
        batches = iter(loader)
        given = [text for _ in range(10) for text in next(batches)]
        state = loader.state_dict()
        del batches
    with DataLoader(KafkaStream(topic, servers=shared_broker.address, decode=value), batch_size=2) as loader:
        loader.load_state_dict(state)
        given += [text for batch in loader for text in batch]
    assert sorted(given) == sorted(expected([2, 40]))


def test_it_starts_at_given_offsets(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [3, 3])
    stream = KafkaStream(topic, servers=shared_broker.address, start={(topic, 1): 2})
    assert sorted(values_of(stream)) == ["0.0", "0.1", "0.2", "1.2"]
    assert values_of(KafkaStream({topic: [1]}, servers=shared_broker.address)) == ["1.0", "1.1", "1.2"]
    assert list(KafkaStream(topic, servers=shared_broker.address, start="latest")) == []
    with pytest.raises(ValueError, match=r"offset 4 of .*:0, which has 0 to 3"):
        KafkaStream(topic, servers=shared_broker.address, start={(topic, 0): 4})
    with pytest.raises(ValueError, match="which are no partitions"):
        KafkaStream(topic, servers=shared_broker.address, start={(topic, 2): 0})


@pytest.mark.parametrize("birth", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_give_each_record_once(shared_broker: Any, topic: str, birth: str) -> None:
    counts = [30, 20, 25]
    shared_broker.fill(topic, counts)
    stream = KafkaStream(topic, servers=shared_broker.address, decode=value)
    with DataLoader(stream, batch_size=4, num_workers=2, multiprocessing_context=birth) as loader:
        for _ in range(2):
            assert sorted(text for batch in loader for text in batch) == sorted(expected(counts))


@MANY_WORKERS
@IDLE_WORKERS
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_another_number_of_workers_continues(shared_broker: Any, topic: str, workers: int) -> None:
    counts = [40, 30]
    shared_broker.fill(topic, counts)
    stream = KafkaStream(topic, servers=shared_broker.address, decode=value)
    with DataLoader(stream, batch_size=4, num_workers=workers) as first:
        batches = iter(first)
        given = [text for _ in range(7) for text in next(batches)]
        state = first.state_dict()
    assert SECRET not in str(state)
    for number in {1, 2, 3} - {workers}:
        with DataLoader(copy.copy(stream), batch_size=4, num_workers=number) as second:
            second.load_state_dict(state)
            rest = [text for batch in second for text in batch]
        assert sorted(given + rest) == sorted(expected(counts))


@MANY_WORKERS
@IDLE_WORKERS
def test_ranks_and_workers_share_partitions_out(shared_broker: Any, topic: str) -> None:
    counts = [9, 12, 7, 8]
    shared_broker.fill(topic, counts)
    stream = KafkaStream(topic, servers=shared_broker.address, decode=value)
    seen = []
    for rank in range(2):
        with DataLoader(stream.shard(num_shards=2, index=rank), batch_size=4, num_workers=3) as loader:
            own = [text for batch in loader for text in batch]
        assert {text[0] for text in own} == {str(rank), str(rank + 2)}
        seen += own
    assert sorted(seen) == sorted(expected(counts))


def test_poison_records_are_named_and_left_out(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [5, 4])
    stream = KafkaStream(topic, servers=shared_broker.address, decode=refuses_threes)
    records, found, errors = iter(stream), [], []
    while True:
        try:
            found.append(next(records))
        except StopIteration:
            break
        except RecordError as error:
            errors.append(error)
    assert sorted(found) == ["0.0", "0.1", "0.2", "0.4", "1.0", "1.1", "1.2"]
    assert f"the record at offset 3 of {topic}:0 cannot be decoded: UnicodeError: no text" in str(errors[0])
    assert isinstance(errors[0].__cause__, UnicodeError) and len(errors) == 2
    with (
        pytest.warns(stoker.StokerWarning, match="cannot be decoded"),
        DataLoader(stream, batch_size=3, num_workers=2, on_error="skip") as loader,
    ):
        assert sorted(text for batch in loader for text in batch) == sorted(found)
    with pytest.raises(RecordError), DataLoader(stream, batch_size=3, num_workers=2) as loader:
        list(loader)


def test_decoders_draw_the_random_numbers_of_samples(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [9])
    stream = KafkaStream(topic, servers=shared_broker.address, decode=drawn)

    def numbers(workers: int) -> list[Any]:
        with DataLoader(stream, batch_size=3, num_workers=workers, seed=4, collate_fn=list) as loader:
            return [pair for batch in loader for pair in batch]

    assert numbers(0) == numbers(1)


def test_more_records_than_a_cursor_holds_come_once(
    shared_broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_module, "_MOST_RECORDS", 100)
    counts = [900, 10, 500]
    shared_broker.fill(topic, counts)
    stream = KafkaStream(topic, servers=shared_broker.address)
    found = values_of(stream)
    for partition, count in enumerate(counts):
        assert [text for text in found if text.startswith(f"{partition}.")] == [
            f"{partition}.{number}" for number in range(count)
        ]


def test_states_of_other_topics_are_refused(shared_broker: Any, topic: str) -> None:
    for name, count in ((topic, 5), (f"{topic}-b", 2)):
        shared_broker.fill(name, [count])
    stream = KafkaStream(topic, servers=shared_broker.address)
    records = iter(stream)
    state = [next(records), next(records), next(records), stream.state_dict()][-1]
    other = KafkaStream(f"{topic}-b", servers=shared_broker.address)
    other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=f"a place in {topic}:0, which is no partition of this stream"):
        iter(other)
    other.load_state_dict({"shards": {f"{topic}-b:0": state["shards"][f"{topic}:0"]}})
    with pytest.raises(StateMismatchError, match=r"stands at offset 3 of .*-b:0, which ends at 2"):
        iter(other)
    stream.load_state_dict({"shards": {}})
    with pytest.raises(StateFormatError):
        iter(stream)
    both = KafkaStream([topic, f"{topic}-b"], servers=shared_broker.address)
    both.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="of 1 partitions, but there are 2 now"):
        iter(both)


def test_an_offset_that_is_gone_is_an_error_once(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [4, 2])
    stream = KafkaStream(topic, servers=shared_broker.address, until=None)
    entry = {"end": None, "of": 2}
    stream.load_state_dict({"shards": {f"{topic}:0": {"at": 100, **entry}, f"{topic}:1": {"at": 0, **entry}}})
    records = iter(stream)
    found, errors = [], []
    while len(found) < 2 or not errors:
        try:
            found.append(next(records)["value"])
        except KafkaError as error:
            errors.append(str(error))
    assert found == [b"1.0", b"1.1"]
    assert len(errors) == 1 and f"stands at offset 100 of {topic}:0, which ends at 4" in errors[0]


def test_records_removed_by_retention_are_an_error_once(shared_broker: Any, topic: str) -> None:
    shared_broker.call("create", topic, 1)
    shared_broker.call("produce", topic, 0, ["x" * 200_000] * 40)  # the mock cluster keeps 5 MB
    stream = KafkaStream(topic, servers=shared_broker.address)
    kept = [record["offset"] for record in stream]
    assert 0 < kept[0] < 39 and kept == list(range(kept[0], 40))
    stream.load_state_dict({"shards": {f"{topic}:0": {"at": 3, "end": 40, "of": 1}}})
    records = iter(stream)
    with pytest.raises(KafkaError, match=rf"from offset 3 to {kept[0] - 1} are no longer at .* begins at {kept[0]}"):
        next(records)
    assert [record["offset"] for record in records] == kept


def test_trainers_make_no_client(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [4, 4])

    def native() -> bool:
        return any(path.read_text().startswith("rdk") for path in Path("/proc/self/task").glob("*/comm"))

    stream = KafkaStream(topic, servers=shared_broker.address, decode=value)
    with DataLoader(stream, batch_size=2, num_workers=2) as loader:
        assert len(list(loader)) == 4
    assert not native()
    records = iter(stream)
    next(records)
    assert native()
    list(records)
    assert not native()


# A broker that goes away


@pytest.fixture
def filled(own_broker: Any) -> Iterator[Any]:
    own_broker.fill("t", [600, 600])
    yield own_broker


def test_a_broker_that_comes_back_loses_nothing(filled: Any) -> None:
    stream = KafkaStream("t", servers=filled.address, config=QUICK, until=None, timeout=0.5)
    records = iter(stream)
    found = values_of(next(records) for _ in range(1200))
    filled.call("down")
    with pytest.raises(KafkaError, match=rf"brokers {filled.address} did not answer for 0\.5 s, at offset 600 of t:"):
        next(records)
    filled.call("up")
    filled.call("produce", "t", 1, ["later"])
    assert values_of([next(records)]) == ["later"] and sorted(found) == sorted(expected([600, 600]))
    assert stream.state_dict()["shards"]["t:1"]["at"] == 601


def test_brokers_that_are_gone_are_an_error_of_the_loader(filled: Any) -> None:
    stream = KafkaStream("t", servers=filled.address, config=QUICK, timeout=0.5, until=None, decode=value)
    with DataLoader(stream, batch_size=100, num_workers=2) as loader:
        batches = iter(loader)
        given = [text for _ in range(6) for text in next(batches)]
        filled.call("down")
        with pytest.raises(KafkaError, match="did not answer"):
            for batch in batches:
                given += batch
        state = loader.state_dict()
    filled.call("up")
    with DataLoader(
        KafkaStream("t", servers=filled.address, config=QUICK, decode=value), batch_size=100, num_workers=1
    ) as loader:
        loader.load_state_dict(state)
        given += [text for batch in loader for text in batch]
    assert sorted(given) == sorted(expected([600, 600]))


def test_a_killed_broker_is_an_error_when_listing(own_broker: Any) -> None:
    own_broker.close()
    with pytest.raises(KafkaError, match=rf"no Kafka broker of {own_broker.address} answered within 0\.5 s"):
        KafkaStream("t", servers=own_broker.address, config=QUICK, timeout=0.5)


# Arguments, and what must not be seen


def test_arguments_of_the_stream_are_checked(shared_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = shared_broker.address
    for message, arguments in {
        "until should be": {"until": "start"},
        "start should be": {"start": "first"},
        "timeout should be": {"timeout": 0},
        "which the stream sets itself": {"config": {"auto.offset.reset": "earliest"}},
        "both servers=": {"config": {"bootstrap.servers": "x:1"}},
    }.items():
        with pytest.raises(ValueError, match=message):
            KafkaStream("t", servers=servers, **arguments)
    with pytest.raises(ValueError, match="no brokers are named"):
        KafkaStream("t")
    with pytest.raises(TypeError, match="decode is a str"):
        KafkaStream("t", servers=servers, decode="json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no topics"):
        KafkaStream([], servers=servers)
    with pytest.raises(KafkaError, match=r"the topic 'none' cannot be read: .*Unknown topic"):
        KafkaStream("none", servers=servers)
    with pytest.raises(KafkaError, match=r'refuses its settings: No such configuration property: "nonsense"'):
        KafkaStream("t", servers=servers, config={"nonsense": 1})
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[kafka\]"):
        KafkaStream("t", servers=servers)


def test_missing_partitions_are_named(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [1])
    with pytest.raises(KafkaError, match=r"has 1 partitions, and not \[3\]"):
        KafkaStream({topic: [0, 3]}, servers=shared_broker.address)


def test_credentials_are_not_shown(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [2])
    config = {"sasl.username": "someone", "sasl.password": SECRET}
    stream = KafkaStream(topic, servers=shared_broker.address, config=config)
    records = iter(stream)
    next(records)
    shown = [
        repr(stream),
        repr(vars(stream)),
        repr(records),
        str(stream.state_dict()),
        repr(KafkaConfig("a:1", config)),
    ]
    assert not any(SECRET in text or "someone" in text for text in shown)
    with pytest.raises(KafkaError) as caught:
        KafkaStream(topic, servers=shared_broker.address, config=config | {"security.protocol": SECRET})
    assert SECRET not in str(caught.value) and "***" in str(caught.value)
