"""Tracebacks as a user reads them: without the frames of Stoker, unless the environment has `STOKER_TRACEBACK=full`.

An exception of another class that has no frames but Stoker's keeps those outside the loader, or all if there are none:
they may show a bug of Stoker's. One that is the cause of an exception of Stoker's, or is caused by one, keeps none.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from stoker._core.exceptions import format_exception, summary_of
from stoker.errors import StokerError

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LOADERS = (os.path.join(_PACKAGE, "_engine", ""), os.path.join(_PACKAGE, "loader", ""))
_THREAD = re.compile(r"(Current thread|Thread) 0x\w+.*\(most recent call first\):")
_NOISE = re.compile(rf"{_THREAD.pattern}|Extension modules: ")
_WORKER = r'_engine[/\\](?:process[/\\]worker|thread)\.py", line \d+ in '
_WAITS = " in _wait"
_IDLE = re.compile(rf"{_WORKER}(?:_next\n.*{_WORKER}run|get\n.*{_WORKER}_work)(?:\n|$)")
_BELOW = re.compile(
    rf'{_WORKER}(?:_run_job|_made_rows|_run|run|open|_work)$|[/\\]threading\.py", line \d+ in (?:_boot|run$)'
)
"""The frames of a worker, or of a thread, that lead to its work."""


def are_full() -> bool:
    """Returns whether the user wants to see the frames of Stoker too."""
    return os.environ.get("STOKER_TRACEBACK") == "full"


def hide_own_frames(error: BaseException, keep_first: bool = False) -> None:
    """Takes Stoker's frames out of the tracebacks of an exception, its causes and contexts; never fails itself.

    Args:
        error: the exception, whose traceback objects are linked anew.
        keep_first: whether the outermost frame stays.
    """
    try:
        _hide(error, keep_first)
    except KeyboardInterrupt:
        if not _is(error, KeyboardInterrupt):
            raise
        _hide(error, keep_first)  # a second Ctrl-C says no more than the first


def _hide(error: BaseException, keep_first: bool) -> None:
    if are_full() or _is(error, StopIteration):
        return
    todo, seen = [error], {id(error)}
    while todo:
        each = todo.pop()
        trace = _of(each, "__traceback__")
        explained = _is(_of(each, "__cause__"), StokerError) or _is(error, StokerError)
        may_be_none = explained or _is(each, (StokerError, KeyboardInterrupt))
        kept = _without(trace, (_PACKAGE,)) or (None if may_be_none else _without(trace, _LOADERS))
        if kept is not None or may_be_none:
            if each is error and keep_first and trace is not None and trace is not kept:
                trace.tb_next = kept
                kept = trace
            BaseException.with_traceback(each, kept)
        for other in (_of(each, "__cause__"), _of(each, "__context__"), *_parts(each)):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)


def without_own_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a function whose exceptions have only its own of Stoker's frames."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_own_frames(error, keep_first=True)
            raise

    return called


def users_story(error: BaseException) -> tuple[str, str]:
    """Returns the message of an exception of Stoker's, if it is one or caused by one; and the traceback, without it.

    The traceback is empty if it has no frames of the user's and the message says it all. Stoker's frames are gone from
    the exception afterwards.
    """
    if are_full():
        return "", format_exception(error).rstrip()
    hide_own_frames(error)
    cause = _of(error, "__cause__")
    if _is(error, StokerError):
        if _of(error, "__traceback__") is None and (cause is None or _of(cause, "__traceback__") is None):
            return _message(error), ""
        return _message(error), format_exception(error).rstrip().removesuffix(summary_of(error)).rstrip()
    if _is(cause, StokerError) and _of(cause, "__traceback__") is None:
        BaseException.__setattr__(error, "__cause__", None)
        return _message(cause), format_exception(error).rstrip()
    return "", format_exception(error).rstrip()


def without_own_lines(text: str) -> str:
    """Returns the text of a traceback without Stoker's frames; the text itself if no frame remains."""
    if are_full():
        return text
    kept: list[str] = []
    is_own = is_others = False
    for line in text.splitlines():
        if line.startswith('  File "'):
            is_own = _is_own(line)
            is_others = is_others or not is_own
        elif not line.startswith("    "):
            is_own = False
        if not is_own:
            kept.append(line)
    return "\n".join(kept) if is_others else text


def users_stacks(text: str) -> str:
    """Returns the stacks of workers, as faulthandler writes them, or the traceback of an exception, without the frames
    of Stoker and those that lead to its workers.
    """
    if are_full() or not _THREAD.search(text):
        return without_own_lines(text)
    told: list[str] = []
    lines = text.strip("\n").splitlines()
    for is_frame, group in itertools.groupby(lines, lambda line: line.startswith("  ")):
        if is_frame:
            told += _users_frames(list(group))
        else:
            told += [line for line in group if line and not _NOISE.match(line)]
    return "\n".join(told)


def _users_frames(frames: list[str]) -> list[str]:
    """Returns the frames of one thread, innermost first."""
    if _IDLE.search("\n".join(frames)):
        return ["  waits for a batch to make"]
    inside = itertools.takewhile(lambda line: not _BELOW.search(line), frames)
    users = [line for line in inside if not _is_own(line)]
    waits = ["  waits for memory for its batch, or to hand it over"] if frames[0].endswith(_WAITS) else frames[:1]
    return users or waits


def _is_own(line: str) -> bool:
    return line.startswith(f'  File "{_PACKAGE}')


def _is(error: BaseException | None, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """As isinstance, which would ask the object too."""
    return issubclass(type(error), kinds)


def _of(error: BaseException, name: str):  # type: ignore[no-untyped-def] # of any kind
    return BaseException.__getattribute__(error, name)


def _parts(error: BaseException) -> tuple[BaseException, ...]:
    return BaseExceptionGroup.exceptions.__get__(error) if _is(error, BaseExceptionGroup) else ()


def _message(error: BaseException) -> str:
    return summary_of(error).partition(": ")[2]


def _without(trace: TracebackType | None, folders: tuple[str, ...]) -> TracebackType | None:
    """Returns a traceback of the frames that are not of these folders, or None if there are none."""
    others = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(folders):
            others.append(trace)
        trace = trace.tb_next
    for outer, inner in itertools.pairwise([*others, None]):
        assert outer is not None
        outer.tb_next = inner
    return others[0] if others else None
