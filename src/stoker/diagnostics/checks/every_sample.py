"""`check_samples`: goes once through all samples of a dataset, and writes those that are damaged or inconsistent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import stoker
import stoker.events
from stoker._core.write_errors import explained
from stoker.datasets.awaited import then
from stoker.errors import StokerWarning, TargetError
from stoker.extend import describe

AGREE = 0.9
"""Share of the samples that must agree on a field's type, or shape, for the others to be wrong."""

MOST_VALUES = 1000
"""Different shapes of a field, from which on no shape is expected of it."""

MOST_NAMED = 10_000
"""Samples of one wrong type, or shape, that are written."""

NESTED = 16
"""Items of a list or tuple that count as fields; a longer one is a single field."""

LABELS = ("label", "labels", "target", "targets", "y", "cls", "class", "1")
"""Fields that hold the class; the last one is the second of a tuple."""

SAVED = 10.0
"""Seconds from one state on the disk to the next."""

_BATCH = 16


@dataclass(frozen=True)
class CheckedSamples:
    """The result of a check.

    Attributes:
        began_at: the sample at which it began: above 0 if an earlier check was interrupted.
        found: samples that are damaged or inconsistent.
    """

    samples: int
    began_at: int
    found: int
    path: str


def check_samples(
    dataset: Any,
    path: str,
    *,
    workers: int,
    labels: int | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> CheckedSamples:
    """Fetches each sample once, in workers, and writes the bad ones to a quarantine file.

    Bad are samples that raise an error or end their worker, that lack a field, or whose type or shape differs where
    nine tenths of all samples agree, and labels outside of the classes. Pillow images are decoded. An interrupted check
    leaves its state in `path` + `.state`, and the same call goes on from there.

    Args:
        dataset: by index, with a length.
        path: the quarantine file, for `stoker.quarantine`.
        workers: processes; 0 fetches in this one.
        labels: number of classes; None takes `dataset.classes` if there is one.
        on_progress: is called with the number of samples done and of all.

    Raises:
        TargetError: the dataset is a stream, or `path` has something else already.
    """
    try:
        count = len(dataset)
        dataset.__getitem__  # noqa: B018
    except (TypeError, NotImplementedError, AttributeError) as error:
        raise TargetError(
            f"a {type(dataset).__name__} has no length or no index, so a bad sample of it could not be named"
        ) from error
    if labels is None and hasattr(dataset, "classes"):
        with contextlib.suppress(TypeError):
            labels = len(dataset.classes)
    progress = _Progress(path, count, labels)
    loader: Any = stoker.DataLoader(
        _Outlines(dataset), batch_size=_BATCH, num_workers=workers, collate_fn=_as_it_is, on_error="skip",
        max_errors=None, max_error_rate=None, max_restarts=count, quarantine=path, seed=0, output="numpy",
        on_event=progress.end_without_room,
    )  # fmt: skip
    began_at = progress.load(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)  # each sample that is left out is in the file
        try:
            with contextlib.closing(iter(loader)) as batches:
                for outlines in batches:
                    for index, outline in outlines:
                        progress.count(index, outline)
                    progress.received(loader.state_dict())
                    if on_progress is not None:
                        on_progress(progress.done, count)
        except BaseException:
            progress.save()
            raise
    with explained(path, progress.kept), open(path, "a", encoding="utf-8") as file:
        for index, why in progress.inconsistent():
            file.write(json.dumps(_record(dataset, index, why)) + "\n")
    progress.remove()
    return CheckedSamples(count, began_at, len(stoker.quarantine(path).indices), path)


def _record(dataset: Any, index: int, why: str) -> dict[str, Any]:
    """Returns a line of the quarantine file."""
    said = None
    with contextlib.suppress(Exception):  # of the user's describe()
        said = describe(dataset, index)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"index": index, "kind": "exception", "outcome": "skipped", "exception": why, "time": when}
    return about | ({} if said is None else {"description": str(said)})


Outline = dict[str, tuple[str, list[int] | None, int | None]]
"""By the field of a sample: its type, its shape, and its value if it may be a label."""


class _Outlines:
    """The outlines of a dataset's samples, which workers make, so that no sample is sent."""

    stoker_protocol = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return then(self.dataset[index], lambda sample: (index, _outline(sample)))

    def describe(self, index: int) -> Any:
        """Returns the dataset's own words for a sample."""
        return describe(self.dataset, index)


def _as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def _outline(sample: Any) -> Outline:
    return {name or "sample": leaf for name, leaf in _leaves(sample, "")}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, tuple[str, list[int] | None, int | None]]]:
    """Yields the fields of a sample, with the type, the shape and the number of each."""
    if isinstance(value, dict):
        items = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple) and len(value) <= NESTED:
        items = [(str(place), each) for place, each in enumerate(value)]
    else:
        yield name, _leaf(value)
        return
    for key, each in items:
        yield from _leaves(each, f"{name}.{key}" if name else key)


def _leaf(value: Any) -> tuple[str, list[int] | None, int | None]:
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        shape = [int(each) for each in value.shape]
        number = int(value) if not shape and "int" in str(value.dtype) else None
        return f"{str(value.dtype).removeprefix('torch.')} {kind}", shape, number
    if callable(getattr(value, "load", None)) and hasattr(value, "mode") and hasattr(value, "size"):
        value.load()  # damage is found when a Pillow image is decoded
        return f"Pillow image, {value.mode}", list(value.size), None
    return kind, None, value if isinstance(value, int) and not isinstance(value, bool) else None


class _Progress:
    """The state of a check, in a file beside the quarantine file until the check ends.

    Args:
        classes: number of classes; None if it is not known.

    Raises:
        TargetError: the quarantine file is there, and no check was interrupted.
    """

    def __init__(self, path: str, samples: int, classes: int | None) -> None:
        self._file, self._path = path, f"{path}.state"
        self._samples, self._classes = samples, classes
        self._saved = time.monotonic()
        self.done = 0
        self._known = 0  # samples that were fetched
        self._latest: dict[str, Any] | None = None
        # By the field, and by its type or its shape as a text: the number of samples, and the first of them
        self._fields: dict[str, dict[str, list[Any]]] = {}
        self._types: dict[str, dict[str, list[Any]]] = {}
        self._shapes: dict[str, dict[str, list[Any]]] = {}
        self._labels: list[tuple[int, str, int]] = []  # those outside of the classes, with index and field
        if not os.path.exists(self._path) and os.path.exists(path) and os.path.getsize(path):
            raise TargetError(f"{path} is of an earlier check or of a loader: name another file, or delete it")

    def received(self, state: dict[str, Any]) -> None:
        """Keeps the state of the loader behind a batch, and writes it if that on the disk is old."""
        self._latest = state
        if time.monotonic() - self._saved > SAVED:
            self.save()

    def count(self, index: int, outline: Outline) -> None:
        """Counts a sample."""
        self._known += 1
        self.done = index + 1
        _add(self._fields, "the sample", ", ".join(sorted(outline)) or "none", index)
        for name, (kind, shape, number) in outline.items():
            _add(self._types, name, kind, index)
            if shape is not None:
                _add(self._shapes, name, str(tuple(shape)), index)
            if number is None or self._classes is None or name.rpartition(".")[2] not in LABELS:
                continue
            if not 0 <= number < self._classes:
                self._labels.append((index, name, number))

    def inconsistent(self) -> Iterator[tuple[int, str]]:
        """Yields the index of each inconsistent sample, once, and the reason."""
        found: dict[int, str] = {}
        for what, values in (("fields", self._fields), ("type", self._types), ("shape", self._shapes)):
            for name, counts in values.items():
                for index, why in self._outliers(name, counts, what):
                    found.setdefault(index, why)
        for index, name, number in self._labels:
            why = f"InconsistentSample: {name} is {number}, and there are {self._classes} classes"
            found.setdefault(index, why)
        yield from sorted(found.items())

    def _outliers(self, name: str, counts: dict[str, list[Any]], what: str) -> Iterator[tuple[int, str]]:
        usual, (most, _) = max(counts.items(), key=lambda one: one[1][0])
        if most < AGREE * self._known or len(counts) >= MOST_VALUES:
            return
        others = f"{most:,} of {self._known:,} samples have {usual}"
        for text, (count, indices) in counts.items():
            more = f"; {count - len(indices):,} more like it are not in this file" if count > len(indices) else ""
            for index in indices if text != usual else ():
                yield index, f"InconsistentSample: {name} has the {what} {text}, and {others}{more}"

    def load(self, loader: Any) -> int:
        """Goes on where an earlier check was interrupted; returns the samples that it had done."""
        try:
            with open(self._path, encoding="utf-8") as file:
                known = json.load(file)
        except FileNotFoundError:
            self.save()  # from now on the same call goes on, whatever ends the check
            return 0
        if (known["samples"], known["classes"]) != (self._samples, self._classes):
            raise TargetError(
                f"{self._path} is of a check of {known['samples']:,} samples and {known['classes']} classes, and this "
                f"is one of {self._samples:,} samples and {self._classes} classes: delete it to begin anew"
            )
        if known["loader"] is None:  # no batch was received
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self._file, 0)
            return 0
        self.done, self._known = known["done"], known["known"]
        self._fields, self._types = known["fields"], known["types"]
        self._shapes, self._labels = known["shapes"], known["labels"]
        loader.load_state_dict(known["loader"])
        return self.done

    def save(self) -> None:
        """Writes the state."""
        known = {
            "samples": self._samples,
            "classes": self._classes,
            "done": self.done,
            "known": self._known,
            "fields": self._fields,
            "types": self._types,
            "shapes": self._shapes,
            "labels": self._labels,
            "loader": self._latest,
        }
        with explained(self._path, self.kept), open(f"{self._path}.part", "w", encoding="utf-8") as file:
            json.dump(known, file)
        os.replace(f"{self._path}.part", self._path)
        self._saved = time.monotonic()

    def end_without_room(self, event: stoker.events.Event) -> None:
        """Ends the check before a batch of which bad samples cannot be written; a training would go on."""
        if isinstance(event, stoker.events.QuarantineFailed):
            number = event.errno or errno.EIO
            with explained(self._file, self.kept):
                raise OSError(number, os.strerror(number))

    def kept(self) -> str:
        """Returns the consequence of a check that cannot write, and the remedy, in words."""
        return (
            f"the check cannot write, after {self.done:,} of {self._samples:,} samples. Free space on the disk: "
            "the same call goes on from the last state that it has written"
        )

    def remove(self) -> None:
        """Deletes the file: the check has ended."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _add(values: dict[str, dict[str, list[Any]]], name: str, text: str, index: int) -> None:
    counts = values.setdefault(name, {})
    if text not in counts and len(counts) >= MOST_VALUES:
        return
    known = counts.setdefault(text, [0, []])
    known[0] += 1
    if len(known[1]) < MOST_NAMED:
        known[1].append(index)
