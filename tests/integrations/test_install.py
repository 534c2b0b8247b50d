"""`stoker.install()` reaches each holder of torch's class, and undo gives each back: the dataset asks who reads it."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import pickle
import types
from collections.abc import Iterator
from typing import Any

import pytest

import stoker
from stoker._core.worker_info import current

torch = pytest.importorskip("torch")
data = torch.utils.data
DataLoader = data.DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:thread '.*' of this process"),  # the frameworks of other tests start threads
]

SAMPLES = 12
HELD: dict[str, Any] = {"registry": DataLoader}


def engine() -> int:
    """Returns 1 in a sample that Stoker makes, with or without workers, and 0 in torch's."""
    return int(current.info is not None or current.rng is not None)


class Asking(data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index), engine()


def served(loader: Any) -> tuple[list[int], set[int]]:
    """Returns the samples of an epoch in order, and the engines that made them."""
    samples: list[int] = []
    engines: set[int] = set()
    for indices, made_by in loader:
        samples += indices.tolist()
        engines |= set(made_by.tolist())
    return samples, engines


def is_ours(loader: Any) -> bool:
    """Returns whether Stoker made an epoch. Each sample comes once, from either engine."""
    samples, engines = served(loader)
    assert sorted(samples) == list(range(SAMPLES))
    assert len(engines) == 1
    return engines == {1}


def by_default(dataset: Any, kind: Any = DataLoader) -> Any:
    return kind(dataset, 4, num_workers=2)


def closed_over(kind: Any = DataLoader) -> Any:
    return lambda dataset: kind(dataset, 4, num_workers=2)


class Factory:
    loader = DataLoader


class Sub(DataLoader[Any]):
    def __init__(self, dataset: Any, extra: int = 1) -> None:
        super().__init__(dataset, 4, num_workers=2)
        self.extra = extra

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


class SubSub(Sub):
    pass


class ByHeldName(DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        HELD["registry"].__init__(self, dataset, 4, num_workers=2)


class Mixin:
    extra = 1


class Mixed(Mixin, DataLoader[Any]):
    pass


class OwnNames(DataLoader[Any]):
    """Has attributes of its own under names that Stoker's loader has."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, 4, num_workers=2)
        self.seed, self.rank, self.output, self.distributed, self._stoker = 3, 1, "logits", True, "mine"

    def report(self) -> str:
        return "mine"


class Wrapped:
    """An iterator around torch's, as PyTorch Geometric's loaders make it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.inner)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.inner._reset(loader, first_iter)


class OwnIterator(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return Wrapped(super()._get_iterator())


class Repeat:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader[Any]):
    """As YOLO's training scripts have it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield next(self.iterator)


MADE_BEFORE = {
    "plain": DataLoader(Asking(), 4, num_workers=2, shuffle=True),
    "subclass": Sub(Asking()),
    "context": DataLoader(Asking(), 4, num_workers=2, multiprocessing_context="fork", persistent_workers=True),
}
PICKLED_BEFORE = pickle.dumps(MADE_BEFORE["plain"])
WAYS: dict[str, Any] = {
    "module attribute": lambda: torch.utils.data.DataLoader(Asking(), 4, num_workers=2),
    "own global": lambda: DataLoader(Asking(), 4, num_workers=2),
    "without workers": lambda: DataLoader(Asking(), 4),
    "default argument": lambda: by_default(Asking()),
    "partial": lambda: functools.partial(DataLoader, batch_size=4, num_workers=2)(Asking()),
    "closure": lambda: closed_over()(Asking()),
    "class attribute": lambda: Factory.loader(Asking(), 4, num_workers=2),
    "registry": lambda: HELD["registry"](Asking(), 4, num_workers=2),
    "constructor by a held name": lambda: ByHeldName(Asking()),
    "subclass": lambda: Sub(Asking()),
    "sub-subclass": lambda: SubSub(Asking()),
    "generic": lambda: DataLoader[int](Asking(), 4, num_workers=2),
    "mixin": lambda: Mixed(Asking(), 4, num_workers=2),
    "names of ours": lambda: OwnNames(Asking()),
    "iterator of its own": lambda: OwnIterator(Asking(), 4, num_workers=2),
    "one iterator for ever": lambda: Infinite(Asking(), 4, num_workers=2),
    "defined later": lambda: type("Later", (HELD["registry"],), {})(Asking(), 4, num_workers=2),
    "made before": lambda: MADE_BEFORE["plain"],
    "subclass made before": lambda: MADE_BEFORE["subclass"],
    "context made before": lambda: MADE_BEFORE["context"],
    "pickled before": lambda: pickle.loads(PICKLED_BEFORE),
    "pickled": lambda: pickle.loads(pickle.dumps(DataLoader(Asking(), 4, num_workers=2))),
    "copy": lambda: copy.copy(DataLoader(Asking(), 4, num_workers=2)),
    "deep copy": lambda: copy.deepcopy(Sub(Asking())),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_holder_of_the_class_is_ours(way: str, installed: stoker.Installation) -> None:
    loader = WAYS[way]()
    assert len(loader) == 3
    assert is_ours(loader)
    assert is_ours(loader), "a second epoch"


@pytest.mark.parametrize("way", WAYS)
def test_each_holder_of_the_class_is_torchs_again(way: str) -> None:
    with stoker.install(images=False):
        meanwhile = WAYS[way]()
        served(meanwhile)
    if way != "one iterator for ever":  # it keeps the iterator that it has
        assert not is_ours(meanwhile)
    assert not is_ours(WAYS[way]())
    if meanwhile._iterator is not None:
        meanwhile._iterator._shutdown_workers()
        meanwhile._iterator = None


def test_class_stays_torchs_object(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking())
    assert type(loader) is DataLoader is HELD["registry"] is torch.utils.data.DataLoader
    assert pickle.loads(pickle.dumps(DataLoader)) is DataLoader
    assert isinstance(MADE_BEFORE["subclass"], DataLoader)
    own = {name for name in vars(DataLoader) if not name.startswith("_")}
    assert own - {"check_worker_number_rationality", "multiprocessing_context"} == {"state_dict", "load_state_dict"}


def test_undo_restores_the_class() -> None:
    iterators = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    before = dict(vars(DataLoader))
    stoker.install(images=False).undo()
    assert dict(vars(DataLoader)) == before
    assert not hasattr(DataLoader, "state_dict")
    assert is_ours(DataLoader(Asking(), 4, num_workers=1)) is False
    assert isinstance(iter(DataLoader(Asking(), 4, num_workers=1)), iterators)


def test_twice_is_once() -> None:
    with stoker.install(images=False) as first:
        assert stoker.install(images=False) is first
        with stoker.install(images=False):
            assert is_ours(DataLoader(Asking(), 4))
        assert is_ours(DataLoader(Asking(), 4)), "the inner block ended, the outer one has not"
        assert "undone" not in repr(first)
    assert not is_ours(DataLoader(Asking(), 4))
    assert "undone" in repr(first)
    first.undo()
    with stoker.install(images=False) as second:
        first.undo()  # of an installation that is no more
        assert second is not first
        assert is_ours(DataLoader(Asking(), 4, num_workers=1))


def test_module_that_binds_the_class_meanwhile_is_torchs_later() -> None:
    later = types.ModuleType("later")
    with stoker.install(images=False):
        exec("from torch.utils.data import DataLoader", later.__dict__)
        assert is_ours(later.DataLoader(Asking(), 4, num_workers=1))
    assert not is_ours(later.DataLoader(Asking(), 4, num_workers=1))


def test_iterator_in_use_goes_on_under_torch(installed: stoker.Installation) -> None:
    installed.undo()
    running = iter(DataLoader(Asking(), 4, num_workers=1))
    first = next(running)[0].tolist()
    with stoker.install(images=False):
        samples, engines = served(running)
    assert (first + samples, engines) == (list(range(SAMPLES)), {0})


def test_persistent_workers_of_torch_make_way(installed: stoker.Installation) -> None:
    installed.undo()
    loader = DataLoader(Asking(), 4, num_workers=1, persistent_workers=True)
    assert not is_ours(loader)
    with stoker.install(images=False):
        assert is_ours(loader)
        gc.collect()
        assert is_ours(loader)


@pytest.mark.parametrize("persistent", [False, True])
def test_undo_in_mid_epoch_lets_the_epoch_end(persistent: bool) -> None:
    installation = stoker.install(images=False)
    loader = DataLoader(Asking(), 4, num_workers=1, persistent_workers=persistent)
    running = iter(loader)
    first = next(running)[0].tolist()
    installation.undo()
    samples, engines = served(running)
    assert (first + samples, engines) == (list(range(SAMPLES)), {1})
    del running
    assert not is_ours(loader)
    if persistent:
        loader._iterator._shutdown_workers()


def test_setting_the_iterator_to_none_ends_workers(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking(), 4, num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    assert is_ours(loader)
    children = multiprocessing.active_children  # ours are not multiprocessing's
    hidden = stoker.loader_of(loader)
    assert hidden is not None and loader._iterator is hidden._iterator is not None and not children()
    kept = loader._iterator
    loader._iterator = None  # as Lightning's teardown does
    assert loader._iterator is None and not kept.is_open
    assert is_ours(loader)


def test_attribute_set_later_is_followed(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking(), 4, num_workers=1)
    assert is_ours(loader)
    before = stoker.loader_of(loader)
    assert stoker.loader_of(loader) is before
    loader.collate_fn = lambda samples: (torch.tensor([-int(i) for i, _ in samples]), torch.ones(len(samples)))
    assert served(loader)[0] == [-i for i in range(SAMPLES)]
    assert stoker.loader_of(loader) is not before
    loader.num_workers, loader.prefetch_factor = 0, None
    assert served(loader)[0] == [-i for i in range(SAMPLES)]


def test_loaded_state_survives_a_new_attribute(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking(), 4, num_workers=1)
    running = iter(loader)
    next(running)
    loader.load_state_dict(loader.state_dict())
    loader.num_workers = 2
    assert served(loader)[0] == list(range(4, SAMPLES))


def test_loader_of_gives_the_loader_behind(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking(), 4, num_workers=1)
    hidden = stoker.loader_of(loader)
    assert isinstance(hidden, stoker.DataLoader) and "12 samples" in hidden.describe()
    assert is_ours(loader)
    assert hidden.report().as_dict()["total"]["delivered"] == SAMPLES
    ours = stoker.DataLoader(Asking(), 4)
    assert stoker.loader_of(ours) is ours
    with pytest.raises(TypeError, match="loader_of needs"):
        stoker.loader_of([1])
    installed.undo()
    assert stoker.loader_of(loader) is None


def test_constructor_never_called_is_left_alone(installed: stoker.Installation) -> None:
    class Own(DataLoader[Any]):
        def __init__(self) -> None:
            self.num_workers = 2

    class OwnIter(Own):
        def __iter__(self) -> Iterator[Any]:
            return iter([1, 2])

    assert [*iter(OwnIter())] == [1, 2]
    assert stoker.loader_of(OwnIter()) is None
    with pytest.raises(AttributeError):
        iter(Own())


def test_stokers_own_loader_is_not_touched(installed: stoker.Installation) -> None:
    loader = stoker.DataLoader(Asking(), 4, num_workers=1, persistent_workers=True)
    assert is_ours(loader) and is_ours(loader)
    assert loader._iterator is not None
    assert loader.state_dict()["kind"]["order"].startswith("SequentialSampler")
    again = pickle.loads(pickle.dumps(loader))
    assert type(again) is stoker.DataLoader and is_ours(again)
    for each in (loader, again):
        each.close()


def test_the_loader_behind_says_what_it_is(installed: stoker.Installation) -> None:
    loader = torch.utils.data.DataLoader([0, 1, 2], 2, num_workers=1)
    assert repr(stoker.loader_of(loader)) == (
        "<Stoker's engine behind a DataLoader: batches of 2 of list, num_workers=1>"
    )
    assert repr(loader) == object.__repr__(loader), "torch's class has no repr of its own"
