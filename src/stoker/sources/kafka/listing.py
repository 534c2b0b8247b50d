"""The partitions of topics, and where a group stands in them, listed in a clean interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stoker.sources.kafka.clean_client import asked
from stoker.sources.kafka.client_config import KafkaConfig


class PartitionRange(NamedTuple):
    """The offsets of a partition when it was listed.

    Attributes:
        topic: of the partition.
        partition: its number.
        low: the offset of its first record.
        high: the offset behind its last record.
        committed: the offset at which the group continues; None without a group, or if it has none.
    """

    topic: str
    partition: int
    low: int
    high: int
    committed: int | None = None


def partitions_of(
    config: KafkaConfig, topics: Mapping[str, Sequence[int] | None], timeout: float
) -> list[PartitionRange]:
    """Returns the partitions of topics, in the order of the topics, ascending.

    Args:
        config: how to reach the brokers, and the group, if any, whose offsets are asked for.
        topics: from each topic to the partitions wanted; None for all.
        timeout: seconds to wait for each answer of a broker.

    Raises:
        KafkaError: the brokers do not answer, refuse, or have no such topic or partition.
    """
    wanted = (dict(topics), config.group is not None)
    return [PartitionRange(*each) for each in asked(config, _listed, wanted, timeout)]


def _listed(
    consumer: Any, wanted: tuple[Mapping[str, Sequence[int] | None], bool], timeout: float
) -> list[PartitionRange]:
    import confluent_kafka

    found, (topics, has_group) = [], wanted
    for topic, chosen in topics.items():
        described = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if described.error is not None:
            raise LookupError(f"the topic {topic!r} cannot be read: {described.error.str()},")
        numbers = sorted(described.partitions) if chosen is None else chosen
        if absent := sorted(set(numbers) - set(described.partitions)):
            raise LookupError(f"the topic {topic!r} has {len(described.partitions)} partitions, and not {absent},")
        places = [confluent_kafka.TopicPartition(topic, number) for number in numbers]
        stands: dict[int, int | None] = dict.fromkeys(numbers)
        if has_group and places:
            for place in consumer.committed(places, timeout=timeout):
                if place.error is not None:
                    raise confluent_kafka.KafkaException(place.error)
                stands[place.partition] = place.offset if place.offset >= 0 else None
        for place in places:
            low, high = consumer.get_watermark_offsets(place, timeout=timeout, cached=False)
            found.append(PartitionRange(topic, place.partition, low, high, stands[place.partition]))
    return found
