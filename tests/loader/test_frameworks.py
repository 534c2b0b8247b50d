"""What frameworks and training scripts do to a loader: ask what it is, rebuild it, subclass it, keep its iterator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU

BACKENDS = pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str
)


def epoch(loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch]


# Nominal


def test_ours_are_theirs_by_name() -> None:
    class Stream(stoker.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([])

    assert isinstance(stoker.DataLoader([1]), data.DataLoader)
    assert isinstance(stoker.DataLoader([1]).sampler, data.SequentialSampler)
    assert isinstance(stoker.DataLoader([1], shuffle=True).sampler, data.RandomSampler)
    assert isinstance(stoker.DataLoader([1]).batch_sampler, data.BatchSampler)
    assert isinstance(Stream(), data.IterableDataset)
    assert stoker.DataLoader(Stream())._dataset_kind == data._DatasetKind.Iterable
    assert stoker.DataLoader([1])._dataset_kind == data._DatasetKind.Map


def test_no_behaviour_is_shared_with_torchs_loader() -> None:
    theirs = {name for name, value in vars(data.DataLoader).items() if callable(value) or isinstance(value, property)}
    kept = {"__class_getitem__", "__init_subclass__"}
    assert theirs - set(vars(stoker.DataLoader)) - kept == set()


def test_ours_and_torchs_parts_go_together() -> None:
    ours, theirs = stoker.TensorDataset(torch.arange(6)), data.TensorDataset(torch.arange(6))
    for kind in (stoker.DataLoader, data.DataLoader):
        for dataset in (ours, theirs):
            for sampler in (stoker.SequentialSampler(dataset), data.SequentialSampler(dataset)):
                for batches in (stoker.BatchSampler(sampler, 4, True), data.BatchSampler(sampler, 4, True)):
                    assert [batch[0].tolist() for batch in kind(dataset, batch_sampler=batches)] == [[0, 1, 2, 3]]
    assert epoch(data.DataLoader(range(3), collate_fn=stoker.default_collate)) == [0, 1, 2]


def test_every_argument_of_torchs_loader_is_ours() -> None:
    """Fails the day that torch has another, such as `use_shared_memory`."""
    ours = inspect.signature(stoker.DataLoader).parameters
    for name, parameter in inspect.signature(data.DataLoader).parameters.items():
        assert ours[name].kind is parameter.kind and ours[name].default == parameter.default, name


# Rebuilding a loader from its attributes


def rebuilt(loader: Any, sampler: Any) -> Any:
    """As Lightning does it: what differs from the constructor's defaults, and another sampler."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = dict(inspect.signature(type(loader).__init__).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        parameters |= inspect.signature(stoker.DataLoader.__init__).parameters
    arguments = {
        name: attributes[name]
        for name, parameter in parameters.items()
        if name in attributes and (name == "dataset" or parameter.default != attributes[name])
    }
    batches = loader.batch_sampler
    if batches is not None and type(batches) not in (stoker.BatchSampler, data.BatchSampler):
        arguments |= {"batch_sampler": type(batches)(sampler, batches.batch_size, batches.drop_last)}
        arguments |= {"sampler": None, "batch_size": 1, "drop_last": False, "shuffle": False}
    elif isinstance(loader.dataset, data.IterableDataset):
        arguments |= {"sampler": None, "batch_sampler": None}
    else:
        arguments |= {"sampler": sampler, "shuffle": False, "batch_sampler": None}
    return type(loader)(**arguments)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"batch_size": 3, "drop_last": True, "seed": 1, "shuffle": True},
    {"batch_size": None},
    {"num_workers": 1, "threads_per_worker": 3, "multiprocessing_context": "fork"},
    {"num_workers": 1, "prefetch_factor": 4, "multiprocessing_context": "fork", "worker_init_fn": print},
    {"num_workers": 1, "worker_method": "thread", "seeding": "sample", "output": "numpy", "timeout": 9},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_loader_is_rebuilt_from_its_attributes(settings: dict[str, Any]) -> None:
    loader = stoker.DataLoader(range(10), **settings)
    again = rebuilt(loader, data.DistributedSampler(range(10), 2, 1, shuffle=False))
    assert type(again) is stoker.DataLoader
    ours, theirs = vars(loader), vars(again)
    for name in inspect.signature(stoker.DataLoader).parameters.keys() - {"sampler", "batch_sampler", "shuffle"}:
        assert ours[name] == theirs[name], name
    expected = [1, 3, 5] if loader.drop_last else [1, 3, 5, 7, 9]
    assert [int(i) for batch in again for i in (batch if loader.batch_size else [batch])] == expected


def test_a_loader_is_rebuilt_with_another_batch_sampler_alone() -> None:
    """As Ignite does it: all attributes that have no underscore, but those that a batch sampler replaces."""
    loader = stoker.DataLoader(range(10), 4, shuffle=True, drop_last=True, seed=1)
    replaced = ("batch_size", "sampler", "drop_last", "batch_sampler")
    arguments = {name: value for name, value in vars(loader).items() if name[0] != "_" and name not in replaced}
    again = stoker.DataLoader(**arguments, batch_sampler=[[1, 2], [3]])
    assert [batch.tolist() for batch in again] == [[1, 2], [3]]
    assert epoch(stoker.DataLoader(**arguments, batch_sampler=loader.batch_sampler)) == epoch(loader)


def test_torchs_loader_is_built_from_ours() -> None:
    """As Accelerate does it: torch's arguments, read one by one, into a loader of torch's."""
    names = set(inspect.signature(data.DataLoader).parameters)
    names -= {"sampler", "batch_sampler", "shuffle", "batch_size", "drop_last"}
    loader = stoker.DataLoader(range(10), 3, shuffle=True, num_workers=1, persistent_workers=True)
    arguments = {name: getattr(loader, name) for name in names}
    theirs = data.DataLoader(**arguments, batch_sampler=loader.batch_sampler)
    assert theirs.multiprocessing_context is None
    arguments |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
    assert sorted(epoch(data.DataLoader(**arguments, batch_sampler=loader.batch_sampler))) == list(range(10))


# Subclasses


class Repeat:
    """A sampler that never ends, as those wrap around who keep one iterator for ever."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class InfiniteLoader(stoker.DataLoader[Any]):
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


class MultiEpochsLoader(stoker.DataLoader[Any]):
    """As timm has it: torch's private flag is switched off meanwhile."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        if self.batch_sampler is None:
            self.sampler = Repeat(self.sampler)
        else:
            self.batch_sampler = Repeat(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.sampler.sampler) if self.batch_sampler is None else len(self.batch_sampler.sampler)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield next(self.iterator)


@BACKENDS
@pytest.mark.parametrize("kind", [InfiniteLoader, MultiEpochsLoader])
@pytest.mark.parametrize("shuffle", [False, True])
def test_one_iterator_of_an_endless_loop_works(kind: Any, workers: dict[str, Any], shuffle: bool) -> None:
    loader = kind(range(10), 4, shuffle=shuffle, generator=torch.Generator().manual_seed(0), **workers)
    assert len(loader) == 3
    epochs = [epoch(loader) for _ in range(3)]
    assert [sorted(numbers) for numbers in epochs] == [list(range(10))] * 3
    assert (epochs[0] == epochs[1]) is not shuffle
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3
    iterator = loader.iterator
    del loader
    iterator.close()


@BACKENDS
def test_a_dropped_infinite_loader_ends_its_workers(workers: dict[str, Any]) -> None:
    """Without the garbage collector, and without a `close`: the fixture proves it."""
    loader = InfiniteLoader(range(10), 4, **workers)
    next(iter(loader))
    del loader


@pytest.mark.parametrize("kind", [InfiniteLoader, MultiEpochsLoader])
def test_an_iterator_that_is_replaced_is_gone(kind: Any) -> None:
    import weakref

    loader = kind(range(10), 4, num_workers=1)
    first = weakref.ref(loader.iterator)
    loader.iterator = loader._get_iterator()  # YOLO's `reset`
    assert first() is None
    assert sorted(epoch(loader)) == list(range(10))


class Recovering(stoker.DataLoader[Any]):
    """As SpeechBrain has it: keeps its iterator, saves how far it has come, and walks there again."""

    skipped = 0

    def __iter__(self) -> Iterator[Any]:
        self.kept = super().__iter__()
        for _ in range(self.skipped):
            next(self.kept)
        self.skipped = 0
        return self.kept


@BACKENDS
def test_an_iterator_counts_its_batches_under_torchs_name(workers: dict[str, Any]) -> None:
    loader = Recovering(range(10), 4, persistent_workers=bool(workers), **workers)
    for _ in range(2):
        counts = [loader.kept._num_yielded for _ in loader]
        assert counts == [1, 2, 3]
        assert loader.kept._num_yielded == 3
    loader.skipped = counts[0]
    assert epoch(loader) == [4, 5, 6, 7, 8, 9]
    loader.close()


@BACKENDS
def test_workers_are_ended_by_torchs_private_name(workers: dict[str, Any]) -> None:
    """As scripts end persistent ones, whose loader they keep."""
    loader = stoker.DataLoader(range(10), 4, persistent_workers=bool(workers), **workers)
    iterator = iter(loader)
    next(iterator)
    iterator._shutdown_workers()
    assert not iterator.is_open
    assert epoch(loader) == list(range(10))
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None
    assert epoch(loader) == list(range(10))
    loader.close()


def test_single_samples_for_ever() -> None:
    loader = MultiEpochsLoader(range(3), batch_size=None)
    assert [int(sample) for _ in range(2) for sample in loader] == [0, 1, 2, 0, 1, 2]


@BACKENDS
def test_a_sampler_put_behind_the_loaders_back_is_walked(workers: dict[str, Any]) -> None:
    loader = stoker.DataLoader(range(10), 4, shuffle=True, **workers)
    object.__setattr__(loader, "batch_sampler", [[1, 2], [3]])
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    assert "walked from list" in loader.describe()
    loader = stoker.DataLoader(range(10), 4, **workers)
    loader.batch_sampler.sampler = [5, 6, 7, 8, 9]
    assert [batch.tolist() for batch in loader] == [[5, 6, 7, 8], [9]]
    loader = stoker.DataLoader(range(10), 4, **workers)
    loader.batch_sampler.batch_size = 7
    assert [len(batch) for batch in loader] == [7, 3]
    assert len(loader) == 2


def test_a_generator_given_to_the_loaders_sampler_is_obeyed() -> None:
    """Accelerate gives one to a sampler that has none, and sets its state on all ranks."""

    def order(kind: Any) -> list[int]:
        loader = kind(range(20), 4, shuffle=True)
        loader.sampler.generator = torch.Generator().manual_seed(3)
        return epoch(loader)

    assert order(stoker.DataLoader) == order(data.DataLoader)


class Counting(stoker.DataLoader[Any]):
    """Overrides what may be overridden."""

    def __init__(self, dataset: Any, *, doubled: bool, **kwargs: Any) -> None:
        self.doubled = doubled  # before the loader's own attributes, as some do
        super().__init__(dataset, **kwargs)
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for batch in super().__iter__():
            yield batch * 2 if self.doubled else batch

    def __len__(self) -> int:
        return super().__len__() * 10


@BACKENDS
def test_subclass_with_own_constructor_iter_and_len_works(workers: dict[str, Any]) -> None:
    loader = Counting(range(4), doubled=True, batch_size=2, **workers)
    for _ in range(2):
        assert epoch(loader) == [0, 2, 4, 6]
    assert (loader.begun, len(loader)) == (2, 20)
    assert isinstance(loader, data.DataLoader)


def test_a_subclass_of_both_loaders_parents() -> None:
    class Prefetching:
        """A wrapper around any loader, as fast.ai and apex have them."""

        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            batches = iter(self.loader)
            ahead = next(batches)
            for batch in batches:
                yield ahead
                ahead = batch
            yield ahead

        def __getattr__(self, name: str) -> Any:
            return getattr(self.loader, name)

    wrapped = Prefetching(stoker.DataLoader(range(6), 4, num_workers=1))
    assert epoch(wrapped) == list(range(6))
    assert wrapped.batch_size == 4


# The frameworks themselves, where they are installed


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_lightnings_own_rebuilding() -> None:
    pytest.importorskip("lightning_fabric")
    from lightning_fabric.utilities.data import (
        _get_dataloader_init_args_and_kwargs,
        _reinstantiate_wrapped_cls,
        _replace_dunder_methods,
        _update_dataloader,
        has_iterable_dataset,
    )

    loader = stoker.DataLoader(range(10), 2, shuffle=True, num_workers=1, seed=4)
    again = _update_dataloader(loader, data.DistributedSampler(range(10), 2, 0, shuffle=False))
    assert type(again) is stoker.DataLoader
    assert (again.seed, again.num_workers, again.batch_sampler.batch_size) == (4, 1, 2)
    assert epoch(again) == [0, 2, 4, 6, 8]
    assert not has_iterable_dataset(loader)
    with _replace_dunder_methods(data.DataLoader, "dataset"):
        wrapped = Counting(range(10), doubled=False, batch_size=5)
    args, kwargs = _get_dataloader_init_args_and_kwargs(wrapped, data.SequentialSampler(range(10)))
    again = _reinstantiate_wrapped_cls(wrapped, *args, **kwargs)
    assert (type(again), again.doubled, epoch(again)) == (Counting, False, list(range(10)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_accelerates_own_preparing() -> None:
    pytest.importorskip("accelerate")
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    loader = stoker.DataLoader(range(12), 2, num_workers=1)
    shares = [epoch(prepare_data_loader(loader, num_processes=2, process_index=i, put_on_device=False)) for i in (0, 1)]
    assert shares == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert epoch(skip_first_batches(stoker.DataLoader(range(6), 2), 1)) == [2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore")
def test_ignites_deterministic_engine() -> None:
    deterministic = pytest.importorskip("ignite.engine.deterministic")
    seen: list[int] = []
    engine = deterministic.DeterministicEngine(lambda _, batch: seen.extend(batch.tolist()))
    engine.run(stoker.DataLoader(range(10), 4, shuffle=True, num_workers=1), max_epochs=2)
    assert sorted(seen) == sorted([*range(10), *range(10)])
    assert seen[:10] != seen[10:]


@pytest.mark.filterwarnings("ignore")
def test_lightning_predicts_each_batch_once() -> None:
    pl = pytest.importorskip("lightning.pytorch")

    class Same(pl.LightningModule):  # type: ignore[misc, name-defined]
        def predict_step(self, batch: Any, number: int) -> Any:
            return batch

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, enable_checkpointing=False, **quiet)
    batches = trainer.predict(Same(), stoker.DataLoader(range(6), 2, num_workers=1))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


@BACKENDS
def test_a_table_of_hugging_faces_is_read_as_it_is(workers: dict[str, Any]) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"a": list(range(24)), "b": [str(number) for number in range(24)]})
    loader = stoker.DataLoader(table, 4, shuffle=True, seed=1, output="numpy", **workers)
    batches = iter(loader)
    seen = [*next(batches)["a"], *next(batches)["a"]]
    state = loader.state_dict()
    rest = list(batches)
    assert sorted(seen + [number for batch in rest for number in batch["a"]]) == list(range(24))
    assert all(list(map(str, batch["a"].tolist())) == batch["b"] for batch in rest)
    loader.load_state_dict(state)
    assert [batch["b"] for batch in loader] == [batch["b"] for batch in rest]


@BACKENDS
@pytest.mark.parametrize("around", ["bare", "shuffled by itself", "mapped and shuffled"])
def test_a_stream_of_hugging_faces_is_shared_out_once(around: str, workers: dict[str, Any]) -> None:
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"a": list(range(24))}).to_iterable_dataset(num_shards=4)
    if around == "shuffled by itself":
        stream = stream.shuffle(seed=1, buffer_size=5)
    if around == "mapped and shuffled":
        stream = stoker.ShuffleDataset(stoker.MapDataset(stream, dict), 5)
    loader = stoker.DataLoader(stream, 4, collate_fn=lambda rows: [row["a"] for row in rows], **workers)
    batches = iter(loader)
    seen = [*next(batches), *next(batches)]
    state = loader.state_dict()
    rest = [number for batch in batches for number in batch]
    assert sorted(seen + rest) == list(range(24))
    if around != "shuffled by itself":  # which loses what its buffer held
        loader.load_state_dict(state)
        assert [number for batch in loader for number in batch] == rest


@pytest.mark.filterwarnings("ignore")
def test_ranks_of_a_stream_of_hugging_faces_shuffle_alike() -> None:
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    stream = datasets.Dataset.from_dict({"a": list(range(24))}).to_iterable_dataset(num_shards=3)
    seen: list[int] = []
    for rank in range(2):
        share = split_dataset_by_node(stream.shuffle(seed=1, buffer_size=7), rank, 2)
        seen += (row["a"] for row in stoker.DataLoader(share, None, collate_fn=dict, seed=rank))
    assert sorted(seen) == list(range(24))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("calls", [[6, 7], [0, 1, 2], [3, None], [5, 5]], ids=str)
def test_hugging_face_stream_keeps_the_epoch_set_by_the_script(calls: Any, workers: dict[str, Any]) -> None:
    datasets = pytest.importorskip("datasets")
    given: list[list[Any]] = []
    for kind in (data.DataLoader, stoker.DataLoader):
        stream = datasets.Dataset.from_dict({"a": list(range(24))}).to_iterable_dataset(num_shards=2)
        stream = stream.shuffle(seed=1, buffer_size=9)
        loader = kind(stream, 4, collate_fn=lambda rows: [row["a"] for row in rows], **workers)
        given.append([])
        for number in calls:
            if number is not None:
                stream.set_epoch(number)
            given[-1].append(list(loader))
    assert given[0] == given[1]


def test_hugging_face_stream_advances_without_set_epoch() -> None:
    datasets = pytest.importorskip("datasets")
    made = lambda: datasets.Dataset.from_dict({"a": list(range(24))}).to_iterable_dataset().shuffle(seed=1)  # noqa: E731
    loader, alone = stoker.DataLoader(made(), None, collate_fn=lambda row: row["a"]), made()
    for number in range(3):
        alone.set_epoch(number)
        assert list(loader) == [row["a"] for row in alone]


# Loaders of frameworks, taken over


@pytest.mark.filterwarnings("ignore")
def test_loaders_of_accelerates_are_taken_over_or_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.data_loader import skip_first_batches

    theirs = data.DataLoader(range(10), batch_size=2)
    prepared = accelerate.Accelerator(cpu=True).prepare(theirs)
    for refused in (prepared, skip_first_batches(prepared, 2)):
        with pytest.raises(TypeError, match=r"its __iter__.* would be lost"):
            stoker.DataLoader.from_torch(refused)
    skipping = skip_first_batches(theirs, 2)  # by its batch sampler
    assert epoch(stoker.DataLoader.from_torch(skipping)) == epoch(skipping) == [4, 5, 6, 7, 8, 9]


@pytest.mark.filterwarnings("ignore")
def test_pyg_loaders_are_converted_or_refused() -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader, NodeLoader

    edges = torch.zeros(2, 1, dtype=torch.long)
    theirs = DataLoader([Data(x=torch.full((2, 1), i), edge_index=edges) for i in range(5)], batch_size=2)
    ours = stoker.DataLoader.from_torch(theirs)
    assert [(b.x.tolist(), b.batch.tolist()) for b in ours] == [(b.x.tolist(), b.batch.tolist()) for b in theirs]
    nodes = NodeLoader.__new__(NodeLoader)
    with pytest.raises(TypeError, match="its _get_iterator would be lost"):
        stoker.DataLoader.from_torch(nodes)


@pytest.mark.filterwarnings("ignore")
def test_loaders_of_monais_are_taken_over_or_refused() -> None:
    monai = pytest.importorskip("monai.data")
    theirs = monai.DataLoader(range(6), batch_size=2)
    assert epoch(stoker.DataLoader.from_torch(theirs)) == epoch(theirs)
    with pytest.raises(TypeError, match="its __iter__ would be lost"):
        stoker.DataLoader.from_torch(monai.ThreadDataLoader(range(6)))


# A compiled function


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}], ids=str)
def test_the_loop_in_a_compiled_function(settings: dict[str, Any]) -> None:
    network = torch.nn.Linear(2, 1)

    def train(loader: Any) -> Any:
        total = torch.zeros(())
        for batch in loader:
            total = total + network(batch).sum()
        return total

    loader = stoker.DataLoader([torch.full((2,), float(number)) for number in range(6)], 2, **settings)
    compiled = torch.compile(train, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(loader), train(loader))


# What the guide on resuming says of them

STEPS = 5  # in an epoch of `Noisy`, of which there are two


class Noisy(stoker.Dataset[Any]):
    """Augmented: a sample is its index, and others that are drawn."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        tokens = torch.cat([torch.tensor([index]), torch.randint(4 * STEPS, (7,))])
        return {"input_ids": tokens, "labels": tokens}


class Plain(Noisy):
    """Not augmented."""

    def __getitem__(self, index: int) -> Any:
        tokens = torch.full((8,), index)
        return {"input_ids": tokens, "labels": tokens}


def noisy_loader(workers: int, form: str = "shuffle", augmented: bool = True) -> stoker.DataLoader[Any]:
    dataset, how = Noisy() if augmented else Plain(), {"seed": 3, "num_workers": workers}
    if form == "batch sampler":
        batches = stoker.BucketBatchSampler(list(range(1, len(dataset) + 1)), batch_size=4)
        return stoker.DataLoader(dataset, batch_sampler=batches, **how)
    return stoker.DataLoader(dataset, 4, shuffle=True, distributed="pad" if form == "ranks" else None, **how)


def callback_of_users(transformers: Any) -> Any:
    """Returns a callback that keeps the loader's state beside the Trainer's checkpoints, as users write it."""

    class KeepsLoader(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def __init__(self, loader: stoker.DataLoader[Any]) -> None:
            self.loader = loader

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                torch.save(self.loader.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt")

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step:  # the run resumes, from the checkpoint of that step
                self.loader.load_state_dict(torch.load(f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt"))

    return KeepsLoader


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch's own threads are slower than one, where others use the CPUs too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("birth", ["fork", "spawn"])
@pytest.mark.parametrize("name", ["padding", "language modelling", "multimodal"])
def test_data_collators_of_transformers_work_as_they_are(name: str, birth: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "a": 3, "dog": 4}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )
    texts = ["a dog " * (1 + number % 3) for number in range(8)]
    samples: list[Any] = [dict(tokenizer(text)) for text in texts]
    if name == "padding":
        collate_fn: Any = transformers.DataCollatorWithPadding(tokenizer)
    elif name == "language modelling":
        collate_fn = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=True)
    else:
        samples = [{"text": text} for text in texts]
        collate_fn = stoker.MultimodalCollator(
            {"text": functools.partial(tokenizer, padding=True, return_tensors="pt")}
        )
    with stoker.DataLoader(
        samples, batch_size=3, num_workers=2, multiprocessing_context=birth, collate_fn=collate_fn
    ) as loader:
        batches = [batch["text"] if name == "multimodal" else batch for batch in loader]
    lengths = [length for batch in batches for length in batch["attention_mask"].sum(1).tolist()]
    assert lengths == [2 * (1 + number % 3) for number in range(8)]
    assert all(isinstance(batch["input_ids"], torch.Tensor) for batch in batches)
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(3, 6), (3, 6), (2, 4)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("form", ["shuffle", "batch sampler", "ranks", "callback"])
def test_the_trainer_goes_on_from_any_checkpoint(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else a thread of it stays

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return self.loader

        def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
            loss = super().training_step(model, inputs, *others)
            self.seen.append((inputs["input_ids"].tolist(), loss.item()))
            return loss

    def train(workers: int, **how: Any) -> list[Any]:
        transformers.set_seed(1)  # of the weights, and of the dropout
        shape = {"vocab_size": 4 * STEPS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
        loader = noisy_loader(workers, form, augmented=form == "callback")
        callbacks = [callback_of_users(transformers)(loader)] if form == "callback" else []
        settings = {"ignore_data_skip": bool(callbacks), "use_cpu": True, "report_to": [], "disable_tqdm": True, **how}
        arguments = transformers.TrainingArguments(str(tmp_path), num_train_epochs=2, **settings)
        trainer = Trainer(model, arguments, train_dataset=loader.dataset, callbacks=callbacks)
        trainer.loader, trainer.seen = loader, []
        trainer.train(resume_from_checkpoint=how.get("resume_from_checkpoint"))
        return trainer.seen  # type: ignore[no-any-return]

    undisturbed = train(workers=1, save_strategy="steps", save_steps=1)
    assert len(undisturbed) == 2 * STEPS
    for step in (2, STEPS, STEPS + 2):
        checkpoint = str(tmp_path / f"checkpoint-{step}")
        assert train(workers=0, save_strategy="no", resume_from_checkpoint=checkpoint) == undisturbed[step:], step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["shuffle", "batch sampler"])
def test_lightning_goes_on_from_any_checkpoint(form: str, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")

    class Network(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Linear(8, 1)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.append(batch["input_ids"].tolist())
            return self.weights(batch["input_ids"].float()).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(callbacks: list[Any], workers: int, **checkpoint: Any) -> list[Any]:
        network = Network()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet |= {"enable_checkpointing": bool(callbacks)}
        pl.Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=callbacks, **quiet).fit(
            network, noisy_loader(workers, form), **checkpoint
        )
        return network.seen

    every = {"every_n_train_steps": 1}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    names = "{step}", "end-{step}"
    saving = [
        pl.callbacks.ModelCheckpoint(tmp_path, name, save_top_k=-1, **how)
        for name, how in zip(names, every, strict=True)
    ]
    undisturbed = fit(saving, workers=1)
    assert len(undisturbed) == 2 * STEPS
    for name, step in (("", 2), ("", STEPS), ("", STEPS + 2), ("end-", STEPS)):
        path = tmp_path / f"{name}step={step}.ckpt"
        assert fit([], workers=0, ckpt_path=path) == undisturbed[step:], path.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_walks_the_loaders_epochs(ranks: int) -> None:
    pytest.importorskip("accelerate")
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    def made() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(range(24), 2, shuffle=True, seed=4)

    def lists(batches: Any) -> list[list[int]]:
        return [batch.tolist() for batch in batches]

    loader = made()
    epochs = [lists(loader) for _ in range(3)]
    loader = made()
    loader.set_epoch(1)
    assert lists(skip_first_batches(loader, 5)) == epochs[1][5:]
    for rank in range(ranks):
        how = {"num_processes": ranks, "process_index": rank, "put_on_device": False}
        prepared = prepare_data_loader(made(), **how)
        assert [lists(prepared) for _ in range(3)] == [numbers[rank::ranks] for numbers in epochs]
        prepared = prepare_data_loader(made(), **how)
        prepared.set_epoch(2)
        assert lists(skip_first_batches(prepared, 2)) == epochs[2][rank::ranks][2:]


@pytest.mark.filterwarnings("ignore")
def test_fabric_goes_on_where_the_state_says() -> None:
    """It tells the sampler 0 at the first epoch of a run, whatever was loaded."""
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)

    def made() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(range(24), 4, shuffle=True, seed=4)

    loader = made()
    epochs = [epoch(loader) for _ in range(4)]
    loader = made()
    loader.set_epoch(2)
    batches = iter(loader)
    next(batches)
    again = made()
    wrapped = fabric.setup_dataloaders(again)
    again.load_state_dict(loader.state_dict())
    assert [epoch(wrapped), epoch(wrapped)] == [epochs[2][4:], epochs[3]]
