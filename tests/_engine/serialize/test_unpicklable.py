"""What cannot be sent is named by its path, with the reason and a way out, at a bounded cost."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import io
import multiprocessing
import queue
import re
import socket
import sqlite3
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest

from stoker._engine.serialize import pickler, unpicklable
from stoker.errors import CannotSendError


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """As in a notebook, no other process can import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Handle:
    """Refuses, and counts how often it was asked."""

    asked = 0

    def __reduce__(self) -> str:
        type(self).asked += 1
        raise TypeError("a handle of this process")


Handle.__module__ = "handles"
sys.modules["handles"] = types.ModuleType("handles")
sys.modules["handles"].Handle = Handle  # type: ignore[attr-defined]
HANDLE = Handle()


class Dataset:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Pair(NamedTuple):
    image: object
    label: object


class Configured(dict[str, object]):
    pass


class WithState:
    def __init__(self, state: object) -> None:
        self.state = state

    def __getstate__(self) -> object:
        return self.state


class Method:
    def __init__(self, handle: object) -> None:
        self.handle = handle

    def run(self) -> None: ...


class UsesGlobal:
    def __getitem__(self, index: int) -> object:
        return HANDLE


class ClassAttribute:
    handle = HANDLE


class Child(ClassAttribute):
    pass


def refused(**parts: Any) -> CannotSendError:
    with pickler.spawning():
        try:
            pickler.write(parts, None, io.BytesIO())
        except Exception as error:
            return unpicklable.named(parts, None, error)
    raise AssertionError("it was sent")


def path(**parts: Any) -> str:
    return str(refused(**parts)).partition(": ")[0]


def closing_over(handle: object) -> Callable[[], object]:
    return lambda: handle


PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "attribute": (lambda handle: Dataset(a=1, handle=handle, z=2), "dataset.handle"),
    "itself": (lambda handle: handle, "dataset"),
    "deep": (
        lambda handle: Dataset(transform=Dataset(transforms=[1, (2, 3), Dataset(fn=handle)])),
        "dataset.transform.transforms[2].fn",
    ),
    "dict": (lambda handle: {"a": {3: [0, handle]}}, "dataset['a'][3][1]"),
    "key": (lambda handle: {handle: 1}, "<HANDLE> (a key of dataset)"),
    "set": (lambda handle: Dataset(all={handle}), "dataset.all[0]"),
    "slots": (lambda handle: Slotted(handle), "dataset.inner"),
    "named tuple": (lambda handle: Dataset(pair=Pair(1, handle)), "dataset.pair.label"),
    "default dict": (
        lambda handle: collections.defaultdict(int, x=handle),
        "dataset['x']",
    ),
    "subclass of dict": (lambda handle: Configured(file=handle), "dataset['file']"),
    "deque": (lambda handle: collections.deque([1, handle]), "dataset[1]"),
    "partial": (lambda handle: functools.partial(print, 1, handle), "dataset.args[1]"),
    "partial's keywords": (lambda handle: functools.partial(print, end=handle), "dataset.keywords['end']"),
    "bound method": (lambda handle: Dataset(fn=Method(handle).run), "dataset.fn.__self__.handle"),
    "state": (lambda handle: WithState([handle]), "dataset.__getstate__()[0]"),
    "closure": (lambda handle: Dataset(fn=closing_over(handle)), "handle (a variable that dataset.fn uses)"),
    "attribute in a closure": (
        lambda handle: closing_over(Dataset(file=handle)),
        "handle.file (a variable that dataset uses)",
    ),
    "default": (lambda handle: Dataset(fn=lambda x, y=handle: y), "dataset.fn.__defaults__[0]"),
    "keyword default": (lambda handle: Dataset(fn=lambda *, y=handle: y), "dataset.fn.__kwdefaults__['y']"),
    "global": (
        lambda handle: UsesGlobal(),
        "HANDLE (a global that UsesGlobal.__getitem__ (the class of dataset) uses)",
    ),
    "class attribute": (lambda handle: Dataset(a=ClassAttribute()), "ClassAttribute.handle (the class of dataset.a)"),
    "base class": (
        lambda handle: Child(),
        "ClassAttribute.handle (a base of Child (the class of dataset))",
    ),
    "class": (lambda handle: Dataset(kind=ClassAttribute), "dataset.kind.handle"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_the_innermost_object_is_named_by_its_path(kind: str) -> None:
    make, expected = PLACES[kind]
    assert path(collate_fn=None, dataset=make(HANDLE), init=print) == expected.replace("<HANDLE>", repr(HANDLE))


def test_the_part_is_named_by_its_own_name() -> None:
    assert path(dataset=[1], collate_fn=closing_over(HANDLE)) == "handle (a variable that collate_fn uses)"


def test_ways_back_to_the_start_are_not_taken() -> None:
    dataset = Dataset()
    dataset.first = Dataset(parent=dataset, name="first")
    dataset.second = Dataset(parent=dataset, before=dataset.first, handle=HANDLE)
    dataset.third = [dataset]
    assert path(dataset=dataset) == "dataset.second.handle"


def test_unpicklable_item_is_found_in_few_attempts() -> None:
    Handle.asked = 0
    many = [{"path": str(n)} for n in range(20_000)]
    many[12_345]["path"] = HANDLE  # type: ignore[assignment]
    assert path(dataset=Dataset(samples=many)) == "dataset.samples[12345]['path']"
    assert Handle.asked < 40


def test_search_for_the_unpicklable_part_copies_no_array() -> None:
    np = pytest.importorskip("numpy")
    tracemalloc = pytest.importorskip("tracemalloc")
    dataset = Dataset(array=np.zeros(1 << 22), handle=HANDLE)
    tracemalloc.start()
    try:
        assert path(dataset=dataset) == "dataset.handle"
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_unpicklable_part_too_deep_is_named_by_its_prefix() -> None:
    deep: Any = HANDLE
    for _ in range(100):
        deep = [deep]
    assert path(dataset=deep) == "dataset" + "[0]" * 64


def test_message_says_that_nesting_is_too_deep() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with contextlib.suppress(RecursionError):
        assert "dataset: a list cannot be sent to a clean worker, because it is nested too deeply" in str(
            refused(dataset=deep)
        )
    while deep:  # freed by hand: some Pythons free recursively
        deep = deep.pop()


def test_message_has_the_users_own_pickling_error() -> None:
    class Fussy:
        def __getstate__(self) -> object:
            raise ZeroDivisionError("half a state")

    message = str(refused(dataset=Dataset(inner=[Fussy()])))
    assert message.startswith("dataset.inner[0]: a ")
    assert "(ZeroDivisionError: half a state)" in message


def test_opaque_unpicklable_object_is_named_itself() -> None:
    class Broken(dict[str, object]):
        def items(self) -> Any:
            raise LookupError("no items")

    assert path(dataset=[Broken(a=1)]) == "dataset[0]"


def test_parts_that_pickle_only_separately_are_an_error() -> None:
    assert "RuntimeError: only then" in str(unpicklable.named({"dataset": 1}, None, RuntimeError("only then")))


# Known causes


@pytest.fixture
def h5py(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """As h5py's classes look: private modules, and their own refusal."""

    class File:
        __module__, __qualname__ = "h5py._hl.files", "File"

        def __reduce__(self) -> str:
            raise TypeError("h5py objects cannot be pickled")

    module = types.ModuleType("h5py._hl.files")
    module.File = File  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "h5py._hl.files", module)
    return module


def test_an_open_h5py_file(h5py: Any) -> None:
    assert str(refused(dataset=Dataset(transform=[h5py.File()]))) == (
        "dataset.transform[0]: an open h5py.File cannot be sent to a clean worker, because it is a handle of this "
        "process (TypeError: h5py objects cannot be pickled); open it in __getitem__ (once per worker), or use "
        'multiprocessing_context="fork".'
    )


def _used(library: Any) -> Any:
    assert library.Py_IsInitialized()
    return library


CAUSES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "text file": (lambda path: path.open(), "an open file (TextIOWrapper)", "open it in __getitem__"),
    "file": (lambda path: path.open("rb"), "an open file (BufferedReader)", "open it in __getitem__"),
    "TLS": (
        lambda path: __import__("ssl").create_default_context().wrap_socket(socket.socket(), server_hostname="x"),
        "an open ssl.SSLSocket",
        "open it in __getitem__",
    ),
    "database": (lambda path: sqlite3.connect(":memory:"), "a database handle (sqlite3.Connection)", "open it in"),
    "lock": (lambda path: threading.Lock(), "a lock between threads (lock)", "__setstate__"),
    "condition": (lambda path: threading.Condition(), "a lock between threads (RLock)", "__setstate__"),
    "queue": (lambda path: queue.Queue(), "a lock between threads (lock)", "__setstate__"),
    "thread": (lambda path: threading.Thread(), "a threading.Thread", "__setstate__"),
    "generator": (lambda path: (n for n in range(3)), "a generator", "make it in __iter__"),
    "weak reference": (lambda path: weakref.ref(HANDLE), "a weak reference", "__setstate__"),
    "weak dictionary": (
        lambda path: weakref.WeakValueDictionary(),
        "a weak reference (weakref.WeakValueDictionary)",
        "__setstate__",
    ),
    "pointer": (lambda path: ctypes.pointer(ctypes.c_int()), "a ctypes object", "__setstate__"),
    "library": (lambda path: ctypes.CDLL(None), "a loaded library (ctypes.CDLL)", "load it in __getitem__"),
    "library in use": (lambda path: _used(ctypes.PyDLL(None)), "a loaded library (ctypes.PyDLL)", "load it in"),
    "ctypes type": (lambda path: ctypes.c_int * 4, "a ctypes type (PyCArrayType)", "__setstate__"),
    "ctypes array": (lambda path: (ctypes.c_int * 4)(), "a ctypes array (", "use a NumPy array"),
    "unknown": (lambda path: Handle(), "a handles.Handle", "leave it out in __getstate__"),
    "lock of the fork context": (
        lambda path: multiprocessing.get_context("fork").Lock(),
        "a multiprocessing.synchronize.Lock of the fork context",
        'get_context("spawn")',
    ),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_a_known_cause_comes_with_its_advice(kind: str, tmp_path: Path) -> None:
    make, what, advice = CAUSES[kind]
    (tmp_path / "file").touch()
    handle = make(tmp_path / "file")
    try:
        message = str(refused(dataset=Dataset(it=handle)))
    finally:
        if not isinstance(handle, ctypes.CDLL):  # whose `close` is the system's, and would close any descriptor
            with contextlib.suppress(AttributeError):
                handle.close()
    where = r"dataset\.it[\w.]*: "  # a condition and a queue hold the lock deeper
    assert re.match(where + re.escape(what), message)
    assert " cannot be sent to a clean worker, because " in message
    assert advice in message
    assert 'multiprocessing_context="fork"' in message


def test_a_tensor_on_an_accelerator_is_not_advised_to_fork() -> None:
    torch = pytest.importorskip("torch")

    class OnDevice(torch.Tensor):  # type: ignore[misc, name-defined]
        device = torch.device("cuda", 1)

        def __reduce_ex__(self, protocol: Any) -> str:
            raise CannotSendError("memory of a tensor on cuda:1 belongs to this process")

    message = str(refused(dataset=Dataset(weights=OnDevice())))
    assert message.startswith("dataset.weights: a tensor on an accelerator (")
    assert "context=" not in message
    assert ".cpu()" in message


def test_iterator_dataset_is_not_taken_for_a_python_iterator() -> None:
    class Stream:
        def __init__(self, source: object) -> None:
            self.source = source

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

    assert path(dataset=Stream(HANDLE)) == "dataset.source"
