"""Opens a source by its name: `module:object`, or a place of `stoker.open_dataset`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from stoker.datasets.base import is_stream
from stoker.diagnostics.target import find
from stoker.errors import RecordError, TargetError
from stoker.sources.open_dataset import IMAGE, IMAGE_FOLDER, SQLITE, PlaceContents, contents_of, the_table

Looked = tuple[Any, Any]
"""The index of a sample, or its number in a stream, and the sample; an exception that it raised in its place."""


@dataclass(frozen=True)
class OpenedSource:
    """A source that is open.

    Attributes:
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
        with asyncio.Runner() as runner:
            return [(index, _sample(self.dataset, index, runner)) for index in spread(self.count or 0, first, most)]


def spread(count: int, first: int, most: int) -> list[int]:
    """Returns the first indices, and others at equal distances over all."""
    if count <= most:
        return list(range(count))
    first = min(first, most // 2)
    rest = np.linspace(count - 1, first, most - first).astype(np.int64).tolist()
    return sorted({*range(first), *rest})


def _sample(dataset: Any, index: int, runner: asyncio.Runner) -> Any:
    try:
        sample = dataset[index]
        return runner.run(sample) if asyncio.iscoroutine(sample) else sample
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


OF_LINES = ("CSV", "JSON Lines", "text")
"""Kinds that are read in sequence, so that no index is written beside the files."""


def open_source(name: str, query: str | None = None) -> OpenedSource:
    """Returns an open source.

    Args:
        name: `module:object`, or a folder, a file, a pattern or a URL, as `stoker.open_dataset` takes it.
        query: selects the rows of an SQLite database.

    Raises:
        Exception: what the dataset of such files raises.
    """
    module, colon, _ = name.partition(":")
    if colon and not os.path.exists(name) and "/" not in module.replace(".py", "") and "://" not in name:
        return _target(name)
    if name.endswith(".py") and os.path.exists(name):
        raise TargetError(f"{name} is a program: name a dataset, or a function that makes one, as {name}:object")
    try:
        contents = contents_of(name)
    except FileNotFoundError as error:
        folder = os.path.dirname(name) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        near = get_close_matches(os.path.basename(name), names, 1)
        hint = f": did you mean {os.path.join(os.path.dirname(name), near[0])}?" if near else ""
        raise TargetError(f"there is no file, no folder and no module:object {name!r}{hint}") from error
    if contents.kind is SQLITE:
        return _rows(name, contents, the_table(contents.places[0]) if query is None else query)
    if contents.kind.name in OF_LINES:
        options = {"types": _number} if contents.kind.name == "CSV" else {}
        stream = contents.open(stream=True, **options)
        return OpenedSource(name, _words(contents), _count(stream), stream=lambda: iter(stream))
    dataset = contents.open(frames=1) if contents.kind.name == "video" else contents.open()
    if contents.kind is IMAGE_FOLDER:
        return _by_index(name, f"a folder of images of {len(dataset.classes):,} classes", dataset)
    return _by_index(name, _words(contents), dataset)


def _by_index(name: str, kind: str, dataset: Any) -> OpenedSource:
    return OpenedSource(name, kind, len(dataset), dataset)


def _target(name: str) -> OpenedSource:
    dataset = find(name).dataset
    kind = type(dataset).__name__
    has_index = hasattr(dataset, "__getitem__") and not is_stream(dataset)
    if has_index and hasattr(dataset, "__len__"):
        return _by_index(name, kind, dataset)
    count = None
    with contextlib.suppress(TypeError, NotImplementedError):
        count = len(dataset)
    return OpenedSource(name, f"{kind}, a stream", count, stream=lambda: iter(dataset))


def _words(contents: PlaceContents) -> str:
    """Returns the number and kind of files."""
    number, kind = len(contents.places), contents.kind.name
    if contents.kind is IMAGE and os.path.isdir(contents.place):
        return "a folder of images without classes"
    what = "database" if kind in ("LMDB", "SQLite") else "file"
    article = "an" if kind[0] in "aeiouHLMS" and kind != "safetensors" else "a"
    return f"{number:,} {kind} {what}s" if number > 1 else f"{article} {kind} {what}"


def _count(stream: Any) -> int:
    """Returns the number of records of a stream, with those that cannot be read."""
    samples = iter(stream)
    for number in itertools.count():
        try:
            next(samples)
        except StopIteration:
            return number
        except (RecordError, UnicodeDecodeError):  # the next record follows
            continue
    raise AssertionError


def _rows(name: str, contents: PlaceContents, query: str) -> OpenedSource:
    query = query.strip().rstrip(";")
    (counted,) = contents.open(stream=True, query=f"SELECT count(*) AS count FROM ({query})")
    rows = contents.open(stream=True, query=query)
    stream = rows.__iter__ if counted["count"] else lambda: iter(())
    return OpenedSource(name, f"an SQLite database: {query}", counted["count"], stream=stream)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
