"""The behaviour of a process when the folder of a cache cannot be written: it does without, and tells the user once."""

from __future__ import annotations

import errno
import logging
import time
import warnings
from typing import Any

from stoker.errors import StokerWarning
from stoker.sources.block_cache import BlockCache

PAUSE = 60.0
"""Seconds for which a process does not write to a cache that it could not write to."""
SILENCE = 600.0
"""Seconds for which no process of the machine tells the user again."""

_log = logging.getLogger("stoker")


class CacheFailures:
    """The failed writes of one process to a cache. Thread safe; a copy in another process knows of none.

    Args:
        blocks: the cache.
    """

    def __init__(self, blocks: BlockCache) -> None:
        self._blocks = blocks
        self._until = 0.0  # by the monotonic clock

    @property
    def is_usable(self) -> bool:
        """Whether the cache may be written: no write has failed in the last minute."""
        return time.monotonic() >= self._until

    def gave_up(self, error: OSError) -> None:
        """Stops writing for a minute. Warns, unless a process of the machine has done so in the last ten."""
        self._until = time.monotonic() + PAUSE
        cause = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error.strerror or error)
        message = (
            f"the cache in {self._blocks.folder} cannot be written ({cause}): files are read without it. Make room on "
            "the disk, or choose another folder or a smaller size."
        )
        if self._blocks.is_first_to_tell(within=SILENCE):
            warnings.warn(message, StokerWarning, stacklevel=2)
        else:
            _log.info(message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_until": 0.0}
