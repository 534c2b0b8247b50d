from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._job import job
from stoker.loader._random.find_generators import find_generators


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Drawing:
    rng = random.Random(1)  # all its objects share it

    def __getitem__(self, index: int) -> float:
        return self.rng.random()

    def __len__(self) -> int:
        return 12


class Slotted:
    __slots__ = ("__private", "unset")

    def __init__(self, value: Any) -> None:
        self.__private = value


class Surly:
    """Any touch of the user's own code fails."""

    def __init__(self, value: Any) -> None:
        vars(self)["value"] = value

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    @property
    def lazy(self) -> Any:
        raise AssertionError("lazy")

    @property
    def __class__(self) -> Any:
        raise AssertionError("__class__")


class SurlyList(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("__iter__")

    def __len__(self) -> int:
        raise AssertionError("__len__")


def closing_over(value: Any) -> Any:
    return lambda: value


WAYS = {
    "attribute": lambda g: Holder(rng=g),
    "slot": Slotted,
    "dict": lambda g: {"a": g},
    "list": lambda g: [0, g],
    "tuple": lambda g: ("x", g),
    "set": lambda g: {g},
    "closure": closing_over,
    "partial": lambda g: functools.partial(print, rng=g),
    "bound method of a holder": lambda g: functools.partial(Holder(rng=g).__init__),  # type: ignore[misc]
    "surly": Surly,
    "surly list": lambda g: SurlyList([g]),
    "attribute of a list": lambda g: (lambda held: vars(held).update(rng=g) or held)(SurlyList()),
    "transforms of a subset": lambda g: Holder(dataset=Holder(transform=Holder(transforms=[Holder(), Holder(rng=g)]))),
}


@pytest.mark.parametrize("way", WAYS)
def test_generator_is_found_in_every_container(way: str) -> None:
    generator = random.Random(1)
    assert find_generators(Holder(inner=WAYS[way](generator))) == [generator]
    assert find_generators(WAYS[way](generator)) == [generator]


def test_every_kind_is_found_once_the_nearest_first() -> None:
    near, middle, far = random.Random(1), np.random.default_rng(1), np.random.RandomState(1)
    holder = Holder(inner=Holder(rng=middle, deeper=[far, near]), rng=near, again=near)
    holder.itself = holder
    assert find_generators(holder) == [near, middle, far]


def test_torchs_generators_are_found() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator()
    assert find_generators(Holder(data=torch.zeros(3), rng=generator)) == [generator]


def test_data_is_left_alone() -> None:
    generator = random.Random(1)
    closed = (
        [generator] * 257,
        dict.fromkeys(range(256)) | {256: generator},
        np.array([generator] * 3, object),
        type("Class", (), {"rng": generator}),
        random,
    )
    for data in closed:
        assert find_generators(Holder(data=data)) == []


RNG = np.random.default_rng(7)
OTHER, UNUSED = random.Random(2), random.Random(3)


class Flip:
    """A transform, as an object of a module."""

    def __init__(self) -> None:
        self.rng = random.Random(4)

    def __call__(self, sample: float) -> float:
        return sample if self.rng.random() < 0.5 else -sample


FLIP = Flip()


def jittered(sample: float) -> float:
    return sample + OTHER.random()


class NamesThem:
    """As scripts do: what it draws from lies in the module."""

    def __getitem__(self, index: int) -> float:
        return sum((lambda: FLIP(jittered(RNG.random())))() for _ in range(2))

    def __len__(self) -> int:
        return 12


class NamesOne:
    @staticmethod
    def noise() -> float:
        return OTHER.random()


def test_generators_of_a_module_are_found_where_code_names_them() -> None:
    assert set(map(id, find_generators(NamesThem()))) == set(map(id, [RNG, OTHER, FLIP.rng]))
    assert find_generators(NamesOne()) == find_generators([jittered]) == [OTHER]
    assert find_generators(Holder(index=3)) == []


def test_a_class_may_be_of_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Made", (NamesThem,), {"__module__": None, "__call__": lambda self: 0})
    monkeypatch.setitem(globals(), "MADE", kind())
    assert RNG in find_generators(kind())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_draw_the_same_from_those_of_a_module(method: str) -> None:
    def epochs(workers: int, **how: Any) -> list[float]:
        loader = stoker.DataLoader(NamesThem(), 2, seed=3, num_workers=workers, **how)
        return [number for _ in range(2) for batch in loader for number in batch.tolist()]

    alone = epochs(0)
    assert epochs(2, multiprocessing_context=method) == alone
    assert len(set(alone)) == 2 * 12


def test_the_search_is_bounded() -> None:
    chain = Holder(rng=random.Random(1))
    for _ in range(100_000):
        chain = Holder(inner=chain)
    assert find_generators(chain) == []
    wide = Holder(parts=[[Holder() for _ in range(200)] for _ in range(200)], late=[[[[random.Random(1)]]]])
    assert find_generators(wide) == []
    while hasattr(chain, "inner"):  # from the outside in, or the interpreter's stack overflows
        chain = chain.inner


@pytest.mark.parametrize("kind", [Drawing, type("Inheriting", (Drawing,), {})])
def test_generator_of_a_class_is_found(kind: Any) -> None:
    assert find_generators([Holder(inner=kind()), kind(), Drawing()]) == [Drawing.rng]


def test_workers_draw_differently_from_a_generator_of_a_class() -> None:
    def epochs(workers: int) -> list[float]:
        loader = stoker.DataLoader(Drawing(), 2, seed=3, num_workers=workers)
        return [number for _ in range(2) for batch in loader for number in batch.tolist()]

    before = Drawing.rng.getstate()
    alone = epochs(0)
    assert epochs(2) == alone
    assert len(set(alone)) == 2 * 12
    assert Drawing.rng.getstate() == before


# Looked for before workers are forked


class Renewed(stoker.Dataset[float]):
    """Draws from a generator of its own, which `set_epoch` replaces."""

    stoker_protocol = True

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> float:
        return self.rng.random()

    def set_epoch(self, epoch: int) -> None:
        self.rng = random.Random(epoch)


class Kept(Renewed):
    set_epoch = None  # type: ignore[assignment]


def numbers(dataset: Any, workers: int, **how: Any) -> list[float]:
    with stoker.DataLoader(dataset, 4, num_workers=workers, seed=3, **how) as loader:
        return [number for _ in range(2) for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [Renewed, Kept])
def test_generators_found_before_fork_are_the_workers_own(kind: Any, persistent: bool) -> None:
    model = numbers(kind(), 0)
    assert len(set(model)) == len(model) == 80
    for workers in (1, 2):
        assert numbers(kind(), workers, persistent_workers=persistent) == model


def test_a_generator_made_by_the_init_function_is_found() -> None:
    def own(worker_id: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        info.dataset.rng = random.Random(2)

    for seeding in ("auto", "sample"):
        given = [numbers(Kept(), workers, worker_init_fn=own, seeding=seeding) for workers in (1, 1)]
        assert given[0] == given[1]
    assert numbers(Kept(), 1, worker_init_fn=own, seeding="sample") == numbers(
        Kept(), 2, worker_init_fn=own, seeding="sample"
    )


def test_workers_do_not_look_for_generators_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    look = job.find_generators
    monkeypatch.setattr(job, "find_generators", lambda holder: calls.append(holder) or look(holder))

    def in_worker(holder: object) -> Any:
        raise AssertionError("looked for in a worker")

    monkeypatch.setattr("stoker.loader._random.sample_seeding.find_generators", in_worker)
    dataset = Kept()
    assert len(next(iter(stoker.DataLoader(dataset, 4, num_workers=1)))) == 4
    assert calls == [dataset]
