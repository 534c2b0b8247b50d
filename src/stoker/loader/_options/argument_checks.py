"""Checks of the loader's arguments, with torch's error types and wording if torch has them, and the ranks of a
DeviceMesh.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import numbers
import operator
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker._core import mistakes, nominal
from stoker._core.exceptions import users_level
from stoker._engine.backends import KINDS, Kind
from stoker._engine.machines.cluster import Ray
from stoker.datasets.awaited import is_awaited
from stoker.device.fields import FieldPlacement
from stoker.errors import MissingExtraError, StokerWarning

DEFAULT_MAX_ERRORS = 100
"""Errors in an epoch. A few bad files in a large dataset are common and should not end a run overnight; a hundred
indicate a broken disk or a bug, even among billions of samples, and are too many to inspect one by one."""

DEFAULT_MAX_ERROR_RATE = 0.01
"""Errors by samples seen, low enough that the remaining samples still represent the dataset. The count alone would
allow a run on 1,000 samples to lose 100 of them."""

METHODS = ("process", "thread")
SEEDINGS = ("auto", "sample", "worker")
SHARDS = ("auto", "none")
OUTPUTS = ("torch", "numpy")
ON_ERROR = ("raise", "skip", "replace")
STALL_ACTIONS = ("warn", "restart", "raise")
DISTRIBUTED = (None, "pad", "drop", "exact")


def integer(name: str, value: Any, otherwise: str | None, of: str = "") -> int:
    """Returns an integer, also NumPy's, as Python's. `of` names the unit in the message."""
    try:
        return operator.index(value)
    except TypeError:
        wanted = f"an integer{of}" + ("" if otherwise is None else f" or {otherwise}")
        raise TypeError(f"{name} should be {wanted}, but got {name}={value!r}") from None


def count(name: str, value: Any, otherwise: str | None = None, of: str = "") -> int:
    """Returns an integer that is 0 or more."""
    number = integer(name, value, otherwise, of)
    if number < 0 or isinstance(value, bool):
        raise ValueError(f"{name} should be a non-negative integer, but got {name}={value!r}")
    return number


def seconds(name: str, value: Any) -> float | None:
    """Returns a time in seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} should be a number of seconds or None, but got {name}={value!r}")
    if not value >= 0:
        raise ValueError(f"{name} should be a non-negative number of seconds, but got {name}={value!r}")
    return float(value)


def size(name: str, value: Any, of: str = "") -> int | None:
    """Returns an integer that is 1 or more, or None."""
    if value is None:
        return None
    number = count(name, value, "None", of)
    if number < 1:
        raise ValueError(f"{name} should be a positive integer or None, but got {name}={value!r}")
    return number


def check_faults(on_error: Any, on_event: Any, stall_action: Any, kind: Kind) -> None:
    """Checks the reactions to samples that fail and workers that stall, and the listener."""
    if not callable(on_error):
        check_choice("on_error", on_error, ON_ERROR)
    check_function("on_event", on_event, "an event")
    check_choice("stall_action", stall_action, STALL_ACTIONS)
    if stall_action == "restart" and not kind.capabilities.ends_stalled:
        raise ValueError(
            f"stall_action='restart' needs process workers: a {kind.name} worker cannot be ended. Use 'warn' or "
            "'raise', or worker_method='process'."
        )


def check_function(name: str, value: Any, of: str) -> None:
    """Refuses what is neither a function nor None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} should be a function of {of} or None, but got {name}={value!r}")


def check_workers(num_workers: int, timeout: Any, prefetch_factor: Any, persistent_workers: bool) -> None:
    """Checks the numbers of workers and batches ahead, and the timeout."""
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if prefetch_factor is not None and integer("prefetch_factor", prefetch_factor, "None") == 0:
        raise ValueError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter: a worker needs a batch to make. "
            "Use 1 for as few batches ahead as there can be."
        )
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def check_remote(remote: Any, worker_method: str) -> None:
    """Refuses workers on other machines where they cannot be had."""
    if remote is None:
        return
    if not isinstance(remote, Ray):
        raise TypeError(f"remote should be stoker.Ray(num_workers=...) or None, but got remote={remote!r}")
    if KINDS[worker_method].capabilities.are_threads:
        raise ValueError("remote=stoker.Ray(...) needs process workers: leave out worker_method='thread'.")
    if not hasattr(os, "fork"):
        raise ValueError(f"remote=stoker.Ray(...) needs a system with fork, and {sys.platform} has none.")
    remote.check_installed()


def check_threads(threads: Any, num_workers: int, worker_method: str, iterable: bool) -> int:
    """Returns the number of threads that make samples in each worker."""
    number = count("threads_per_worker", threads)
    if number < 1:
        raise ValueError(f"threads_per_worker should be a positive integer, but got threads_per_worker={threads!r}")
    if number > 1 and KINDS[worker_method].capabilities.are_threads:
        raise ValueError(
            f"threads_per_worker={number} is for process workers, but with worker_method='thread' each worker is a "
            f"thread: use num_workers={max(1, num_workers) * number}, or worker_method='process'."
        )
    if number > 1 and iterable:
        raise ValueError(
            f"threads_per_worker={number} needs a dataset with indices: a stream is read by one thread, sample by "
            "sample. Use more workers, or a map-style dataset."
        )
    return number


def check_concurrency(args: Mapping[str, Any], iterable: bool) -> int | None:
    """Returns the number of samples that each worker awaits at a time; None for the default."""
    value, dataset = args["concurrency"], args["dataset"]
    is_async = not iterable and is_awaited(dataset, args["batch_size"] is not None or args["batch_sampler"] is not None)
    number = None if value is None else count("concurrency", value, "None")
    if number and not is_async:
        raise ValueError(
            f"concurrency={number} is for datasets whose samples are awaited, but {type(dataset).__name__} has no "
            "`async def __getitem__`. Write one, which may await a sample of another dataset; for samples that block "
            f"their thread use threads_per_worker={number}."
        )
    if is_async and number != 0 and args["threads_per_worker"] != 1:
        raise ValueError(
            f"threads_per_worker={args['threads_per_worker']} is for samples that block their thread, but those of "
            f"{type(dataset).__name__} are awaited: use concurrency={args['threads_per_worker']}."
        )
    return number


def check_ranks(
    distributed: Any, num_replicas: Any, rank: Any, batches_per_epoch: Any, mesh: Any = None
) -> tuple[int | None, int | None, int | None]:
    """Returns `num_replicas`, `rank` and `batches_per_epoch` as Python's integers, or None for each."""
    check_choice("distributed", distributed, DISTRIBUTED)
    if mesh is not None:
        if num_replicas is not None or rank is not None:
            raise ValueError(
                "mesh says how many ranks there are, and which this one is: leave out num_replicas and rank, but got "
                f"num_replicas={num_replicas}, rank={rank}"
            )
        if distributed is None:
            raise ValueError("mesh needs distributed='pad', 'drop' or 'exact'")
        num_replicas, rank = ranks_of(mesh)
    if (num_replicas is None) != (rank is None):
        raise ValueError(f"num_replicas and rank belong together, but got num_replicas={num_replicas}, rank={rank}")
    if rank is not None:
        if distributed is None:
            raise ValueError("num_replicas and rank need distributed='pad', 'drop' or 'exact', or a DistributedSampler")
        rank, num_replicas = integer("rank", rank, "None"), integer("num_replicas", num_replicas, "None")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
    if batches_per_epoch is not None:
        batches_per_epoch = integer("batches_per_epoch", batches_per_epoch, "None")
        if batches_per_epoch < 1:
            raise ValueError(f"batches_per_epoch should be a positive integer, but got {batches_per_epoch}")
    return num_replicas, rank, batches_per_epoch


def check_generator(generator: Any) -> None:
    """Refuses a generator from which no seed can be drawn; it has to be on the CPU."""
    device = getattr(getattr(generator, "device", None), "type", "cpu")
    if device != "cpu":
        raise ValueError(
            f"generator is on {generator.device}, and the order is drawn on the CPU: pass torch.Generator() without a "
            "device."
        )
    torch = sys.modules.get("torch")
    kinds = (np.random.Generator, type(None)) if torch is None else (np.random.Generator, type(None), torch.Generator)
    if not isinstance(generator, kinds):
        raise TypeError(
            "generator should be a torch.Generator, a numpy.random.Generator or None, but got "
            f"generator={generator!r}. For the same order in each run pass seed=, or "
            "torch.Generator().manual_seed(5)."
        )


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> None:
    """Refuses a value that is not among the choices."""
    if value not in choices:
        hint = ". For training use 'pad'" if name == "distributed" and value is True else ""
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}, but got {name}={value!r}{hint}")


def check_output(output: Any) -> None:
    """Refuses an unknown kind of output, and tensors without torch."""
    check_choice("output", output, OUTPUTS)
    if output == "torch" and not nominal.torch_is_installed():
        raise MissingExtraError(
            'output="torch" needs torch, which is not installed: install it (the extra stoker[torch]), or choose '
            'output="numpy".'
        )


def check_device(device: Any, output: str, buffers: Any) -> None:
    """Refuses what is no device, a device for arrays, and buffers on no device."""
    if device is None:
        if buffers is not None:
            raise ValueError(f"device_buffers={buffers} are memory of a device: pass device= too, such as 'cuda'.")
        return
    if output == "numpy":
        raise ValueError(
            "device= moves torch's tensors, and this loader gives NumPy arrays (output='numpy'). Leave device= out and "
            "move the arrays in the training loop (jax.device_put), or install torch and choose output='torch'."
        )
    FieldPlacement(device)


def check_dataset(dataset: Any, iterable: bool) -> None:
    """Refuses a dataset from which no samples can be fetched, and a text that names a file or folder."""
    if isinstance(dataset, str):
        text = f"dataset is a text, {dataset!r:.80}, whose letters would be the samples. {mistakes.of_place(dataset)}"
        if os.path.exists(dataset):
            raise TypeError(text)
        warnings.warn(text, StokerWarning, stacklevel=users_level())
    if iterable or hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"):
        return
    if hasattr(type(dataset), "__aiter__"):
        raise TypeError(
            f"{type(dataset).__name__} has an __aiter__: its samples come one after another, so to await them gains "
            "nothing. Define an `async def __getitem__`, of which each worker awaits several at a time; or derive from "
            "IterableDataset, with an __iter__ that steps through it: `loop = asyncio.new_event_loop()`, and in a loop "
            "`yield loop.run_until_complete(anext(iterator))`."
        )
    hint = mistakes.of_place(dataset) or mistakes.of_iterable(dataset)
    raise TypeError(
        f"dataset should have __getitem__ (and __len__), or be an IterableDataset, but got "
        f"{type(dataset).__name__}. {hint}".rstrip()
    )


def check_collate(collate_fn: Any) -> None:
    """Refuses a text in place of a function."""
    if isinstance(collate_fn, str):
        raise TypeError(
            f"collate_fn should be a function of a list of samples or None, but got collate_fn={collate_fn!r}. To pad "
            "samples of different lengths pass stoker.PadCollator()."
        )


def check_stream(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    """Refuses arguments that do not apply to an IterableDataset."""
    if shuffle not in {False, None}:
        raise ValueError(
            f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}. "
            "A stream is shuffled by a buffer: DataLoader(stoker.ShuffleDataset(dataset, buffer_size=10_000), ...)."
        )
    if sampler is not None:
        raise ValueError(
            f"DataLoader with IterableDataset: expected unspecified sampler option, but got sampler={sampler}"
        )
    if batch_sampler is not None:
        raise ValueError(
            "DataLoader with IterableDataset: expected unspecified "
            f"batch_sampler option, but got batch_sampler={batch_sampler}"
        )


def check_batching(batch_size: Any, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
    """Refuses arguments that exclude each other."""
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")


def asks_for_threads(context: Any) -> bool:
    """Returns whether the workers of a context are threads: its `Process` is a `threading.Thread` (MONAI's is)."""
    process = getattr(context, "Process", None)
    return isinstance(process, type) and issubclass(process, threading.Thread)


def context_of(multiprocessing_context: Any, num_workers: int) -> Any:
    """Returns the context object for a `multiprocessing_context` argument, or None."""
    if multiprocessing_context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    if isinstance(multiprocessing_context, str):
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context not in methods:
            raise ValueError(
                "multiprocessing_context option "
                f"should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={multiprocessing_context!r}"
            )
        multiprocessing_context = multiprocessing.get_context(multiprocessing_context)
    if not isinstance(multiprocessing_context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={multiprocessing_context}"
        )
    return multiprocessing_context


def check_error_budget(max_errors: Any, max_error_rate: Any) -> tuple[int | None, float | None]:
    """Returns the arguments as Python's numbers.

    Raises:
        ValueError, TypeError: `ErrorBudget` does not accept the arguments.
    """
    return (
        None if max_errors is None else count("max_errors", max_errors, "None"),
        None if max_error_rate is None else _rate("max_error_rate", max_error_rate),
    )


def _rate(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} should be a number from 0 to 1, or None, but got {name}={value!r}")
    if not 0 <= (rate := float(value)) <= 1:  # refuses NaN too
        raise ValueError(f"{name} should be a number from 0 to 1, but got {name}={value!r}")
    return rate


def ranks_of(mesh: Any) -> tuple[int, int]:
    """Returns the number of data-parallel ranks, and the number of this process among them.

    Processes that differ in other dimensions alone get the same numbers, and so the same data.

    Args:
        mesh: a DeviceMesh of one dimension; or a pair of a DeviceMesh and the name of a dimension, or of several, of
            which the last one varies fastest.

    Raises:
        TypeError: no DeviceMesh, or no names.
        ValueError: the mesh has several dimensions and none is named, has no dimension of that name, or does not
            include this process.
    """
    mesh, names = mesh if isinstance(mesh, (tuple, list)) and len(mesh) == 2 else (mesh, None)
    _check_kind(mesh)
    if names is None:
        if mesh.ndim != 1:
            raise ValueError(
                f"mesh has {mesh.ndim} dimensions ({_known(mesh)}): name the data-parallel one, as in "
                "mesh=(mesh, 'dp'), or pass that part of it, mesh['dp']."
            )
        return _size_and_rank(mesh, mesh)
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"mesh=(mesh, names) takes one name of a dimension or several, but got {names!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"mesh=(mesh, names) names a dimension twice: {', '.join(names)}")
    number, rank = 1, 0
    for name in names:
        size, local = _size_and_rank(_part(mesh, name), mesh)
        number, rank = number * size, rank * size + local
    return number, rank


def _check_kind(mesh: Any) -> None:
    module = sys.modules.get("torch.distributed.device_mesh")  # a DeviceMesh cannot exist without it
    if module is None or not isinstance(mesh, module.DeviceMesh):
        raise TypeError(
            "mesh takes a torch.distributed.device_mesh.DeviceMesh, or a pair of one and the name of its data-parallel "
            f"dimension, but got {type(mesh).__name__}. Without a mesh give num_replicas= and rank=."
        )


def _part(mesh: Any, name: str) -> Any:
    if tuple(mesh.mesh_dim_names or ()) == (name,):
        return mesh
    try:
        return mesh[name]
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"mesh has no dimension {name!r}: its dimensions are {_known(mesh)}. ({error})") from error


def _size_and_rank(part: Any, mesh: Any) -> tuple[int, int]:
    if mesh.get_coordinate() is None:
        raise ValueError(
            "this process is not part of the mesh, so it has no share of the data: make the loader in the mesh's "
            "processes alone."
        )
    return int(part.size()), int(part.get_local_rank())


def _known(mesh: Any) -> str:
    sizes = tuple(mesh.shape)
    names = mesh.mesh_dim_names or ("without a name",) * len(sizes)
    return ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
