"""Sees whether samples draw from generators that the threads of a worker share, and so cannot repeat."""

from __future__ import annotations

from typing import Any

from stoker.loader.generators import Stream, global_streams, loaded_torch, mix, stream_of, torch_unused
from stoker.loader.held_generators import held_generators


class SharedGenerators:
    """The global generators, and those that the dataset holds, as the threads of one worker find them.

    Those that the dataset holds are seeded once for the worker, so that its copies in other workers do not repeat it.

    Args:
        dataset: as the worker holds it.
        seed: the worker's.
        threads: how many share them.
    """

    def __init__(self, dataset: Any, seed: int, threads: int) -> None:
        self._threads = threads
        self._globals = global_streams()
        self._held: list[Stream] = []
        for generator in held_generators(dataset):
            stream = stream_of(generator)
            if stream is not None:
                stream.seed(mix(seed))
                self._held.append(stream)
        self._before: list[Any] = []
        self._has_told = False

    def watch(self) -> None:
        """From now on nobody but samples draws, until `story` is asked for."""
        if not self._has_told:
            self._before = [stream.state() for _, stream in self._all()]

    def story(self) -> str | None:
        """What the user is to be told: once, if samples have drawn from one of them."""
        if self._has_told:
            return None
        streams = self._all()
        if "torch" not in self._globals and loaded_torch() is not None:  # samples have imported it
            self._globals = {**self._globals, "torch": global_streams()["torch"]}
            streams, self._before = [*streams, self._all()[-1]], [*self._before, torch_unused()]
        pairs = zip(streams, self._before, strict=True)
        moved = dict.fromkeys(whose for (whose, stream), before in pairs if stream.state() != before)
        self._has_told = bool(moved)
        return _STORY.format(" and ".join(moved), self._threads) if moved else None

    def _all(self) -> list[tuple[str, Stream]]:
        held = [("one that the dataset holds", stream) for stream in self._held]
        return held + [(f"{whose}'s global one", stream) for whose, stream in self._globals.items()]


_STORY = (
    "Samples drew from random generators that all threads of a worker share: {}. With threads_per_worker={} what they "
    "give repeats for no seed. Draw from get_worker_info().rng in the dataset and its transforms, which is seeded for "
    "each sample, or use threads_per_worker=1. If it need not repeat, seeding='worker' keeps this warning away."
)
