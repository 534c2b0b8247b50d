"""Objects of the user whose truth, equality or length says something else than usual, or raises: none is asked."""

from __future__ import annotations

from typing import Any

import pytest


def touchy_objects(data: Any) -> Any:
    import torch

    class Touchy:
        def __bool__(self) -> bool:
            raise AssertionError("truth is asked")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("equality is asked")

        __hash__ = object.__hash__

    class Squares(Touchy, data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return float(index**2), torch.tensor([index])

    class Endless(Touchy):
        def __len__(self) -> int:
            raise RuntimeError("there is no end")

    class Sampler(Endless):
        def __iter__(self) -> Any:
            return iter([3, 1, 4, 1, 5])

    class Indices(list):  # type: ignore[type-arg]
        __len__ = Endless.__len__
        __bool__ = Touchy.__bool__
        __eq__ = Touchy.__eq__
        __hash__ = Touchy.__hash__

    Indices.__qualname__ = "Indices"  # it is pickled
    globals()["Indices"] = Indices

    class Batches(Endless):
        def __iter__(self) -> Any:
            for batch in ([3, 1], [4], [1, 5]):
                indices = Indices()
                for index in batch:
                    indices.append(index)
                yield indices

    class Collate(Touchy):
        def __call__(self, samples: Any) -> Any:
            return "collated", data.default_collate(samples)

    class Init(Touchy):
        def __call__(self, worker: int) -> None:
            pass

    results = []
    for workers in (0, 2):
        for options in (
            {"batch_size": 5, "collate_fn": Collate()},
            {"batch_size": 2, "sampler": Sampler()},
            {"batch_sampler": Batches(), "collate_fn": Collate()},
            {"batch_size": None, "sampler": Sampler(), "collate_fn": Collate()} if not workers else {"batch_size": 4},
        ):
            init = {"worker_init_fn": Init()} if workers else {}
            loader = data.DataLoader(Squares(), num_workers=workers, **init, **options)
            results.append([*(batch for batch in loader)])  # list() asks for a length
    return results


def agreeable_objects(data: Any) -> Any:
    class Agreeable:
        """It is equal to everything, and to several answers it is an array."""

        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def __eq__(self, other: object) -> Any:
            return self.answer

        def __ne__(self, other: object) -> Any:
            return self.answer

        __hash__ = object.__hash__

        def __call__(self, samples: Any) -> Any:
            return [sample + 100 for sample in samples]

    import numpy as np

    return [
        list(data.DataLoader(range(8), batch_size=4, collate_fn=Agreeable(answer), num_workers=workers))
        for answer in (True, False, np.ones(3))
        for workers in (0, 1)
    ]


def bags_of_settings(data: Any) -> Any:
    class Bag:
        """Its attributes are its settings: of any other name it raises KeyError."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self.__dict__["settings"][name]

        def __init__(self) -> None:
            self.settings = {"size": 4}

    class Sampler(Bag):
        def __iter__(self) -> Any:
            return iter([3, 1, 2, 0])

        def __len__(self) -> int:
            return self.size  # type: ignore[no-any-return]

    class Indices(Bag):
        def __iter__(self) -> Any:
            return iter([3, 1])

    Indices.__qualname__ = "Indices"  # it is pickled
    globals()["Indices"] = Indices

    class Batches(Bag):
        def __iter__(self) -> Any:
            return iter([Indices(), [2]])

    class Numbers(Bag, data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return self.size  # type: ignore[no-any-return]

        def __getitem__(self, index: int) -> int:
            return index

    class Stream(Bag, data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(self.size))

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["settings"][name]  # also of special methods: torch asks streams for none

    class Collate(Bag):
        def __call__(self, samples: Any) -> Any:
            return sum(samples)

    results = []
    for workers in (0, 1):
        for options in (
            {"dataset": Numbers(), "sampler": Sampler(), "batch_size": 2},
            {"dataset": Numbers(), "batch_sampler": Batches()},
            {"dataset": data.Subset(Numbers(), [1, 0]), "batch_size": 2, "collate_fn": Collate()},
            {"dataset": Stream(), "batch_size": 3, "collate_fn": Collate()},
            {"dataset": data.ChainDataset([Stream(), Stream()]), "batch_size": 3},
        ):
            loader = data.DataLoader(num_workers=workers, **options)
            results.append([*(batch for batch in loader)])
            for name in ("describe", "state_dict", "report"):
                getattr(loader, name, list)()
    return results


def test_a_getattr_that_raises_anything_means_no_attribute(same: Any) -> None:
    theirs, _ = same(bags_of_settings)
    assert theirs.result is not None


@pytest.mark.parametrize("program", [touchy_objects, agreeable_objects])
def test_objects_are_compared_by_identity_only(same: Any, program: Any) -> None:
    theirs, _ = same(program)
    assert theirs.result is not None
