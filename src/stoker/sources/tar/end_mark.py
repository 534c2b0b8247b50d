"""Shards that end behind a member, without the end mark of a tar file."""

from __future__ import annotations

from stoker.errors import ShardError, ShardIndexError
from stoker.sources.once import Once
from stoker.sources.storage import File, Storage
from stoker.sources.tar.foreign_index import foreign_index
from stoker.sources.tar.index import Folder, existing_index
from stoker.sources.tar.members import warn_of_no_end
from stoker.sources.urls import is_remote, shown


def check_no_end(path: str, file: File, storage: Storage, folder: Folder | None, once: Once) -> None:
    """Warns of a shard that is read in sequence and has no end mark, once for a stream.

    Args:
        path: of the shard.
        file: the shard.
        storage: of the shard.
        folder: of indexes.
        once: of the stream.

    Raises:
        ShardError: an index says that the shard was longer.
    """
    size = file.version.size
    try:
        own = existing_index(path, storage, folder)
        index = own[0] if own is not None else None if is_remote(path) else foreign_index(path, file)
    except ShardIndexError as error:
        raise ShardError(
            f"{shown(path)} ends at byte {size} without an end mark, and its index does not fit: {error}"
        ) from None
    if index is not None and max(index.version.size, int(index.offsets[-1])) > size:
        raise ShardError(
            f"{shown(path)} ends at byte {size} without an end mark, but its index is of a shard of "
            f"{index.version.size} bytes with {len(index)} samples: the shard is truncated. Was it copied or written "
            "completely?"
        )
    if once.is_first():
        warn_of_no_end(shown(path))
