"""Reports the loader's guess that a stream shares itself out, or that it does not: once, with the evidence of samples.

Each worker sends fingerprints of its first samples. Workers with the same ones most likely read the same samples. Of a
stream that the loader shares out, workers most likely read others where the first ones all differ.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from stoker.datasets.fingerprint import added

FIRST = 8
"""Samples of each worker that are compared."""


AS_TORCH = ""
"""The reason of a guess that is no guess: the stream is read as torch's loader reads it. Only evidence is reported."""


SHARED_OUT = ""
"""The name of the streams in the guess that a stream does not share itself out; the reason is the loader's warning."""


class Guess(NamedTuple):
    """The observations of one worker. Plain values: it travels.

    Attributes:
        worker: its number.
        streams: names of the classes that may share themselves out.
        why: the reason of the guess, as text.
        prints: of its first samples; None for one that cannot be distinguished from others.
        is_all: whether no more samples will follow.
    """

    worker: int
    streams: str
    why: str
    prints: tuple[int | None, ...] = ()
    is_all: bool = False


class FirstSamples:
    """A worker's guess, and its first samples.

    Args:
        worker: its number.

    Attributes:
        guess: the observations, or None if there is no guess: samples are not taken then.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self.guess: Guess | None = None
        self._is_new = False

    def guessed(self, streams: str, why: str) -> None:
        """Records the loader's guess that each worker must give its whole copy of the stream."""
        if self.guess is None:  # else one of the chain's before
            self.guess, self._is_new = Guess(self._worker, streams, why), True

    def shared_out(self, warning: str) -> bool:
        """Records that the loader shares the stream out, with this warning, unless there is a guess already.

        Returns:
            Whether the first samples of the stream are to be taken: all of it, not only the worker's share.
        """
        is_first = self.guess is None
        self.guessed(SHARED_OUT, warning)
        return is_first

    @property
    def are_own(self) -> bool:
        """Returns whether the samples that the worker gives are to be taken."""
        return self.guess is not None and self.guess.streams != SHARED_OUT

    @property
    def is_full(self) -> bool:
        """Returns whether no more samples are needed."""
        return self.guess is None or self.guess.is_all

    def take(self, sample: Any) -> None:
        """Takes the worker's next sample."""
        if self.guess is not None and not self.guess.is_all:
            prints = (*self.guess.prints, _print_of(sample))
            self.guess = self.guess._replace(prints=prints, is_all=len(prints) == FIRST)
            self._is_new = True

    def end(self) -> None:
        """Ends the samples."""
        if self.guess is not None:
            self._is_new |= not self.guess.is_all
            self.guess = self.guess._replace(is_all=True)

    def news(self) -> Guess | None:
        """Returns the present observations, if they are more than the last ones returned."""
        is_new, self._is_new = self._is_new, False
        return self.guess if is_new else None


class Guesses:
    """The guesses of one epoch, in the trainer. Reports as soon as the samples of all workers differ, or two have given
    the same first ones, and at the latest at the end.

    Args:
        workers: number of workers.
        tell: reports a text to the user once.
        known: texts already reported.
    """

    def __init__(self, workers: int, tell: Callable[[str], None], known: set[str]) -> None:
        self._workers = workers
        self._tell = tell
        self._known = known
        self._pending: dict[tuple[str, str], dict[int, Guess]] = {}
        self._decided: set[tuple[str, str]] = set()

    def take(self, guess: Guess) -> None:
        """Takes the observations of a worker."""
        name = guess[1:3]
        if name in self._decided:
            return
        guesses = self._pending.setdefault(name, {})
        guesses[guess.worker] = guess
        pairs = [(*pair, all(one.is_all for one in pair)) for pair in _pairs(guesses)]
        for one, other, is_all in pairs:
            if is_all and (_are_alike(one, other) or guess.streams == SHARED_OUT):
                self._decide(one, other)
                return
        if guess.streams == SHARED_OUT:
            return
        if len(guesses) >= self._workers and all(is_all or _are_apart(one, other) for one, other, is_all in pairs):
            self._decide(guess)

    def flush(self) -> None:
        """Ends the samples of all workers."""
        for guesses in list(self._pending.values()):
            pair = list(guesses.values())[:2]
            if pair[0].streams == SHARED_OUT and len(pair) == 2:
                self._decide(*pair)
                continue
            self._decide(*next((pair for pair in _pairs(guesses) if _are_alike(*pair)), list(guesses.values())[:1]))

    def _decide(self, guess: Guess, twin: Guess | None = None) -> None:
        """Decides a guess for this epoch."""
        del self._pending[guess[1:3]]
        self._decided.add(guess[1:3])
        if guess.streams == SHARED_OUT:
            if guess.why not in self._known:
                self._known.add(guess.why)
                self._tell(guess.why + ("" if twin is None else _seen_by_two(guess, twin)))
            return
        if guess.why == AS_TORCH:
            if twin is not None:
                self._tell(_seen_as_torch(guess, twin, self._workers))
            return
        plain = _guessed(guess, self._workers)
        if twin is None:
            text = plain
        else:
            text = _seen(guess, twin, self._workers)
            self._known.add(plain)  # this says more
        self._tell(text)


def _pairs(guesses: dict[int, Guess]) -> Iterator[tuple[Guess, Guess]]:
    return itertools.combinations((guesses[worker] for worker in sorted(guesses)), 2)


def _are_apart(one: Guess, other: Guess) -> bool:
    """Returns whether two workers have given different samples, or samples that cannot be compared."""
    if one.is_all and other.is_all and len(one.prints) != len(other.prints):
        return True
    return any(mine is None or mine != its for mine, its in zip(one.prints, other.prints, strict=False))


def _are_alike(one: Guess, other: Guess) -> bool:
    """Returns whether two workers have given the same samples up to now. Identical samples are no evidence."""
    count = min(len(one.prints), len(other.prints))
    return not _are_apart(one, other) and len({*one.prints[:count]}) >= min(2, count) > 0


def _all_differ(one: Guess, other: Guess) -> bool:
    pairs = list(zip(one.prints, other.prints, strict=False))
    return bool(pairs) and all(None not in pair and pair[0] != pair[1] for pair in pairs)


def _print_of(sample: Any) -> int | None:
    others: list[Any] = []
    try:
        mark = added(sample, 0, others)
        for other in others:  # of classes of which nothing is known: images, for instance
            mark = crc32(pickle.dumps(other, 5), mark)
    except Exception:  # samples that raise, or cannot be pickled, cannot be compared
        return None
    return mark


def _guessed(guess: Guess, workers: int) -> str:
    return (
        f"The loader guesses that {guess.streams} shares its samples out among the workers, because {guess.why}, and "
        f"leaves that to it. If so, declare it by the attribute shards_itself = True. If not, each sample comes from "
        f"each of the {workers} workers: declare shards_itself = False, and the loader shares them out."
    )


def _seen_as_torch(one: Guess, other: Guess, workers: int) -> str:
    return (
        f"{_twins(one, other)} {one.streams} is read as torch's loader reads it: each of the {workers} workers reads "
        f"the whole stream, so each sample comes {workers} times. Let it read its worker's share by get_worker_info(), "
        "or declare the attribute shards_itself = True, if this is as it should be. stoker.DataLoader shares it out."
    )


def _twins(one: Guess, other: Guess) -> str:
    count = min(len(one.prints), len(other.prints))
    samples = "first sample" if count == 1 else f"first {count} samples"
    return f"Workers {one.worker} and {other.worker} gave the same {samples}."


def _seen_by_two(one: Guess, other: Guess) -> str:
    count = min(len(one.prints), len(other.prints))
    if _are_alike(one, other):
        return f" Workers {one.worker} and {other.worker} read the same first {count} samples, as they should."
    if not _all_differ(one, other):
        return ""
    return (
        f" But the first {count} samples that workers {one.worker} and {other.worker} read all differ. If each worker "
        "gets samples of its own (from a queue or a server, for instance), those that it does not keep are lost: "
        "declare the attribute shards_itself = True, or pass shard='none'. If they differ because of a random "
        "generator, a time or a number that is not the same in each worker, let all workers use the same one, or "
        "samples are lost and come twice."
    )


def _seen(one: Guess, other: Guess, workers: int) -> str:
    return (
        f"{_twins(one, other)} The loader guessed that {one.streams} "
        f"shares its samples out among the workers, because {one.why}, and left that to it; so most likely each sample "
        f"comes from each of the {workers} workers. Declare the attribute shards_itself = False, and the loader shares "
        "them out; or shards_itself = True, if this is as it should be."
    )
