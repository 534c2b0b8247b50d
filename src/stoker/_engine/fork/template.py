"""The process of a template: a clean interpreter that has imported the modules of installed packages that its loaders
need, and forks their zygotes. One thread, no object of the user's.

Its first zygote finds all descriptors under the numbers of the trainer, as the interpreter was started with them. Those
of later ones come through the socket, and are put under these numbers in the fork. What a fork would share, and a new
interpreter would not, is made anew or keeps the template from staying: threads, open files, random numbers.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import select
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from typing import NoReturn

import numpy as np

from stoker._engine.fork import native_pools, start_zygote
from stoker._engine.fork.births import ALONE, AT_MOST, MESSAGE, STAYS
from stoker._engine.fork.zygote import Ends
from stoker._engine.process import linux, process_setup
from stoker._engine.serialize.payload import Payload, take_tracker

_PASSED_OVER = {"hypothesis", "sympy"}
"""Packages with generators of their own: no sample draws from those of the first, each fork seeds those of the second,
which Lightning and `torch.compile` import.
"""

_HARMLESS = {"jemalloc_bg_thd"}
"""Names of native threads whose library restarts them after a fork."""


def run(parcel: Payload, descriptors: Sequence[int | None]) -> None:
    """Entry of the interpreter; `descriptors` are the template's three, and those of the first zygote."""
    control, answers, lifeline, *ends = descriptors
    assert control is not None and answers is not None and lifeline is not None
    linux.die_with_writers(lifeline)
    process_setup.zygote()
    seeded = _state_of_numpy()
    parcel.prepare()
    process_setup.write_out()  # otherwise every zygote would print again the text buffered meanwhile
    trainer = Ends.of(ends).trainer
    assert trainer is not None
    known = {*parcel.descriptors, trainer}
    asked = socket.socket(fileno=control)
    if not _survives_forks(known):
        asked.send(ALONE)
        asked.close()
        os.close(answers)
        start_zygote.run_clean(parcel, ends, is_set_up=True)
    linux.name_process("stoker-template")
    linux.give_back()
    gc.freeze()
    asked.send(STAYS)
    template = _Template(asked, os.dup(trainer), lifeline, parcel.modules, seeded == _state_of_numpy())
    if template.fork(answers):
        start_zygote.run_clean(parcel, ends, is_set_up=True)
    parcel.close({control, answers, lifeline})
    _let_go_of_trainer()
    template.serve()


class _Template:
    """Forks zygotes, reaps them, and says how they ended.

    Args:
        control: socket to the trainer, for its requests.
        trainer: pidfd of the trainer.
        lifeline: pipe from it.
        modules: those that it has imported.
        reseeds: whether NumPy's global generator has the seed that it was imported with, which is random.
    """

    def __init__(self, control: socket.socket, trainer: int, lifeline: int, modules: list[str], reseeds: bool) -> None:
        self._control = control
        self._trainer = trainer
        self._lifeline = lifeline
        self._modules = modules
        self._reseeds = reseeds
        self._zygotes: dict[int, tuple[int, int]] = {}  # pidfd → pid, and socket for the exit code

    def fork(self, answers: int) -> bool:
        """Forks a zygote, and announces it; returns whether this process is it."""
        with native_pools.quiet_about_forks():
            pid = os.fork()
        if pid == 0:
            self._control.close()
            for descriptor in (self._trainer, self._lifeline, answers):
                os.close(descriptor)
            for descriptor, (_, other) in self._zygotes.items():
                os.close(descriptor)
                os.close(other)
            importlib.invalidate_caches()  # modules may have been written since
            if self._reseeds:
                np.random.seed()
            if sympy := sys.modules.get("sympy.core.random"):
                sympy.seed(None)
            return True
        descriptor = os.pidfd_open(pid)
        self._zygotes[descriptor] = pid, answers
        _say(answers, pid, [descriptor])
        return False

    def serve(self) -> NoReturn:
        """Forks a zygote at each request, until the trainer ends or hangs up."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._trainer, select.POLLIN)
        for descriptor in self._zygotes:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._trainer:
                    os._exit(0)
                if descriptor != self._control.fileno():
                    poll.unregister(descriptor)
                    self._bury(descriptor)
                    continue
                before = {*self._zygotes}
                self._bear()
                for other in self._zygotes.keys() - before:
                    poll.register(other, select.POLLIN)

    def _bear(self) -> None:
        message, received, _, _ = socket.recv_fds(self._control, MESSAGE, AT_MOST + 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        numbers, stream, head = pickle.loads(message)
        answers, *received = received
        if not self.fork(answers):
            for descriptor in received:
                os.close(descriptor)
            return
        try:
            self._become(received, numbers, stream, head)
        finally:
            os._exit(1)

    def _become(self, received: list[int], numbers: list[int], stream: int, at: int) -> None:
        """Lives as a zygote, in the process that was just forked."""
        _place(received, numbers)
        for number in {0, 1, 2} - {*numbers}:
            os.close(number)
        file = open(stream, "rb")  # noqa: SIM115 - closed by who opens the parcel
        file.seek(at)
        head = pickle.load(file)
        file.seek(0)
        del head["modules"][len(self._modules) :]  # as the template: its import of those behind would not survive
        take_tracker(head)
        start_zygote.run_clean(Payload(file, head), head["fds"], is_set_up=True)

    def _bury(self, descriptor: int) -> None:
        pid, answers = self._zygotes.pop(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _say(answers, status)
        os.close(descriptor)
        os.close(answers)


def _say(answers: int, number: int, descriptors: Sequence[int] = ()) -> None:
    """Sends a number to the trainer, if that still listens."""
    with socket.socket(fileno=os.dup(answers)) as end:
        try:
            socket.send_fds(end, [str(number).encode()], descriptors, socket.MSG_DONTWAIT)
        except OSError:
            return


def _place(received: list[int], numbers: list[int]) -> None:
    """Puts descriptors under these numbers, where others may be that are still to be moved."""
    waiting = list(received)
    for place, number in enumerate(numbers):
        if number in waiting[place + 1 :]:
            waiting[waiting.index(number, place + 1)] = os.dup(number)
        if waiting[place] != number:
            os.dup2(waiting[place], number, inheritable=number < 3)
            os.close(waiting[place])
        elif number < 3:
            os.set_inheritable(number, True)


def _let_go_of_trainer() -> None:
    """Holds no stream and no directory of the trainer's: each zygote gets them anew."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        if number != nothing:
            os.dup2(nothing, number)
    if nothing > 2:
        os.close(nothing)
    os.chdir("/")


def _survives_forks(known: Collection[int]) -> bool:
    """Whether the imports have left nothing that a fork loses or shares: threads, open descriptors but `known`, and
    random generators, whose numbers each fork would repeat.
    """
    if threading.active_count() > 1 or native_pools.find() is not None or native_pools.jax_has_started():
        return False
    if _has_made_generators():
        return False
    if len(os.listdir("/proc/self/task")) > 1:  # libraries of linear algebra end their threads before a fork
        with native_pools.quiet_about_forks():
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return native_pools.other_threads() <= _HARMLESS and not _open_descriptors() - {0, 1, 2, *known}


def _has_made_generators() -> bool:
    """Returns whether there is a generator beside those of Python and NumPy, which each fork seeds."""
    own = {id(random._inst), id(np.random.mtrand._rand)}
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    made = [one for one in gc.get_objects() if issubclass(type(one), kinds) and id(one) not in own]
    return any(type(one) is not random.SystemRandom and not _is_passed_over(one) for one in made)


def _is_passed_over(generator: object) -> bool:
    """Returns whether a module or a class of such a package holds a generator."""
    holders = [one for one in gc.get_referrers(generator) if type(one) is dict]
    names = [str(one.get("__name__", one.get("__module__"))) for one in holders]
    return any(name.partition(".")[0] in _PASSED_OVER for name in names)


def _open_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # that of listdir itself
            continue
        found.add(int(name))
    return found


def _state_of_numpy() -> bytes:
    """Returns the state of NumPy's global generator."""
    return pickle.dumps(np.random.get_state())
