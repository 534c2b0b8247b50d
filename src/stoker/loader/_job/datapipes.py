"""torch's DataPipes, for as long as torch has them: shuffled, seeded and shared out by torch's own functions."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from stoker._core.worker_info import current

Init = Callable[[int], object]


def is_iter(dataset: Any) -> bool:
    """Returns whether the dataset is an IterDataPipe."""
    return _is_pipe(dataset, "IterDataPipe")


def _is_pipe(dataset: Any, *names: str) -> bool:
    data = sys.modules.get("torch.utils.data")
    return isinstance(dataset, tuple(kind for name in names if (kind := getattr(data, name, None)) is not None))


def set_shuffle(dataset: Any, shuffle: bool | None) -> None:
    """Switches the shufflers of an IterDataPipe on or off; None leaves them. As in torch, none is added."""
    if shuffle is not None:
        _settings().apply_shuffle_settings(dataset, shuffle=shuffle)


def seed(dataset: Any, number: int) -> None:
    """Gives seeds that follow from a number to all that draws random numbers in an IterDataPipe."""
    import torch

    _settings().apply_random_seed(dataset, torch.Generator().manual_seed(number))


def agreed(number: int) -> int:
    """Returns the number of rank 0, where `torch.distributed` runs: all ranks shuffle alike before they share out."""
    import torch

    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return number
    tensor = torch.tensor(number)
    group = dist.new_group(backend="gloo")
    dist.broadcast(tensor, src=0, group=group)
    dist.destroy_process_group(group)
    return int(tensor.item())


def shards(dataset: Any) -> bool:
    """Returns whether the dataset is a DataPipe with a `sharding_filter`, or another pipe that can be shared out."""
    if not _is_pipe(dataset, "IterDataPipe", "MapDataPipe"):
        return False
    from torch.utils.data.graph import traverse_dps

    pipes = _settings().get_all_graph_pipes(traverse_dps(dataset))
    return any(inspect.ismethod(getattr(pipe, "apply_sharding", None)) for pipe in pipes)


def shard_here(dataset: Any) -> None:
    """Leaves in a DataPipe the share of this rank, for a loader without workers."""
    if shards(dataset):
        _settings().apply_sharding(dataset, *_ranks())


def sharing_out(dataset: Any, init_fn: Init | None) -> Init | None:
    """Returns a `worker_init_fn` that leaves in a DataPipe the share of its rank and worker, and then calls `init_fn`;
    `init_fn` itself for other datasets."""
    return functools.partial(_share_out, *_ranks(), init_fn) if shards(dataset) else init_fn


def prepares_workers(options: Any) -> bool:
    """Returns whether each worker of the loader is prepared by a function of its number."""
    return options.worker_init_fn is not None or shards(options.dataset)


def _share_out(ranks: int, rank: int, init_fn: Init | None, worker: int) -> None:
    info: Any = current.info
    # Among the ranks first: a rank's workers have neighbouring shares of its share
    _settings().apply_sharding(info.dataset, info.num_workers * ranks, worker * ranks + rank)
    if init_fn is not None:
        init_fn(worker)


def _ranks() -> tuple[int, int]:
    """Returns the number of ranks, and this one's."""
    import torch.distributed as dist

    return (dist.get_world_size(), dist.get_rank()) if dist.is_available() and dist.is_initialized() else (1, 0)


def _settings() -> Any:
    import torch.utils.data.graph_settings

    return torch.utils.data.graph_settings
