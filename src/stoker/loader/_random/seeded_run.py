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
from stoker.loader._random.mersenne_twister import WORDS


class SeededRun:
    """Generators that compiled code seeds, and looks at. See `of`."""

    def __init__(self, streams: Sequence[RandomState], known: Sequence[seeding.Twister | None], seeded: int) -> None:
        self._library: Any = seeding.library
        self._streams = streams  # they keep the memory alive
        self._generators = (seeding.GeneratorFields * len(known))()
        self._rows = np.empty((seeded, seeding.LANES, WORDS + 1), np.uint32)
        for generator, twister in zip(self._generators, known, strict=True):
            generator.of, generator.table = twister, TABLE.ctypes.data
        for generator, rows in zip(self._generators, self._rows):  # noqa: B905 - those that are seeded
            generator.is_seeded, generator.rows = True, rows.ctypes.data
        self._run = seeding.RunFields(count=len(known), generators=self._generators)
        self._address = ctypes.addressof(self._run)

    @classmethod
    def of(cls, seeded: Sequence[RandomState], watched: Sequence[RandomState]) -> SeededRun | None:
        """Returns a run; None if compiled code cannot seed one of the generators, or is not there.

        Args:
            seeded: generators that are seeded for each sample.
            watched: generators that are not; the first sample that draws from one is the last of a call of `take`.
        """
        streams = *seeded, *watched
        known = [None] if seeding.library is None else [stream.in_c() for stream in streams]
        return None if None in known else cls(streams, known, len(seeded))

    def seed(self, key: int, position: int) -> None:
        """Seeds the generators for one sample; in less time where positions ascend one by one."""
        run = self._run
        run.key, run.position, run.stride = key, position, 1
        self._library.stoker_seeding_seed(self._address)

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
        self._library.stoker_seeding_take(iterator, samples, most, self._address)
        return bool(run.ended)

    @property
    def has_moved(self) -> bool:
        """Returns whether the last value drew from a generator that is only watched."""
        return bool(self._run.moved)

    def end(self) -> int:
        """Makes the present value the last one of this call of `take`, and returns its position."""
        self._run.stop = 1
        return int(self._run.position)


class Lent:
    """Generators of the training loop that it lends to the samples of a batch, in its own process. Compiled code swaps
    the memory of those that it knows.

    Args:
        idle: generators, and the states that they have in samples.
        active: generators that are seeded for each sample.
    """

    def __init__(self, idle: Sequence[tuple[RandomState, Any]], active: Sequence[RandomState]) -> None:
        self._library: Any = seeding.library
        self._others: list[tuple[RandomState, Any]] = []
        self._swapped: list[tuple[RandomState, Any]] = []
        twisters: list[seeding.Twister] = []
        for stream, own in (*idle, *((stream, None) for stream in active)):
            known = None if seeding.library is None else stream.in_c()
            # A second number of a normal pair shows that a sample has drawn
            if known is None or known.kind == seeding.TORCH or (own is not None and own[1] is not None):
                self._others.append((stream, own))
            else:
                self._swapped.append((stream, own))
                twisters.append(known)
        self._count = len(twisters)
        self._fields = (seeding.LentFields * self._count)()
        self._memory = np.empty((self._count, WORDS + 1), np.uint32)
        for lent, of, (_, own), loops in zip(self._fields, twisters, self._swapped, self._memory, strict=True):
            lent.of, lent.loops = of, loops.ctypes.data
            if own is not None:
                lent.own = np.frombuffer(own[0], np.uint8).ctypes.data
        self._address = ctypes.addressof(self._fields)
        self._loops: list[Any] | None = None  # states of the others while they are lent

    def lend(self) -> None:
        """Gives them the states of samples. Call `take_back` also if it raises."""
        if self._loops is not None:  # an interrupt has left them lent
            self.take_back()
        self._loops = [stream.state() for stream, _ in self._others]
        for stream, own in self._others:
            if own is not None:
                stream.restore(own)
        if self._count:
            self._library.stoker_seeding_lend(self._address, self._count)

    def take_back(self) -> list[RandomState]:
        """Restores the states of the loop, also when it is interrupted; returns the idle ones that samples have drawn
        from.
        """
        try:
            return self._take_back()
        except BaseException:
            self._take_back()
            raise

    def _take_back(self) -> list[RandomState]:
        moved: list[RandomState] = []
        if self._count and self._library.stoker_seeding_take_back(self._address, self._count):
            moved = [stream for lent, (stream, _) in zip(self._fields, self._swapped, strict=True) if lent.moved]
        if self._loops is not None:
            moved += [stream for stream, own in self._others if own is not None and stream.state() != own]
            for (stream, _), state in zip(self._others, self._loops, strict=True):
                stream.restore(state)
        self._loops = None
        return moved
