"""The offsets that a state of a loader or stream stands for, and their commit to a consumer group."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.errors import StateFormatError
from stoker.sources.kafka.cursor import SavedPlace
from stoker.sources.kafka.shares import PartitionShare, ReadUpTo, first_unread

_ENTRY = {"at", "end", "of"}

Partition = tuple[str, int]


def offsets_in(states: Sequence[Any], begins: Mapping[Partition, int]) -> dict[Partition, int]:
    """Returns the offset of each partition below which all records were given, for the partitions that states name.

    Args:
        states: of loaders or streams; parts of one stream's together, as those of all ranks.
        begins: the partitions of the stream, and where each began without a state.

    Raises:
        StateFormatError: a place of a partition is damaged.
    """
    read: dict[Partition, list[ReadUpTo]] = defaultdict(list)
    for state in states:
        for name, entry in _entries(state):
            place = SavedPlace.of(name, entry)
            partition = (place.share.topic, place.share.partition)
            if partition in begins:
                read[partition] += [ReadUpTo(place.share.residue, place.share.modulus, place.at), *place.read]
    return {where: first_unread(PartitionShare(*where), begins[where], known) for where, known in read.items()}


def _entries(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the entry of each share of a partition that a state holds, however deep."""
    if isinstance(state, Mapping):
        shards = state.get("shards")
        for name, entry in shards.items() if isinstance(shards, Mapping) else ():
            if isinstance(entry, Mapping) and entry.keys() >= _ENTRY:
                yield name, entry
        for key, value in state.items():
            yield from _entries(_parsed(value) if _is_one_value(key) else value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _entries(value)


def _is_one_value(key: Any) -> bool:
    """Returns whether a key of a loader's state holds a part of it as one text: of all ranks, or of one."""
    return key == "below" or (isinstance(key, str) and key.startswith("rank "))


def _parsed(below: Any) -> Any:
    """Returns the value of a part of a loader's state that is one text of JSON."""
    if not isinstance(below, str):
        return below
    try:
        return json.loads(below)
    except ValueError as error:
        raise StateFormatError(f"the state of a loader is damaged: {below[:200]}") from error
