"""Where the time of samples goes: the steps of a dataset's `Compose`, timed, whatever its package, and sampled Python
stacks.

A chain of transforms is found by its attribute `transforms`, a list or tuple of callables. In its place comes a copy
that measures the time between two items while the chain's call iterates over it. The chain itself, its steps, their
random numbers, errors and tracebacks stay as they are. A chain that reads its list by index, as RandomOrder does, is
not timed.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

from stoker._engine.timings import StackCount, StepSums, Stopwatch
from stoker.loader._job.work import JobSettings

MOST_OBJECTS = 2_000
MOST_STEPS = 8
"""Objects looked at, and attributes from the dataset to a chain: transforms lie near it."""

CALLS = frozenset({"__call__", "forward", "execute_compose"})
"""Functions that run a chain: of most libraries, of torch's modules, of MONAI."""

_CLOSED = (str, bytes, int, float, complex, bool, type(None), range, type)


class StepTimes:
    """Times the steps of all chains that a dataset holds, from `begin` to `end`. Any thread may run them.

    Args:
        dataset: that holds the chains. Its copies, and its pickle, hold plain lists.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._changed: list[tuple[dict[str, Any], Any, Any]] = []
        self._sums: dict[tuple[int, str], list[float]] = {}  # by thread, so that no two threads add to one sum
        self._told: dict[tuple[int, str], tuple[float, float]] = {}

    def begin(self) -> None:
        """Puts timed copies in the place of the lists."""
        for path, holder in [*_chains(self._dataset)]:
            plain: Any = holder["transforms"]
            timed: Any = (TimedList if type(plain) is list else TimedTuple)(plain)
            timed.names = [f"{path}.{number} {_name(step)}" for number, step in enumerate(plain)]
            timed.times = self
            self._changed.append((holder, plain, timed))
            holder["transforms"] = timed

    def end(self) -> None:
        """Puts the lists back, with the changes that were made to them meanwhile."""
        while self._changed:
            holder, plain, timed = self._changed.pop()
            transforms: Any = holder.get("transforms")
            if transforms is timed:
                if type(plain) is list:
                    plain[:] = list.__iter__(transforms)
                holder["transforms"] = plain

    def add(self, name: str, seconds: float) -> None:
        """Counts a call."""
        key = threading.get_ident(), name
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = [1, seconds, seconds]
            return
        sums[0] += 1
        sums[1] += seconds
        sums[2] = max(sums[2], seconds)

    def read(self) -> tuple[StepSums, ...]:
        """Returns the calls and seconds since the last call of this method, and the longest time ever, by name."""
        together: dict[str, list[float]] = {}
        for key in list(self._sums):
            calls, seconds, longest = self._sums[key]
            told_calls, told_seconds = self._told.get(key, (0, 0.0))
            self._told[key] = calls, seconds  # nothing is reset: a thread may be adding to it
            if calls > told_calls:
                sums = together.setdefault(key[1], [0, 0.0, 0.0])
                sums[0] += calls - told_calls
                sums[1] += seconds - told_seconds
                sums[2] = max(sums[2], longest)
        return tuple(StepSums(name, int(sums[0]), sums[1], sums[2]) for name, sums in together.items())


def stopwatch_of(dataset: Any, number: int, settings: JobSettings) -> Stopwatch:
    """Returns the stopwatch of a worker. A process has its own copy of the dataset, whose transforms are timed too."""
    if not settings.capabilities.own_process:
        return Stopwatch(number)
    times = StepTimes(dataset)
    times.begin()
    if not settings.sampled:
        return Stopwatch(number, steps=times.read)
    sampler = StackSampler()
    sampler.begin()
    return Stopwatch(number, steps=times.read, stacks=sampler.read)


class TimedList(list[Any]):
    """A list that measures the time between its items while it is iterated over.

    Attributes:
        names: of its items.
        times: counts the seconds.
    """

    names: list[str]
    times: StepTimes

    def __iter__(self) -> Iterator[Any]:
        steps = list.__iter__(self)
        return _timed(steps, self.names, self.times) if sys._getframe(1).f_code.co_name in CALLS else steps

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, ([*list.__iter__(self)],)


class TimedTuple(tuple[Any, ...]):
    """A tuple that does the same."""

    names: list[str]
    times: StepTimes

    def __iter__(self) -> Iterator[Any]:
        steps = tuple.__iter__(self)
        return _timed(steps, self.names, self.times) if sys._getframe(1).f_code.co_name in CALLS else steps

    def __reduce_ex__(self, protocol: Any) -> Any:
        return tuple, ([*tuple.__iter__(self)],)


def _timed(steps: Iterator[Any], names: list[str], times: StepTimes) -> Iterator[Any]:
    for number, step in enumerate(steps):
        name = names[number] if number < len(names) else f"{number} {_name(step)}"
        begun = perf_counter()
        yield step
        times.add(name, perf_counter() - begun)


def _name(step: Any) -> str:
    named = step if isinstance(step, (types.FunctionType, types.BuiltinFunctionType)) else type(step)
    return named.__name__


def _chains(dataset: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the chains that a dataset reaches, with their paths and attributes. Runs none of the user's code."""
    seen = {id(dataset)}
    ring: list[tuple[str, Any]] = [("", dataset)]
    for _ in range(MOST_STEPS):
        further: list[tuple[str, Any]] = []
        for path, holder in ring:
            own = _attributes(holder)
            if own is not None and _is_chain(holder, own):
                yield path or type(holder).__name__, own
            for name, child in _children(holder, own):
                if id(child) in seen or isinstance(child, _CLOSED) or len(seen) >= MOST_OBJECTS:
                    continue
                seen.add(id(child))
                further.append((f"{path}.{name}" if path else name, child))
        ring = further


def _is_chain(holder: Any, own: Mapping[str, Any]) -> bool:
    steps: Any = own.get("transforms")
    return callable(holder) and type(steps) in (list, tuple) and bool(steps) and all(map(callable, steps))


def _attributes(holder: Any) -> dict[str, Any] | None:
    try:
        own = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _children(holder: Any, own: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Yields the contents of an object; the steps of a chain without the name of the list."""
    for name, value in (own or {}).items():
        if type(value) in (list, tuple) and name == "transforms":
            yield from ((str(number), step) for number, step in enumerate(value[:64]))
        else:
            yield str(name), value
    if type(holder) in (list, tuple):
        yield from ((str(number), item) for number, item in enumerate(holder[:64]))
    elif type(holder) is dict:
        yield from ((str(key), value) for key, value in list(holder.items())[:64])


# Samples the Python stacks of a worker while it makes samples, as estimates of where its time goes.


INTERVAL = 0.01
"""Seconds between two looks at the stacks."""

DEEPEST = 64
"""Functions of a stack that are kept: the outermost ones."""

_STOKER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_STOKER, part) + os.sep for part in ("_engine", "loader/_job", "loader/_random"))


class StackSampler:
    """Counts the stacks of all threads of a worker process, in a thread of its own. For worker processes alone.

    A stack begins below the functions of Stoker that run a unit; a thread that is in one of them, as in waiting for
    work, is not counted. What a C function holds the interpreter's lock for, is counted for its caller, or not at all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._names: dict[CodeType, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-stacks", daemon=True)

    def begin(self) -> None:
        """Starts the thread, which ends with the process."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def read(self) -> tuple[StackCount, ...]:
        """Returns the stacks that were seen since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return tuple(StackCount(stack, count) for stack, count in counts.items())

    def _run(self) -> None:
        mine = threading.get_ident()
        while not self._stop.wait(INTERVAL):
            stacks = [self._folded(frame) for thread, frame in sys._current_frames().items() if thread != mine]
            with self._lock:
                for stack in filter(None, stacks):
                    self._counts[stack] = self._counts.get(stack, 0) + 1

    def _folded(self, frame: FrameType | None) -> str:
        """Returns the functions of a stack, the outermost first, with ";" between them; "" if none is the user's."""
        names: list[str] = []
        while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
            names.append(self._name(frame.f_code))
            frame = frame.f_back
        if frame is None:  # a thread that is no part of the work
            return ""
        return ";".join(names[::-1][:DEEPEST])

    def _name(self, code: CodeType) -> str:
        name = self._names.get(code)
        if name is None:
            function = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            name = self._names[code] = f"{function} ({place})".replace(";", ",")
        return name
