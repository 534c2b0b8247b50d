"""Decoded row groups in files of the local disk, which all processes of the machine map."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import time
import warnings
from typing import Any

from stoker.errors import StokerWarning
from stoker.sources.storage import Version

_SUFFIX, _PARTIAL = ".arrow", ".arrow.partial"
_ABANDONED = 3600
"""Seconds; writing a row group takes some."""
_OF_THIS_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
_log = logging.getLogger("stoker")


class DecodedFiles:
    """A folder of row groups in Arrow's file format. Picklable; thread and process safe.

    A file is written as a whole or not at all, and never changed: a row group of another version of its Parquet file,
    or of other columns, has another name. Nothing is removed, but what processes that were killed had begun to write.

    Args:
        folder: on a local disk; created if it does not exist.

    Raises:
        OSError: it cannot be created, or no file can be written in it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        os.makedirs(self.folder, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(f"the folder of decoded_cache, {self.folder}, cannot be written")
        self._is_full = False
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Removes files that nobody has written to for an hour: their writers were killed."""
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # another process removes it too
                if entry.name.endswith(_PARTIAL) and time.time() - entry.stat().st_mtime > _ABANDONED:
                    os.unlink(entry.path)

    def path(self, place: str, version: Version, columns: list[str], group: int) -> str:
        """Returns the path of the file for a row group.

        Args:
            place: of the Parquet file, without secrets.
            group: the number of the row group in the file.
        """
        name = repr((os.path.abspath(place) if "://" not in place else place, tuple(version), columns, group))
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return os.path.join(self.folder, digest + _SUFFIX)

    def find(self, arrow: Any, path: str) -> Any:
        """Returns the table in a file, over its mapped pages; None if there is no such file, or it is damaged."""
        try:
            return arrow.ipc.open_file(arrow.memory_map(path)).read_all()
        except FileNotFoundError:
            return None
        except (OSError, arrow.ArrowException) as error:
            # else the fault is this process's, which may be short of descriptors
            if getattr(error, "errno", None) in (None, errno.EINVAL):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return None

    def add(self, arrow: Any, path: str, table: Any) -> bool:
        """Writes a table to a file. If the folder does not take it, it warns once, and this process writes no more.

        Returns:
            Whether the file is there.
        """
        if self._is_full:
            return False
        partial = f"{path.removesuffix(_SUFFIX)}.{secrets.token_hex(4)}{_PARTIAL}"
        try:
            table = table.unify_dictionaries()  # the format has one dictionary for each column
            with open(partial, "xb") as file:
                with arrow.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except (OSError, arrow.ArrowException) as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            if getattr(error, "errno", None) in _OF_THIS_PROCESS:
                _log.info("the decoded row group %s is not kept: %s", path, error)
                return False
            self._is_full = True
            reason = getattr(error, "strerror", None) or error
            warnings.warn(
                f"decoded row groups cannot be written to {self.folder} ({reason}): they are kept in "
                "the memory of each worker, as without decoded_cache=. Make room on the disk, or name another folder.",
                StokerWarning,
                stacklevel=2,
            )
            return False
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        return True
