"""Sentences on common mistakes in a loader's arguments, with the right way to write them."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable
from typing import Any, TypeVar

I = TypeVar("I", bound=Callable[..., None])  # noqa: E741


def with_known_names(init: I) -> I:
    """Returns a constructor whose error for an unknown keyword names the closest one that there is."""
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(*args: Any, **kwargs: Any) -> None:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            raise TypeError(
                f"DataLoader.__init__() got an unexpected keyword argument {unknown!r}{meant(unknown, known)}"
            )
        init(*args, **kwargs)

    checked.__signature__ = inspect.signature(init)  # type: ignore[attr-defined] # for `getfullargspec` too
    return checked  # type: ignore[return-value]  # it has the same arguments


def meant(name: str, known: list[str]) -> str:
    """Returns the end of a sentence that names the closest of the known names; nothing if none is close."""
    import difflib

    closest = difflib.get_close_matches(name, known, 1)
    return f". Did you mean {closest[0]}?" if closest else ""


def of_place(dataset: Any) -> str:
    """Returns the expression to write in place of a path; nothing if the dataset is none."""
    if not isinstance(dataset, (str, os.PathLike)):
        return ""
    place = os.fspath(dataset)
    of_classes = False
    if os.path.isdir(place):
        with os.scandir(place) as entries:
            of_classes = any(entry.is_dir() for entry in entries)
    return f"Did you mean stoker.{'ImageFolder' if of_classes else 'open_dataset'}({place!r})?"


def of_iterable(dataset: Any) -> str:
    """Returns how to read an object that can only be iterated over; nothing if it cannot."""
    if isinstance(dataset, types.GeneratorType):
        function = dataset.__name__ if dataset.__name__.isidentifier() else "function"
        return f"A generator is read once only: pass its function, stoker.from_iterable({function})."
    if inspect.isgeneratorfunction(dataset):
        return f"It is a generator function: pass stoker.from_iterable({dataset.__name__})."
    if type(dataset).__module__ in ("builtins", "itertools") and hasattr(dataset, "__iter__"):
        once = ", or stoker.from_iterable(f) with a function f that makes it" if hasattr(dataset, "__next__") else ""
        return f"It has no samples by index: pass list(...) of it{once}."
    if hasattr(dataset, "__iter__"):
        return "It can be iterated over: let its class inherit from stoker.IterableDataset."
    return ""


def of_index(index: Any, dataset: Any) -> str | None:
    """Returns why a dataset may have refused an index that a sampler yielded, or None."""
    if isinstance(index, (list, tuple)) and not isinstance(dataset, dict):
        return (
            f"the sampler yielded a {type(index).__name__} of {len(index)} indices, {index!r:.60}, for one sample. If "
            "it makes batches, pass it as batch_sampler=, or with batch_size=None to a dataset that takes lists."
        )
    if isinstance(dataset, dict) and index not in dataset:
        return (
            f"the dataset is a dict, which has no key {index!r}: pass list(data.values()), or its keys as "
            "sampler=list(data)."
        )
    return None
