"""Hooks that note which samples the batches of an epoch hold, as torch's and Stoker's iterators have the indices.

Noted are the first two epochs of each line that iterates, and of each setting there. torch's iterator asks for indices
in `_next_index`, already while `iter(loader)` runs if it has workers; Stoker's gives its plan to the observer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from stoker.diagnostics.composition.epoch_notes import EpochNotes, class_names_of, labels_of, length_of, lengths_of, own
from stoker.diagnostics.recorder import EpochRecord, Recorder

EPOCHS = 2
"""Epochs that are noted, of all loaders of a line with the same settings together."""

KINDS = 40
"""Such kinds of loaders that are noted in a process."""

Early = dict[int, EpochNotes]
"""By the identity of an iterator, the notes of indices that it asked for before its epoch had a number."""


class OrderHooks:
    """The hooks of this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._noted: dict[tuple[Any, ...], int] = {}
        self._early: Early | None = None
        self._loader: Any = None

    @contextlib.contextmanager
    def beginning(self, loader: Any, site: str) -> Iterator[Early | None]:
        """Keeps the indices that an iterator asks for while it is made; None if the epoch is not to be noted."""
        key = _kind(loader, site)
        if self._noted.get(key, 0) >= EPOCHS or (key not in self._noted and len(self._noted) >= KINDS):
            yield None
            return
        self._noted[key] = self._noted.get(key, 0) + 1
        self._early, self._loader = {}, loader
        try:
            yield self._early
        finally:
            self._early = self._loader = None

    def begun(self, early: Early | None, loader: Any, iterator: Any, record: EpochRecord) -> None:
        """Begins the notes of an epoch that has a number now."""
        if early is None:
            return
        notes = record.notes = early.get(id(iterator)) or self._new(loader)
        notes.name(record.loader, record.epoch)
        self._recorder.noted.append(notes)

    @staticmethod
    def follow(plan: Any, ahead: Any, notes: EpochNotes) -> None:
        """Notes the steps of a plan of Stoker's as they are taken, but those of batches that are not delivered."""
        planned_next = plan.next

        def noted_next() -> Any:
            step = planned_next()
            if step is None:
                notes.over()
            elif step.number not in ahead:
                notes.asked(step.indices)
            return step

        plan.next = noted_next
        if not hasattr(plan, "upcoming"):
            return
        planned_upcoming, planned_advance = plan.upcoming, plan.advance
        latest: Any = None

        def noted_upcoming() -> Any:
            nonlocal latest
            indices = planned_upcoming()
            if indices is None:
                notes.over()
            else:
                latest = list(indices)
            return indices

        def noted_advance() -> Any:
            notes.asked(latest)
            return planned_advance()

        plan.upcoming, plan.advance = noted_upcoming, noted_advance

    def _new(self, loader: Any) -> EpochNotes:
        return EpochNotes(functools.partial(_columns, loader))

    def noted_index(self, mark: str) -> Callable[[Any, Any], None]:
        """Returns what is called with an iterator of torch's and the indices of its next batch; None at the end.

        Args:
            mark: the attribute of an iterator that holds its `EpochRecord`.
        """

        def noted(iterator: Any, indices: Any) -> None:
            if self._early is not None:
                if (notes := self._early.get(id(iterator))) is None:
                    notes = self._early[id(iterator)] = self._new(self._loader)
            else:
                record: EpochRecord | None = iterator.__dict__.get(mark)
                if record is None or record.notes is None:
                    return
                notes = record.notes
            if indices is None:
                notes.over()
            else:
                notes.asked(indices)

        return noted


def _kind(loader: Any, site: str) -> tuple[Any, ...]:
    """Returns the key of a kind of loaders: the line that iterates, and settings."""
    settings = [own(loader, name) for name in ("batch_size", "num_workers")]
    return site, type(own(loader, "dataset")).__name__, *(value for value in settings if isinstance(value, int))


def _columns(loader: Any) -> tuple[dict[str, Any], Any, Any]:
    """Returns facts about a loader's dataset, and the labels and the lengths of its samples."""
    labels, lengths = labels_of(loader), lengths_of(loader)
    about: dict[str, Any] = {"length": length_of(loader)}
    if labels is not None and (counts := labels.counts()) is not None:
        about["labels"] = {"source": labels.source, "of": len(labels), "counted": counts[1]}
        about["labels"] |= {"counts": list(counts[0].items()), "names": class_names_of(loader)}
    else:
        labels = None
    if lengths is not None:
        about["lengths"] = lengths.source
    return about, labels, lengths
