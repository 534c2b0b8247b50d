"""Texts and tracebacks of users' exceptions, and the user's line for a warning.

No function here raises, even if methods of the exception's class do.
"""

from __future__ import annotations

import sys
import traceback

LONGEST = 1 << 16
"""Characters of a text that are kept. Some exceptions quote a whole unreadable file."""


def safe_str(value: object) -> str:
    """Returns `str(value)`, or a substitute if that raises."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() too
        return f"({type(value).__name__}.__str__() raised {type(error).__name__})"


def summary_of(error: BaseException) -> str:
    """Returns the type and message of an exception."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"{type(error).__name__}: {safe_str(error)}"


def format_exception(error: BaseException) -> str:
    """Returns the type and message of an exception, with its traceback and causes."""
    try:
        return "".join(traceback.format_exception(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the traceback at least
        frames = traceback.format_tb(BaseException.__getattribute__(error, "__traceback__"))
        return "".join(["Traceback (most recent call last):\n", *frames, summary_of(error), "\n"])


def shortened(text: str) -> str:
    """Returns the text, without its middle part if it is longer than `LONGEST`."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"


def cut(text: str) -> str:
    """Returns the text for a warning: of more than 300 characters the first, and their number."""
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text):,} characters)"


def users_level() -> int:
    """Returns the stack level of the nearest code outside Stoker, for the caller's `warnings.warn`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stoker":
        level, frame = level + 1, frame.f_back
    return level
