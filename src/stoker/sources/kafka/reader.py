"""Reads partitions through one consumer, in turn."""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from stoker.datasets.stream import StreamIterator
from stoker.errors import KafkaError
from stoker.extend import State
from stoker.sources.kafka.client_config import KafkaConfig
from stoker.sources.kafka.cursor import PartitionCursor
from stoker.sources.per_process import PerProcess

_AT_ONCE = 200
"""Messages that are taken from the client at once, if they have arrived."""
_POLL = 0.2
"""Seconds of one wait, so that signals are handled in between."""

Record = dict[str, Any]


class KafkaRecords(StreamIterator[Record]):
    """Iterator of records. Shares with an end give a record each in turn; others as records arrive.

    The consumer is made at the first record, and closed at the end and with the iterator. It runs native threads.

    Args:
        turn: the number of the share whose turn it is.
        timeout: seconds to wait for brokers.
    """

    def __init__(
        self, config: KafkaConfig, cursors: Sequence[PartitionCursor], turn: int, partitions: int, timeout: float
    ) -> None:
        self._config = config
        self._cursors = cursors
        self._turn = turn
        self._partitions = partitions
        self._timeout = timeout
        self._by_place = {(cursor.share.topic, cursor.share.partition): cursor for cursor in cursors}
        self._heard: deque[Any] = deque(maxlen=1)  # the client's last error of a connection
        self._errors: deque[KafkaError] = deque()
        opens = functools.partial(config.consumer, self._heard.append)
        self._client: PerProcess[Any] = PerProcess(opens, lambda consumer: consumer.close(), keeps_inherited=True)
        self._assigned: Any = None  # the consumer that fetches the shares

    def __next__(self) -> Record:
        since = 0.0
        while True:
            if self._errors:
                raise self._errors.popleft()
            if not self._cursors:
                raise StopIteration
            number = self._turn if self._cursors[self._turn].has_arrived else self._ready()
            if number is not None:
                return self._given(number)
            since = since or time.monotonic()
            if all(cursor.is_over for cursor in self._cursors):
                self._client.close()
                self._assigned = None
                raise StopIteration
            if self._poll():
                since = time.monotonic()
            elif time.monotonic() - since > self._timeout:
                since = time.monotonic()
                self._check_answers()

    def state_dict(self) -> State:
        places = enumerate(self._cursors)
        entries = {cursor.share.name: cursor.state(place == self._turn, self._partitions) for place, cursor in places}
        return {"shards": entries}

    def _ready(self) -> int | None:
        """Returns the number of the share that gives the next record; None to wait for one."""
        count = len(self._cursors)
        for number in itertools.chain(range(self._turn, count), range(self._turn)):
            cursor = self._cursors[number]
            if cursor.has_arrived:
                return number
            if cursor.end is not None and not cursor.is_over:
                return None  # so that the order is always the same
        return None

    def _given(self, number: int) -> Record:
        cursor = self._cursors[number]
        message = cursor.give()
        self._turn = (number + 1) % len(self._cursors)
        if not cursor.is_assigned and not cursor.is_fetched and cursor.has_room and self._assigned is not None:
            self._fetch([cursor])
        kind, milliseconds = message.timestamp()
        return {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "key": message.key(),
            "value": message.value(),
            "timestamp": milliseconds if kind else None,
            "headers": message.headers() or [],
        }

    def _poll(self) -> bool:
        """Takes the messages that have arrived; returns whether there are any."""
        import confluent_kafka

        client = self._consumer()
        try:
            first = client.poll(_POLL)  # consume() would wait until all have arrived
            messages = [] if first is None else [first, *client.consume(_AT_ONCE, 0)]
        except confluent_kafka.KafkaException as error:
            self._errors.append(self._failed(error.args[0], None))
            return True
        for message in messages:
            cursor = self._by_place.get((message.topic(), message.partition()))
            event = message.error()
            if event is None:
                assert cursor is not None
                cursor.arrives(message)
            elif cursor is not None and event.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                cursor.arrives_at(message.offset())
            elif cursor is not None and event.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                self._out_of_range(client, cursor)
            else:
                if cursor is not None:
                    cursor.is_lost = not event.retriable()
                self._errors.append(self._failed(event, cursor))
        self._unfetch([cursor for cursor in self._cursors if cursor.is_assigned])
        return bool(messages)

    def _consumer(self) -> Any:
        client = self._client.get()
        if client is not self._assigned:
            self._assigned = client
            for cursor in self._cursors:
                cursor.is_assigned = False
            self._fetch([cursor for cursor in self._cursors if not cursor.is_fetched and not cursor.is_full])
        return client

    def _fetch(self, cursors: Sequence[PartitionCursor]) -> None:
        """Lets the client fetch these shares, from where they stand."""
        import confluent_kafka

        places = [
            confluent_kafka.TopicPartition(cursor.share.topic, cursor.share.partition, cursor.fetched)
            for cursor in cursors
        ]
        if places:
            self._assigned.incremental_assign(places)
        for cursor in cursors:
            cursor.is_assigned = True

    def _unfetch(self, cursors: Sequence[PartitionCursor]) -> None:
        """Stops the client from fetching those of the shares that are complete, lost, or have enough in memory."""
        import confluent_kafka

        enough = [cursor for cursor in cursors if cursor.is_fetched or cursor.is_full]
        if enough:
            self._assigned.incremental_unassign(
                [confluent_kafka.TopicPartition(cursor.share.topic, cursor.share.partition) for cursor in enough]
            )
        for cursor in enough:
            cursor.is_assigned = False

    def _out_of_range(self, client: Any, cursor: PartitionCursor) -> None:
        """Notes that the broker does not have the next record, and continues at the first that it has."""
        import confluent_kafka

        place, at = cursor.share.place, cursor.fetched
        where = confluent_kafka.TopicPartition(cursor.share.topic, cursor.share.partition)
        try:
            low, high = client.get_watermark_offsets(where, timeout=self._timeout, cached=False)
        except confluent_kafka.KafkaException as error:
            self._errors.append(self._failed(error.args[0], cursor))
            cursor.is_lost = True
            return
        if at < low:
            told = (
                f"the records of {place} from offset {at} to {low - 1} are no longer at {self._config.servers}, which "
                f"begins at {low}: they were removed before they were read. Keep them longer (retention.ms). If the "
                f"error is left out, the stream continues at {low}."
            )
            client.incremental_unassign([where])
            cursor.arrives_at(low)
            if not cursor.is_fetched:
                self._fetch([cursor])
            else:
                cursor.is_assigned = False
        else:
            cursor.is_lost = True
            told = (
                f"the stream stands at offset {at} of {place}, which ends at {high} now: the topic was made anew, or "
                "its brokers have lost records."
            )
        self._errors.append(KafkaError(told))

    def _failed(self, error: Any, cursor: PartitionCursor | None) -> KafkaError:
        where = "" if cursor is None else f" of {cursor.share.place} at offset {cursor.fetched}"
        said = self._config.scrubbed(error.str())
        return KafkaError(f"the records{where} cannot be read from {self._config.servers}: {said}")

    def _check_answers(self) -> None:
        """Raises KafkaError if the brokers do not answer, or if records do not arrive that should be there."""
        import confluent_kafka

        waited = next(cursor for cursor in (*self._cursors[self._turn :], *self._cursors) if not cursor.is_over)
        where, servers = f"offset {waited.fetched} of {waited.share.place}", self._config.servers
        try:
            self._consumer().list_topics(waited.share.topic, timeout=max(1.0, min(self._timeout, 10.0)))
        except confluent_kafka.KafkaException as error:
            said = "; ".join(dict.fromkeys(each.str() for each in (error.args[0], *self._heard)))
            raise KafkaError(
                f"the Kafka brokers {servers} did not answer for {self._timeout:g} s, at {where}: "
                f"{self._config.scrubbed(said)}. No record is lost: the stream continues there at the next "
                "request, or resumed from its state."
            ) from None
        if waited.end is not None:
            raise KafkaError(
                f"nothing arrived for {self._timeout:g} s at {where}, although the brokers {servers} answer; it should "
                f"go on to {waited.end}. Is a transaction open there, or the partition without a leader?"
            )
