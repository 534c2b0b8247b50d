"""Files without a name: memory that processes share, and that is gone with its last descriptor and mapping."""

from __future__ import annotations

import os
import tempfile

NAME = "stoker"


def anonymous() -> int:
    """A new, empty file without a name, in memory where the system has such; returns its descriptor, not inherited."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(NAME, os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix=NAME)
    os.unlink(path)
    return descriptor
