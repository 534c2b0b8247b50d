"""How a file is cut into clips by time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cut:
    """Where the clips of a file begin, and how long they are.

    Lengths of files and clips are in ticks of the file: frames of audio, or the time base of a video.

    Attributes:
        seconds: the length of a clip; None for the whole file.
        hop: seconds from one clip to the next.
        random: whether a file has one clip, at a random place.
        pads: whether a file that is shorter than a clip, and the rest at the end of a file, are clips too.
    """

    seconds: float | None
    hop: float | None
    random: bool
    pads: bool

    @classmethod
    def checked(cls, seconds: Any, hop: Any, random: bool, short: str) -> Cut:
        """Returns the cut of a user's arguments.

        Raises:
            TypeError: a length is no number.
            ValueError: a length is not positive, `hop` is given where there are no consecutive clips, or `short` is
                unknown.
        """
        for name, value in (("seconds", seconds), ("hop", hop)):
            if value is None:
                continue
            if isinstance(value, bool) or not hasattr(value, "__float__"):
                raise TypeError(f"{name} is {value!r}, expected a number of seconds")
            if not 0 < float(value) < math.inf:
                raise ValueError(f"{name} is {value!r}, expected a positive number of seconds")
        if hop is not None and (seconds is None or random):
            raise ValueError("hop is given, but there is one clip of each file: hop needs seconds, and random=False")
        if short not in ("raise", "pad"):
            raise ValueError(f'short is {short!r}, expected "raise" or "pad"')
        seconds = None if seconds is None else float(seconds)
        return cls(seconds, seconds if hop is None else float(hop), bool(random), short == "pad")

    @property
    def is_one_of_each_file(self) -> bool:
        """Whether each file has one clip, whatever its length."""
        return self.seconds is None or self.random

    def length(self, total: int, rate: float) -> int:
        """Returns the length of a clip of a file, in ticks: at least 1.

        Args:
            total: the length of the file, in ticks.
            rate: ticks in a second.
        """
        return total if self.seconds is None else max(1, round(self.seconds * rate))

    def start(self, number: int, rate: float) -> int:
        """Returns where a clip begins, in ticks, counted from the begin of the file."""
        return 0 if self.hop is None else round(number * self.hop * rate)

    def count(self, total: int, rate: float, slack: float = 0) -> int:
        """Returns the number of consecutive clips of a file; 0 if it is too short for one.

        Args:
            total: the length of the file, in ticks.
            rate: ticks in a second.
            slack: ticks by which the last clip may go beyond the end.
        """
        assert self.hop is not None
        length = self.length(total, rate)
        count = max(0, int((total + slack - length) / (self.hop * rate)) + 2)
        while count and self.start(count - 1, rate) + length > total + slack:
            count -= 1
        if self.pads and (not count or self.start(count - 1, rate) + length < total - slack):
            count += self.start(count, rate) < total
        return count
