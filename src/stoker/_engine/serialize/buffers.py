"""Arrays and tensors on their way to a clean interpreter: as buffers beside the pickle, or as the file they lie in.

How each is taken apart stands next to how it is put together again. Both ends import this module, the other end only
if it is sent an array; torch is taken from where the program or the pickle has imported it.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import sys
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from stoker.errors import CannotSendError

LARGE = 1 << 16
"""Bytes. Smallest buffer that the other end maps; smaller ones are copied with the pickle."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]] | Any


def reducers() -> dict[type, Callable[[Any], Reduced]]:
    """Returns, for each type of NumPy and torch that carries memory, the function that takes it apart."""
    files = MappedFiles()
    table: dict[type, Callable[[Any], Reduced]] = {
        kind: lambda array: _reduce_array(array, files) for kind in (np.ndarray, np.memmap)
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        table[torch.Tensor] = _reduce_tensor
        table[torch.UntypedStorage] = _reduce_storage
        table[torch.storage.TypedStorage] = _reduce_typed_storage
    return table


# NumPy


def _reduce_array(array: Any, files: MappedFiles) -> Reduced:
    root = _file_array(array)
    if root is not None and files.hold(root):
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

    def hold(self, root: Any) -> bool:
        """Whether the file of an `np.memmap` still has the name and the bytes that its memory shows.

        A file that was deleted or replaced has not, nor one that was changed in memory alone (mode "c").
        """
        start = _address(root)
        parts = [part for part in self._parts if part[0] < start + root.nbytes and start < part[1]]
        name = os.path.realpath(root.filename)
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


# torch: a tensor's own way of pickling ends at its storage, which is what several tensors share


def _reduce_tensor(tensor: Any) -> Reduced:
    """torch's own reduction. Its other half wants a typed storage for the newer dtypes (uint16, float8) too."""
    torch = sys.modules["torch"]
    make, (storage, *rest) = tensor.__reduce_ex__(5)[:2]
    if isinstance(storage, torch.UntypedStorage):
        storage = _typed_storage(storage, torch.uint8)
    return make, (storage, *rest)


def _reduce_storage(storage: Any) -> Reduced:
    torch = sys.modules["torch"]
    if storage.device.type not in ("cpu", "meta"):
        raise CannotSendError(f"memory of a tensor on {storage.device} belongs to this process")
    if storage.device.type == "meta":
        return storage.__reduce_ex__(5)
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage, (pickle.PickleBuffer(memory),)


def _storage(memory: bytearray | memoryview) -> Any:
    torch = sys.modules["torch"]
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return (whole.clone() if isinstance(memory, bytearray) else whole).untyped_storage()


def _reduce_typed_storage(storage: Any) -> Reduced:
    return _typed_storage, (storage._untyped_storage, storage.dtype)


def _typed_storage(storage: Any, dtype: Any) -> Any:
    return sys.modules["torch"].storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
