"""Streams that share themselves out by a queue deliver each message once, as under torch."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import stoker
from stoker.errors import StokerWarning
from stoker.loader._job.stream_sharding import shared_source

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Messages(stoker.IterableDataset[Any]):
    """Reads a queue until its end is there, once for each worker."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        while (message := self.source.get()) is not None:
            yield message


class Received(stoker.IterableDataset[Any]):
    def __init__(self, connection: Any, lock: Any) -> None:
        self.deep, self.lock = {"inside": [connection]}, lock

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self.lock:
                message = self.deep["inside"][0].recv()
            if message is None:
                return
            yield message


class Counted(stoker.IterableDataset[int]):
    """A lock, an event and a semaphore are no source of samples."""

    def __init__(self) -> None:
        self.shared = FORK.Lock(), FORK.Event(), FORK.Semaphore()

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def told(loader: Any, batches: int | None = None) -> tuple[list[Any], list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", StokerWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create")
        samples = list(itertools.chain(*itertools.islice(loader, batches)))
    return samples, [str(warning.message) for warning in found if issubclass(warning.category, StokerWarning)]


def loader(dataset: Any, workers: int = 2, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, "batch_size": 3, "num_workers": workers, **settings})


def closed(source: Any) -> None:
    source.close()
    source.join_thread()


@pytest.mark.parametrize("messages", [list(range(40)), ["equal"] * 40, [1, 2, 3]], ids=["40", "equal", "few"])
def test_each_message_of_a_queue_comes_once(messages: list[Any]) -> None:
    source = FORK.Queue()
    with loader(Messages(source), persistent_workers=True) as some:
        for epoch in range(2):
            for message in [*messages, None, None]:
                source.put(message)
            samples, texts = told(some)
            assert sorted(samples) == sorted(messages)
            assert len(texts) == (epoch == 0), texts
            if epoch == 0:
                assert "because it holds a Queue of multiprocessing" in texts[0]
                assert "shards_itself = True" in texts[0]
    closed(source)


def test_worker_may_get_no_message_and_a_producer_may_wait() -> None:
    source = FORK.SimpleQueue()
    batches = iter(loader(Messages(source), batch_size=None, collate_fn=None))
    received = []
    with pytest.warns(StokerWarning, match="because it holds a SimpleQueue of multiprocessing"):
        for message in range(4):
            source.put(message)  # only now: the loop has had the one before
            if message == 3:
                source.put(None), source.put(None)
        received = list(batches)
    assert sorted(received) == [0, 1, 2, 3]
    source.close()


def test_connection_that_workers_share() -> None:
    reader, writer = FORK.Pipe(duplex=False)
    for message in [*range(20), None, None]:
        writer.send(message)
    samples, texts = told(loader(Received(reader, FORK.Lock())))
    assert sorted(samples) == list(range(20))
    assert len(texts) == 1 and "because it holds a Connection of multiprocessing" in texts[0]
    reader.close(), writer.close()


def test_declared_streams_are_as_they_say() -> None:
    for declares in (True, False):
        source = FORK.Queue()
        for message in [*range(10), None, None]:
            source.put(message)
        dataset = Messages(source)
        dataset.shards_itself = declares
        samples, texts = told(loader(dataset))
        assert texts == []
        assert (sorted(samples) == list(range(10))) is declares
        closed(source)


def test_what_is_a_source_of_samples() -> None:
    assert shared_source(Counted()) is None
    assert shared_source(Messages(queue.Queue())) is None
    with FORK.Pool(1) as pool:
        assert shared_source(Messages(pool)) is None
        pool.terminate()
        pool.join()
    source = FORK.JoinableQueue()
    for holder in (
        Messages(source),
        stoker.MapDataset(Messages(source), int),
        stoker.from_iterable(lambda: iter(source.get, None)),
    ):
        assert shared_source(holder) == "a JoinableQueue of multiprocessing"
    closed(source)


def test_torchs_queue_is_a_source() -> None:
    torch = pytest.importorskip("torch.multiprocessing")
    source = torch.get_context("fork").Queue()
    assert shared_source(Messages(source)) == "a Queue of multiprocessing"
    closed(source)


@pytest.mark.slow
def test_managers_queue_is_a_source_and_its_dictionary_is_none() -> None:
    with FORK.Manager() as manager:
        assert shared_source(Messages(manager.Queue())) == "a manager's queue"
        assert shared_source(Messages(manager.dict())) is None


def test_warning_of_a_shared_stream_has_the_evidence() -> None:
    samples, texts = told(loader(Counted()))
    assert sorted(samples) == list(range(40))
    assert len(texts) == 1
    assert "does not share its samples out" in texts[0]
    assert texts[0].endswith("Workers 0 and 1 read the same first 8 samples, as they should.")


def test_shared_stream_of_which_workers_read_others_is_told() -> None:
    class Pid(stoker.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            import os

            return iter(range(1000 * os.getpid(), 1000 * os.getpid() + 20))

    _, texts = told(loader(Pid()))
    assert len(texts) == 1
    assert "But the first 8 samples that workers 0 and 1 read all differ" in texts[0]
    assert "shards_itself = True, or pass shard='none'" in texts[0]


def test_warning_of_a_short_shared_stream_comes_at_its_end() -> None:
    _, texts = told(loader(stoker.from_iterable(lambda: iter(range(4)))))
    assert len(texts) == 1 and "does not share its samples out" in texts[0]
    assert texts[0].endswith("read the same first 4 samples, as they should.")
