"""Names objects that cannot be sent: walks from a part to the innermost object that does not pickle.

The walk follows the pickler: an object's parts are those of its reduction. The refused part is found by halving, so a
level costs some ten attempts for any number of parts, and pickles each part about twice. Objects that have pickled
once, and those that the walk has passed, are skipped from then on.
"""

from __future__ import annotations

import functools
import io
import reprlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stoker._engine.serialize import causes, pickler
from stoker._engine.serialize.pickler import Pickler
from stoker.errors import CannotSendError

_DEPTH = 64
"""Levels of the walk: a deeper fault is named by the object at this level."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class ObjectPath(NamedTuple):
    """The path of an object: an expression, and its role if the expression does not begin at a part."""

    path: str
    role: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.role})" if self.role else self.path

    def attribute(self, name: object) -> ObjectPath:
        return ObjectPath(f"{self.path}.{name}", self.role)

    def item(self, key: object) -> ObjectPath:
        return ObjectPath(f"{self.path}[{_short.repr(key)}]", self.role)


Child = tuple[ObjectPath, Any]


def named(parts: Mapping[str, Any], importable: frozenset[str] | None, error: Exception) -> CannotSendError:
    """Returns the error that names the object in `parts` that cannot be sent, with advice.

    Args:
        parts: the objects to send, by name.
        importable: as in `Pickler`.
        error: the error from pickling them.
    """
    if (refused := _innermost(parts, importable)) is None:  # refused together, or only at that time
        return CannotSendError(f"{' and '.join(parts)} cannot be sent to a clean worker: {causes.text(error)}")
    place, value, error = refused
    return CannotSendError(f"{place}: {causes.explained(value, error)}")


def in_batch(batch: Any, error: Exception) -> CannotSendError:
    """Returns the error that names the object in a worker's batch that cannot be sent to the training process."""
    place, value, error = _innermost({"batch": batch}, None) or (ObjectPath("batch"), batch, error)
    return CannotSendError(causes.explained_in_batch(str(place), value, error))


def _innermost(parts: Mapping[str, Any], importable: frozenset[str] | None) -> tuple[ObjectPath, Any, Exception] | None:
    """Returns the innermost object that does not pickle, its path and its error; None if each part pickles."""
    walk = _Walk(importable)
    refused = walk.first_refused([(ObjectPath(name), part) for name, part in parts.items()])
    for _ in range(_DEPTH):
        if refused is None or causes.is_known(refused[1]) or isinstance(refused[2].__cause__, RecursionError):
            break
        try:
            deeper = walk.first_refused(list(walk.children(*refused[:2])))
        except Exception:  # it cannot even be taken apart
            break
        if deeper is None:
            break
        refused = deeper
    return refused


def pickled_size(parts: Mapping[str, Any]) -> int:
    """Returns the bytes that a clean worker would be sent of objects, by name, memory that is shared left out.

    Raises:
        CannotSendError: one of them cannot be pickled; the message names it by its path.
    """
    file = io.BytesIO()
    with pickler.spawning():
        try:
            large = pickler.write(parts, None, file).large
        except Exception as error:
            raise named(parts, None, error) from error
    return file.tell() + sum(view.nbytes for view in large)


class _Walk:
    """Finds refused objects. Remembers accepted ones, and keeps them alive so that their ids stay unique."""

    def __init__(self, importable: frozenset[str] | None) -> None:
        self._importable = importable
        self._known: dict[int, Any] = {}

    def first_refused(self, children: list[Child]) -> tuple[ObjectPath, Any, Exception] | None:
        """Returns the first child that does not pickle, and its error."""
        children = [child for child in children if id(child[1]) not in self._known]
        error = self._refusal(children)
        if error is None:
            return None
        while len(children) > 1:
            half = len(children) // 2
            failure = self._refusal(children[:half])
            error, children = (error, children[half:]) if failure is None else (failure, children[:half])
        return *children[0], error

    def children(self, place: ObjectPath, value: Any) -> Iterator[Child]:
        """Yields the objects that are pickled with a refused object, each with its place."""
        self._known[id(value)] = value
        if type(value) is dict:
            yield from ((ObjectPath(_short.repr(key), f"a key of {place}"), key) for key in value)
            yield from ((place.item(key), item) for key, item in value.items())
        elif type(value) in (list, tuple, set, frozenset):
            yield from ((place.item(index), item) for index, item in enumerate(value))
        elif isinstance(value, types.MethodType):
            yield place.attribute("__self__"), value.__self__
            yield place.attribute("__func__"), value.__func__
        elif isinstance(value, functools.partial):
            yield from ((place.attribute(name), getattr(value, name)) for name in ("func", "args", "keywords"))
        else:
            reduced = _Probe(self._importable, {}).reduced(value)
            if isinstance(value, types.FunctionType):
                yield from _of_function(place, value, reduced)
            elif isinstance(value, type):
                yield from _of_class(place, value, reduced)
            elif isinstance(reduced, tuple):
                yield from _of_instance(place, value, *reduced)

    def _refusal(self, children: list[Child]) -> Exception | None:
        values = [value for _, value in children]
        try:
            _Probe(self._importable, self._known).dump(values)
        except Exception as error:
            return error
        self._known.update((id(value), value) for value in values)
        return None


class _Probe(Pickler):
    """Pickles into the void, large buffers untouched."""

    def __init__(self, importable: frozenset[str] | None, known: Mapping[int, Any]) -> None:
        super().__init__(_Void(), lambda buffer: False, importable)
        self._known = known

    def persistent_id(self, value: Any) -> str | None:
        """Skips known objects; this also keeps the walk from returning to the start."""
        return "known" if id(value) in self._known else None

    def reduced(self, value: Any) -> Any:
        """Returns the pickler's reduction of an object: a tuple, or a string for an object that goes by reference."""
        reduced = self.reducer_override(value)
        if reduced is not NotImplemented:
            return reduced
        if isinstance(value, (type, types.FunctionType)):
            return value.__qualname__
        reduce = self.dispatch_table.get(type(value))
        return reduce(value) if reduce else value.__reduce_ex__(5)


class _Void:
    def write(self, data: bytes | memoryview) -> int:
        return len(data)


def _of_function(place: ObjectPath, function: types.FunctionType, reduced: Any) -> Iterator[Child]:
    if not isinstance(reduced, tuple):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield ObjectPath(name, f"a variable that {place} uses"), cell
    attributes, slots = reduced[2]
    for name, value in slots.pop("__globals__").items():
        yield ObjectPath(name, f"a global that {place} uses"), value
    yield from ((place.attribute(name), value) for name, value in (slots | attributes).items() if name != "__closure__")


def _of_class(place: ObjectPath, kind: type, reduced: Any) -> Iterator[Child]:
    if not isinstance(reduced, tuple):
        return
    for base in kind.__bases__:
        yield ObjectPath(causes.short_name(base), f"a base of {place}"), base
    for attributes in reduced[2]:
        yield from ((place.attribute(name), value) for name, value in attributes.items())


def _of_instance(
    place: ObjectPath,
    value: Any,
    make: Any,
    args: tuple[Any, ...],
    state: Any = None,
    items: Any = None,
    pairs: Any = None,
    *_: Any,
) -> Iterator[Child]:
    fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
    transparent = isinstance(value, (types.CellType, staticmethod, classmethod))
    for index, arg in enumerate(args):
        if arg is type(value):
            yield ObjectPath(causes.short_name(arg), f"the class of {place}"), arg
        elif fields and len(fields) == len(args) - 1:
            yield place.attribute(fields[index - 1]), arg
        else:
            yield place if transparent else place.attribute("__reduce__()[1]").item(index), arg
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(isinstance(part, (dict, types.NoneType)) for part in states):
        for part in states:
            yield from ((place.attribute(name), item) for name, item in (part or {}).items())
    else:
        yield place.attribute("__getstate__()"), state
    yield from ((place.item(index), item) for index, item in enumerate(() if items is None else items))
    yield from ((place.item(key), item) for key, item in (() if pairs is None else pairs))
    yield place.attribute("__reduce__()[0]"), make
