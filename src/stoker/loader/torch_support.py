"""Support for torch: the settings of an existing loader, `torch.compile` kept out of Stoker's code, rows in torch's
profiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.samplers.batch import BatchSampler
from stoker.samplers.random import RandomSampler

if TYPE_CHECKING:
    from stoker.loader.record import LoaderRecord


_ORDER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_OF_WORKERS = (
    *("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "stall_action"),
    "threads_per_worker",
)
"""Arguments that need workers."""

_DECIDING = ("__iter__", "__len__", "_get_iterator", "_index_sampler", "_auto_collation", "_dataset_kind")
"""Methods and properties of torch's loader that choose the batches and their number."""
_PARTS = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "collate_fn", "generator")
"""Attributes that choose the batches. A property of such a name may return another value in each epoch."""


def check_class(loader: Any, cls: type) -> None:
    """Refuses a loader whose class chooses the batches by methods or properties that `cls` does not have.

    Raises:
        TypeError: the class does so; the message names the class and the method.
    """
    for base in type(loader).__mro__:
        if issubclass(cls, base) or (base.__module__, base.__name__) == ("torch.utils.data.dataloader", "DataLoader"):
            continue
        methods = [name for name in _DECIDING if name in vars(base)]
        properties = [name for name in _PARTS if hasattr(type(vars(base).get(name)), "__set__")]
        if methods or properties:
            raise _not_taken_over(type(loader), base, [*methods, *properties])
    # Python ignores dunder methods on the object itself, and _dataset_kind is torch's own attribute
    if own := [name for name in ("_get_iterator", "_index_sampler", "_auto_collation") if name in vars(loader)]:
        raise _not_taken_over(type(loader), type(loader), own)


def _not_taken_over(kind: type, home: type, names: Sequence[str]) -> TypeError:
    where = "" if home is kind else f", which {home.__module__}.{home.__qualname__} defines,"
    return TypeError(
        f"from_torch cannot take over {kind.__module__}.{kind.__qualname__}: its {', '.join(names)}{where} would be "
        "lost, and the batches might differ. Give from_torch the plain loader from which it was made; or call "
        "DataLoader(dataset, ...) with the arguments that you want; or derive the class from stoker's DataLoader in "
        "place of torch's."
    )


def settings(loader: Any, ours: LoaderRecord | None, names: Sequence[str], is_stream: bool) -> dict[str, Any]:
    """Returns the arguments of a loader that are among its attributes.

    Args:
        loader: torch's or Stoker's.
        ours: the record of a Stoker loader, else None.
        names: all arguments of the loader.
        is_stream: whether the loader has an IterableDataset.
    """
    own = {} if ours is None else ours.own()  # a subclass may use these names for attributes of its own
    arguments = {name: own[name] if name in own else getattr(loader, name) for name in names if name not in _ORDER}
    options = None if ours is None else ours.options(loader)
    if ours is not None and (auto := ours.automatic(loader)) is not None:
        arguments |= {"num_workers": "auto", **auto.set_aside}
    elif options is not None and options.on_demand:
        arguments["num_workers"] = "auto"
    is_default = arguments["prefetch_factor"] == 2 if options is None else not options.counts_batches
    if is_default:  # it follows from the other arguments
        del arguments["prefetch_factor"]
    if loader.batch_size is None and loader.batch_sampler is not None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return arguments if is_stream else arguments | order_of(loader, ours)


def changed(arguments: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with the changes; without workers, also without the arguments that need workers."""
    if changes.get("num_workers") == 0:
        arguments = {name: value for name, value in arguments.items() if name not in _OF_WORKERS}
    return {**arguments, **changes}


def order_of(loader: Any, ours: LoaderRecord | None) -> dict[str, Any]:
    """Returns `shuffle=` if the loader made its sampler itself, else `sampler=`."""
    torch, sampler = sys.modules.get("torch"), loader.sampler
    batching = {type(None), BatchSampler} | ({torch.utils.data.BatchSampler} if torch is not None else set())
    if type(loader.batch_sampler) not in batching:
        return {"batch_sampler": loader.batch_sampler, "batch_size": 1, "drop_last": False}
    if ours is not None or torch is None:
        made_it = ours is not None and sampler is ours.own_sampler
        return {"shuffle": isinstance(sampler, RandomSampler)} if made_it else {"sampler": sampler}
    if type(sampler) is torch.utils.data.SequentialSampler and sampler.data_source is loader.dataset:
        return {"shuffle": False}
    plain = type(sampler) is torch.utils.data.RandomSampler and not sampler.replacement and sampler._num_samples is None
    if plain and sampler.generator is loader.generator and sampler.data_source is loader.dataset:
        return {"shuffle": True}
    return {"sampler": sampler}


# Keeps `torch.compile` out of Stoker's code when a compiled function contains the loop over a loader. Dynamo traces
# every call except calls into packages on its skip list: torch's loader is on it, Stoker is added here.


C = TypeVar("C", bound=Callable[..., Any])

_entered: Any = None
"""The module of Dynamo's rules to which Stoker was added."""


def untraced(function: C) -> C:
    """Marks a function so that Dynamo does not trace it (as `torch.compiler.disable`, which imports Dynamo)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def keep_dynamo_out() -> None:
    """Adds Stoker to Dynamo's skip list if Dynamo is loaded and its rules have `add`."""
    global _entered
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not _entered:
        _entered = rules
        if callable(add := getattr(rules, "add", None)):
            add("stoker")


# Records an iterator's `next()` as a row in torch's profiler.


T = TypeVar("T")


def is_on() -> bool:
    """Returns whether torch's profiler runs in this process. Takes 0.05 us and does not import torch."""
    return getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False)


def recorded(iterator: Any, call: Callable[[], T]) -> T:
    """Returns `call()`, recorded as a row with torch's name for an iterator of this class."""
    profiler: Any = sys.modules["torch.autograd.profiler"]
    with profiler.record_function(f"enumerate(DataLoader)#{type(iterator).__name__}.__next__"):
        return call()
