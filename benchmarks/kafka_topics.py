"""How fast are the records of a Kafka topic read, beside bare loops with the same client?

Four partitions of records of 100 bytes; the broker is librdkafka's mock cluster, in a process of its own on this
machine.
In one process: `KafkaStream`, and beside it loops of `consume()` in hundreds over the same partitions, which count
messages ("bare"), or make the same dict of each ("bare, dicts"). With two workers, which each read two partitions and
give batches of 256 values: our loader, and torch's over the loop with dicts. Each run includes the making of the
client, the workers and, for us, the listing. The mock cluster keeps 5 MB of each partition, which bounds the topic.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import method
import rivals
from method import Case, Figures, Goal

RATE = "records/s"
PARTITIONS, SIZE, BATCH, TOPIC = 4, 100, 256, "records"
BROKER = """
import sys
from confluent_kafka import Producer

topic, partitions, count, size = sys.argv[1], *map(int, sys.argv[2:])
producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
(broker,) = producer.list_topics(timeout=10).brokers.values()
for number in range(count):
    producer.produce(topic, b"%010d" % number + bytes(size - 10), partition=number % partitions)
    if number % 10_000 == 0:
        producer.flush()
producer.flush()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


def cases(options: argparse.Namespace) -> list[Case]:
    count = 20_000 if options.quick else 120_000
    one = {rival: {"rival": rival, "count": count, "workers": 0} for rival in ("stoker", "bare, dicts", "bare")}
    two = {rival: {"rival": rival, "count": count, "workers": 2} for rival in ("stoker", "torch")}
    return [
        Case("one process", one, [Goal(RATE, against="bare, dicts", at_least=1 / 1.2)]),
        Case("2 workers", two, [Goal(RATE, against="torch", at_least=1)]),
    ]


def measure(rival: str, count: int, workers: int) -> Figures:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return {RATE: rivals.NOT_INSTALLED}
    with broker(count) as servers:
        read = read_by_workers if workers else read_here
        import stoker

        assert stoker.KafkaStream and stoker.DataLoader  # imported
        if rival == "torch":
            import torch.utils.data  # noqa: F401
        began = time.perf_counter()
        found = read(rival, servers, workers)
        took = time.perf_counter() - began
    assert found == count
    return {RATE: count / took}


@contextlib.contextmanager
def broker(count: int) -> Iterator[str]:
    command = [sys.executable, "-c", BROKER, TOPIC, *map(str, (PARTITIONS, count, SIZE))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def value(record: dict[str, Any]) -> bytes:
    return bytes(record["value"])


def read_here(rival: str, servers: str, workers: int) -> int:
    import stoker

    if rival == "stoker":
        return sum(1 for _ in stoker.KafkaStream(TOPIC, servers=servers))
    if rival == "bare":
        return sum(len(messages) for messages in messages_of(servers, range(PARTITIONS)))
    return sum(1 for _ in records_of(servers, range(PARTITIONS)))


def read_by_workers(rival: str, servers: str, workers: int) -> int:
    import stoker

    if rival == "stoker":
        stream = stoker.KafkaStream(TOPIC, servers=servers, decode=value)
        loader: Any = stoker.DataLoader(stream, batch_size=BATCH, num_workers=workers)
        return sum(len(batch) for batch in loader)
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Records(IterableDataset[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            info = get_worker_info()
            return map(value, records_of(servers, range(info.id, PARTITIONS, info.num_workers)))

    return sum(len(batch) for batch in DataLoader(Records(), batch_size=BATCH, num_workers=workers))


def records_of(servers: str, partitions: range) -> Iterator[dict[str, Any]]:
    for messages in messages_of(servers, partitions):
        for message in messages:
            yield {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "key": message.key(),
                "value": message.value(),
                "timestamp": message.timestamp()[1],
                "headers": message.headers() or [],
            }


def messages_of(servers: str, partitions: range) -> Iterator[list[Any]]:
    """Yields lists of messages, until each partition has ended."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in partitions])
    ended = 0
    while ended < len(partitions):
        messages = consumer.consume(200, 0.1)
        whole = [message for message in messages if message.error() is None]
        ended += len(messages) - len(whole)
        yield whole
    consumer.close()


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
