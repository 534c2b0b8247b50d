"""Bad input, each with its own clear error: what happened, where, and in a type that scripts catch today."""

from __future__ import annotations

import resource
import sys
import threading
from collections import UserDict, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import BatchError, CannotSendError, LeafTypeError, MissingFieldError, SamplerError

ALL = pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str
)


class Samples:
    """A dataset of what it is given, with a hole where an exception stands."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index]
        if isinstance(sample, Exception):
            raise sample
        return sample


def story_of(error: BaseException | None) -> str:
    """An error's text and those of its causes."""
    text = ""
    while error is not None:
        text += f"{type(error).__name__}: {error}\n"
        error = error.__cause__
    return text


def epoch(dataset: Any, workers: dict[str, Any], **settings: Any) -> list[Any]:
    loader = stoker.DataLoader(dataset, **{"output": "numpy", **settings, **workers})
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]


# Datasets


@pytest.mark.parametrize("dataset", [None, 3, object()])
def test_object_that_is_no_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(TypeError, match=f"dataset should have __getitem__ .* but got {type(dataset).__name__}"):
        stoker.DataLoader(dataset)


class AtOnce(Samples):
    """Returns what a function makes of the samples of a batch."""

    def __init__(self, returned: Any) -> None:
        super().__init__(list(range(8)))
        self.returned = returned

    def __getitems__(self, indices: list[int]) -> Any:
        return self.returned([self.samples[index] for index in indices])


@ALL
@pytest.mark.parametrize("collate_fn", [None, stoker.PadCollator()], ids=["default", "padded"])
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda samples: samples[:-1], "returned 3 samples for 4 indices"),
        (lambda samples: [*samples, 0], "returned 5 samples for 4 indices"),
        (lambda samples: np.array(samples)[:2], "returned 2 samples for 4 indices"),
        (iter, "returned a list_iterator, which is no list of samples, for 4 indices"),
        (lambda samples: None, "returned a NoneType, which is no list of samples"),
        (lambda samples: {"x": samples}, "returned a dict, which is no list of samples"),
        (lambda samples: np.array(0), "returned a ndarray, which is no list of samples"),
    ],
)
def test_a_batch_of_other_than_its_samples(returned: Any, said: str, collate_fn: Any, workers: dict[str, Any]) -> None:
    for dataset in (AtOnce(returned), stoker.Subset(AtOnce(returned), range(8))):
        with pytest.raises(BatchError, match=f"AtOnce.__getitems__.. {said}"):
            epoch(dataset, workers, batch_size=4, collate_fn=collate_fn)


@ALL
def test_a_collate_fn_may_be_given_anything(workers: dict[str, Any]) -> None:
    few = AtOnce(lambda samples: np.array(samples)[:3])
    assert epoch(few, workers, batch_size=4, collate_fn=np.sum) == [3, 15]


class Rows(UserDict[str, Any]):
    """A mapping of columns that is also a sequence of rows, as a TensorDict is."""

    def __getitem__(self, key: str | int) -> Any:
        return self.data[key] if isinstance(key, str) else {name: column[key] for name, column in self.data.items()}

    def __len__(self) -> int:
        return len(self.data["x"])

    def __iter__(self) -> Any:
        return map(self.__getitem__, range(len(self)))


@ALL
def test_a_mapping_may_be_a_sequence_of_samples(workers: dict[str, Any]) -> None:
    dataset = AtOnce(lambda samples: Rows(x=samples))
    batches = stoker.DataLoader(dataset, 4, **workers)
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_dictionary_that_makes_what_it_lacks_has_no_rows() -> None:
    columns = AtOnce(lambda samples: defaultdict(list, x=samples))  # with a row asked for it would have two keys
    with pytest.raises(BatchError, match="is no list of samples"):
        next(iter(stoker.DataLoader(columns, 2)))


@ALL
def test_batch_of_as_many_samples_is_delivered(workers: dict[str, Any]) -> None:
    for kind in (list, tuple, np.array):
        assert epoch(AtOnce(kind), workers, batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_iterable_that_is_no_dataset_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"pass list\(\.\.\.\) of it"):
        stoker.DataLoader({1, 2})
    with pytest.raises(TypeError, match=r"pass its function, stoker\.from_iterable\(function\)"):
        stoker.DataLoader(i for i in range(3))


@ALL
def test_an_empty_dataset(workers: Any) -> None:
    assert epoch([], workers) == []
    assert epoch([], workers, batch_size=None) == []
    with pytest.raises(ValueError, match="num_samples should be a positive integer value, but got num_samples=0"):
        stoker.DataLoader([], shuffle=True, **workers)


@ALL
def test_a_dataset_that_has_become_empty(workers: Any) -> None:
    data = [1, 2, 3]
    loader = stoker.DataLoader(data, 2, shuffle=True, **workers)
    data.clear()
    assert list(loader) == []


@ALL
def test_a_negative_length(workers: Any) -> None:
    class Negative(Samples):
        def __len__(self) -> int:
            return -5

    with pytest.raises(ValueError, match="should return >= 0"):
        epoch(Negative([]), workers)


@ALL
def test_a_dataset_without_a_length(workers: Any) -> None:
    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(TypeError, match=r"has no len\(\)"):
        epoch(Endless(), workers)
    assert epoch(Endless(), workers, sampler=[10**12, 3]) == [[10**12], [3]]


@ALL
def test_an_index_error_inside_a_sample_is_an_error_and_no_end(workers: Any) -> None:
    with pytest.raises(IndexError, match="deep inside") as told:
        epoch(Samples([0, 1, IndexError("deep inside"), 3]), workers)
    assert "sampler" not in story_of(told.value)
    if workers:
        assert "at sample 2" in str(told.value)


def test_subset_that_overrides_one_fetch_method_is_refused() -> None:
    class Half(stoker.Subset[Any]):
        def __getitem__(self, idx: Any) -> Any:
            return -super().__getitem__(idx)

    with pytest.raises(NotImplementedError, match="must also override"):
        Half([1, 2, 3], [0, 1])


# Samplers


@ALL
@pytest.mark.parametrize(
    ("sampler", "kind", "words"),
    [
        ([0, 9], IndexError, r"yielded index 9, but the dataset has 3 samples"),
        ([0, -4], IndexError, r"yielded index -4, but the dataset has 3 samples"),
        ([0, 1.0], TypeError, r"yielded 1\.0 \(float\), which is no integer"),
        ([0, "two"], TypeError, r"yielded 'two' \(str\), which is no integer"),
        ([0, None], TypeError, r"yielded None \(NoneType\), which is no integer"),
        ([0, [1, 2]], TypeError, r"yielded a list of 2 indices, \[1, 2\], for one sample"),
    ],
    ids=str,
)
def test_sampler_of_wrong_indices_is_named_in_the_error(sampler: Any, kind: Any, words: str, workers: Any) -> None:
    for settings in ({"sampler": sampler}, {"batch_sampler": [sampler]}, {"sampler": sampler, "batch_size": None}):
        with pytest.raises(kind) as told:
            epoch([7, 8, 9], workers, **settings)
        import re

        assert re.search(words, story_of(told.value)), story_of(told.value)


@ALL
def test_negative_indices_count_from_the_end_as_today(workers: Any) -> None:
    assert epoch([7, 8, 9], workers, sampler=[-1, -3]) == [[9], [7]]


@ALL
@pytest.mark.parametrize("batches", [[0, 1], ["ab"], [b"ab"], [None]], ids=str)
def test_a_batch_sampler_that_yields_no_batches(batches: Any, workers: Any) -> None:
    with pytest.raises(SamplerError, match="which is no batch: each item must be a list of indices"):
        epoch([7, 8, 9], workers, batch_sampler=batches)


class Short:
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0])


@ALL
def test_a_sampler_that_ends_early_ends_the_epoch_as_today(workers: Any) -> None:
    loader = stoker.DataLoader([7, 8, 9], sampler=Short(), **workers)
    assert len(loader) == 100
    for _ in range(2):
        assert [batch.item() for batch in loader] == [9, 7]


@ALL
def test_a_sampler_that_never_ends_is_not_walked_far_ahead(workers: Any) -> None:
    walked = []

    def never() -> Iterator[int]:
        while True:
            walked.append(1)
            yield 1

    with iter(stoker.DataLoader([7, 8, 9], sampler=never(), **workers)) as iterator:
        assert [next(iterator).item() for _ in range(10)] == [8] * 10
    assert len(walked) <= 14


@ALL
def test_a_sampler_that_raises_does_so_in_its_turn(workers: Any) -> None:
    def stumbling() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("in the sampler")

    iterator = iter(stoker.DataLoader([7, 8, 9], sampler=stumbling(), **workers))
    assert next(iterator).item() == 8
    with pytest.raises(ZeroDivisionError, match="in the sampler"):
        next(iterator)
    assert list(iterator) == []


def test_a_sampler_that_cannot_be_iterated() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        next(iter(stoker.DataLoader([1], sampler=3)))  # type: ignore[arg-type]


# Samples that make no batch


@ALL
@pytest.mark.parametrize(
    ("samples", "kind", "words"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], BatchError, ["(2, 3)", "(2, 4)", "PadCollator"]),
        ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], BatchError, ['["x"]', "(2,)", "(3,)", "PadCollator"]),
        ([{"x": 1}, {"y": 1}], MissingFieldError, ["x"]),
        ([(1, 2), (1,)], BatchError, ["equal"]),
        ([(1, 2.0), (1, "a")], LeafTypeError, ["[1]", "str"]),
        ([None, None], LeafTypeError, ["NoneType"]),
        ([{"a": object()}] * 2, LeafTypeError, ['["a"]', "object"]),
    ],
    ids=["shapes", "field", "keys", "lengths", "types", "none", "object"],
)
def test_samples_that_make_no_batch(samples: Any, kind: Any, words: list[str], workers: Any) -> None:
    with pytest.raises(kind) as told:
        epoch(Samples(samples), workers, batch_size=2)
    assert [word for word in words if word not in str(told.value)] == []
    assert isinstance(told.value, RuntimeError)  # as torch's


# What cannot be sent


def test_unpicklable_part_is_named_before_a_worker_starts() -> None:
    class Holder(Samples):
        lock = None

    dataset = Holder([1, 2])
    dataset.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(CannotSendError, match=r"dataset\.lock") as told:
        iter(stoker.DataLoader(dataset, num_workers=1, multiprocessing_context="spawn"))
    assert isinstance(told.value, TypeError)
    assert epoch(dataset, {"num_workers": 1, "multiprocessing_context": "fork"}) == [[1], [2]]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("generator", r"batch\[0\] is a generator, which .*worker.*; return list\(\.\.\.\) of it"),
        ("lock", r"batch\[0\]\['a'\]\[1\] is a lock between threads .*; return arrays, tensors, numbers"),
    ],
)
def test_a_batch_that_cannot_be_sent_names_its_part(kind: str, words: str, context: str) -> None:
    with pytest.raises(CannotSendError, match=words) as told:
        for _ in stoker.DataLoader(Made(kind), 2, num_workers=1, multiprocessing_context=context, collate_fn=list):
            pass
    lines = str(told.value).splitlines()
    assert len(lines) == 2
    assert lines[0] == "Caught CannotSendError in DataLoader worker process 0, at samples 0, 1 (2 in the batch)."


class Made:
    """Samples of a kind that does not pickle."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        made = {"generator": (i for i in range(3)), "lock": {"a": [1, threading.Lock()]}}
        return made[self.kind]


# Few descriptors


@pytest.mark.parametrize("size", [1, 300], ids=["in the message", "in slots"])
def test_many_batches_held_with_few_descriptors(size: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = [np.full((size, size), i) for i in range(150)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        held = list(stoker.DataLoader(data, num_workers=1, output="numpy"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [int(batch[0, 0, 0]) for batch in held] == list(range(150))


def test_weights_of_a_larger_dataset() -> None:
    sampler = stoker.WeightedRandomSampler([1.0, 2.0, 3.0], 10)
    with pytest.raises(stoker.errors.SamplerError, match="3 weights, but the dataset has 2 samples"):
        stoker.DataLoader([0, 1], sampler=sampler)
    with pytest.raises(ValueError, match="3 weights"):
        stoker.DataLoader([0, 1], batch_sampler=stoker.BatchSampler(sampler, 2, False))
    assert len(list(stoker.DataLoader([0, 1, 2], sampler=sampler))) == 10


class OneIsLonger:
    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise ValueError("bad")
        return np.zeros(5 if index == 5 else 4)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_the_sample_that_differs_is_named_or_none() -> None:
    def notes(bad: int | None, **settings: Any) -> str:
        made = stoker.DataLoader(
            OneIsLonger(bad), batch_sampler=[[0, 1, 5, 2]], on_error="skip", **{"output": "numpy", **settings}
        )  # type: ignore[call-overload]
        with pytest.raises(RuntimeError) as caught:
            list(made)
        return " ".join(caught.value.__notes__)

    def in_two(samples: list[Any]) -> Any:
        return [stoker.default_collate(samples[:2]), stoker.default_collate(samples[2:])]

    assert "where 5 differs from the others" in notes(None)
    assert "differs" not in notes(1)
    assert "differs" not in notes(None, collate_fn=in_two, output="torch" if "torch" in sys.modules else "numpy")
