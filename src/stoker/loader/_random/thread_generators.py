"""Detects samples that draw from generators shared by those that are made at the same time, and so cannot repeat."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.errors import StokerWarning
from stoker.loader._random.find_generators import find_generators
from stoker.loader._random.generators import RandomState, global_streams, loaded_torch, mix, stream_of, torch_unused

_PROOFS = 8
"""Consecutive samples."""


class SharedGenerators:
    """The global generators, and those that the dataset holds, shared by the samples that one worker makes at a time.

    The dataset's generators are seeded once for the worker, so that its copies in other workers give other numbers.

    Args:
        dataset: the worker's copy.
        seed: the worker's seed.
        sharers: what shares them, as "threads of a worker", and the argument that sets their number.
        is_own: whether the dataset is the worker's own copy: others' generators are left as they are.
    """

    def __init__(self, dataset: Any, seed: int, sharers: tuple[str, str, int], is_own: bool = True) -> None:
        self._sharers = sharers
        self._globals = global_streams()
        self._held: list[RandomState] = []
        for generator in find_generators(dataset):
            stream = stream_of(generator)
            if stream is not None:
                if is_own:
                    stream.seed(mix(seed))
                self._held.append(stream)
        self._before: list[Any] = []
        self._has_told = False

    def watch(self) -> None:
        """Starts to watch the generators. Only samples may draw until `story` is called."""
        if not self._has_told:
            self._before = [stream.state() for _, stream in self._all()]

    def story(self) -> str | None:
        """Returns the warning for the user if samples drew from a shared generator, once; else None."""
        if self._has_told:
            return None
        streams = self._all()
        if "torch" not in self._globals and loaded_torch() is not None:  # samples have imported it
            self._globals = {**self._globals, "torch": global_streams()["torch"]}
            streams, self._before = [*streams, self._all()[-1]], [*self._before, torch_unused()]
        pairs = zip(streams, self._before, strict=True)
        moved = dict.fromkeys(whose for (whose, stream), before in pairs if stream.state() != before)
        self._has_told = bool(moved)
        sharers, argument, number = self._sharers
        return _STORY.format(sharers, " and ".join(moved), argument, number) if moved else None

    def _all(self) -> list[tuple[str, RandomState]]:
        streams = [("one that the dataset holds", stream) for stream in self._held]
        return streams + [(f"{whose}'s global one", stream) for whose, stream in self._globals.items()]


class Bystanders:
    """The global generators, watched while a worker thread of the trainer's process makes its first samples.

    Its truth is whether some of them still have to be watched.
    """

    def __init__(self) -> None:
        self._streams = global_streams()
        self._samples = 0

    def __bool__(self) -> bool:
        return bool(self._streams)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Warns if a generator has changed during each of the first samples; the block makes one.

        The training loop draws from it as well, but not during every one of them.
        """
        before = {whose: stream.state() for whose, stream in self._streams.items()}
        yield
        self._streams = {whose: stream for whose, stream in self._streams.items() if stream.state() != before[whose]}
        self._samples += 1
        if self._streams and self._samples == _PROOFS:
            moved, self._streams = list(self._streams), {}
            warnings.warn(
                f"The global random generator of {' and '.join(moved)} moved while a worker thread made its first "
                "samples. All threads share it, so its numbers do not repeat for any seed. The cause is most likely "
                "the dataset or its transforms: draw from stoker.sample_rng() there, or use worker_method='process'. "
                "If only the training loop draws from it, or if they need not repeat, seeding='worker' turns this "
                "warning off.",
                StokerWarning,
                stacklevel=2,
            )


_STORY = (
    "Samples drew from random generators that all {0} share: {1}. With {2}={3} their numbers do not repeat for any "
    "seed. Draw from stoker.sample_rng() in the dataset and its transforms, which is seeded for each sample, or use "
    "{2}=1. If they need not repeat, seeding='worker' turns this warning off."
)
