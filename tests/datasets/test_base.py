from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from stoker.datasets import ChainDataset, ConcatDataset, Dataset, IterableDataset
from stoker.datasets.base import is_stream


class Squares(Dataset[int]):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def __getitem__(self, index: int) -> int:
        return index * index

    def __len__(self) -> int:
        return self.n


class Counter(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


def test_abstract_dataset_names_the_missing_method() -> None:
    with pytest.raises(NotImplementedError, match=r"Subclasses of Dataset should implement __getitem__\."):
        Dataset()[0]
    with pytest.raises(TypeError):
        len(Dataset())  # type: ignore[arg-type]
    assert not hasattr(Dataset, "__getitems__")


def test_a_stream_that_is_not_written_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        IterableDataset()  # type: ignore[abstract]


def test_plus_concatenates() -> None:
    both = Squares(2) + Squares(3)
    assert isinstance(both, ConcatDataset)
    assert [both[i] for i in range(5)] == [0, 1, 0, 1, 4]
    streams = Counter(2) + Counter(1)
    assert isinstance(streams, ChainDataset)
    assert list(streams) == [0, 1, 0]


def test_streams_and_map_datasets_are_distinguished() -> None:
    assert is_stream(Counter(1))
    assert not is_stream(Squares(1))
    assert not is_stream([1])


def test_torchs_streams_are_streams() -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Theirs(torch_data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter([7])

    assert is_stream(Theirs())


def test_classes_may_be_subscribed_and_pickled() -> None:
    assert Dataset[int] is not None
    assert ConcatDataset[str] is not None
    assert pickle.loads(pickle.dumps(Squares(4)))[3] == 9
