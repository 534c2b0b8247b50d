"""Workers and ranks beyond the partitions, which have nothing to read."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import stoker
from stoker.datasets.interleave import InterleaveDataset
from stoker.datasets.map import MapDataset
from stoker.datasets.mix import MixDataset
from stoker.extend import OfWorker
from stoker.loader.dataloader import DataLoader
from stoker.sources.kafka import stream as stream_module
from stoker.sources.kafka.stream import KafkaStream
from stoker.testing.streams import Numbers

pytest.importorskip("confluent_kafka")
MANY_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have two CPUs


def expected(counts: list[int]) -> list[str]:
    return [f"{partition}.{number}" for partition, count in enumerate(counts) for number in range(count)]


def value(record: dict[str, Any]) -> str:
    return str(record["value"].decode())


@MANY_WORKERS
@pytest.mark.parametrize("until", ["end", None])
def test_workers_beyond_the_partitions_are_idle(shared_broker: Any, topic: str, until: Any) -> None:
    shared_broker.fill(topic, [10])
    stream = KafkaStream(topic, servers=shared_broker.address, decode=value, until=until)
    with DataLoader(stream, batch_size=2, num_workers=3) as loader:
        with pytest.warns(stoker.StokerWarning, match=f"{topic} has 1 partitions for 3 .* the last 2 read") as told:
            batches = iter(loader)
            given = [text for _ in range(3) for text in next(batches)]
        assert given == expected([6])
        state = loader.state_dict()
        del batches
        loader.load_state_dict(state)
        batches = iter(loader)
        assert [text for _ in range(2) for text in next(batches)] == expected([10])[6:]
        del batches
    assert len([warning for warning in told if "read nothing" in str(warning.message)]) == 1


def test_ranks_beyond_the_partitions_are_warned(shared_broker: Any, topic: str) -> None:
    shared_broker.fill(topic, [3])
    stream = KafkaStream(topic, servers=shared_broker.address)
    assert len(list(stream.shard(num_shards=2, index=0))) == 3
    with pytest.warns(stoker.StokerWarning, match=f"{topic} has 1 partitions for 2 workers or ranks") as told:
        idle = stream.shard(num_shards=2, index=1)
    assert list(idle) == [] and told[0].filename == __file__
    other = KafkaStream(topic, servers=shared_broker.address, decode=value)
    assert sorted(InterleaveDataset([idle, other], 2)) == expected([3])
    with pytest.warns(stoker.StokerWarning, match="^this rank's part of the stream .* 1 partitions .* or fewer ranks"):
        stream.shard(num_shards=1, index=0).shard(num_shards=2, index=OfWorker(1))
    with pytest.raises(ValueError, match="there is no share 2 of 2"):
        stream.shard(num_shards=2, index=2)


def test_an_idle_worker_of_torchs_loader_warns_once(
    shared_broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_broker.fill(topic, [3])
    stream = KafkaStream(topic, servers=shared_broker.address, decode=value)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for worker in (1, 2):
            monkeypatch.setattr(stream_module, "torchs_part", lambda numbers, worker=worker: numbers[worker::3])
            assert list(stream) == list(stream) == []
    assert len([warning for warning in told if "the last 2 read nothing" in str(warning.message)]) == 1


@pytest.mark.parametrize("stop", ["first", "drop", "repeat"])
def test_a_mix_keeps_its_proportions_in_each_worker(shared_broker: Any, topic: str, stop: Any) -> None:
    shared_broker.fill(topic, [8])
    topics = KafkaStream(topic, servers=shared_broker.address, decode=value)
    mix = MixDataset([MapDataset(topics, str), Numbers(0, 8, num_shards=4)], [1, 1], stop)
    with (
        warnings.catch_warnings(),
        DataLoader(mix, batch_size=2, num_workers=2, collate_fn=list) as loader,
    ):
        warnings.simplefilter("ignore", stoker.StokerWarning)
        found = [str(sample) for batch in loader for sample in batch]
    assert sorted(found) == sorted(map(str, mix))
    assert sum(text.startswith("0.") for text in found[:8]) == 4
