"""Functions that run in an interpreter of their own, for libraries whose threads do not survive a fork.

The process that trains forks workers. A library that it used before, and that runs native threads, waits for ever in
such a worker. So what the trainer itself needs of the library (listing, indexing, a sample to look at) runs in a fresh
interpreter, which ends by itself when it has been idle for some seconds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from stoker.sources.per_process import PerProcess

P = ParamSpec("P")
T = TypeVar("T")

IDLE = 10
"""Seconds after which an interpreter that is not called ends."""


class CleanInterpreters:
    """Calls functions in fresh interpreters, as many as there are calls at once. Thread safe.

    Each process has its own, started at the first call (about 0.1 s). They end when they are idle, with `close()`, with
    the last reference to this object, and with the process. A pickle, and a forked child, carry none.
    """

    def __init__(self) -> None:
        self._idle: PerProcess[list[_Interpreter]] = PerProcess(list, _close_all)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `function` returns in another interpreter. Function, arguments and result are pickled.

        The function may run twice, if its interpreter ends meanwhile.

        Raises:
            Exception: what the function raises.
            ChildProcessError: the interpreter died twice.
        """
        idle = self._idle.get()
        with contextlib.suppress(IndexError):
            interpreter = idle.pop()
            with contextlib.suppress(_InterpreterDiedError):  # most likely it was idle for too long
                result: T = self._called(idle, interpreter, function, args, kwargs)
                return result
        try:
            result = self._called(idle, _Interpreter(), function, args, kwargs)
            return result
        except _InterpreterDiedError as error:
            raise ChildProcessError(
                f"an interpreter that was started to call {function.__qualname__} died ({error}). Its messages are on "
                "the standard error; was it killed for memory?"
            ) from None

    def close(self) -> None:
        """Ends the interpreters of this process. The next call starts another."""
        self._idle.close()

    @staticmethod
    def _called(idle: list[_Interpreter], interpreter: _Interpreter, function: Any, args: Any, kwargs: Any) -> Any:
        is_well, result = interpreter.call(function, args, kwargs)
        idle.append(interpreter)
        if not is_well:
            raise result
        return result


class _InterpreterDiedError(Exception):
    """The other interpreter ended before it answered."""


class _Interpreter:
    """A fresh interpreter, connected by a socket. Belongs to the process that made it."""

    def __init__(self) -> None:
        self._maker = os.getpid()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; "
                f"serve({theirs.fileno()}, {self._maker})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            self._connection = Connection(ours.detach())

    def call(self, function: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Returns whether the function returned, and what it returned or raised."""
        try:
            self._connection.send((function, args, kwargs))
            answer: tuple[bool, Any] = self._connection.recv()
            return answer
        except (EOFError, ConnectionError, BrokenPipeError):
            self.close()
            raise _InterpreterDiedError(f"exit code {self._process.returncode}") from None
        except BaseException:  # an interrupt, or what cannot be pickled: the answer would be taken for the next one
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()
        if os.getpid() != self._maker:  # a fork's copy: the process is another's child
            self._process.returncode = 0
        else:
            self._process.kill()
            self._process.wait()

    def __del__(self) -> None:
        if "_connection" in self.__dict__ and not self._connection.closed:
            self.close()


def _close_all(interpreters: list[_Interpreter]) -> None:
    while interpreters:
        interpreters.pop().close()


def serve(descriptor: int, parent: int) -> None:
    """Answers calls until the connection ends, the parent has ended, or none has come for `IDLE` seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    connection = Connection(descriptor)
    quiet = 0
    with contextlib.suppress(EOFError, ConnectionError):
        while quiet < IDLE:
            if not connection.poll(1.0):
                quiet += 1
                if os.getppid() != parent:
                    return
                continue
            quiet = 0
            request = connection.recv_bytes()
            try:
                function, args, kwargs = pickle.loads(request)
                answer = pickle.dumps((True, function(*args, **kwargs)))
            except Exception as error:
                answer = _failure(error)
            connection.send_bytes(answer)


def _failure(error: Exception) -> bytes:
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)
        return answer
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
