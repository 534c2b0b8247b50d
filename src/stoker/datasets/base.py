"""The two kinds of dataset: samples by index, and samples as a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stoker._core import nominal
from stoker.datasets.described import described

if TYPE_CHECKING:
    from stoker.datasets.chain import ChainDataset, ConcatDataset

T_co = TypeVar("T_co", covariant=True)


class Dataset(nominal.base("Dataset"), Generic[T_co]):  # type: ignore[misc]  # the base is chosen at run time
    """Samples by index: a subclass defines `__getitem__`, and `__len__` unless its sampler needs none.

    A subclass may also define `__getitems__(indices) -> list`, which returns a sample for each index; a loader then
    calls it once for a whole batch. The loader does not require this class: any object with these methods is a dataset.
    Each worker process reads its own copy, and threads share one, so `__getitem__` must be thread safe only if threads
    are requested.

    With the class attribute `stoker_protocol = True`, the loader also calls `set_epoch(epoch)` before each epoch, and
    uses `gather`, `describe` and `fingerprint`: see the guide on moving from torch.
    """

    def __getitem__(self, index: Any) -> T_co:
        """Returns the sample at `index`.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Returns this dataset followed by `other`."""
        from stoker.datasets.chain import ConcatDataset  # torch defines `+` too; a local import avoids a cycle

        return ConcatDataset([self, other])

    def __repr__(self) -> str:
        return described(self)


class IterableDataset(Dataset[T_co], nominal.base("IterableDataset"), Iterable[T_co]):  # type: ignore[misc]
    """Samples as a stream: a subclass defines `__iter__`, and `__len__` only if it knows the length.

    Each worker iterates over its own copy. `stoker.get_worker_info()`, called before the first sample, identifies the
    worker's share. The attribute `shards_itself` of a subclass declares whether it gives only that share (True) or
    relies on the loader to divide its samples (False); without it, the loader guesses and warns. With `stoker_protocol
    = True`, the loader calls its `shard(num_shards, index)` instead, and `set_epoch(epoch)` before each epoch.
    """

    def __add__(self, other: Dataset[Any]) -> ChainDataset[Any]:
        """Returns this stream followed by `other`."""
        from stoker.datasets.chain import ChainDataset

        return ChainDataset([self, other])


def is_stream(dataset: object) -> bool:
    """Returns whether `dataset` is an `IterableDataset`, Stoker's or torch's."""
    if isinstance(dataset, IterableDataset):
        return True
    # Our class is not derived from torch's if torch was imported after this module.
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)
