"""Files without a name: memory shared by processes, freed with its last descriptor and mapping."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile

NAME = "stoker"

DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""Errors of a system call that a filter (seccomp) denies, or that the kernel lacks."""


def anonymous() -> int:
    """Returns the descriptor, not inherited, of a new, empty file without a name; in memory if the system can.

    Otherwise the file lies in the folder of temporary files (`TMPDIR`): its blocks are to be reserved before they are
    written by a mapping (`stoker._core.machine.reserve`), because a write to a full disk would be a bus error.
    """
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(NAME, os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in DENIED:
                raise
    descriptor, path = tempfile.mkstemp(prefix=NAME)
    os.unlink(path)
    return descriptor


def replaced_by() -> str | None:
    """Returns what replaces files in memory, and why, in words; None where the system has them."""
    why = "this system has no memfd_create"
    if hasattr(os, "memfd_create"):
        try:
            os.close(os.memfd_create(NAME, os.MFD_CLOEXEC))
        except OSError as error:
            if error.errno not in DENIED:
                return None
            why = f"memfd_create is denied ({os.strerror(error.errno or 0)})"
        else:
            return None
    folder = tempfile.gettempdir()
    free = ""
    with contextlib.suppress(AttributeError, OSError):
        there = os.statvfs(folder)
        free = f", {there.f_bavail * there.f_frsize / 2**20:,.0f} MiB free"
    return f"an unlinked file in {folder}{free}, because {why}"
