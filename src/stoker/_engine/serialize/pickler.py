"""The pickle that a clean interpreter is sent: cloudpickle's, with large buffers beside it and multiprocessing's ways.

What differs from cloudpickle: the main module's classes and functions go by reference where the other end imports it;
large arrays and tensors go beside the pickle or as files (`buffers`), shared tensors as what they are (`tensors`);
locks, queues and connections of multiprocessing go as they go to a `multiprocessing.Process`; an open text file is
refused, where cloudpickle would send its content, and so are types that ctypes has made, and with them loaded
libraries, where it would send what cannot be loaded; a class that travels by value has its slots, where cloudpickle
would give its instances a `__dict__`.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from multiprocessing import context, reduction, synchronize
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np

from stoker._core.machine.memory import shm_in_words
from stoker._engine.serialize import main_module
from stoker.errors import CannotSendError, MemoryLimitError


class Writable(Protocol):
    """The file of a pickle."""

    def write(self, data: bytes | memoryview) -> Any: ...


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles for a clean interpreter that runs the same program.

    Args:
        file: gets the pickle.
        buffer: asked for each buffer, as in `pickle`: a true answer keeps it in the pickle.
        importable: names of the main module that the other end has (`main_module`), or None where it has none.
    """

    def __init__(
        self, file: Writable, buffer: Callable[[pickle.PickleBuffer], bool], importable: frozenset[str] | None
    ) -> None:
        ways = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        # torch's for tensors would move them to shared memory
        moving = getattr(sys.modules.get("torch.multiprocessing.reductions"), "reduce_tensor", None)
        shared = {kind: way for kind, way in ways.items() if way is not moving}
        files = MappedFiles()
        self.lent: list[object] = []
        """As in `Pickled`."""
        own = {
            io.TextIOWrapper: _reduce_file,
            **_LOCKS,
            **buffer_reducers(files),
            **tensor_reducers(files, self.lent),
        }
        self.dispatch_table = ChainMap(own, *cloudpickle.Pickler.dispatch_table.maps, shared)
        super().__init__(file, protocol=5, buffer_callback=buffer)
        self._importable = importable or frozenset()
        self.by_value: dict[str, Any] = {}
        """Names of the main module whose classes and functions went by value."""
        self.modules: dict[str, None] = {}
        """Names of the modules whose classes and functions were pickled, and of those that were themselves."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduces classes and functions: by reference if the other end can find them, else by value."""
        if isinstance(obj, main_module.NAMING):
            home = main_module.home_of(obj)
            self.modules[home] = None
            if home == "__main__" and isinstance(obj, (type, types.FunctionType)):
                name = obj.__qualname__
                if _found(name) is obj:
                    if name.partition(".")[0] in self._importable:
                        return name
                    if "." not in name:
                        self.by_value[name] = obj
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented and type(obj).__module__ == "_ctypes":  # no process could load the pickle
            raise TypeError(f"cannot pickle a ctypes type that has no name to import it by ({obj.__name__})")
        return reduced if reduced is NotImplemented or not _loses_slots(obj) else _with_slots(obj, reduced)


class Pickled(NamedTuple):
    """What belongs to a pickle that was written.

    Attributes:
        large: buffers that show memory of the objects: to be written before those change.
        modules: names of the modules that are imported when the pickle is read.
        lent: memory that the other end opens by its name: to be kept until no process can open it any more.
    """

    large: list[memoryview]
    modules: list[str]
    lent: list[object]


def write(parts: Mapping[str, Any], importable: frozenset[str] | None, file: Writable) -> Pickled:
    """Writes the pickle of `parts` and of the main module's names that went by value. To be called in `spawning()`
    where the parts may hold objects of multiprocessing or shared tensors.
    """
    large: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        large.append(view)
        return False

    pickler = Pickler(file, keep, importable)
    pickler.dump((dict(parts), pickler.by_value))  # filled while the first is pickled
    return Pickled(large, [*pickler.modules], pickler.lent)


@contextlib.contextmanager
def spawning() -> Iterator[list[int]]:
    """While this is open, multiprocessing's objects can be pickled; gives the descriptors that must travel with them.

    For this thread alone.
    """
    before = context.get_spawning_popen()
    birth: Any = _Birth()
    context.set_spawning_popen(birth)
    try:
        yield birth.descriptors
    finally:
        context.set_spawning_popen(before)


class _Descriptor:
    """A descriptor that the new process has under the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        return self._number


class _Birth:
    """Answers multiprocessing's requests while it pickles for a new process."""

    DupFd = _Descriptor

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return descriptor


def _found(qualified_name: str) -> Any:
    value: Any = sys.modules["__main__"]
    for name in qualified_name.split("."):
        value = getattr(value, name, None)
    return value


def _loses_slots(kind: Any) -> bool:
    """Whether cloudpickle makes a class without its slots: those of a named tuple are made with it anew."""
    return "__slots__" in vars(kind) and typing.NamedTuple not in vars(kind).get("__orig_bases__", ())


def _with_slots(kind: type, reduced: Any) -> Any:
    """cloudpickle sets `__slots__` on the finished class, which is too late: instances get a `__dict__`, and then their
    pickles say so. The class here, to which they come back, has none."""
    if reduced[0].__name__ == "_make_skeleton_class":
        namespace = reduced[1][3]
        namespace["__slots__"] = vars(kind)["__slots__"]
    return reduced


def _reduce_file(file: io.TextIOWrapper) -> Any:
    if file in (sys.stdin, sys.stdout, sys.stderr):
        return cloudpickle.Pickler.dispatch_table[io.TextIOWrapper](file)
    raise TypeError(f"cannot pickle an open file ({file.name})")


def _reduce_lock(lock: Any) -> Any:
    """Refuses a lock of the fork context: Python 3.10 sends one without an error, though no other process can open it.

    If the platform has fork, such a lock has no name.
    """
    reduced = lock.__reduce_ex__(5)
    if lock._semlock.name is None and hasattr(os, "fork"):
        raise RuntimeError("a lock of the fork context cannot be shared with a process of another")
    return reduced


_LOCKS = {getattr(synchronize, name): _reduce_lock for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore")}


# Tensors sent to a clean interpreter. A storage in shared memory, in a file or on a CUDA device is sent as
# `torch.multiprocessing` sends it: trainer and workers share one memory. torch's reducers would move all other
# storages to shared memory; here they are sent as buffers beside the pickle, and each process has its own.


def tensor_reducers(files: MappedFiles, lent: list[object]) -> dict[type, Callable[[Any], Reduced]]:
    """Returns, for tensors and storages, the function that takes them apart; nothing where torch is not imported.

    Args:
        files: that this process has mapped.
        lent: gets what the other end opens by its name, and the owner keeps until no process can open it any more.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        torch.Tensor: partial(_reduce_tensor, lent=lent),
        torch.UntypedStorage: partial(_reduce_storage, files=files, lent=lent),
    }


def _reduce_tensor(tensor: Any, lent: list[object]) -> Reduced:
    """torch's own reduction. Its other half wants a typed storage for the newer dtypes (uint16, float8) too."""
    torch = sys.modules["torch"]
    if tensor.device.type == "cuda":
        lent.append(tensor)
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    make, (storage, *rest) = tensor.__reduce_ex__(5)[:2]
    if isinstance(storage, torch.UntypedStorage):
        storage = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    return make, (storage, *rest)


def _reduce_storage(storage: Any, files: MappedFiles, lent: list[object]) -> Reduced:
    torch = sys.modules["torch"]
    if storage.device.type not in ("cpu", "meta"):
        raise CannotSendError(f"memory of a tensor on {storage.device} belongs to this process")
    if storage.device.type == "meta":
        return storage.__reduce_ex__(5)
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    if storage.is_shared() and (shared := _shared(storage, files, lent)) is not None:
        return shared
    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage, (pickle.PickleBuffer(memory),)


def _shared(storage: Any, files: MappedFiles, lent: list[object]) -> Reduced | None:
    """The reduction of a storage that torch calls shared; None for the private mapping of a file.

    Raises:
        MemoryLimitError: torch moves the storage, because the program has changed torch's sharing strategy since, and
            there is no room for it.
    """
    sharing = sys.modules["torch.multiprocessing"]
    if storage.filename is not None:  # torch.from_file(shared=True)
        if not files.hold(storage.filename, storage.data_ptr(), storage.nbytes()):
            return None
        return type(storage).from_file, (os.path.realpath(storage.filename), True, storage.nbytes())
    try:
        if sharing.get_sharing_strategy() == "file_system":
            # torch's reducer counts one process that opens it: any number may open this one
            lent.append(storage)
            return type(storage)._new_shared_filename_cpu, storage._share_filename_cpu_()
        descriptor, _ = storage._share_fd_cpu_()
        return None if descriptor < 0 else sharing.reductions.reduce_storage(storage)
    except RuntimeError as error:
        raise MemoryLimitError(
            f"a clean worker cannot share a tensor of {storage.nbytes() / 2**20:,.1f} MiB: {error}. {shm_in_words()}"
        ) from error


def _storage(memory: bytearray | memoryview) -> Any:
    torch = sys.modules["torch"]
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return (whole.clone() if isinstance(memory, bytearray) else whole).untyped_storage()


# Arrays sent to a clean interpreter: as buffers beside the pickle, or as the file that they lie in.


LARGE = 1 << 16
"""Bytes. Smallest buffer that the other end maps; smaller ones are copied with the pickle."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]] | Any


def buffer_reducers(files: MappedFiles) -> dict[type, Callable[[Any], Reduced]]:
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
