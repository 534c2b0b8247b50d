"""`OpenedSource`: a source that is open, whatever it is, and the samples of it that are looked at."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Looked = tuple[Any, Any]
"""The index of a sample, or its number in a stream, and the sample; an exception that it raised in its place."""


@dataclass(frozen=True)
class OpenedSource:
    """A source that is open.

    Attributes:
        name: as given.
        kind: the class or format that opened it, for people.
        count: number of samples; None if only reading all of them would tell.
        dataset: by index; None for a stream.
        stream: returns an iterator over the samples of a stream.
    """

    name: str
    kind: str
    count: int | None
    dataset: Any = None
    stream: Callable[[], Iterator[Any]] | None = None

    def look(self, first: int, most: int) -> list[Looked]:
        """Returns the first samples, and others at equal distances: `most` in all; of a stream the first ones.

        What `dataset[index]` raises takes the place of the sample. A stream that raises ends there.
        """
        if self.stream is not None:
            return list(_read(self.stream(), most))
        return [(index, _sample(self.dataset, index)) for index in spread(self.count or 0, first, most)]


def spread(count: int, first: int, most: int) -> list[int]:
    """Returns the first indices, and others at equal distances over all."""
    if count <= most:
        return list(range(count))
    first = min(first, most // 2)
    rest = np.linspace(count - 1, first, most - first).astype(np.int64).tolist()
    return sorted({*range(first), *rest})


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        return error


def _read(samples: Iterator[Any], most: int) -> Iterator[Looked]:
    for number in itertools.count():
        if number == most:
            return
        try:
            yield number, next(samples)
        except StopIteration:
            return
        except Exception as error:
            yield number, error
            return
