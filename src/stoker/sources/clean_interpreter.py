"""Functions that run in an interpreter of their own, for libraries whose threads do not survive a fork.

The process that trains forks workers. A library that it used before, and that runs native threads, waits for ever in
such a worker. So what the trainer itself needs of the library (listing, indexing, a sample to look at) runs in a fresh
interpreter, which ends by itself when it has been idle for some seconds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from stoker.sources.per_process import PerProcess

P = ParamSpec("P")
T = TypeVar("T")

IDLE = 10
"""Seconds after which an interpreter that is not called ends."""


class CleanInterpreters:
    """Calls functions in fresh interpreters, as many as there are calls at once. Thread safe.

    Each process has its own, started at the first call. They end when they are idle, with `close()`, with
    the last reference to this object, and with the process. A pickle, and a forked child, carry none.
    """

    def __init__(self) -> None:
        self._idle: PerProcess[list[_Interpreter]] = PerProcess(list, _close_all)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `function` returns in another interpreter. Function, arguments and result are pickled.

        The function may run twice, if its interpreter ends meanwhile.
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
    """A fresh interpreter, connected by a socket. Belongs to the process that made it.

    It holds numbers alone, no objects with finalisers of their own: those may run before this one's.
    """

    def __init__(self) -> None:
        self._maker = os.getpid()
        self._socket = -1
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({self._maker})"
        ours, theirs = socket.socketpair()
        with ours, theirs:
            files = [
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), _THEIR_SOCKET),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ]
            self._process = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ, file_actions=files)
            self._socket = ours.detach()

    def call(self, function: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Returns whether the function returned, and its result or exception."""
        request = pickle.dumps((function, args, kwargs))
        try:
            _send(self._socket, request)
            answer: tuple[bool, Any] = pickle.loads(_receive(self._socket))
            return answer
        except (EOFError, ConnectionError):
            status = self.close()
            raise _InterpreterDiedError("exit code unknown" if status is None else f"exit code {status}") from None
        except BaseException:  # an interrupt: the answer would be taken for the next one
            self.close()
            raise

    def close(self) -> int | None:
        """Ends the interpreter, and returns its exit code, if that is known."""
        if self._socket < 0 or os is None:  # the end of this process: module globals are gone, and the other sees it
            return None
        os.close(self._socket)
        self._socket = -1
        if os.getpid() != self._maker:  # a fork's copy: the process is another's child
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # other code has waited for it
            return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        return None

    def __del__(self) -> None:
        if "_socket" in self.__dict__:
            self.close()


_THEIR_SOCKET = 3


def _close_all(interpreters: list[_Interpreter]) -> None:
    while interpreters:
        interpreters.pop().close()


def serve(parent: int) -> None:
    """Answers calls until the connection ends, the parent has ended, or none has come for `IDLE` seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.closerange(_THEIR_SOCKET + 1, 1024)  # what native code of the parent has left open
    quiet = 0
    with contextlib.suppress(EOFError, ConnectionError):
        while quiet < IDLE and os.getppid() == parent:
            if not select.select([_THEIR_SOCKET], [], [], 1.0)[0]:
                quiet += 1
                continue
            quiet = 0
            request = _receive(_THEIR_SOCKET)
            try:
                function, args, kwargs = pickle.loads(request)
                answer = pickle.dumps((True, function(*args, **kwargs)))
            except Exception as error:
                answer = _failure(error)
            _send(_THEIR_SOCKET, answer)


def _failure(error: Exception) -> bytes:
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)
        return answer
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


_LENGTH = struct.Struct("<Q")


def _send(descriptor: int, data: bytes) -> None:
    for part in (_LENGTH.pack(len(data)), data):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _receive(descriptor: int) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))
    return _exactly(descriptor, length)


def _exactly(descriptor: int, length: int) -> bytearray:
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        count = os.readv(descriptor, [rest])
        if not count:
            raise EOFError
        rest = rest[count:]
    return data
