"""Whatever the dataset, the sampler and the settings: the same batches, errors and ends as torch's loader gives."""

from __future__ import annotations

import collections
import string
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies
theirs = torch.utils.data

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


@pytest.fixture(autouse=True)
def torchs_generator_put_back() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


class Pair(collections.namedtuple("Pair", "left right")):
    __slots__ = ()


# A structure, as a function of the index: what differs between the samples of a dataset is their values alone.

DTYPES = [torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.bfloat16, torch.bool]
SHAPES = st.lists(st.integers(0, 3), max_size=3)
LEAVES: list[Callable[[int], Any]] = [
    lambda index: index,
    lambda index: index / 3,
    lambda index: index % 2 == 0,
    lambda index: f"text {index}",
    lambda index: b"%d" % index,
    lambda index: np.float32(index / 7),
    lambda index: np.int16(index),
    lambda index: torch.tensor(index / 9),
]


def of_torch(shape: list[int], dtype: Any) -> Callable[[int], Any]:
    return lambda index: torch.full(shape, index % 100).to(dtype)


def of_numpy(shape: list[int], dtype: Any) -> Callable[[int], Any]:
    return lambda index: np.full(shape, index % 100, dtype)


leaves = st.one_of(
    st.sampled_from(LEAVES),
    st.builds(of_torch, SHAPES, st.sampled_from(DTYPES)),
    st.builds(of_numpy, SHAPES, st.sampled_from(["u1", "i4", "i8", "f4", "f8", "?"])),
)


def structures(inner: Any) -> Any:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda parts: lambda index: [part(index) for part in parts]),
        several.map(lambda parts: lambda index: tuple(part(index) for part in parts)),
        st.tuples(inner, inner).map(lambda parts: lambda index: Pair(*(part(index) for part in parts))),
        st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=3), inner, min_size=1, max_size=3).map(
            lambda parts: lambda index: {key: part(index) for key, part in parts.items()}
        ),
    )


samples = st.recursive(leaves, structures, max_leaves=5)


class Made(theirs.Dataset):  # type: ignore[misc, name-defined]
    def __init__(self, length: int, make: Callable[[int], Any], bad: set[int]) -> None:
        self.length, self.make, self.bad = length, make, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if not -self.length <= index < self.length:
            raise IndexError(index)
        if index in self.bad:
            raise OSError(f"sample {int(index)}")
        return self.make(int(index))


WRAPPED: list[Callable[[Any, Any], Any]] = [
    lambda data, made: made,
    lambda data, made: data.Subset(made, list(range(len(made) - 1, -1, -1))),
    lambda data, made: data.ConcatDataset([made, made]),
    lambda data, made: data.StackDataset(a=made, b=made),
    lambda data, made: data.Subset(data.ConcatDataset([made, made]), range(0, 2 * len(made), 2)),
]


@st.composite
def orders(draw: Any, length: int) -> Callable[[Any, Any], dict[str, Any]]:
    """The loader's arguments for an order, as a function of the library's namespace and of the dataset."""
    seed = draw(st.integers(0, 99))
    size = draw(st.one_of(st.none(), st.integers(1, 9)))
    how: dict[str, Any] = {"batch_size": size}
    if size is not None:
        how["drop_last"] = draw(st.booleans())

    def generator() -> Any:
        return torch.Generator().manual_seed(seed)

    some = draw(st.lists(st.integers(0, length - 1), max_size=20))
    lists = draw(st.lists(st.lists(st.integers(-length, length - 1), min_size=1, max_size=6), max_size=6))
    count = draw(st.integers(1, 2 * length))
    replacement = draw(st.booleans())
    kinds: list[Callable[[Any, Any], dict[str, Any]]] = [
        lambda data, dataset: how,
        lambda data, dataset: {**how, "sampler": data.RandomSampler(dataset, generator=generator())},
        lambda data, dataset: {
            **how,
            "sampler": data.RandomSampler(dataset, replacement, count if replacement else None, generator()),
        },
        lambda data, dataset: {**how, "sampler": data.SubsetRandomSampler(some, generator=generator())},
        lambda data, dataset: {**how, "sampler": some},
        lambda data, dataset: {
            **how,
            "sampler": data.WeightedRandomSampler(
                torch.arange(1.0, len(dataset) + 1), count, True, generator=generator()
            ),
        },
        lambda data, dataset: {"batch_sampler": lists},
        lambda data, dataset: {"batch_sampler": data.BatchSampler(data.SequentialSampler(dataset), 3, replacement)},
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def cases(draw: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], dict[str, Any]]]:
    length = draw(st.integers(1, 25))
    bad = draw(st.one_of(st.just(set()), st.sets(st.integers(0, length - 1), max_size=2)))
    made = Made(length, draw(samples), bad)
    wrap = draw(st.sampled_from(WRAPPED))
    return lambda data: wrap(data, made), draw(orders(length))


def outcomes(loader: Any) -> list[Any]:
    """Of two epochs: batches, and errors, behind which it goes on."""
    found: list[Any] = []
    for _ in range(2):
        iterator = iter(loader)
        while True:
            try:
                found.append(plain(next(iterator)))
            except StopIteration:
                found.append("the end")
                break
            except Exception as error:
                found.append((type(error), "sample" in str(error)))
                if len(found) > 500:
                    raise
    return found


def plain(value: Any) -> Any:
    """Equal where type, dtype, shape and values are."""
    if isinstance(value, torch.Tensor):
        return type(value), str(value.dtype), tuple(value.shape), value.is_contiguous(), value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return type(value), str(value.dtype), value.shape, value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [plain(item) for item in value]
    return type(value), value


def compare(case: Any, **workers: Any) -> None:
    dataset, order = case
    expected = theirs.DataLoader(dataset(theirs), **order(theirs, dataset(theirs)))
    found = stoker.DataLoader(dataset(stoker), **order(stoker, dataset(stoker)), **workers)
    assert len_or_error(found) == len_or_error(expected)
    assert outcomes(found) == outcomes(expected)


def len_or_error(loader: Any) -> Any:
    try:
        return len(loader)
    except Exception as error:
        return type(error)


@given(cases())
@settings(max_examples=150)
def test_random_loaders_equal_torchs_without_workers(case: Any) -> None:
    compare(case)


@pytest.mark.parametrize("method", ["process", "thread"])
@given(cases(), st.integers(1, 3))
@settings(max_examples=15)
def test_random_loaders_equal_torchs_with_workers(method: str, case: Any, workers: int) -> None:
    compare(case, num_workers=workers, worker_method=method)


@given(st.integers(0, 25), samples, st.one_of(st.none(), st.integers(1, 9)), st.booleans())
def test_random_streams_equal_torchs(length: int, make: Any, size: int | None, drop_last: bool) -> None:
    class Streams:
        def __iter__(self) -> Iterator[Any]:
            return map(make, range(length))

    how: dict[str, Any] = {"batch_size": size, **({} if size is None else {"drop_last": drop_last})}
    ours = type("Ours", (Streams, stoker.IterableDataset), {})()
    torchs = type("Torchs", (Streams, theirs.IterableDataset), {})()
    assert outcomes(stoker.DataLoader(ours, **how)) == outcomes(theirs.DataLoader(torchs, **how))
