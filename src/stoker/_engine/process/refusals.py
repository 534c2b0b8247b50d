"""Names what cannot be sent: walks from a part to the innermost object that does not pickle.

The way down is the pickler's own: an object's parts are what its reduction gives. Which of them is refused is found by
halving, so a level costs some ten attempts however many parts it has, and pickles each part about twice. What has
pickled once, and what the walk has come through, is skipped from then on.
"""

from __future__ import annotations

import functools
import reprlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stoker._engine.process import causes
from stoker._engine.process.sending import Pickler
from stoker.errors import CannotSendError

_DEPTH = 64
"""Levels that the walk goes down: what lies deeper is named by the object there."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class Place(NamedTuple):
    """Where an object was found: an expression, and what it stands for where that is not a path from a part."""

    path: str
    role: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.role})" if self.role else self.path

    def attribute(self, name: object) -> Place:
        return Place(f"{self.path}.{name}", self.role)

    def item(self, key: object) -> Place:
        return Place(f"{self.path}[{_short.repr(key)}]", self.role)


Child = tuple[Place, Any]


def named(parts: Mapping[str, Any], importable: frozenset[str] | None, error: Exception) -> CannotSendError:
    """The error that names what in `parts` cannot be sent, and says what to do.

    Args:
        parts: what was to be sent, by name.
        importable: as in `Pickler`.
        error: what pickling them raised.
    """
    walk = _Walk(importable)
    found = walk.first_refused([(Place(name), part) for name, part in parts.items()])
    if found is None:  # refused together, or only at that time
        return CannotSendError(f"{' and '.join(parts)} cannot be sent to a clean worker: {causes.text(error)}")
    place, value, error = found
    for _ in range(_DEPTH):
        if causes.is_known(value) or isinstance(error.__cause__, RecursionError):
            break
        try:
            deeper = walk.first_refused(list(walk.children(place, value)))
        except Exception:  # it cannot even be taken apart
            break
        if deeper is None:
            break
        place, value, error = deeper
    return CannotSendError(f"{place}: {causes.explained(value, error)}")


class _Walk:
    """Tells which objects are refused. Remembers those that are not, and keeps them alive so that ids stay theirs."""

    def __init__(self, importable: frozenset[str] | None) -> None:
        self._importable = importable
        self._known: dict[int, Any] = {}

    def first_refused(self, children: list[Child]) -> tuple[Place, Any, Exception] | None:
        """The first child that does not pickle, and its error."""
        children = [child for child in children if id(child[1]) not in self._known]
        error = self._refusal(children)
        if error is None:
            return None
        while len(children) > 1:
            half = len(children) // 2
            failure = self._refusal(children[:half])
            error, children = (error, children[half:]) if failure is None else (failure, children[:half])
        return *children[0], error

    def children(self, place: Place, value: Any) -> Iterator[Child]:
        """What is pickled with an object that was refused, each with its place."""
        self._known[id(value)] = value
        if type(value) is dict:
            yield from ((Place(_short.repr(key), f"a key of {place}"), key) for key in value)
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
        """What is known is not pickled again; so a way back to the start is no way down either."""
        return "known" if id(value) in self._known else None

    def reduced(self, value: Any) -> Any:
        """What the pickler takes an object apart to: a tuple, or a string where it goes by reference."""
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


def _of_function(place: Place, function: types.FunctionType, reduced: Any) -> Iterator[Child]:
    if not isinstance(reduced, tuple):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(name, f"a variable that {place} uses"), cell
    attributes, slots = reduced[2]
    for name, value in slots.pop("__globals__").items():
        yield Place(name, f"a global that {place} uses"), value
    yield from ((place.attribute(name), value) for name, value in (slots | attributes).items() if name != "__closure__")


def _of_class(place: Place, kind: type, reduced: Any) -> Iterator[Child]:
    if not isinstance(reduced, tuple):
        return
    for base in kind.__bases__:
        yield Place(causes.short_name(base), f"a base of {place}"), base
    for attributes in reduced[2]:
        yield from ((place.attribute(name), value) for name, value in attributes.items())


def _of_instance(
    place: Place,
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
            yield Place(causes.short_name(arg), f"the class of {place}"), arg
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
    yield from ((place.item(index), item) for index, item in enumerate(items or ()))
    yield from ((place.item(key), item) for key, item in pairs or ())
    yield place.attribute("__reduce__()[0]"), make
