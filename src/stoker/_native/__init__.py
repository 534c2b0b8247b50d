"""The compiled part: `native.c` beside this file, built when Stoker is installed, where there is a C compiler.

It gives nothing that NumPy or torch would not give as well; each caller has both ways, and asks here which there is.
`STOKER_NATIVE=0` in the environment leaves it unused. Calls let other threads run, and may come from any of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = 2
LARGE = 2 << 20
LARGE_HERE = 16 << 20
"""Bytes from which on a copy for another process, or for this one, is better made past the caches: what is written the
usual way is read first, and pushes out what is in use. Whoever takes it finds it in memory, not in a cache, where so
much would hardly have stayed until then. Measured: `docs/design/14-native.md`."""

LIBRARY = Path(__file__).with_name("native.bin")  # as `.so` it would be taken for a module of Python's


class Functions(NamedTuple):
    """What the library can do. Addresses are tested by nobody: whoever calls has to know what lies there.

    Attributes:
        stack: `(to, sources, size)` copies `size` bytes from each source, one behind the other, past the caches.
        planes: `(to, source, points)` copies an image of so many points past the caches: three bytes that lie beside
            each other in each point, as photographs are decoded, come channel by channel.
        walk: `(points, count, n, width, height, keys, rounds)` puts each point where a permutation has it.
    """

    stack: Callable[[int, Sequence[int], int], None]
    planes: Callable[[int, int, int], None]
    walk: Callable[[int, int, int, int, int, int, int], None]


def _loaded() -> tuple[Functions | None, str]:
    """What there is, and in words why it is not there or where it is from."""
    if os.environ.get("STOKER_NATIVE") == "0":
        return None, "STOKER_NATIVE=0"
    if not LIBRARY.exists():
        return None, "Stoker was installed where there was no C compiler"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        version = library.stoker_version()
    except (OSError, AttributeError) as error:  # built for another machine, or cut off
        return None, f"it cannot be loaded: {error}"
    if version != VERSION:
        return None, f"it was built from other sources (version {version}, not {VERSION}): install Stoker again"
    stack, planes, walk = library.stoker_stack, library.stoker_planes, library.stoker_walk
    address, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    stack.argtypes, stack.restype = [address, address, size, size], None
    planes.argtypes, planes.restype = [address, address, size], None
    walk.argtypes, walk.restype = [address, size, number, number, number, address, size], None

    def stacked(to: int, sources: Sequence[int], size: int) -> None:
        count = len(sources)
        stack(to, (address * count)(*sources), count, size)

    return Functions(stacked, planes, walk), "compiled"


functions, why = _loaded()
"""The functions, or None; and why."""


def for_large(size: int, is_read_here: bool = False) -> Functions | None:
    """What copies so many bytes past the caches; None where they are too few for that, or there is nothing.

    Args:
        size: of what is written in all.
        is_read_here: whether this process may be the one that reads it next.
    """
    return functions if size >= (LARGE_HERE if is_read_here else LARGE) else None
