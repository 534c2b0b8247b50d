"""Files without a name: memory shared by processes, freed with its last descriptor and mapping."""

from __future__ import annotations

import os
import tempfile

NAME = "stoker"


def anonymous() -> int:
    """Returns the descriptor, not inherited, of a new, empty file without a name; in memory if the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(NAME, os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix=NAME)
    os.unlink(path)
    return descriptor
