"""Chains of transforms are timed in place: same steps, same values, same errors, and the lists are put back."""

from __future__ import annotations

import copy
import pickle
import random
import traceback
from typing import Any

import pytest

from stoker.loader._job.timed_steps import StepTimes, TimedList


class Chain:
    """Applies its steps as the `Compose` of torchvision does."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for step in self.transforms:
            value = step(value)
        return value


class Add:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, value: Any) -> Any:
        return value + self.number


class Broken:
    def __call__(self, value: Any) -> Any:
        raise ValueError("broken")


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_steps_are_counted_by_their_path() -> None:
    chain = Chain([Add(1), Chain((Add(2), Add(3))), Add(4)])
    dataset = Holder(dataset=Holder(transform=chain, other=5), targets=[1, 2])
    times = StepTimes(dataset)
    times.begin()
    assert [chain(0), chain(1)] == [10, 11]
    found = times.read()
    path = "dataset.transform"
    assert {step.name: step.calls for step in found} == {
        f"{path}.0 Add": 2,
        f"{path}.1 Chain": 2,
        f"{path}.1.0 Add": 2,
        f"{path}.1.1 Add": 2,
        f"{path}.2 Add": 2,
    }
    by_name = {step.name: step for step in found}
    assert by_name[f"{path}.1 Chain"].seconds >= by_name[f"{path}.1.0 Add"].seconds > 0
    assert all(step.seconds >= step.longest > 0 for step in found) and times.read() == ()
    times.end()
    assert type(chain.transforms) is list and type(chain.transforms[1].transforms) is tuple
    assert chain(0) == 10 and times.read() == ()


def test_the_chain_that_is_put_back_is_the_one_that_was_there() -> None:
    steps = [Add(1), Add(2)]
    chain = Chain(steps)
    times = StepTimes(Holder(transform=chain))
    times.begin()
    assert isinstance(chain.transforms, list) and list(chain.transforms) == steps and len(chain.transforms) == 2
    chain.transforms.append(Add(3))
    assert chain(0) == 6
    times.end()
    assert chain.transforms is steps and len(steps) == 3


def test_copies_and_pickles_hold_plain_lists() -> None:
    chain = Chain([Add(1)])
    times = StepTimes(chain)
    times.begin()
    assert isinstance(chain.transforms, TimedList)
    for other in (
        copy.copy(chain.transforms),
        copy.deepcopy(chain).transforms,
        pickle.loads(pickle.dumps(chain.transforms)),
    ):
        assert type(other) is list and len(other) == 1
    times.end()


def test_random_choices_and_errors_stay_as_they_are() -> None:
    chain = Chain([Add(number) for number in range(9)] + [Broken()])

    def outcomes() -> list[Any]:
        with pytest.raises(ValueError, match="broken") as caught:
            chain(0)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        drawn = random.Random(3).choice(chain.transforms[:9]).number, random.Random(4).sample(chain.transforms, 2)
        return [*drawn, chain.transforms[2], chain.transforms[-1], reversed(chain.transforms).__length_hint__(), frames]

    before = outcomes()
    times = StepTimes(chain)
    times.begin()
    assert outcomes() == before
    assert "9 Broken" not in str(times.read())  # it has not ended
    times.end()
    assert outcomes() == before


@pytest.mark.parametrize(
    "other", [Holder(transforms=[Add(1)]), Chain([]), Chain([1]), Chain({"a": Add(1)}), Chain(None), 5, "text"]
)
def test_what_is_no_chain_stays_alone(other: Any) -> None:
    dataset = Holder(transform=other)
    before = copy.copy(getattr(other, "__dict__", None))
    times = StepTimes(dataset)
    times.begin()
    assert getattr(other, "__dict__", None) == before
    times.end()


def test_properties_are_not_run_and_circles_end() -> None:
    class Sly:
        @property
        def transforms(self) -> Any:
            raise AssertionError("a property was run")

        def __call__(self) -> None: ...

    dataset = Holder(sly=Sly())
    dataset.me = dataset
    times = StepTimes(dataset)
    times.begin()
    times.end()


def test_albumentations_chain() -> None:
    albumentations = pytest.importorskip("albumentations")
    import numpy as np

    chain = albumentations.Compose([albumentations.HorizontalFlip(p=0.5), albumentations.RandomCrop(8, 8)], seed=5)
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)

    def drawn() -> list[Any]:
        chain.set_random_seed(5)
        return [chain(image=image)["image"].tolist() for _ in range(5)]

    before = drawn()
    times = StepTimes(Holder(transform=chain))
    times.begin()
    assert drawn() == before
    assert {step.name: step.calls for step in times.read()} == {
        "transform.0 HorizontalFlip": 5,
        "transform.1 RandomCrop": 5,
    }
    times.end()


def test_stokers_chain_counts_a_pass_with_its_last_transform() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (40, 30), (9, 80, 200))
    from stoker.images import CenterCrop, Compose, Resize

    chain = Compose([Resize(20), CenterCrop(10), lambda pixels: pixels + 1, Resize(5)])
    before = chain(image).tolist()
    times = StepTimes(Holder(transform=chain))
    times.begin()
    assert chain(image).tolist() == before
    assert [step.name for step in times.read()] == [
        "transform.0 Resize",
        "transform.1 CenterCrop",
        "transform.2 <lambda>",
        "transform.3 Resize",
    ]
    times.end()
