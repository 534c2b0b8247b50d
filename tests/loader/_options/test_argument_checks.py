"""The constructor's checks, its attributes and `len()`: compared with torch's loader wherever torch defines them."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._core.machine import cpus
from stoker.errors import MissingExtraError, StokerWarning

torch = pytest.importorskip("torch")
TorchLoader = torch.utils.data.DataLoader

DATA = list(range(10))


class Stream(stoker.IterableDataset[int]):
    def __init__(self, told: int | None = None) -> None:
        self.told = told

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        if self.told is None:
            raise TypeError("no length")
        return self.told


class Negative:
    def __len__(self) -> int:
        return -1

    def __getitem__(self, index: int) -> int:
        return index


def outcome(call: Callable[[], Any]) -> Any:
    """The value, or type and text of the error; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value: Any = call()
        except Exception as error:
            value = (type(error), str(error))
    return value, [str(warning.message) for warning in caught]


WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.5},
    {"batch_size": True},
    {"batch_size": np.int64(2)},
    {"batch_size": "4"},
    {"drop_last": "yes"},
    {"drop_last": 1},
    {"batch_size": None, "drop_last": True},
    {"sampler": [0], "shuffle": True},
    {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "shuffle": True},
    {"batch_sampler": [[0]], "sampler": [0]},
    {"batch_sampler": [[0]], "drop_last": True},
    {"batch_sampler": [[0]], "batch_size": None},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "teleport", "num_workers": 1},
    {"multiprocessing_context": 3, "num_workers": 1},
    {"dataset": [], "shuffle": True},
    {"dataset": Negative(), "shuffle": True},
    {"dataset": Stream(), "shuffle": True},
    {"dataset": Stream(), "sampler": [0]},
    {"dataset": Stream(), "batch_sampler": [[0]]},
    {"dataset": Stream(), "batch_size": 0},
    {"timeout": "soon"},
    {"num_workers": "many"},
    {"no_such_argument": 1},
]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_are_refused_as_torch_does(arguments: dict[str, Any]) -> None:
    arguments = {"dataset": DATA, **arguments}
    theirs, _ = outcome(lambda: TorchLoader(**arguments))
    ours, _ = outcome(lambda: stoker.DataLoader(**arguments))
    assert isinstance(theirs, tuple)
    if arguments["dataset"] is DATA and arguments.get("num_workers") == "many":  # torch compares a str with a number
        assert ours == (TypeError, "num_workers should be an integer or 'auto', but got num_workers='many'")
    else:
        assert isinstance(ours, tuple) and ours[0] is theirs[0]
        words, text = theirs[1], ours[1]
        if arguments.get("batch_size") is not None:  # ours shows a text as one, with quotes
            words, text = (said.partition("batch_size=")[0] for said in (words, text))
        more = text[len(words) :]
        assert text.startswith(words) and (not more or more.startswith(". A stream is shuffled by a buffer:"))


@pytest.mark.parametrize("name", ["worker_method", "seeding", "shard", "output"])
def test_a_new_argument_has_few_words(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} should be one of '\w+', .*but got {name}='sometimes'"):
        stoker.DataLoader(DATA, **{name: "sometimes"})


def test_sampler_batch_sampler_and_shuffle_together() -> None:
    """As Lightning rebuilds a loader."""
    assert list(stoker.DataLoader(DATA, sampler=[3, 1], batch_sampler=None, shuffle=False)) == [3, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 3, "shuffle": True},
        {"sampler": [1, 2, 3], "batch_size": 2},
        {"batch_sampler": [[0], [1, 2]]},
        {"batch_size": 3, "sampler": (i for i in range(3))},
        {"batch_sampler": iter([[0]])},
        {"dataset": [], "batch_size": 3},
        {"dataset": Stream()},
        {"dataset": Stream(7), "batch_size": 3},
        {"dataset": Stream(7), "batch_size": 3, "drop_last": True},
        {"dataset": Stream(7), "batch_size": None},
        {"dataset": Negative()},
        {"dataset": {"a": 1}, "sampler": ["a"]},
    ],
)
def test_len_is_torchs(arguments: dict[str, Any]) -> None:
    arguments = {"dataset": DATA, **arguments}
    assert outcome(lambda: len(stoker.DataLoader(**arguments))) == outcome(lambda: len(TorchLoader(**arguments)))


@pytest.mark.parametrize("kind", [stoker.DataLoader, TorchLoader])
def test_samples_beyond_a_streams_length_warn_where_it_is_read(kind: Any) -> None:
    loader = kind(Stream(8), batch_size=None)
    assert len(loader) == 8
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 10
    assert [(warning.filename, warning.category) for warning in caught] == [(__file__, UserWarning)] * 2
    assert "was reported to be 8" in str(caught[0].message)


@pytest.mark.parametrize("shuffle", [False, True])
def test_len_and_epoch_follow_a_dataset_that_grows(shuffle: bool) -> None:
    data = list(range(4))
    loader = stoker.DataLoader(data, batch_size=2, shuffle=shuffle)
    assert (len(loader), len(list(loader))) == (2, 2)
    data += range(4, 9)
    assert (len(loader), len(list(loader))) == (5, 5)
    assert sorted(int(i) for batch in loader for i in batch) == list(range(9))
    del data[3:]
    assert (len(loader), len(list(loader))) == (2, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_longer_than_it_said_warns_as_torch_does(workers: int) -> None:
    def told(kind: Any) -> Any:
        dataset = Stream(8)
        loader = kind(dataset, num_workers=workers)
        before = outcome(lambda: len(list(loader)))  # the length has not been asked for yet
        return before, len(loader), outcome(lambda: [int(sample) for sample in loader])

    address = r"at 0x[0-9a-f]+"
    import re

    ours, theirs = told(stoker.DataLoader), told(TorchLoader)
    assert re.sub(address, "", str(ours)) == re.sub(address, "", str(theirs))
    assert len(ours[2][1]) == 2
    assert "but 9 samples have been fetched" in ours[2][1][0]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_fixed_attributes_cannot_be_assigned(name: str) -> None:
    ours, theirs = stoker.DataLoader(DATA), TorchLoader(DATA)
    error = outcome(lambda: setattr(ours, name, None))
    assert error == outcome(lambda: setattr(theirs, name, None))
    assert error[0][0] is ValueError


def test_assignable_options_apply_from_the_next_epoch() -> None:
    loader = stoker.DataLoader(DATA, batch_size=5)
    loader.collate_fn = sum
    assert list(loader) == [10, 35]
    loader.num_workers = 1
    assert list(loader) == [10, 35]


def test_a_context_assigned_afterwards_is_checked() -> None:
    loader = stoker.DataLoader(DATA, num_workers=1)
    loader.multiprocessing_context = "fork"
    assert loader.multiprocessing_context is multiprocessing.get_context("fork")
    theirs = TorchLoader(DATA, num_workers=1, multiprocessing_context="fork")
    assert loader.multiprocessing_context is theirs.multiprocessing_context
    with pytest.raises(ValueError, match="should specify a valid start method"):
        loader.multiprocessing_context = "teleport"


@pytest.mark.filterwarnings("ignore:memory_budget=8 has no effect")
def test_every_argument_is_an_attribute_under_its_own_name() -> None:
    import inspect

    generator = torch.Generator()
    given: dict[str, Any] = {
        "dataset": DATA,
        "batch_size": 2,
        "shuffle": True,
        "num_workers": 1,
        "collate_fn": stoker.PadCollator(),
        "pin_memory": True,
        "drop_last": True,
        "timeout": 3,
        "worker_init_fn": print,
        "multiprocessing_context": multiprocessing.get_context("fork"),
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "cuda",
        "in_order": False,
        "worker_method": "thread",
        "threads_per_worker": 1,
        "concurrency": 0,
        "seeding": "sample",
        "shard": "none",
        "seed": 5,
        "output": "numpy",
        "distributed": "exact",
        "num_replicas": 2,
        "rank": 1,
        "mesh": None,
        "batches_per_epoch": 7,
        "max_restarts": 3,
        "on_error": "skip",
        "max_errors": 4,
        "max_error_rate": 0.5,
        "quarantine": "/bad.jsonl",
        "stall_warning": 6.0,
        "stall_action": "raise",
        "memory_budget": 8,
        "max_samples_per_worker": 9,
        "share_heap": False,
        "on_event": print,
        "device": None,
        "prefetch_to_device": 2,
        "device_buffers": None,
        "remote": None,
        "batch_transform": print,
        "pad_to": {"input_ids": 4},
    }
    loader = stoker.DataLoader(**given)
    attributes = vars(loader)
    assert "shuffle" not in attributes and loader.shuffle is given.pop("shuffle")
    assert {name: attributes[name] for name in given} == given
    assert set(inspect.signature(stoker.DataLoader).parameters) == {*given, "shuffle", "sampler", "batch_sampler"}
    assert {"sampler", "batch_sampler"} <= set(attributes)


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["serial", "thread"])
def test_memory_budget_without_effect_warns(settings: dict[str, Any]) -> None:
    with pytest.warns(stoker.StokerWarning, match="memory_budget=1048576 has no effect: .* in this process") as told:
        list(stoker.DataLoader(DATA, memory_budget=1 << 20, **settings))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stoker.DataLoader(DATA, memory_budget=1 << 20, num_workers=1)


def test_the_signature_begins_as_torchs() -> None:
    import inspect

    ours = inspect.signature(stoker.DataLoader).parameters
    for (name, mine), (their_name, theirs) in zip(
        ours.items(), inspect.signature(TorchLoader).parameters.items(), strict=False
    ):
        assert (name, mine.default, mine.kind) == (their_name, theirs.default, theirs.kind)


def test_a_seed_is_any_integer_and_nothing_else() -> None:
    orders = [
        [int(batch) for batch in stoker.DataLoader(DATA, shuffle=True, seed=seed)]
        for seed in (3, np.int64(3), -3, 2**70)
    ]
    assert orders[0] == orders[1]
    assert orders[0] not in orders[2:]
    for wrong in ("a", 1.5):
        with pytest.raises(TypeError, match=f"seed should be an integer or None, but got seed={wrong!r}"):
            stoker.DataLoader(DATA, seed=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), True])
def test_any_integer_is_a_number_of_workers(number: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = stoker.DataLoader(DATA, num_workers=number)
    assert type(loader.num_workers) is int
    assert loader.num_workers == number


def test_automatic_workers_are_a_number() -> None:
    loader = stoker.DataLoader(DATA, num_workers="auto")
    assert 1 <= loader.num_workers <= cpus.cpus().number
    assert loader.prefetch_factor == 2


def test_more_workers_than_cpus_warn_once_with_the_source() -> None:
    usable = cpus.cpus()
    with pytest.warns(StokerWarning) as caught:
        loader = stoker.DataLoader(DATA, num_workers=usable.number + 1)
        next(iter(loader))
    (warning,) = caught
    assert f"This DataLoader will create {usable.number + 1} worker processes in total." in str(warning.message)
    assert f"is {usable.number} ({usable.source})" in str(warning.message)
    assert warning.filename == __file__


def test_timeout_without_workers_is_refused_as_in_torch() -> None:
    ours, theirs = stoker.DataLoader(DATA, timeout=3), TorchLoader(DATA, timeout=3)
    with pytest.raises(AssertionError) as said:
        iter(theirs)
    with pytest.raises(AssertionError, match=str(said.value)):
        iter(ours)


@pytest.mark.parametrize("method", ["process", "thread"])
def test_a_timeout_may_be_a_number_of_numpys(method: Any) -> None:
    seconds: Any = np.float32(30)
    assert list(stoker.DataLoader(DATA, None, num_workers=1, timeout=seconds, worker_method=method)) == list(DATA)


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "prefetch_factor must be greater than 0"), (1.5, "prefetch_factor should be an integer or None, but got")],
)
def test_prefetch_factor_torch_refuses_later_is_refused_early(number: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        stoker.DataLoader(DATA, num_workers=1, prefetch_factor=number)


@pytest.mark.parametrize(
    "wrong", [5, random.Random(0), "torch", torch.Generator], ids=lambda wrong: type(wrong).__name__
)
def test_invalid_generator_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"generator should be a torch\.Generator, .*but got"):
        stoker.DataLoader(DATA, generator=wrong)
    with pytest.raises(TypeError, match="generator should be"):
        stoker.DataLoader(DATA, sampler=stoker.RandomSampler(DATA, generator=wrong))


def test_tensors_without_torch_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"stoker\[torch\].*output=\"numpy\"") as caught:
        stoker.DataLoader(DATA, output="torch")
    assert isinstance(caught.value, MissingExtraError)
    assert stoker.DataLoader(DATA).output == "numpy"


def test_pinning_without_an_accelerator_warns_as_in_torch() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    ours, theirs = (
        outcome(lambda kind=kind: [int(x) for x in kind(DATA, pin_memory=True)])
        for kind in (stoker.DataLoader, TorchLoader)
    )
    assert ours == theirs
    assert ours[0] == DATA
    assert len(ours[1]) == 1
    with pytest.warns(UserWarning, match="no accelerator is found") as caught:
        iter(stoker.DataLoader(DATA, pin_memory=True))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}], ids=str
)
def test_a_copy_is_a_loader_of_its_own(again: Callable[[Any], Any], arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(DATA, batch_size=5, shuffle=True, seed=3, **arguments)
    first = [batch.tolist() for batch in loader]
    with again(loader) as copied:
        second = [batch.tolist() for batch in copied]
        assert [batch.tolist() for batch in loader] == second  # each counts its own epochs
        with pytest.raises(ValueError, match="batch_size"):
            copied.batch_size = 2
    with stoker.DataLoader(DATA, batch_size=5, shuffle=True, seed=3, **arguments) as model:
        assert [[batch.tolist() for batch in model] for _ in range(2)] == [first, second]
    loader.close()


def test_an_iterator_cannot_be_pickled() -> None:
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iter(stoker.DataLoader(DATA)))
