"""The collate functions that Stoker knows, each in the flavour that a loader's output asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stoker.collate.compiled import Compiled
from stoker.collate.convert import default_convert, deferred_convert, numpy_convert
from stoker.collate.default import default_collate, deferred_collate, numpy_collate
from stoker.collate.gathered import Gathered, Source, has_our_functions
from stoker.collate.registry import Output, torch_collation

CollateFn = Callable[[Any], Any]

_COLLATE: dict[Output, CollateFn] = {"torch": default_collate, "numpy": numpy_collate, "deferred": deferred_collate}
_CONVERT: dict[Output, CollateFn] = {"torch": default_convert, "numpy": numpy_convert, "deferred": deferred_convert}


class Flavoured(ABC):
    """A collation of ours that is an object, which knows its flavours itself."""

    @abstractmethod
    def for_output(self, output: Output) -> CollateFn:
        """The same collation with leaves of another kind."""


def for_output(collate_fn: CollateFn, output: Output) -> CollateFn:
    """The same collation with leaves of another kind.

    Args:
        collate_fn: any collate function. Stoker's, and torch's own `default_collate` and `default_convert`, are
            answered by ours of that kind, a `Flavoured` one by one that differs in its output alone.
        output: "torch", "numpy", or "deferred": tensors where torch is loaded, else `TensorLeaf` arrays.

    Returns:
        The function of that kind, or `collate_fn` itself if it is the user's. It pickles by its name.
    """
    theirs = torch_collation()
    for ours, name in ((_COLLATE, "default_collate"), (_CONVERT, "default_convert")):
        if collate_fn in ours.values() or (theirs is not None and collate_fn is getattr(theirs, name)):
            return ours[output]
    return collate_fn.for_output(output) if isinstance(collate_fn, Flavoured) else collate_fn


def is_ours(collate_fn: CollateFn) -> bool:
    """Whether it is a collation of Stoker's own, which draws no random numbers and writes into lent memory."""
    return collate_fn in (*_COLLATE.values(), *_CONVERT.values()) or isinstance(collate_fn, (Compiled, Flavoured))


def compiling(collate_fn: CollateFn) -> CollateFn:
    """The same collation for the batches of one worker, which learns from the first what the later ones are like.

    It is our default collation that can be compiled; any other function is given back.
    """
    output = _default_output(collate_fn)
    return collate_fn if output is _NEITHER else Compiled(output)


def is_default(collate_fn: CollateFn) -> bool:
    """Whether it is our default collation, in any of its flavours."""
    return _default_output(collate_fn) is not _NEITHER


def gathering(collate_fn: CollateFn, dataset: Any, source: Source) -> Gathered | None:
    """What gathers the batches of a dataset that can, if they are collated by our default collation."""
    output = _default_output(collate_fn)
    return None if output is _NEITHER else Gathered(dataset, source, output)


def is_gathered(collate_fn: CollateFn, layout: Any) -> bool:
    """Whether `gathering` gives something, and that gathers batches of such a layout; a layout of None is none."""
    output = _default_output(collate_fn)
    return output is not _NEITHER and has_our_functions(layout, output)


_NEITHER: Any = object()


def _default_output(collate_fn: CollateFn) -> Any:
    """The kind of leaves of a default collation; of any other function `_NEITHER`."""
    outputs = ((default_collate, None), (numpy_collate, "numpy"), (deferred_collate, "deferred"))
    return next((output for ours, output in outputs if collate_fn is ours), _NEITHER)
