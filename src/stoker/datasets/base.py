"""The two contracts: samples by index, and samples as a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stoker import _nominal

if TYPE_CHECKING:
    from stoker.datasets.chain import ChainDataset
    from stoker.datasets.concat import ConcatDataset

T_co = TypeVar("T_co", covariant=True)


class Dataset(_nominal.base("Dataset"), Generic[T_co]):  # type: ignore[misc]  # the base is chosen at run time
    """Samples by index: a subclass has `__getitem__`, and `__len__` unless its sampler needs none.

    A subclass may have `__getitems__(indices) -> list` beside it: a loader then asks once for a whole batch, of a
    sample for each index. The loader does not require this class: anything with these methods is a dataset. Workers
    read their own copy each (threads share one), so `__getitem__` must be thread safe only where threads are asked for.
    """

    def __getitem__(self, index: Any) -> T_co:
        """Returns the sample at `index`.

        Raises:
            NotImplementedError: the subclass has not written it.
        """
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Returns this dataset followed by `other`."""
        from stoker.datasets.concat import ConcatDataset  # `+` is torch's, and must name a leaf

        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co], _nominal.base("IterableDataset"), Iterable[T_co]):  # type: ignore[misc]
    """Samples as a stream: a subclass has `__iter__`, and `__len__` only if it knows it.

    Each worker iterates over a copy of its own. `stoker.get_worker_info()`, asked before the first sample, says which
    share is meant for it.
    """

    def __add__(self, other: Dataset[Any]) -> ChainDataset[Any]:
        """Returns this stream followed by `other`."""
        from stoker.datasets.chain import ChainDataset

        return ChainDataset([self, other])


def is_stream(dataset: object) -> bool:
    """Whether `dataset` is an `IterableDataset`, ours or torch's."""
    if isinstance(dataset, IterableDataset):
        return True
    # Not by our base: it is a plain one where torch was imported only after this module.
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)
