"""What exceptions of the user's tell, whatever their classes do when they are asked: none of this raises."""

from __future__ import annotations

import traceback

LONGEST = 1 << 16
"""Characters of a text that is kept. Some exceptions quote the whole file that they could not read."""


def text_of(value: object) -> str:
    """What it says as text."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() too
        return f"({type(value).__name__}.__str__() raised {type(error).__name__})"


def summary_of(error: BaseException) -> str:
    """Its type and message."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"{type(error).__name__}: {text_of(error)}"


def story_of(error: BaseException) -> str:
    """Its type and message, with its traceback and causes."""
    try:
        return "".join(traceback.format_exception(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # then at least where it was raised
        frames = traceback.format_tb(BaseException.__getattribute__(error, "__traceback__"))
        return "".join(["Traceback (most recent call last):\n", *frames, summary_of(error), "\n"])


def shortened(text: str) -> str:
    """Its beginning and its end, where it is longer than what is kept."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
