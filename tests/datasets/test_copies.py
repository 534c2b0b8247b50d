"""A thread's copy of a stream: its state is its own, its data is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, IterableDataset, MapDataset, from_iterable, get_worker_info
from stoker.datasets.worker_share import own_copy


class Named(IterableDataset[int]):
    """Keeps where it stands on itself, and names its shards."""

    shards_itself = True

    def __init__(self, names: Any) -> None:
        self.names = names
        self.read: dict[int, int] = {}
        self.data = np.arange(5)

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for name in self.names[first::step]:
            for line in range(self.read.get(name, 0), len(self.data)):
                self.read[name] = line + 1
                yield 100 * name + line
        self.read = {}

    def state_dict(self) -> Any:
        return {"shards": {str(name): count for name, count in self.read.items()}}

    def load_state_dict(self, state: Any) -> None:
        self.read = {int(name): count for name, count in state["shards"].items()}


def test_copies_of_streams_share_the_objects_they_hold() -> None:
    inner = Named(range(3))
    outer = MapDataset(inner, str)
    outer.both = [inner, {"again": inner}, (inner, 1), {2}]  # type: ignore[attr-defined]
    copied = own_copy(outer)
    assert copied is not outer
    assert copied.dataset is not inner
    assert copied.dataset.read is not inner.read
    assert copied.dataset.data is inner.data
    assert copied.both[0] is copied.both[1]["again"] is copied.both[2][0] is copied.dataset
    assert copied.both[3] is not outer.both[3]  # type: ignore[attr-defined]


def test_a_copy_that_is_given_the_dictionary_of_the_original() -> None:
    class Handing(Named):
        def __getstate__(self) -> Any:
            return self.__dict__

        def __setstate__(self, state: Any) -> None:
            self.__dict__ = state

    stream = Handing(range(3))
    copied = own_copy(stream)
    copied.read[1] = 2
    copied.names = []
    assert (stream.read, list(stream.names)) == ({}, [0, 1, 2])


def test_a_stream_that_holds_itself() -> None:
    stream = Named([1])
    stream.names = [stream]
    assert own_copy(stream).names[0] is not stream


def test_networks_and_other_objects_are_shared() -> None:
    torch = pytest.importorskip("torch")

    class Reader:
        position = 0

    stream: Any = from_iterable(range, 3)
    stream.network, stream.reader = torch.nn.Linear(1, 1), Reader()
    copied = own_copy(stream)
    assert copied.network is stream.network
    assert copied.reader is stream.reader


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("others", [{}, {"num_workers": 3}, {"num_workers": 4, "worker_method": "thread"}], ids=str)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_threads_resume_a_dataset_that_holds_its_own_state(wrapped: bool, threads: int, others: Any) -> None:
    def loader(**how: Any) -> DataLoader[Any]:
        dataset = MapDataset(Named(range(4)), int) if wrapped else Named(range(4))
        return DataLoader(dataset, 2, collate_fn=list, **how)

    first = loader(num_workers=threads, worker_method="thread")
    batches = iter(first)
    seen = [sample for _ in range(4) for sample in next(batches)]
    state = first.state_dict()
    batches.close()
    again = loader(**others)
    again.load_state_dict(state)
    seen += [sample for batch in again for sample in batch]
    assert sorted(seen) == [100 * name + line for name in range(4) for line in range(5)]
