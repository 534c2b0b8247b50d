"""The records of Kafka topics as a stream, whose state is their offsets."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from stoker._core.exceptions import safe_str, users_level
from stoker._core.worker_info import current
from stoker.datasets.map import MapDataset
from stoker.datasets.stream import Stream, StreamIterator
from stoker.errors import KafkaError, RecordError, SkipSample, StateFormatError, StateMismatchError, StokerWarning
from stoker.extend import OfWorker, State, resume, torchs_part
from stoker.sources.kafka.client_config import KafkaConfig, PartitionRange, commit_offsets, partitions_of
from stoker.sources.kafka.cursor import (
    PartitionCursor,
    PartitionShare,
    ReadUpTo,
    SavedPlace,
    are_whole,
    first_unread,
    former_shares,
    offsets_in,
)
from stoker.sources.kafka.reader import KafkaRecords, Record

Start = Literal["earliest", "latest"] | Mapping[tuple[str, int], int]


class KafkaStream(Stream[Any]):
    """Records of Kafka topics, each with its offset as the stream's position. Needs `stoker[kafka]` (confluent-kafka).

    A sample is a dict: `topic` (str), `partition`, `offset` (int), `key`, `value` (bytes or None), `timestamp`
    (milliseconds since 1970, or None) and `headers` (a list of pairs of str and bytes). `decode=` makes what the
    model needs of it; `default_collate` refuses None.

    With `until="end"` the stream ends behind the last records that the topics had when it was made, or when a loaded
    state was. Each worker gives a record of each of its partitions in turn, so the order is always the same. With
    `until=None` it never ends: each worker gives records as they arrive, in their order in each partition. A loader
    takes batches from its workers in turn, so a silent partition holds it up; with `in_order=False` it does not.

    Workers and ranks read partitions of their own: every n-th. Workers beyond the number of partitions read nothing,
    and a warning says so; of a `MixDataset`, each then reads all and gives its share of the mix. Pass each rank its
    part: `stream.shard(num_shards=ranks, index=rank)`. Under torch's loader, workers share the partitions out too.

    The state holds the offset of the next record of each partition. It can be loaded with any number of workers or
    ranks: no record is given twice, and none is left out.

    With `group`, the stream begins at the offsets of a consumer group, and `commit(loader.state_dict())` makes a state
    the group's offsets. No group is joined: partitions are assigned as above, nothing is rebalanced, and nothing is
    committed otherwise.

    The topics are listed in a clean interpreter of its own, because a client runs native threads; with workers in other
    processes, the trainer makes no client. Each iteration makes a consumer, which is not pickled. Up to 20,000 records
    or 8 MB of each partition wait in Python, and 16 MB in librdkafka. An error of one record is raised at its place,
    and the iterator continues with the next.

    Args:
        topics: a topic, several, or a mapping from each topic to the numbers of the partitions to read.
        servers: brokers as `host:port`, with commas or as a sequence; or `config["bootstrap.servers"]`.
        config: settings of librdkafka, for security and others. They are pickled with the stream, and appear in no
            repr, error or state. `isolation.level` and the like may be set, offsets and commits may not.
        start: where an iteration without a state begins: "earliest", "latest" (behind the last record when the stream
            was made), or a mapping from (topic, partition) to an offset, for others the earliest. With `group`, for
            partitions in which the group has no offset.
        until: "end", or None for never.
        decode: a function of the dict, whose result is the sample. Random numbers that it draws are the sample's own.
        timeout: seconds after which brokers that do not answer are an error; before, the client connects again and
            again.
        group: the name of a consumer group, whose offsets when the stream is made are where it begins.

    Raises:
        TypeError: `decode` cannot be called.
        ValueError: there are no topics, no partitions or no brokers, or an argument is none of these.
        MissingExtraError: confluent-kafka is not installed.
        KafkaError: the brokers do not answer, have no such topic, or the group stands behind the end of a partition.

    Attributes:
        topics: from each topic to the numbers of its partitions.

    While iterating:
        KafkaError: the brokers do not answer for `timeout` seconds, or no longer have the next records.
        RecordError: `decode` raised.
        StateMismatchError: a loaded state is of other partitions, or behind the end of one.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | Mapping[str, Sequence[int]],
        *,
        servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        start: Start = "earliest",
        until: Literal["end"] | None = "end",
        decode: Callable[[Record], Any] | None = None,
        timeout: float = 30.0,
        group: str | None = None,
    ) -> None:
        if decode is not None and not callable(decode):
            raise TypeError(f"decode is a {type(decode).__name__}, expected a function of a record")
        if until not in ("end", None):
            raise ValueError(f"until should be 'end' or None, but got {until!r}")
        if not isinstance(start, Mapping) and start not in ("earliest", "latest"):
            raise ValueError(f"start should be 'earliest', 'latest' or a mapping to offsets, but got {start!r}")
        if not timeout > 0:
            raise ValueError(f"timeout should be positive, but got {timeout!r}")
        self._config = KafkaConfig(servers, config, group)
        ranges = partitions_of(self._config, _wanted(topics), timeout)
        if not ranges:
            raise ValueError("there are no topics, or no partitions of them, to read")
        self.topics: dict[str, list[int]] = {}
        for each in ranges:
            self.topics.setdefault(each.topic, []).append(each.partition)
        self._begins = {(each.topic, each.partition): _begin_of(each, start) for each in ranges}
        self._records = PartitionRecords(self._config, ranges, self._begins, until == "end", timeout)
        if isinstance(start, Mapping) and (others := [place for place in start if place not in self._begins]):
            raise ValueError(f"start= names {others}, which are no partitions of the stream: {self.topics}")
        self._decode = decode

    def commit(self, *states: Mapping[str, Any]) -> dict[tuple[str, int], int]:
        """Makes the place of a state the offsets of the group; returns them by (topic, partition).

        Of each partition, it is the offset below which all records were given. Partitions that the states do not name
        keep their offsets. An older state sets the group back.

        A loader's state holds the places of all workers from its first batch on, if the stream is the loader's dataset.
        Within a combinator (`ShuffleDataset(stream)`), it lacks those of workers that have given no batch yet: loaded
        after a later commit, it misses their records before that commit.

        Call it after a checkpoint was saved, in the process that has the states. It starts a clean interpreter, which
        takes half a second or more; this process makes no client.

        Args:
            states: `state_dict()` of the loader, or of the stream. With several ranks, those of all ranks at one step.

        Raises:
            ValueError: the stream has no group, or the states have no place in it: one from before the first batch, or
                from after the end of an epoch, is that of an epoch that begins.
            StateFormatError: a state is damaged.
            KafkaError: the brokers do not answer, or refuse.
        """
        if self._config.group is None:
            raise ValueError("the stream has no group to commit offsets to: pass group= when it is made")
        offsets = offsets_in(states, self._begins)
        if not offsets:
            raise ValueError(
                f"the state has no place in {', '.join(self.topics)}: before the first batch and after the end of an "
                "epoch, a loader's state is that of an epoch that begins. Take state_dict() within the loop."
            )
        commit_offsets(self._config, offsets, self._records.timeout)
        return offsets

    @property
    def num_shards(self) -> int:
        """The number of parts into which the stream can be cut: any. Parts beyond its partitions are empty."""
        return self._records.num_shards

    @property
    def _filled_shards(self) -> int:
        return len(self._records.shares)

    @property
    def start_state(self) -> State | None:
        """The state in which an iteration begins, which a loader's state has for workers that have given nothing yet.

        None if a state was loaded into the stream itself.
        """
        return None if self._loaded is not None else self._records.start_state

    def shard(self, num_shards: int, index: int) -> KafkaStream:
        """Returns every `num_shards`-th partition from number `index` on: none, with a warning, if there are fewer.

        Raises:
            ValueError: `index` is not a shard.
        """
        part = copy.copy(self)
        part._records = self._records.shard(num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        records = self._records
        return resume(records if self._decode is None else MapDataset(records, RecordDecoder(self._decode)), state)


class PartitionRecords(Stream[Record]):
    """The records of partitions, undecoded.

    Args:
        begins: the offset at which each is read without a state.
        ends: whether the stream ends where the partitions end now.
        timeout: seconds to wait for brokers.
    """

    former: Sequence[PartitionShare] = ()  # what an earlier version read in this part; empty for `shares`
    of_rank = False
    _has_warned = False  # in a worker of torch's loader

    def __init__(
        self,
        config: KafkaConfig,
        ranges: Sequence[PartitionRange],
        begins: Mapping[tuple[str, int], int],
        ends: bool,
        timeout: float,
    ) -> None:
        self.config = config
        self.ranges = {(each.topic, each.partition): each for each in ranges}
        self.begins = begins
        self.ends = ends
        self.timeout = timeout
        self.shares = [PartitionShare(each.topic, each.partition) for each in ranges]

    @property
    def num_shards(self) -> int:
        return sys.maxsize

    @property
    def start_state(self) -> State:
        """The state in which an iteration begins."""
        cursors = [self._cursor(share, []) for share in self.shares]
        return {"shards": {cursor.share.name: cursor.state(False, len(self.ranges)) for cursor in cursors}}

    def shard(self, num_shards: int, index: int) -> PartitionRecords:
        if not 0 <= index < num_shards:
            raise ValueError(f"there is no share {index} of {num_shards} shares")
        if self.shares and index >= len(self.shares):
            _tell(self._idle(num_shards))
        return self._part(num_shards, index)

    def _idle(self, num_shards: int) -> str:
        topics, count = ", ".join(dict.fromkeys(share.topic for share in self.shares)), len(self.shares)
        whole = "this rank's part of the stream" if self.of_rank else "the stream"
        return (
            f"{whole} of {topics} has {count} partitions for {num_shards} workers or ranks, and each belongs to one of "
            f"them: the last {num_shards - count} read nothing. Use at most {count}, or "
            f"{'fewer ranks' if self.of_rank else 'add partitions'}."
        )

    def _part(self, num_shards: int, index: int) -> PartitionRecords:
        part = copy.copy(self)
        part.shares = self.shares[index::num_shards]
        part.former = former_shares(self.former or self.shares, num_shards, index)
        part.of_rank = self.of_rank or not isinstance(index, OfWorker)
        return part

    def _begin(self, state: State | None) -> StreamIterator[Record]:
        theirs = torchs_part(range(1 << 30))
        if theirs.step == 1:
            return self._begin_here(state)
        if self.shares and theirs.start == len(self.shares) and not self._has_warned:  # the first idle worker, once
            self._has_warned = True
            _tell(self._idle(theirs.step))
        return self._part(theirs.step, theirs.start)._begin_here(state)

    def _begin_here(self, state: State | None) -> StreamIterator[Record]:
        saved = self._saved(state)
        shares = self.shares
        places = [place for each in saved.values() for place in each]
        if any(not are_whole([place.share for place in each]) for each in saved.values()):
            former = self.former or self.shares
            if {place.share for place in places} == set(former) and not any(place.is_joined for place in places):
                shares = list(former)  # it goes on with what it read when the state was saved
            elif self.of_rank and all(self._are_known(share, saved) for share in former):
                shares = list(former)  # the rank's workers divide its share anew
            elif self.of_rank:
                raise StateMismatchError(
                    "the state is of an earlier version, in which ranks shared a partition, and lacks the places of "
                    "others. Load it in the rank that saved it, or load the states of all ranks."
                )
        cursors = [self._cursor(share, saved.get((share.topic, share.partition), [])) for share in shares]
        turns = [
            number
            for number, share in enumerate(shares)
            if any(place.is_next and place.share == share for place in places)
        ]
        return KafkaRecords(self.config, cursors, turns[0] if turns else 0, len(self.ranges), self.timeout)

    def _are_known(self, share: PartitionShare, saved: Mapping[tuple[str, int], Sequence[SavedPlace]]) -> bool:
        places = saved.get((share.topic, share.partition), [])
        return are_whole([place.share for place in places], share)

    def _saved(self, state: State | None) -> dict[tuple[str, int], list[SavedPlace]]:
        """Returns the places in a state by partition; raises StateError if they are not of these."""
        by_partition: dict[tuple[str, int], list[SavedPlace]] = defaultdict(list)
        if state is None:
            return by_partition
        entries = state.get("shards")
        if not isinstance(entries, dict) or (self.shares and not entries):
            raise StateFormatError(f"a state of partitions was expected, found {str(state)[:200]}")
        for place in (SavedPlace.of(name, entry) for name, entry in entries.items()):
            known = self.ranges.get((place.share.topic, place.share.partition))
            if known is None:
                raise StateMismatchError(
                    f"the state has a place in {place.share.place}, which is no partition of this stream, whose topics "
                    f"are {sorted({each.topic for each in self.ranges.values()})}"
                )
            if place.partitions != len(self.ranges):
                raise StateMismatchError(
                    f"the state is of {place.partitions} partitions, but there are {len(self.ranges)} now. Name those "
                    "of the state, topics={topic: numbers}, and read new ones by a stream of their own."
                )
            if self.ends and place.at > known.high:
                raise StateMismatchError(
                    f"the state stands at offset {place.at} of {place.share.place}, which ends at {known.high}: the "
                    "topic was made anew, or its brokers have lost records"
                )
            by_partition[place.share.topic, place.share.partition].append(place)
        return by_partition

    def _cursor(self, share: PartitionShare, saved: Sequence[SavedPlace]) -> PartitionCursor:
        begin = self.begins[share.topic, share.partition]
        read = [ReadUpTo(place.share.residue, place.share.modulus, place.at) for place in saved]
        read += [each for place in saved for each in place.read]
        ends = [place.end for place in saved if place.end is not None]
        end = max(ends, default=self.ranges[share.topic, share.partition].high) if self.ends else None
        return PartitionCursor(share, first_unread(share, begin, read), end, read)


class RecordDecoder:
    """Calls a function with a record; an error names the record."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self.function = function

    def __call__(self, record: Record) -> Any:
        """Returns the sample."""
        try:
            return self.function(record)
        except (SkipSample, StopIteration):
            raise
        except Exception as error:
            raise RecordError(
                f"the record at offset {record['offset']} of {record['topic']}:{record['partition']} cannot be "
                f"decoded: {type(error).__name__}: {safe_str(error)}. on_error='skip' leaves such records out."
            ) from error


def _tell(text: str) -> None:
    tell = current.reading.on_idle
    tell(text) if tell is not None else warnings.warn(text, StokerWarning, stacklevel=users_level())


def _wanted(topics: str | Sequence[str] | Mapping[str, Sequence[int]]) -> dict[str, list[int] | None]:
    if isinstance(topics, str):
        return {topics: None}
    if isinstance(topics, Mapping):
        return {topic: sorted(set(numbers)) for topic, numbers in topics.items()}
    return dict.fromkeys(topics)


def _begin_of(known: PartitionRange, start: Start) -> int:
    if known.committed is not None:
        if known.committed > known.high:
            raise KafkaError(
                f"the group stands at offset {known.committed} of {known.topic}:{known.partition}, which ends at "
                f"{known.high}: the topic was made anew, or its brokers have lost records. Delete the group's offsets, "
                "or name another group."
            )
        return known.committed  # below the first record, reading raises an error
    if start == "latest":
        return known.high
    offset = start.get((known.topic, known.partition), known.low) if isinstance(start, Mapping) else known.low
    if not known.low <= offset <= known.high:
        raise ValueError(
            f"start= names offset {offset} of {known.topic}:{known.partition}, which has {known.low} to {known.high}"
        )
    return offset
