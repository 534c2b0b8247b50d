"""Stoker's collate functions, each in a variant for every output of a loader; torch's `default_collate` in the batch's
memory.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stoker.collate._compiled.compiled import Compiled
from stoker.collate.default import (
    default_collate,
    default_convert,
    deferred_collate,
    deferred_convert,
    numpy_collate,
    numpy_convert,
)
from stoker.collate.gathered import Gathered, GatherSource, has_our_functions
from stoker.collate.registry import Output, is_torchs, torch_collation
from stoker.collate.stacking import TENSORS

CollateFn = Callable[[Any], Any]

_COLLATE: dict[Output, CollateFn] = {"torch": default_collate, "numpy": numpy_collate, "deferred": deferred_collate}
_CONVERT: dict[Output, CollateFn] = {"torch": default_convert, "numpy": numpy_convert, "deferred": deferred_convert}


class Flavoured(ABC):
    """A collation object of Stoker that makes its own variants."""

    @property
    def runs_user_code(self) -> bool:
        """Whether it calls functions of the user, which may draw random numbers."""
        return False

    def excess(self, batch: Any) -> str | None:
        """Returns a warning about a batch that it made, the same for each such batch; None for nothing."""
        return None

    @abstractmethod
    def for_output(self, output: Output) -> CollateFn:
        """Returns the same collation with leaves of another kind."""


def for_output(collate_fn: CollateFn, output: Output) -> CollateFn:
    """Returns the same collation with leaves of another kind.

    Args:
        collate_fn: any collate function. For Stoker's functions, and torch's own `default_collate` and
            `default_convert`, the result is Stoker's function of that kind; for a `Flavoured` object, a copy with
            another output.
        output: "torch", "numpy", or "deferred": tensors if torch is loaded, else `TensorLeaf` arrays.

    Returns:
        The function of that kind, or `collate_fn` itself if it is the user's. It pickles by its name.
    """
    theirs = torch_collation()
    for ours, name in ((_COLLATE, "default_collate"), (_CONVERT, "default_convert")):
        if _is_one_of(collate_fn, ours) or (theirs is not None and collate_fn is getattr(theirs, name)):
            return ours[output]
    return collate_fn.for_output(output) if isinstance(collate_fn, Flavoured) else collate_fn


def is_ours(collate_fn: CollateFn) -> bool:
    """Returns whether it is one of Stoker's collations, which draw no random numbers and write into lent memory."""
    if isinstance(collate_fn, Flavoured):
        return not collate_fn.runs_user_code
    return isinstance(collate_fn, Compiled) or _is_one_of(collate_fn, _COLLATE) or _is_one_of(collate_fn, _CONVERT)


def _is_one_of(collate_fn: CollateFn, ours: dict[Output, CollateFn]) -> bool:
    return any(collate_fn is one for one in ours.values())  # a user's object may have an __eq__ of its own


def compiling(collate_fn: CollateFn) -> CollateFn:
    """Returns a compiled collation for one worker, which learns from the first batch.

    Only Stoker's default collation can be compiled; any other function is returned unchanged.
    """
    output = _default_output(collate_fn)
    return collate_fn if output is _NEITHER else Compiled(output)


def is_default(collate_fn: CollateFn) -> bool:
    """Returns whether it is Stoker's default collation, in any variant."""
    return _default_output(collate_fn) is not _NEITHER


def gathering(collate_fn: CollateFn, dataset: Any, source: GatherSource) -> Gathered | None:
    """Returns an object that gathers the dataset's batches; None unless the default collation collates them."""
    output = _default_output(collate_fn)
    return None if output is _NEITHER else Gathered(dataset, source, output)


def is_gathered(collate_fn: CollateFn, layout: Any) -> bool:
    """Returns whether batches of this layout are gathered with this function; False for a layout of None."""
    output = _default_output(collate_fn)
    return output is not _NEITHER and has_our_functions(layout, output)


_NEITHER: Any = object()


def _default_output(collate_fn: CollateFn) -> Any:
    """Returns the kind of leaves of a default collation; `_NEITHER` for any other function."""
    outputs = ((default_collate, None), (numpy_collate, "numpy"), (deferred_collate, "deferred"))
    return next((output for ours, output in outputs if collate_fn is ours), _NEITHER)


def write_in_place() -> None:
    """Makes torch's `default_collate` stack tensors in the memory in which the batch travels.

    Call it only in worker processes, before each unit, because a dataset may import torch at any time; a call takes
    less than a microsecond. Without it, torch would allocate a file in /dev/shm for each tensor. Does nothing if torch
    is not loaded or the user registered another function for tensors.
    """
    theirs = torch_collation()
    if theirs is None:
        return
    tensor = sys.modules["torch"].Tensor
    if is_torchs(theirs.default_collate_fn_map.get(tensor)):
        theirs.default_collate_fn_map[tensor] = TENSORS.tensors
