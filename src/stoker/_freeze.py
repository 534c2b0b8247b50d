"""`freeze`: one copy of a dataset's Python objects for the trainer and all its workers."""

from __future__ import annotations

import gc
import warnings
from typing import TypeVar

from stoker._engine.process.immortal import mark_reachable
from stoker.errors import StokerWarning

T = TypeVar("T")


def freeze(dataset: T) -> T:
    """Keeps the lists, dicts, tuples and strings of `dataset` in memory once, however many forked workers read them.

    Reading a Python object writes its reference count, and so makes a forked process copy the page that it lies on.
    This makes everything that `dataset` refers to, directly or not, immortal: its counts are never written again, and
    it is never freed, nor closed by going out of scope. It can be changed, sorted and pickled as before. Call it once,
    after the dataset is filled and before the loader starts its workers, on a dataset that lives as long as the
    program and refers to nothing that should not (a model, an open connection). Modules and types stay as they are.

    Costs 0.1 to 0.5 s for a million objects, and a full collection of garbage. Other threads may run meanwhile, as long
    as they do not change the dataset. Arrays and tensors gain nothing: their contents carry no counts.

    Args:
        dataset: any object.

    Returns:
        The same object. Where Python has no immortal objects that can be made (all but CPython 3.12 and 3.13 as
        released, 64-bit) nothing is changed and a `StokerWarning` says so.
    """
    if mark_reachable(dataset) is None:
        warnings.warn(
            "stoker.freeze changed nothing: this Python cannot make objects immortal (CPython 3.12 and 3.13 can), so "
            "each worker will hold a copy of the objects that it reads. Use stoker.columns(rows), a sequence backed "
            "by arrays, which is shared on any Python.",
            StokerWarning,
            stacklevel=2,
        )
    elif gc.isenabled():
        gc.collect()  # sets the marked objects aside now, not in the midst of training, page after page
    return dataset
