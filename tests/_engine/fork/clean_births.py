"""For the programs of `test_clean`: asks a question in a clean interpreter and returns the answer."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import Any

from stoker._engine.fork import fresh_interpreter
from stoker._engine.serialize.payload import Payload


def ask(question: Callable[..., Any], **parts: Any) -> Any:
    """What `question(**parts)` returns there, or the text of what it or the opening raised."""
    ear, mouth = os.pipe()
    try:
        pid = fresh_interpreter.start("clean_births:answer", {"question": question, **parts}, [mouth])
    finally:
        os.close(mouth)
    with open(ear, "rb") as file:
        answer = file.read()
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
    return pickle.loads(answer)


def refusal(question: Callable[..., Any], **parts: Any) -> str:
    """What `ask` itself raises, in one line."""
    try:
        ask(question, **parts)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it was sent"


def answer(parcel: Payload, fds: list[int]) -> None:
    """The entry of the clean interpreter."""
    try:
        parcel.prepare()
        parts = parcel.open()
        answer = parts.pop("question")(**parts)
    except Exception as error:
        answer = f"{type(error).__name__}: {error} <- {type(error.__cause__).__name__}: {error.__cause__}"
    with open(fds[0], "wb") as file:
        file.write(_pickled(answer))


def _pickled(value: Any) -> bytes:
    """As batches travel: cloudpickle only for what pickle cannot name."""
    with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):
        return pickle.dumps(value)
    import cloudpickle

    return cloudpickle.dumps(value)  # type: ignore[no-any-return]
