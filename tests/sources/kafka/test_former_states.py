"""States that an earlier version saved, in which workers or ranks share the 21 records of one partition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.datasets.chain import ChainDataset
from stoker.datasets.map import FilterDataset
from stoker.datasets.mix import MixDataset
from stoker.errors import StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.kafka.stream import KafkaStream

pytest.importorskip("confluent_kafka")
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.* of t has 1 partitions"),
]

KIND = {"seed": None, "order": "stream", "batch_size": 3, "drop_last": False, "shard": "auto"}
EVEN = {"shards": {"t:0%2=0": {"at": 18, "end": 21, "of": 1, "next": True}}}
ODD = {"shards": {"t:0%2=1": {"at": 13, "end": 21, "of": 1, "next": True}}}
GIVEN = [*range(0, 18, 2), *range(1, 13, 2)]
FIVE_BATCHES = [
    {"ended": False, "position": 9, "stream": EVEN, "drawn": {}},
    {"ended": False, "position": 6, "stream": ODD, "drawn": {}},
]
ONE_BATCH = [
    {
        "ended": False,
        "position": 3,
        "stream": {"shards": {"t:0%2=0": {"at": 6, "end": 21, "of": 1, "next": True}}},
        "drawn": {},
    },
    {
        "ended": False,
        "merged": True,
        "position": 0,
        "drawn": {},
        "stream": {"shards": {"t:0": {"at": 0, "end": 21, "of": 1}}},
    },
]


def value(record: dict[str, Any]) -> int:
    return int(record["value"].decode().removeprefix("0."))


def all_of_them(number: int) -> bool:
    return True


def state_of(workers: list[Any], batches: int, **kind: int) -> dict[str, Any]:
    below = {"epoch": 0, "seed": 7, "batches": batches, "position": 0, "ahead": [], "kind": KIND | kind}
    return {"stoker": 1, **below, "below": json.dumps({**below, "workers": workers, "turn": 1})}


@pytest.fixture(scope="session")  # a module's may be made again: pytest-xdist moves tests
def stream(shared_broker: Any) -> KafkaStream:
    shared_broker.fill("t", [21])
    return KafkaStream("t", servers=shared_broker.address, decode=value)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("saved", "given"), [(state_of(FIVE_BATCHES, 5), GIVEN), (state_of(ONE_BATCH, 1), [0, 2, 4])], ids=["five", "one"]
)
def test_shares_of_workers_resume(stream: KafkaStream, saved: Any, given: list[int], workers: int) -> None:
    with DataLoader(stream, batch_size=3, num_workers=workers) as loader:
        loader.load_state_dict(saved)
        batches = iter(loader)
        given = given + list(next(batches))
        saved = loader.state_dict()
        del batches
        loader.load_state_dict(saved)
        assert sorted(given + [number for batch in loader for number in batch]) == list(range(21))
        assert sorted(number for batch in loader for number in batch) == list(range(21))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_worker_without_a_state_resumes(stream: KafkaStream, workers: int) -> None:
    """A combinator offers no state of a start, so a worker that has given nothing has none."""
    with DataLoader(FilterDataset(stream, all_of_them), batch_size=3, num_workers=workers) as loader:
        loader.load_state_dict(state_of([ONE_BATCH[0], None], 1))
        assert sorted(number for batch in loader for number in batch) == sorted({*range(21)} - {0, 2, 4})


def test_shares_below_a_combinator_resume(stream: KafkaStream) -> None:
    """Its state stays that of its worker: each goes on with its share."""
    chained = [{**worker, "stream": {"stream": 0, "at": worker["stream"]}} for worker in FIVE_BATCHES]
    with DataLoader(ChainDataset([stream]), batch_size=3, num_workers=2) as loader:
        loader.load_state_dict(state_of(chained, 5))
        assert sorted([number for batch in loader for number in batch] + GIVEN) == list(range(21))
    with pytest.raises(StateMismatchError, match="saved before each of them had given a batch"):
        DataLoader(ChainDataset([stream]), batch_size=3, num_workers=2).load_state_dict(state_of([chained[0], None], 5))


def test_shares_of_workers_in_a_mix_resume(stream: KafkaStream) -> None:
    """A mix that workers would not cut any more."""
    order = {"weights": ["1/2", "1/2"], "stop": "drop", "position": 0, "ended": [1]}
    mixed = [{**each, "stream": {**order, "datasets": [each["stream"], None]}} for each in FIVE_BATCHES]
    mix = MixDataset([stream, range(2)], [1, 1], "drop")
    with DataLoader(mix, batch_size=3, num_workers=2) as loader:
        loader.load_state_dict(state_of(mixed, 5))
        assert sorted([number for batch in loader for number in batch] + GIVEN) == list(range(21))


def test_shares_of_ranks_resume_or_are_refused(stream: KafkaStream) -> None:
    given: dict[int, list[int]] = {0: [], 2: []}
    for rank, saved in enumerate([EVEN, ODD]):
        part = stream.shard(num_shards=2, index=rank)
        part.load_state_dict(saved)
        given[0] += list(part)
        with DataLoader(part, batch_size=3, num_workers=2) as loader:
            loader.load_state_dict(state_of(FIVE_BATCHES[rank : rank + 1], 3, num_shards=2, index=rank))
            given[2] += [number for batch in loader for number in batch]
    assert sorted(given[0] + GIVEN) == sorted(given[2] + GIVEN) == list(range(21))
    part.load_state_dict(EVEN)
    with pytest.raises(StateMismatchError, match="load the states of all ranks"):
        list(part)


def test_early_state_of_a_ranks_workers_resumes(stream: KafkaStream) -> None:
    first = {**ONE_BATCH[0], "stream": {"shards": {"t:0%4=0": {"at": 12, "end": 21, "of": 1, "next": True}}}}
    second = {**ONE_BATCH[1], "stream": {"shards": {"t:0%2=0": {"at": 0, "end": 21, "of": 1}}}}
    with DataLoader(stream.shard(num_shards=2, index=0), batch_size=3, num_workers=2) as loader:
        loader.load_state_dict(state_of([first, second], 1, num_shards=2, index=0))
        assert sorted([0, 4, 8] + [number for batch in loader for number in batch]) == list(range(0, 21, 2))
