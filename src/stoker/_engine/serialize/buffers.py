"""Arrays on their way to a clean interpreter: as buffers beside the pickle, or as the file they lie in.

How each is taken apart stands next to how it is put together again. Both ends import this module, the other end only
if it is sent an array.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

LARGE = 1 << 16
"""Bytes. Smallest buffer that the other end maps; smaller ones are copied with the pickle."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]] | Any


def reducers(files: MappedFiles) -> dict[type, Callable[[Any], Reduced]]:
    """Returns, for each type of NumPy that carries memory, the function that takes it apart."""
    return {kind: lambda array: _reduce_array(array, files) for kind in (np.ndarray, np.memmap)}


def _reduce_array(array: Any, files: MappedFiles) -> Reduced:
    root = _file_array(array)
    if root is not None and files.hold(root.filename, _address(root), root.nbytes):
        if array is root:
            mode = "r+" if root.mode == "w+" else root.mode  # w+ would empty the file
            order = "C" if root.flags.c_contiguous else "F"
            return np.memmap, (root.filename, root.dtype, mode, root.offset, root.shape, order)
        inside = _address(array) - _address(root) + root.offset % mmap.ALLOCATIONGRANULARITY
        return _part_of_file, (root, inside, array.shape, array.dtype, array.strides, array.flags.writeable)
    if array.nbytes >= LARGE and not array.flags.forc and not array.dtype.hasobject:
        return _reduce_spread(array)
    return array.__reduce_ex__(5)


def _reduce_spread(array: Any) -> Reduced:
    """An array with gaps or overlaps (a window over a series, a few columns): the memory it spans, or a dense copy."""
    extents = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(extent for extent in extents if extent < 0)
    span = before + sum(extent for extent in extents if extent > 0) + array.itemsize
    if span > 2 * array.nbytes:
        return np.ascontiguousarray(array).__reduce_ex__(5)
    interface = {
        "data": (_address(array) - before, not array.flags.writeable),
        "shape": (span,),
        "typestr": "|u1",
        "version": 3,
    }
    memory = np.asarray(SimpleNamespace(__array_interface__=interface, owner=array))
    return _part, (memory, before, array.shape, array.dtype, array.strides, array.flags.writeable)


def _part(memory: Any, start: int, shape: Any, dtype: Any, strides: Any, writeable: bool) -> Any:
    array: Any = np.ndarray(shape, dtype, memory, start, strides)
    array.flags.writeable = writeable
    return array


def _part_of_file(root: Any, *layout: Any) -> Any:
    return _part(root._mmap, *layout)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _file_array(array: Any) -> Any:
    """The `np.memmap` that this array shows a part of, or is; None where its memory is no file's."""
    while isinstance(array, np.ndarray):
        base: Any = array.base
        if isinstance(array, np.memmap) and isinstance(base, mmap.mmap):
            return array if array.filename is not None else None
        array = base
    return None


class MappedFiles:
    """The files that this process had mapped when first asked."""

    def hold(self, filename: Any, start: int, size: int) -> bool:
        """Whether the file that is mapped at an address still has its name and the bytes that the memory shows.

        A file that was deleted or replaced has not, nor one that was changed in memory alone (mode "c").
        """
        parts = [part for part in self._parts if part[0] < start + size and start < part[1]]
        name = os.path.realpath(filename)
        return bool(parts) and all(path == name and not private for _, _, path, private in parts)

    @cached_property
    def _parts(self) -> list[tuple[int, int, str, bool]]:
        """(start, end, path, whether some of it was written to for this process alone), from /proc/self/smaps."""
        parts = []
        try:
            with open("/proc/self/smaps", errors="surrogateescape") as file:
                text = file.read()
        except OSError:
            return []
        for match in _MAPPING.finditer(text):
            start, end, path, details = match.groups()
            private = any(int(size) for size in _PRIVATE.findall(details))
            parts.append((int(start, 16), int(end, 16), path, private))
        return parts


_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .{4} \S+ \S+ \d+ +(/.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
_PRIVATE = re.compile(r"^(?:Anonymous|Swap): +(\d+) kB", re.MULTILINE)
