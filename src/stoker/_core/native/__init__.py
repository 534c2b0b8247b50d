"""The compiled part: `native.c` beside this file, built when Stoker is installed if there is a C compiler.

Each caller has a second way, by NumPy or torch. `STOKER_NATIVE=0` disables it. Calls release the GIL, thread safe.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = 5

LARGE = 2 << 20
LARGE_HERE = 16 << 20
"""Bytes from which a non-temporal copy is faster, for another process and for this one. An ordinary copy reads each
target line first and evicts cached data. The reader finds the copy in memory, but that much data would seldom still be
cached. Measured in `benchmarks/results/14-native.md`."""


def opened(name: str, version: int, kind: type[ctypes.CDLL] = ctypes.CDLL) -> tuple[ctypes.CDLL | None, str]:
    """Returns one of the libraries of this folder or None, and the reason in words.

    Args:
        name: of its source.
        version: of its interface.
        kind: `ctypes.PyDLL` holds the GIL in calls.
    """
    if os.environ.get("STOKER_NATIVE") == "0":
        return None, "STOKER_NATIVE=0"
    library = Path(__file__).with_name(f"{name}.bin")  # named `.so`, it would look like a Python extension module
    if not library.exists():
        return None, "there was no C compiler when Stoker was installed"
    try:
        functions = kind(str(library))
        built = getattr(functions, f"stoker_{name}_version")()
    except (OSError, AttributeError) as error:  # built for another machine, or truncated
        return None, f"it cannot be loaded: {error}"
    if built != version:
        return None, f"it was built from other sources (version {built}, not {version}): install Stoker again"
    return functions, "compiled"


class Functions(NamedTuple):
    """The functions of the library. They do not check addresses: the caller must.

    Attributes:
        stack: `(to, sources, size)` copies `size` bytes from each source, one behind the other, bypassing the caches.
        planes: `(to, source, points)` copies an image of `points` pixels from interleaved channels (three bytes for
            each pixel, as decoders give them) to three planes, bypassing the caches.
        lookup: `(to, source, points, tables)` replaces each byte of an image of `points` pixels, with three interleaved
            channels, by its number in the channel's table of 256 float32, and writes one plane for each channel.
        walk: `(points, count, n, width, height, keys, rounds)` replaces each point by its image in a permutation.
    """

    stack: Callable[[int, Sequence[int], int], None]
    planes: Callable[[int, int, int], None]
    lookup: Callable[[int, int, int, int], None]
    walk: Callable[[int, int, int, int, int, int, int], None]


def _loaded() -> tuple[Functions | None, str]:
    library, why = opened("native", VERSION)
    if library is None:
        return None, why
    stack, planes, walk = library.stoker_stack, library.stoker_planes, library.stoker_walk
    lookup = library.stoker_lookup
    address, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    stack.argtypes, stack.restype = [address, address, size, size], None
    planes.argtypes, planes.restype = [address, address, size], None
    lookup.argtypes, lookup.restype = [address, address, size, address], None
    walk.argtypes, walk.restype = [address, size, number, number, number, address, size], None

    def stacked(to: int, sources: Sequence[int], size: int) -> None:
        count = len(sources)
        stack(to, (address * count)(*sources), count, size)

    return Functions(stacked, planes, lookup, walk), why


functions, why = _loaded()
"""The functions or None, and the reason in words."""


def for_large(size: int, is_read_here: bool = False) -> Functions | None:
    """Returns the functions if a copy of `size` bytes should bypass the caches and there is a library; else None.

    Args:
        size: bytes written in total.
        is_read_here: whether this process may read them next.
    """
    return functions if size >= (LARGE_HERE if is_read_here else LARGE) else None
