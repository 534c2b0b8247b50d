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
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import context, reduction, synchronize
from typing import Any, NamedTuple, Protocol

import cloudpickle

from stoker._engine.serialize import buffers, preimported_modules, tensors


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
        files = buffers.MappedFiles()
        self.lent: list[object] = []
        """As in `Pickled`."""
        own = {
            io.TextIOWrapper: _reduce_file,
            **_LOCKS,
            **buffers.reducers(files),
            **tensors.reducers(files, self.lent),
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
        if isinstance(obj, preimported_modules.NAMING):
            home = preimported_modules.home_of(obj)
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
        return reduced if reduced is NotImplemented or "__slots__" not in vars(obj) else _with_slots(obj, reduced)


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
        if view.nbytes < buffers.LARGE:
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
    found: Any = sys.modules["__main__"]
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found


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
