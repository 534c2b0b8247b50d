"""Iterators under `stoker.install()`: those that a loader's own class makes, and what they are in name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import stoker
from stoker._core.worker_info import current

torch = pytest.importorskip("torch")
torchs = torch.utils.data.dataloader
DataLoader = torch.utils.data.DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:thread '.*' of this process"),  # the frameworks of other tests start threads
]


class Asking(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, int(current.info is not None)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < 12:
            self.place += 1
            yield self.place - 1, int(current.info is not None)
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.place = state_dict["place"]


class Wrapped:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.inner)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.inner._reset(loader, first_iter)


class Counting(DataLoader[Any]):
    """Counts the iterators that it makes. `wrap` is called with each."""

    made = 0

    def __init__(self, dataset: Any, wrap: Any = Wrapped, **options: Any) -> None:
        super().__init__(dataset, 4, num_workers=1, **options)
        self.wrap = wrap

    def _get_iterator(self) -> Any:
        self.made += 1
        return self.wrap(super()._get_iterator())


def samples(loader: Any) -> list[int]:
    """Returns the samples of an epoch, each made by a worker of Stoker's."""
    batches = list(loader)
    assert all(made_by.all() for _, made_by in batches)
    return [index for indices, _ in batches for index in indices.tolist()]


@pytest.fixture
def installed() -> Iterator[stoker.Installation]:
    with stoker.install(images=False) as installation:
        yield installation


@pytest.mark.parametrize("wrap", [Wrapped, lambda inner: inner], ids=["wrapped", "as it is"])
@pytest.mark.parametrize(("persistent", "made"), [(False, 3), (True, 1)])
def test_a_class_makes_one_persistent_iterator(
    persistent: bool, made: int, wrap: Any, installed: stoker.Installation
) -> None:
    loader = Counting(Asking(), wrap, persistent_workers=persistent)
    assert [samples(loader) for _ in range(3)] == [list(range(12))] * 3
    assert loader.made == made
    loader._iterator = None


def test_it_goes_on_from_a_loaded_state(installed: stoker.Installation) -> None:
    loader = Counting(Asking(), persistent_workers=True)
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    assert samples(running) == list(range(4, 12))
    loader.load_state_dict(state)
    assert samples(loader) == list(range(4, 12))
    assert loader.made == 1
    loader._iterator = None


def test_a_stream_goes_on_from_a_loaded_state_with_new_workers(installed: stoker.Installation) -> None:
    loader = Counting(Stream(), persistent_workers=True)
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    assert samples(running) == list(range(4, 12))
    loader.load_state_dict(state)
    assert samples(loader) == list(range(4, 12))
    assert loader.made == 2
    loader._iterator = None


def test_iterator_of_a_class_that_was_closed_is_made_anew(installed: stoker.Installation) -> None:
    loader = Counting(Asking(), lambda inner: inner, persistent_workers=True)
    assert samples(loader) == list(range(12))
    loader._iterator.close()
    assert samples(loader) == list(range(12))
    assert loader.made == 2
    loader._iterator = None
    assert samples(loader) == list(range(12))
    assert loader.made == 3
    loader._iterator = None


def test_torchs_iterator_of_a_class_is_kept_too(installed: stoker.Installation) -> None:
    """As in Lightning's own tests: the class makes an iterator of torch's kind, and it is asked for once."""

    class OfTorch(torchs._MultiProcessingDataLoaderIter):  # type: ignore[misc]
        pass

    class Own(Counting):
        def _get_iterator(self) -> Any:
            self.made += 1
            return OfTorch(self)

    loader = Own(Asking(), persistent_workers=True)
    with pytest.warns(stoker.StokerWarning, match="OfTorch") as told:
        for _ in range(2):
            assert [index for indices, _ in loader for index in indices.tolist()] == list(range(12))
    assert len(told) == 1
    assert loader.made == 1
    assert isinstance(loader._iterator, OfTorch)
    del loader._iterator  # as Lightning's teardown does
    loader._iterator = None


@pytest.mark.parametrize("wrap", [Wrapped, lambda inner: inner], ids=["wrapped", "as it is"])
def test_undo_gives_such_a_class_torchs_iterator(wrap: Any) -> None:
    with stoker.install(images=False):
        loader = Counting(Asking(), wrap, persistent_workers=True)
        assert samples(loader) == list(range(12))
    assert not any(made_by.any() for _, made_by in loader)
    assert loader.made == 2
    getattr(loader._iterator, "inner", loader._iterator)._shutdown_workers()
    loader._iterator = None


@pytest.mark.parametrize("kind", [DataLoader, stoker.DataLoader])
def test_iterators_are_torchs_in_name(kind: Any, installed: stoker.Installation) -> None:
    """Lightning leaves instances of torch's base class out when it pickles a loader of loaders in mid-epoch."""
    iterator = iter(kind(Asking(), 4))
    assert isinstance(iterator, torchs._BaseDataLoaderIter)
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            copied(iterator)
    theirs = {name for name, value in vars(torchs._BaseDataLoaderIter).items() if callable(value)}
    own = {name for base in type(iterator).__mro__ if base.__module__.startswith("stoker.") for name in vars(base)}
    assert theirs - own <= {"_next_index", "_next_data"}, "no behaviour is torch's"
