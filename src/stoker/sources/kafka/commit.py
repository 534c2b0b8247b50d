"""The commit of offsets to a consumer group, in a clean interpreter, which imports this file and little else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.sources.kafka.clean_client import asked
from stoker.sources.kafka.client_config import KafkaConfig


def commit_offsets(config: KafkaConfig, offsets: Mapping[tuple[str, int], int], timeout: float) -> None:
    """Makes these the offsets of the group, in a clean interpreter, which ends at once.

    Raises:
        KafkaError: the brokers do not answer, or refuse.
    """
    asked(config, _commit, [(*where, offset) for where, offset in offsets.items()], timeout)


def _commit(consumer: Any, offsets: Sequence[tuple[str, int, int]], timeout: float) -> None:
    import confluent_kafka

    places = [confluent_kafka.TopicPartition(*each) for each in offsets]
    consumer.committed(places, timeout=timeout)  # a commit has no timeout: raises if nobody answers
    try:
        errors = [place.error for place in consumer.commit(offsets=places, asynchronous=False)]
    except confluent_kafka.KafkaException as error:
        errors = [error.args[0]]
    for refused in errors:
        if refused is not None and refused.code() < 0:  # of the client itself: nothing was answered
            raise confluent_kafka.KafkaException(refused)
        if refused is not None:
            raise LookupError(
                f"the offsets {[list(each) for each in offsets]} are not committed: {refused.str()}. Programs that "
                "subscribe to topics as members of a group keep it from taking offsets of others. Asked"
            )
