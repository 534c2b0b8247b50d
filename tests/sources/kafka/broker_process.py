"""A Kafka broker of librdkafka's mock cluster, in a process of its own that reads commands, one JSON list a line.

Python's client does not offer the functions of the mock cluster, so the library is called directly.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import confluent_kafka

BROKER = 1


class MockBroker:
    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
        folder = Path(confluent_kafka.__file__).parent.parent
        (library,) = folder.glob("confluent_kafka.libs/librdkafka-*")
        self.library = ctypes.CDLL(str(library))
        for name, kinds in {
            "rd_kafka_mock_topic_create": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
            "rd_kafka_mock_broker_set_down": [ctypes.c_int32],
            "rd_kafka_mock_broker_set_up": [ctypes.c_int32],
        }.items():
            getattr(self.library, name).argtypes = [ctypes.c_void_p, *kinds]
        cluster_of = self.library.rd_kafka_handle_mock_cluster
        cluster_of.restype, cluster_of.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        # The client's C object begins with the library's handle, behind Python's header
        self.cluster = cluster_of(ctypes.c_void_p.from_address(id(self.producer) + object.__basicsize__))
        (found,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{found.host}:{found.port}"

    def create(self, topic: str, partitions: int) -> None:
        assert self.library.rd_kafka_mock_topic_create(self.cluster, topic.encode(), partitions, 1) == 0

    def produce(self, topic: str, partition: int, values: list[str]) -> None:
        for number, value in enumerate(values):
            self.producer.produce(
                topic,
                value.encode(),
                key=f"key {value}",
                partition=partition,
                headers=[("number", str(number).encode())],
                timestamp=1000 + number,
            )
            self.producer.poll(0)
        assert self.producer.flush(20) == 0

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group})
        places = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        found = [place.offset for place in consumer.committed(places, timeout=10)]
        consumer.close()
        return found

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group})
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()

    def down(self) -> None:
        self.library.rd_kafka_mock_broker_set_down(self.cluster, BROKER)

    def up(self) -> None:
        self.library.rd_kafka_mock_broker_set_up(self.cluster, BROKER)


def main() -> None:
    broker: Any = MockBroker()
    print(broker.address, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(broker, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
