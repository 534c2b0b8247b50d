"""Reads samples from an iterator in compiled code, each under generators seeded for its position; and lends the
generators of the training loop to the samples of a batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker._core.native import seeding
from stoker.loader._random.generators import TABLE, RandomState
from stoker.loader._random.mersenne_twister import InC, Memory


class SeededRun:
    """Generators for `seeding.take`.

    Args:
        seeded: generators that are seeded for each sample.
        watched: generators that are not; the first sample that draws from one is the last of a call of `take`.
    """

    def __init__(self, seeded: Sequence[InC], watched: Sequence[InC]) -> None:
        self._kept = [*seeded, *watched]
        self._generators = (seeding.GeneratorFields * len(self._kept))()
        self._states: list[Any] = []
        for number, (generator, known) in enumerate(zip(self._generators, self._kept, strict=True)):
            generator.kind, generator.salt, generator.is_seeded = known.kind, known.salt, number < len(seeded)
            generator.object, generator.table = id(known.object), TABLE.ctypes.data
            if known.memory is not None:
                generator.memory = known.memory.ctypes.data
            if known.holds_back is not None:
                generator.holds_back = known.holds_back.ctypes.data
            if number < len(seeded):
                rows = known.rows()
                generator.rows = rows.ctypes.data
                self._states.append(rows)
                if known.template is not None:
                    tensors = [_tensor(row) for row in rows]  # not of one tensor: torch ignores their offset here
                    states = (ctypes.c_void_p * seeding.LANES)(*map(id, tensors))
                    self._states += tensors, states
                    generator.states = ctypes.addressof(states)
            for place, memory in enumerate(known.looked_at):
                generator.at[place], generator.sizes[place] = memory.ctypes.data, memory.nbytes
        self._run = seeding.RunFields(count=len(self._kept), generators=self._generators)
        self._address = ctypes.addressof(self._run)

    @classmethod
    def of(cls, seeded: Sequence[RandomState], watched: Sequence[RandomState]) -> SeededRun | None:
        """Returns a run; None if compiled code cannot seed one of the generators, or is not there."""
        if not seeding.is_there:
            return None
        known = [[stream.in_c() for stream in streams] for streams in (seeded, watched)]
        if any(stream is None for streams in known for stream in streams):
            return None
        run = cls(*known)  # type: ignore[arg-type]
        run._states.append(([*seeded], [*watched]))  # keeps the memory alive
        return run

    def take(
        self, key: int, position: int, stride: int, iterator: Iterator[Any], samples: list[Any], most: int
    ) -> bool:
        """Appends at most `most` values of an iterator, the first under the seeds of `position`.

        Returns:
            Whether the iterator has ended. If not, and there are fewer values, the last one needs the other way.

        Raises:
            BaseException: raised by the iterator, in the place of the value behind those that were appended.
        """
        run = self._run
        run.key, run.position, run.stride = key, position, stride
        seeding.take(iterator, samples, most, self._address)
        return bool(run.ended)

    @property
    def has_moved(self) -> bool:
        """Returns whether the last value drew from a generator that is only watched."""
        return bool(self._run.moved)

    def end(self) -> int:
        """Makes the present value the last one of this call of `take`, and returns its position."""
        self._run.stop = 1
        return int(self._run.position)


def _tensor(memory: Memory) -> Any:
    import torch

    return torch.from_numpy(memory)


class Lent:
    """Generators of the training loop that it lends to the samples of a batch, in its own process.

    Args:
        idle: generators, and the states that they have in samples.
        active: generators that are seeded for each sample.
    """

    def __init__(self, idle: Sequence[tuple[RandomState, Any]], active: Sequence[RandomState]) -> None:
        self._idle = idle
        streams = [*(stream for stream, _ in idle), *active]
        self._state_of, self._restore = [each.state for each in streams], [each.restore for each in streams]
        self._owns = [own for _, own in idle]
        self._begin = [*zip(self._restore, self._owns, strict=False)]
        self._loops: list[Any] = []

    def lend(self) -> None:
        """Gives them the states of samples."""
        self._loops = [state() for state in self._state_of]
        for restore, own in self._begin:
            restore(own)

    def take_back(self) -> list[RandomState]:
        """Restores the states of the loop; returns the idle ones that samples have drawn from."""
        moved = [stream for stream, own in self._idle if stream.state() != own]
        for restore, state in zip(self._restore, self._loops, strict=True):
            restore(state)
        return moved


class LentInC(Lent):
    """The same in compiled code, which swaps memory."""

    def __init__(
        self, idle: Sequence[tuple[RandomState, Any]], active: Sequence[RandomState], known: Sequence[InC]
    ) -> None:
        super().__init__(idle, active)
        self._streams, self._known = [*(stream for stream, _ in idle), *active], known
        self._lent = (seeding.LentFields * len(known))()
        self._kept: list[Any] = []
        self._loop_parts: list[Memory] = []
        for number, (lent, each) in enumerate(zip(self._lent, known, strict=True)):
            lent.kind, lent.object = each.kind, id(each.object)
            if each.memory is not None:
                lent.memory, lent.size = each.memory.ctypes.data, each.memory.nbytes
            if each.holds_back is not None:
                lent.holds_back = each.holds_back.ctypes.data
            for place, part in enumerate(each.parts):
                lent.parts[place], lent.sizes[place] = part.ctypes.data, part.nbytes
            size = lent.size or sum(part.nbytes for part in each.parts)
            loops = np.zeros(size, np.uint8)
            lent.loops = loops.ctypes.data
            self._loop_parts.append(loops)
            if number < len(idle):
                own = idle[number][1]
                if each.parts:
                    state, memory = _tensor(np.frombuffer(bytearray(own), np.uint8)), np.zeros(size, np.uint8)
                    lent.own_state = id(state)
                    self._kept.append(state)
                else:
                    memory = np.frombuffer(bytearray(own[0]), np.uint8)
                lent.own = memory.ctypes.data
                self._kept.append(memory)
        self._address, self._count = ctypes.addressof(self._lent), len(known)
        self._loop_states: list[Any] = [None] * len(known)

    @classmethod
    def of(cls, idle: Sequence[tuple[RandomState, Any]], active: Sequence[RandomState]) -> Lent:
        """Returns the generators, in compiled code if it can."""
        known = [stream.in_c() for stream in (*(stream for stream, _ in idle), *active)] if seeding.is_there else [None]
        # A second number of a normal pair shows that a sample has drawn
        if None in known or any(type(own) is tuple and own[1] is not None for _, own in idle):
            return Lent(idle, active)
        return cls(idle, active, known)  # type: ignore[arg-type]

    def lend(self) -> None:
        while not seeding.lend(self._address, self._count):
            self._look()

    def take_back(self) -> list[RandomState]:
        moved = seeding.take_back(self._address, self._count)
        return [stream for number, stream in enumerate(self._streams) if moved >> number & 1] if moved else []

    def _look(self) -> None:
        """Takes the loop's states of torch's generators, which have drawn."""
        for number, each in enumerate(self._known):
            if each.parts:
                state = _tensor(np.frombuffer(bytearray(self._state_of[number]()), np.uint8))
                self._loop_states[number], self._lent[number].loops_state = state, id(state)
                self._loop_parts[number][:] = np.concatenate([part.view(np.uint8) for part in each.parts])
