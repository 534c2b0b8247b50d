"""Reads samples from an iterator in compiled code, each under generators seeded for its position."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from stoker._core.native import seeding
from stoker.loader._random.generators import TABLE, RandomState
from stoker.loader._random.mersenne_twister import InC


class SeededRun:
    """Generators for `seeding.take`.

    Args:
        seeded: generators that are seeded for each sample.
        watched: generators that are not; the first sample that draws from one is the last of a call of `take`.
    """

    def __init__(self, seeded: Sequence[InC], watched: Sequence[InC]) -> None:
        self._kept = [*seeded, *watched]
        self._generators = (seeding.Generator * len(self._kept))()
        self._states: list[Any] = []
        for number, (generator, known) in enumerate(zip(self._generators, self._kept, strict=True)):
            generator.kind, generator.salt, generator.is_seeded = known.kind, known.salt, number < len(seeded)
            generator.object, generator.rows = id(known.object), known.rows.ctypes.data
            generator.table = TABLE.ctypes.data
            if known.memory is not None:
                generator.memory = known.memory.ctypes.data
            if known.holds_back is not None:
                generator.holds_back = known.holds_back.ctypes.data
            if known.states is not None:
                states = (ctypes.c_void_p * seeding.LANES)(*map(id, known.states))
                self._states.append(states)
                generator.states = ctypes.addressof(states)
            for place, memory in enumerate(known.looked_at):
                generator.at[place], generator.sizes[place] = memory.ctypes.data, memory.nbytes
        self._run = seeding.Run(count=len(self._kept), generators=self._generators)
        self._address = ctypes.addressof(self._run)

    @classmethod
    def of(cls, seeded: Sequence[RandomState], watched: Sequence[RandomState]) -> SeededRun | None:
        """Returns a run; None if compiled code cannot seed one of the generators, or is not there."""
        if not seeding.is_there:
            return None
        known = [[stream.in_c() for stream in streams] for streams in (seeded, watched)]
        if any(stream is None for streams in known for stream in streams):
            return None
        return cls(*known)  # type: ignore[arg-type]

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
