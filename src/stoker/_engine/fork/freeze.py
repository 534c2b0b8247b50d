"""`freeze`: one copy of a dataset's Python objects for the trainer and all its workers."""

from __future__ import annotations

import gc
import warnings
from typing import TypeVar

from stoker._engine.fork.heap_sharing import mark_reachable
from stoker.errors import StokerWarning

T = TypeVar("T")


def freeze(dataset: T) -> T:
    """Keeps the lists, dicts, tuples and strings of `dataset` in memory once for any number of forked workers.

    Reading a Python object writes its reference count, which makes a forked process copy the object's page. `freeze`
    makes every object that `dataset` refers to, directly or not, immortal: its count is never written again, and it is
    never freed, nor closed when it goes out of scope. It can be changed, sorted and pickled as before. Call `freeze`
    once, after filling the dataset and before the loader starts its workers. The dataset should live as long as the
    program and refer to no object that should not (a model, an open connection). Modules and types stay unchanged.

    Takes 0.1 to 0.5 s for a million objects, and a full garbage collection. Other threads may run meanwhile if they do
    not change the dataset. Arrays and tensors gain nothing: their contents have no reference counts.

    Args:
        dataset: any object.

    Returns:
        The same object. On Pythons that cannot make objects immortal (all but released 64-bit CPython 3.12 and 3.13),
        nothing changes and a `StokerWarning` is issued.
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
        gc.collect()  # moves the marked objects aside now, instead of page after page during training
    return dataset
