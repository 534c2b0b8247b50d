"""`DataLoader.from_torch` of a class with behaviour of its own: refused where that decides which batches come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
data = torch.utils.data


class Skipping(data.DataLoader):  # type: ignore[misc]
    """As Accelerate's: the first batches are those that a stopped run has seen."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(super().__iter__(), 2, None)


class Transforming(data.DataLoader):  # type: ignore[misc]
    """As PyTorch Geometric's `NodeLoader`: each batch is filtered in the training process."""

    def _get_iterator(self) -> Any:
        return map(torch.neg, super()._get_iterator())


class Shorter(data.DataLoader):  # type: ignore[misc]
    def __len__(self) -> int:
        return 1


class Reordered(data.DataLoader):  # type: ignore[misc]
    @property
    def _index_sampler(self) -> Any:
        return [[3], [0]]


class Unbatched(data.DataLoader):  # type: ignore[misc]
    @property
    def _auto_collation(self) -> bool:
        return False


class NewSampler(data.DataLoader):  # type: ignore[misc]
    """Another sampler at each look."""

    @property
    def sampler(self) -> Any:
        return iter(self._given)

    @sampler.setter
    def sampler(self, given: Any) -> None:
        self.__dict__["_given"] = given


class Inherited(Skipping):
    """The method is a base's."""


DECIDING = {
    Skipping: "__iter__",
    Transforming: "_get_iterator",
    Shorter: "__len__",
    Reordered: "_index_sampler",
    Unbatched: "_auto_collation",
    NewSampler: "sampler",
    Inherited: r"__iter__, which .*Skipping defines,",
}


@pytest.mark.parametrize("kind", DECIDING, ids=lambda kind: kind.__name__)
def test_a_class_that_decides_its_batches_is_refused(kind: Any) -> None:
    theirs = kind(range(8), batch_size=2)
    with pytest.raises(TypeError, match=rf"cannot take over .*{kind.__name__}: its {DECIDING[kind]}.* would be lost"):
        stoker.DataLoader.from_torch(theirs)


def test_a_method_of_the_object_itself_is_refused() -> None:
    theirs = data.DataLoader(range(8))
    theirs._get_iterator = lambda: iter([1])
    with pytest.raises(TypeError, match="its _get_iterator would be lost"):
        stoker.DataLoader.from_torch(theirs)


class Adapter:
    """As Accelerate's of today: a torch loader by its `__class__` alone, whose attributes are those of one in it."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader

    @property
    def __class__(self) -> Any:
        return data.DataLoader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base_dataloader, name)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.base_dataloader), 2, None)


def test_a_loader_that_is_torchs_by_name_alone_is_refused() -> None:
    theirs = Adapter(data.DataLoader(range(8)))
    assert isinstance(theirs, data.DataLoader)
    with pytest.raises(TypeError, match="Adapter: its __iter__ would be lost"):
        stoker.DataLoader.from_torch(theirs)
    assert len(list(stoker.DataLoader.from_torch(theirs.base_dataloader))) == 8


class Collating(data.DataLoader):  # type: ignore[misc]
    """As PyTorch Geometric's `DataLoader` and MONAI's: its constructor sets arguments, and it has methods beside."""

    def __init__(self, dataset: Any, batch_size: int = 1, follow: Any = None, **settings: Any) -> None:
        self.follow = follow
        super().__init__(dataset, batch_size, collate_fn=self.joined, **settings)

    def joined(self, samples: list[Any]) -> Any:
        return [self.follow, *samples]

    def __call__(self) -> None:
        pass

    def __repr__(self) -> str:
        return "Collating()"


def test_a_class_that_only_sets_arguments_is_taken_over() -> None:
    theirs = Collating(range(5), 2, follow="x", shuffle=False)
    assert list(stoker.DataLoader.from_torch(theirs)) == list(theirs) == [["x", 0, 1], ["x", 2, 3], ["x", 4]]


def test_a_class_that_has_the_method_too_takes_it_over() -> None:
    class Mixin:
        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(super().__iter__(), 2, None)  # type: ignore[misc]

    class Theirs(Mixin, data.DataLoader):  # type: ignore[misc]
        pass

    class Ours(Mixin, stoker.DataLoader[Any]):
        pass

    theirs = Theirs(range(4))
    assert [batch.tolist() for batch in Ours.from_torch(theirs)] == [batch.tolist() for batch in theirs] == [[2], [3]]
    with pytest.raises(TypeError, match=r"its __iter__, which .*Mixin defines, would be lost"):
        stoker.DataLoader.from_torch(theirs)


def test_from_torch_refuses_a_subclass_of_stokers_loader() -> None:
    class Ours(stoker.DataLoader[Any]):
        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(super().__iter__(), 2, None)

    made = Ours(range(4))
    with pytest.raises(TypeError, match="its __iter__ would be lost"):
        stoker.DataLoader.from_torch(made)
    assert len(list(Ours.from_torch(made))) == 2
