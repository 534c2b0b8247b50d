"""The loaders beside torch's, each used as its own documentation recommends for the case.

Each function gives batches without end, of samples `dataset[index]` in shuffled order: `workers` of them make the
batches, threads or processes; 0 is the trainer's own thread. Where a package is not installed, ImportError says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from method import Case

NAMES = ("nodes", "Grain", "SPDL", "tf.data", "DALI", "turboloader")
Collate = Callable[[Any], Any]

NOT_INSTALLED = "not installed"
"""What stands in the place of a figure, of a rival that this machine has not."""


def left_out(cases: list[Case], *also: str) -> list[Case]:
    """The cases without these rivals, and others: what is measured in the quick form."""
    names = (*NAMES, *also)
    return [
        replace(
            case,
            rivals={name: arguments for name, arguments in case.rivals.items() if not name.startswith(names)},
            goals=[goal for goal in case.goals if not (goal.against or "").startswith(names)],
        )
        for case in cases
    ]


def nodes(dataset: Any, batch: int, workers: int, method: str = "process", fetch: Collate | None = None) -> Any:
    """torchdata's nodes, put together as its guide for those who come from torch's loader does it.

    Where a whole batch can be had at once, `fetch` makes it from its indices.
    """
    from torch.utils.data import RandomSampler, default_collate
    from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper

    fetch = fetch or Fetch(dataset, default_collate)
    node: Any = Batcher(SamplerWrapper(RandomSampler(dataset)), batch, drop_last=True)
    node = ParallelMapper(node, fetch, num_workers=workers, in_order=True, method=method)
    return _epochs(Loader(Prefetcher(node, prefetch_factor=2 * workers) if workers else node))


def grain(dataset: Any, batch: int, workers: int, in_memory: bool = False, collate: Collate | None = None) -> Any:
    """Grain: without threads that read where all lies in memory, as it recommends; with its default of 16 elsewhere.

    Samples should be made of NumPy arrays: these its processes hand over in shared memory.
    """
    from grain import MapDataset, MultiprocessingOptions, ReadOptions

    options = ReadOptions(num_threads=0, prefetch_buffer_size=0) if in_memory else None
    made = MapDataset.source(dataset).seed(0).shuffle().repeat()
    batches = made.batch(batch, batch_fn=collate).to_iter_dataset(options)
    if not workers:
        return iter(batches)
    return iter(batches.mp_prefetch(MultiprocessingOptions(num_workers=workers)))


def spdl_threads(dataset: Any, batch: int, workers: int) -> Any:
    """SPDL's loader, whose threads make samples, and collate them. Its default order is that of completion."""
    from spdl.dataloader import DataLoader
    from torch.utils.data import RandomSampler, default_collate

    source, steps = RandomSampler(dataset), {"preprocessor": dataset.__getitem__, "aggregator": default_collate}
    return _epochs(DataLoader(source, batch_size=batch, drop_last=True, num_threads=workers, **steps))


def spdl_processes(dataset: Any, batch: int, workers: int) -> Any:
    """What SPDL offers in the place of torch's loader, with processes."""
    from spdl.dataloader import get_pytorch_dataloader

    return _epochs(get_pytorch_dataloader(dataset, batch, shuffle=True, drop_last=True, num_workers=workers))


class Fetch:
    """Makes a batch from its indices."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self.dataset, self.collate = dataset, collate

    def __call__(self, indices: list[int]) -> Any:
        return self.collate([self.dataset[index] for index in indices])


def _epochs(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
