"""The partitions of topics, listed in a clean interpreter of its own, which ends at once.

A Kafka client runs native threads, which do not survive a fork: the trainer, whose workers may be forked from it, makes
none.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from stoker.errors import KafkaError
from stoker.sources.kafka.client_config import KafkaConfig

_PROGRAM = (
    "import pickle, sys\n"
    "sys.path[:], request = pickle.load(sys.stdin.buffer)\n"
    "from stoker.sources.kafka.listing import answer\n"
    "answer(request)"
)
_TO_START = 30.0
"""Seconds that the interpreter may take beside those of the brokers."""


class PartitionRange(NamedTuple):
    """The offsets of a partition when it was listed.

    Attributes:
        topic: of the partition.
        partition: its number.
        low: the offset of its first record.
        high: the offset behind its last record.
    """

    topic: str
    partition: int
    low: int
    high: int


def partitions_of(
    config: KafkaConfig, topics: Mapping[str, Sequence[int] | None], timeout: float
) -> list[PartitionRange]:
    """Returns the partitions of topics, in the order of the topics, ascending.

    Args:
        config: how to reach the brokers.
        topics: from each topic to the partitions wanted; None for all.
        timeout: seconds to wait for each answer of a broker.

    Raises:
        KafkaError: the brokers do not answer, refuse, or have no such topic or partition.
    """
    request = cloudpickle.dumps((config, dict(topics), timeout))  # a setting may be a function
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=pickle.dumps((sys.path, request)),  # not an argument, which all users of the machine could see
            capture_output=True,
            timeout=_TO_START + 2 * timeout,
        )
    except subprocess.TimeoutExpired:
        raise KafkaError(_unanswered(config, timeout, "the interpreter that asked them did not end")) from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = config.scrubbed(done.stderr.decode(errors="replace")[-2000:])
        raise KafkaError(f"the interpreter that lists the topics of {config.servers} failed:\n{said}") from None
    if isinstance(found, str):
        raise KafkaError(found)
    return [PartitionRange(*each) for each in found]


def answer(request: bytes) -> None:
    """Writes the partitions, or the reason why there are none, to standard output. Runs in the clean interpreter."""
    import confluent_kafka

    config, topics, timeout = pickle.loads(request)
    heard: list[Any] = []
    found: list[PartitionRange] | str
    try:
        consumer = config.consumer(heard.append)
    except confluent_kafka.KafkaException as error:
        found = config.scrubbed(f"the Kafka client refuses its settings: {error.args[0].str()}. Correct config=.")
    else:
        try:
            found = _listed(consumer, topics, timeout)
        except confluent_kafka.KafkaException as error:
            said = "; ".join(dict.fromkeys(each.str() for each in (error.args[0], *heard[:3])))
            found = config.scrubbed(_unanswered(config, timeout, said))
        except LookupError as error:
            found = f"{error.args[0]} at {config.servers}"
        consumer.close()
    print(json.dumps(found))


def _listed(consumer: Any, topics: Mapping[str, Sequence[int] | None], timeout: float) -> list[PartitionRange]:
    import confluent_kafka

    found = []
    for topic, wanted in topics.items():
        described = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if described.error is not None:
            raise LookupError(f"the topic {topic!r} cannot be read: {described.error.str()},")
        numbers = sorted(described.partitions) if wanted is None else wanted
        if absent := sorted(set(numbers) - set(described.partitions)):
            raise LookupError(f"the topic {topic!r} has {len(described.partitions)} partitions, and not {absent},")
        for number in numbers:
            place = confluent_kafka.TopicPartition(topic, number)
            low, high = consumer.get_watermark_offsets(place, timeout=timeout, cached=False)
            found.append(PartitionRange(topic, number, low, high))
    return found


def _unanswered(config: KafkaConfig, timeout: float, said: str) -> str:
    return (
        f"no Kafka broker of {config.servers} answered within {timeout:g} s: {said}. Is the address right, are the "
        "brokers up, and does config= have their security settings?"
    )
