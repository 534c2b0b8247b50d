"""`stoker.install()` in the wrong place, beside other patches, with old versions, and the loaders that it leaves."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from queue import Queue
from typing import Any

import pytest

import stoker
from stoker._core.worker_info import current

torch = pytest.importorskip("torch")
data = torch.utils.data
DataLoader = data.DataLoader


class Asking(data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(current.info is not None or current.rng is not None)


def engines(loader: Any) -> set[int]:
    return {int(made_by) for batch in loader for made_by in batch}


class Installing(Asking):
    def __getitem__(self, index: int) -> int:
        stoker.install()
        return 0


@pytest.mark.parametrize("kind", [stoker.DataLoader, DataLoader])
def test_install_in_a_worker_is_refused(kind: Any) -> None:
    with pytest.raises(stoker.errors.InstallError, match="was called in worker 0"):
        list(kind(Installing(), 4, num_workers=1))
    assert not hasattr(DataLoader, "state_dict")


def test_install_in_a_thread_while_an_epoch_runs() -> None:
    running = iter(DataLoader(Asking(), 4, num_workers=1))
    first = next(running).tolist()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(stoker.install(images=False)))
    thread.start()
    thread.join()
    with found[0]:
        assert {*first, *(int(i) for batch in running for i in batch)} == {0}
        assert engines(DataLoader(Asking(), 4)) == {1}


def test_threads_that_install_at_once_get_one_object() -> None:
    barrier, found = threading.Barrier(4), []

    def install() -> None:
        barrier.wait(10)
        found.append(stoker.install(images=False))

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    found[0].undo()
    assert not hasattr(DataLoader, "state_dict")


def test_other_arguments_are_refused(installed: stoker.Installation) -> None:
    with pytest.raises(stoker.errors.InstallError, match="undo"):
        stoker.install(images=False, order="stoker")
    with pytest.raises(ValueError, match="order should be"):
        stoker.install(order="random")  # type: ignore[arg-type]
    assert stoker.install(images=False) is installed


@pytest.mark.parametrize("package", ["torch", "torchdata", "fastai"])
def test_version_that_is_too_old_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = sys.modules.get(package) or types.ModuleType(package)
    monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.setattr(module, "__version__", "0.9.1+cpu", raising=False)
    with pytest.raises(
        stoker.errors.FrameworkVersionError, match=rf"{package} 0\.9\.1\+cpu is loaded.*needs {package}"
    ):
        stoker.install(images=False)
    assert not hasattr(DataLoader, "state_dict")
    monkeypatch.setattr(module, "__version__", "99.0.dev1")
    stoker.install(images=False).undo()


# Patches of a script


def patched(name: str, log: list[str], mark: str) -> Callable[..., Any]:
    """Returns a wrapper around a method of torch's class, as frameworks put it there."""
    before = vars(DataLoader)[name]

    @functools.wraps(before)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        log.append(mark)
        return before(self, *arguments, **named)

    return wrapper


def test_replaced_get_iterator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", patched("_get_iterator", [], ""))
    before = dict(vars(DataLoader))
    with pytest.raises(stoker.errors.InstallError, match="_get_iterator was replaced by"):
        stoker.install(images=False)
    assert dict(vars(DataLoader)) == before


@pytest.mark.parametrize("persistent", [False, True])
def test_replaced_iter_stays_and_is_served(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    mine = patched("__iter__", log, "mine")
    monkeypatch.setattr(DataLoader, "__iter__", mine)
    with stoker.install(images=False):
        loader = DataLoader(Asking(), 4, num_workers=1, persistent_workers=persistent)
        assert [engines(loader) for _ in range(2)] == [{1}, {1}]
        assert log == ["mine", "mine"]
        loader._iterator = None
    assert DataLoader.__iter__ is mine


def test_patches_of_two_versions_are_left_in_any_order() -> None:
    """One before `install()`, one after it; each removed by its own code, and not in the order in which they came."""
    log: list[str] = []
    first_init, first_iter = DataLoader.__init__, DataLoader.__iter__
    DataLoader.__init__ = old = patched("__init__", log, "old")  # type: ignore[method-assign]
    installation = stoker.install(images=False)
    kept = {name: vars(DataLoader)[name] for name in ("__init__", "__iter__")}
    for name in kept:
        setattr(DataLoader, name, patched(name, log, "new " + name))
    try:
        assert engines(DataLoader(Asking(), 4, num_workers=1)) == {1}
        assert log == ["new __init__", "old", "new __iter__"]
        installation.undo()
        assert engines(DataLoader(Asking(), 4)) == {0}
        assert log[3:] == ["new __init__", "old", "new __iter__"], "the patches stayed, and torch's engine is below"
        for name, value in kept.items():
            setattr(DataLoader, name, value)  # as the newer one restores what it found: ours, which is undone
        assert DataLoader.__init__ is old and engines(DataLoader(Asking(), 4)) == {0}
        with stoker.install(images=False):
            assert engines(DataLoader(Asking(), 4)) == {1}
        assert engines(DataLoader(Asking(), 4)) == {0}
    finally:
        DataLoader.__init__, DataLoader.__iter__ = first_init, first_iter  # type: ignore[method-assign]


# Loaders that stay torch's


class Odd(DataLoader[int]):
    """Reads a list as a stream: torch's engine follows the private attribute, and Stoker refuses the contradiction."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, 4)
        self._dataset_kind = data._DatasetKind.Iterable


def test_refused_loader_stays_torchs_with_one_message(installed: stoker.Installation) -> None:
    loader = Odd([1, 2, 3, 4, 5])
    with pytest.warns(stoker.StokerWarning, match=r"Odd of a list stays on torch's engine: TypeError") as told:
        assert loader.state_dict() == {}
    assert len(told) == 1
    loader.load_state_dict({})
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[1, 2, 3, 4], [5]]
    assert type(iter(loader)).__module__ == "torch.utils.data.dataloader"
    assert stoker.loader_of(loader) is None and loader._iterator is None
    with pytest.raises(stoker.errors.StateMismatchError, match="stays on torch's"):
        loader.load_state_dict(DataLoader(Asking(), 4).state_dict())


def test_empty_state_begins_at_the_start(installed: stoker.Installation) -> None:
    loader = DataLoader(Asking(), 4)
    loader.load_state_dict({})
    assert len([*loader]) == 2


def test_foreign_state_is_refused(installed: stoker.Installation) -> None:
    with pytest.raises(stoker.errors.StateFormatError, match="no state of a Stoker loader"):
        DataLoader(Asking(), 4).load_state_dict({"_num_yielded": 3})


def test_warning_of_torchs_is_not_repeated(installed: stoker.Installation) -> None:
    with pytest.warns(UserWarning, match="will create 64 worker processes"):
        loader = DataLoader(Asking(), 4, num_workers=64)
    assert stoker.loader_of(loader) is not None, "a second warning would be an error"


# Threads


class Threads(SpawnContext):
    """As MONAI's context of threads."""

    class Process(threading.Thread):  # type: ignore[assignment]
        pid = property(id)

    class Queue(Queue):  # type: ignore[type-arg, assignment]
        def close(self) -> None:
            pass

        def cancel_join_thread(self) -> None:
            pass


class Keeping(Asking):
    """Has a lock, which no process can be sent, and a cache that the training process keeps."""

    def __init__(self) -> None:
        self.lock, self.seen = threading.Lock(), set[int]()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            self.seen.add(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [DataLoader, stoker.DataLoader])
def test_context_of_threads_gets_thread_workers(kind: Any, installed: stoker.Installation) -> None:
    dataset = Keeping()
    loader = kind(dataset, 4, num_workers=2, multiprocessing_context=Threads())
    assert engines(loader) == {1}
    assert dataset.seen == set(range(8))
    assert "threads" in (stoker.loader_of(loader) or loader).describe()


# An iterator of torch's that is called by hand


class ByHand:
    """As fastai's loader: no DataLoader, and torch's iterator class is called on it."""

    _dataset_kind, _auto_collation, collate_fn = data._DatasetKind.Iterable, False, staticmethod(lambda batch: batch)
    _IterableDataset_len_called, drop_last, in_order, pin_memory = None, False, True, False
    generator = prefetch_factor = None
    timeout, persistent_workers, pin_memory_device, num_workers = 0, False, "", 2
    multiprocessing_context = None
    secret = 42

    def __init__(self) -> None:
        self.dataset = self
        self.worker_init_fn = _reads_the_dataset

    @property
    def _index_sampler(self) -> Any:
        return iter(int, 1)

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        made_by = int(current.info is not None)
        return ((torch.tensor(i), made_by) for i in range(info.id, 8, info.num_workers))


def _reads_the_dataset(worker: int) -> None:
    assert data.get_worker_info().dataset.secret == 42


def test_iterator_called_by_hand_is_ours() -> None:
    iterators = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    given = ByHand()
    given.prefetch_factor = 2
    for _ in range(2):
        torchs = [(int(i), made_by) for i, made_by in iterators(given)]
        with stoker.install(images=False):
            ours = [(int(i), made_by) for i, made_by in iterators(given)]
            made = DataLoader(Asking(), 4, num_workers=1)
            assert engines(iterators(made)) == {1}
        assert [i for i, _ in ours] == [i for i, _ in torchs] == list(range(8))
        assert {made_by for _, made_by in ours} == {1} and {made_by for _, made_by in torchs} == {0}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # torch forks; Python 3.12 and later warn
def test_unknown_object_keeps_torchs_iterator(installed: stoker.Installation) -> None:
    given = ByHand()
    given.prefetch_factor, given._auto_collation = 2, True
    with pytest.warns(stoker.StokerWarning, match=r"ByHand stays on torch's engine"):
        iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter(given)
    assert type(iterator).__module__ == "torch.utils.data.dataloader"
    iterator._shutdown_workers()


def test_loader_that_cannot_send_what_torch_forks_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean workers were chosen because the dataset names JAX, which has started."""
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))

    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.backend = "jax"

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    torch.manual_seed(0)
    with stoker.install():
        loader = DataLoader(Locked(), num_workers=1, shuffle=True)
        with pytest.warns(
            stoker.StokerWarning, match=r"Locked stays on torch's engine: CannotSendError: .*lock"
        ) as told:
            found = [[batch.tolist() for batch in loader] for _ in range(2)]
        assert len(told) == 1
    torch.manual_seed(0)
    loader = DataLoader(Locked(), num_workers=1, shuffle=True)
    assert found == [[batch.tolist() for batch in loader] for _ in range(2)]


class OwnWorkers(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    pass


class OwnIterators(DataLoader[int]):
    """As litdata's `StreamingDataLoader`."""

    def _get_iterator(self) -> Any:
        return OwnWorkers(self) if self.num_workers else torch.utils.data.dataloader._SingleProcessDataLoaderIter(self)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # torch forks; Python 3.12 and later warn
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_loader_with_iterators_of_its_own_says_so(options: Any, installed: stoker.Installation) -> None:
    loader = OwnIterators(Asking(), 4, **options)
    with pytest.warns(
        stoker.StokerWarning, match="OwnIterators of a Asking stays on torch's engine: its class"
    ) as told:
        assert [engines(loader) for _ in range(2)] == [{0}, {0}]
    assert len(told) == 1 and stoker.loader_of(loader) is None and loader.state_dict() == {}
    loader._iterator = None
