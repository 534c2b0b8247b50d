"""Runs a coroutine to its end without starting a thread: a fork would leave the threads of zarr's own loop behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class _AtOnce(ThreadPoolExecutor):
    """Calls each function in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            # Without this frame, which holds the future: the cycle would keep the callers' memory until it is collected
            future.set_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        else:
            future.set_result(result)
        return future


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine; what it hands to threads is called here instead. Thread safe.

    In a thread that runs an event loop, as in a notebook, it runs in a thread of its own, which ends with it.

    Raises:
        Exception: the coroutine raised it.
    """
    if not _runs_a_loop():
        return _run(coroutine)
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(_run(coroutine))
        except BaseException as error:
            found.set_exception(error)

    beside = threading.Thread(target=run, name="stoker: one read of zarr")
    beside.start()
    beside.join()
    return found.result()


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.SelectorEventLoop()
    loop.set_default_executor(_AtOnce())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
