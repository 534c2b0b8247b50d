"""Births of clean zygotes in the trainer: the first of some settings starts a template, which forks those that follow.

A template (`template.py`) is a clean interpreter that has imported what the pickle names, and holds no object of the
user's. It serves all loaders of this process with the same settings, and ends with the last of them. One that cannot be
forked, because threads run in it, is the zygote itself; then each birth starts an interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import pickle
import select
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from stoker._engine.process import linux
from stoker._engine.process.deadlines import GONE, REAP

if TYPE_CHECKING:
    from stoker._engine.serialize.payload import Block, Head

ENTRY = "stoker._engine.fork.template:run"
"""What the interpreter of a template calls."""

STAYS, ALONE = b"s", b"a"
"""What a template says once it has imported its modules: it can be forked, or is the zygote itself."""

MESSAGE = 1 << 16
"""Bytes of a message from or to a template, at most."""

AT_MOST = 250
"""Descriptors that the kernel sends with one message, at most 253."""


class HelperProcess:
    """The process of a zygote, a child of this one."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = _watched(pid)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._pid

    @property
    def descriptor(self) -> int | None:
        """Its pidfd; None where there are no pidfds."""
        return self._descriptor

    def kill(self) -> None:
        """Sends SIGKILL; nothing if it is gone."""
        linux.kill(self._pid, self._descriptor)

    def reap(self, seconds: float) -> int | None:
        """Waits for its end; returns its exit code as `linux.reap` does."""
        return linux.reap(self._pid, seconds)

    def end(self) -> None:
        """Kills it, waits for its end, and closes its descriptors."""
        self.kill()
        self.reap(REAP)
        self.close()

    def close(self) -> None:
        """Closes the descriptors that this process has of it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _watched(pid: int) -> int | None:
    """Returns the pidfd of a child that no other component knows of yet, or ends it."""
    try:
        return linux.process_descriptor(pid)
    except BaseException:
        linux.end(pid)
        raise


class _Forked(HelperProcess):
    """A zygote that a template forks, and reaps. Until then, and if the template is the zygote itself, it stands for
    the template.

    Args:
        template: forks it.
        answers: socket from which the template sends its pid and pidfd, and later its exit code.
    """

    def __init__(self, template: _TemplateHandle, answers: socket.socket) -> None:
        self._template = template
        self._answers = answers
        self._born: int | None = None
        self._code: int | None = None
        self._descriptor = None
        answers.setblocking(False)

    @property
    def pid(self) -> int:
        self._look()
        return self._template.pid if self._born is None else self._born

    @property
    def descriptor(self) -> int | None:
        self._look()
        return self._descriptor

    def kill(self) -> None:
        self._look()
        linux.kill(self.pid, self._template.descriptor if self._born is None else self._descriptor)

    def reap(self, seconds: float) -> int | None:
        until = time.monotonic() + (0.0 if self._template.is_stopped else seconds)
        while self._code is None and (number := self._answers.fileno()) >= 0:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            self._look()
        if self._code is not None:
            return self._code
        return linux.reap(self._template.pid, max(0.0, until - time.monotonic())) if self._born is None else None

    def close(self) -> None:
        super().close()
        self._answers.close()

    def _look(self) -> None:
        """Takes the template's next message: of the birth, or the exit code."""
        if self._answers.fileno() < 0 or os.getpid() != self._template.owner:
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(self._answers, MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._answers.close()
        elif descriptors:
            self._born, self._descriptor = int(data), descriptors[0]
        else:
            self._code = int(data)


class _TemplateHandle:
    """A template, which ends when nothing refers to it any more, or with this process.

    Args:
        pid: of its process, a child of this one.
        control: socket on which it is asked for births.
        lifeline: a pipe whose other end it holds.
    """

    def __init__(self, pid: int, control: socket.socket, lifeline: int) -> None:
        self.pid = pid
        self.descriptor = _watched(pid)
        self.owner = os.getpid()
        self._control = control
        self._said: bytes | None = None
        control.setblocking(False)
        weakref.finalize(self, _end, self.owner, pid, self.descriptor, control, lifeline)

    def said(self) -> bytes | None:
        """Returns `STAYS`, `ALONE`, nothing if it has died or is stopped, and None if it is still importing."""
        if self._said is None:
            try:
                self._said = self._control.recv(1)
            except BlockingIOError:
                return None
            except OSError:
                self._said = b""
        if self._said == STAYS and (linux.has_ended(self.descriptor) or self.is_stopped):
            self._said = b""
        return self._said

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it: it would answer when it is continued, if ever."""
        return linux.is_stopped(self.pid)

    def ask(self, stream: Block, numbers: list[int], head: int) -> HelperProcess:
        """Asks for the birth of a zygote. Raises OSError if the template takes no message."""
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                message = pickle.dumps((numbers, stream.fd, head))
                socket.send_fds(self._control, [message], [theirs.fileno(), *numbers])
        except OSError:
            answers.close()
            raise
        return _Forked(self, answers)


def _end(owner: int, pid: int, descriptor: int | None, control: socket.socket, lifeline: int) -> None:
    """Ends a template; a forked child closes its copies of what belongs to it."""
    control.close()
    os.close(lifeline)
    if os.getpid() == owner:
        linux.kill(pid, descriptor)
        linux.reap(pid, GONE)
    if descriptor is not None:
        os.close(descriptor)


_templates: weakref.WeakValueDictionary[str, _TemplateHandle] = weakref.WeakValueDictionary()
"""The templates of this process, by their settings. Those of a process that it was forked from are passed over."""


class Births:
    """Keeps the template of a loader's latest birth, which all its clean zygotes with the same settings come from."""

    def __init__(self) -> None:
        self._template: _TemplateHandle | None = None

    def bear(self, stream: Block, head: Head) -> HelperProcess:
        """Starts a clean zygote for parts that `stream` holds; returns its process."""
        from stoker._engine.fork.fresh_interpreter import launch
        from stoker._engine.serialize.payload import descriptors_of

        numbers = sorted({*descriptors_of(stream.fd, head), *filter(_is_inherited, range(3))})
        settings = _settings(head)
        if settings is None or len(numbers) > AT_MOST:
            return HelperProcess(launch(stream, head))
        template = _templates.get(settings)
        said = b"" if template is None or template.owner != os.getpid() else template.said()
        if template is not None and said == STAYS:
            at = stream.size
            stream.write(pickle.dumps(head))
            try:
                forked = template.ask(stream, numbers, at)
            except OSError:  # it has ended meanwhile, or the kernel sends no more descriptors
                pass
            else:
                self._template = template
                return forked
        if said is None or said == ALONE:
            return HelperProcess(launch(stream, head))
        return self._start(settings, stream, head)

    def _start(self, settings: str, stream: Block, head: Head) -> HelperProcess:
        """Starts a template, which begins with this birth."""
        from stoker._engine.fork.fresh_interpreter import launch

        pair = functools.partial(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control, their_control = pair()
            theirs.enter_context(their_control), ours.enter_context(control)
            answers, their_answers = pair()
            theirs.enter_context(their_answers), ours.enter_context(answers)
            their_lifeline, lifeline = os.pipe()
            theirs.callback(os.close, their_lifeline), ours.callback(os.close, lifeline)
            own = (their_control.fileno(), their_answers.fileno(), their_lifeline)
            pid = launch(stream, {**head, "entry": ENTRY, "fds": [*own, *head["fds"]]})
            self._template = _templates[settings] = _TemplateHandle(pid, control, lifeline)
            ours.pop_all()
        return _Forked(self._template, answers)


def _is_inherited(number: int) -> bool:
    """Returns whether programs that this process starts get this descriptor of its own."""
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


_OF_STATUS = (
    *("Umask", "Uid", "Gid", "Groups", "NSpgid", "NSsid", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd"),
    *("CapAmb", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed"),
)
"""Fields of `/proc/thread-self/status` that a new process has from the thread that starts it."""


def _settings(head: Head) -> str | None:
    """Returns all that a new interpreter takes from this process at its birth, as text; None where the kernel does not
    say, or has no pidfds.
    """
    from stoker._engine.fork.fresh_interpreter import interpreter

    if None in head["fds"][:4]:
        return None
    try:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        others = [Path(f"/proc/self/{name}").read_text() for name in ("limits", "cgroup", "oom_score_adj")]
        schedule = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.readlink("/proc/self/root")
    except OSError:
        return None
    status = [line for line in lines if line.partition(":")[0] in _OF_STATUS]
    streams = [(_is_inherited(number), _is_inherited(number) and os.isatty(number)) for number in range(3)]
    given = interpreter(), head["preparation"], [*map(_file_of, head["modules"])], _environment()
    return repr((given, streams, status, others, schedule))


def _file_of(module: str) -> tuple[str, int, int]:
    """Returns a module with time and size of its file, which may be edited and imported again by its name."""
    try:
        found = os.stat(str(getattr(sys.modules.get(module), "__file__", None)))
    except OSError:
        return module, 0, 0
    return module, found.st_mtime_ns, found.st_size


def _environment() -> list[bytes | None]:
    """Returns the environment of programs that this process starts, also what C code has set."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    return [*itertools.takewhile(lambda text: text is not None, map(variables.__getitem__, itertools.count()))]
