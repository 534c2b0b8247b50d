"""Augmentation depends on seed, epoch and position alone: not on workers, backend, births, or a resume."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have fewer CPUs

SAMPLES, BATCH, DRAWS = 90, 10, 3
BATCHES = SAMPLES // BATCH
MOST = 2**62

SERIAL: dict[str, Any] = {}
ONE: dict[str, Any] = {"num_workers": 1}
FOUR: dict[str, Any] = {"num_workers": 4}
CLEAN: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}
THREADS: dict[str, Any] = {"num_workers": 3, "worker_method": "thread"}
KEPT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
SETTINGS = [ONE, CLEAN, KEPT, {**SERIAL, "seeding": "sample"}, {**FOUR, "seeding": "sample"}]


class Augmented(stoker.Dataset[Any]):
    """A sample is its index, and numbers of 62 bits from every kind of generator."""

    def __init__(self) -> None:
        self.python = random.Random(1)
        self.legacy = np.random.RandomState(1)
        self.modern = {"nested": [np.random.default_rng(1)]}
        self.torchs = None if torch is None else torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, dict[str, list[int]]]:
        sources: dict[str, Callable[[], Any]] = {
            "Python's": lambda: random.randrange(MOST),
            "NumPy's": lambda: np.random.randint(MOST),
            "held, of Python": lambda: self.python.randrange(MOST),
            "held, of NumPy, legacy": lambda: self.legacy.randint(MOST),
            "held, of NumPy": lambda: self.modern["nested"][0].integers(MOST),
        }
        if torch is not None:
            sources["torch's"] = lambda: torch.randint(MOST, ())
            sources["held, of torch"] = lambda: torch.randint(MOST, (), generator=self.torchs)
        drawn = {whose: [int(draw()) for _ in range(DRAWS)] for whose, draw in sources.items()}
        return index, {**drawn, "rng": from_rng()}


class Quiet(Augmented):
    """Draws from `rng` alone: what is promised with threads too."""

    def __getitem__(self, index: int) -> tuple[int, dict[str, list[int]]]:
        return index, {"rng": from_rng()}


def from_rng() -> list[int]:
    rng = stoker.sample_rng()
    numbers = [rng.random_generator.randrange(MOST), int(rng.numpy_generator.integers(MOST))]
    if torch is not None:
        numbers.append(int(torch.randint(MOST, (), generator=rng.torch_generator)))
    return numbers


def loader_of(dataset: Any, settings: dict[str, Any], seed: int = 5) -> stoker.DataLoader[Any]:
    return stoker.DataLoader(dataset, BATCH, shuffle=True, seed=seed, collate_fn=list, **settings)


def epochs(loader: stoker.DataLoader[Any], count: int = 2) -> list[list[Any]]:
    with loader:
        return [list(itertools.chain(*loader)) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> list[list[Any]]:
    """Two epochs, made without workers."""
    return epochs(loader_of(Augmented(), SERIAL))


def test_no_two_samples_of_two_epochs_share_a_number(model: list[list[Any]]) -> None:
    made = epochs(loader_of(Augmented(), FOUR))
    numbers = [number for epoch in made for _, drawn in epoch for source in drawn.values() for number in source]
    assert len(set(numbers)) == len(numbers) >= 2 * SAMPLES * 6 * 2
    assert made == model


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_any_workers_give_the_same(settings: dict[str, Any], model: list[list[Any]]) -> None:
    assert epochs(loader_of(Augmented(), settings)) == model


def test_another_seed_gives_other_numbers(model: list[list[Any]]) -> None:
    other = epochs(loader_of(Augmented(), SERIAL, seed=6))
    ours, theirs = (
        {number for epoch in made for _, drawn in epoch for source in drawn.values() for number in source}
        for made in (model, other)
    )
    assert not ours & theirs


@pytest.mark.parametrize(
    ("before", "after", "batches"),
    [
        (SERIAL, ONE, 0),
        (SERIAL, FOUR, 1),
        (SERIAL, SERIAL, 4),
        (FOUR, CLEAN, 4),
        (KEPT, SERIAL, BATCHES - 1),
        (FOUR, ONE, BATCHES),
    ],
    ids=str,
)
def test_a_resumed_epoch_goes_on_with_the_same(
    before: dict[str, Any], after: dict[str, Any], batches: int, model: list[list[Any]]
) -> None:
    with loader_of(Augmented(), before) as loader:
        iterator = iter(loader)
        seen = list(itertools.chain(*itertools.islice(iterator, batches)))
        state = json.dumps(loader.state_dict())
        iterator.close()  # type: ignore[attr-defined]  # the loader's own
    again = loader_of(Augmented(), after)
    again.load_state_dict(json.loads(state))
    rest, following = epochs(again)
    assert [seen + rest, following] == model


@pytest.mark.parametrize("settings", [ONE, FOUR, THREADS], ids=str)
def test_worker_generators_draw_the_same_with_threads(settings: dict[str, Any]) -> None:
    assert epochs(loader_of(Quiet(), settings)) == epochs(loader_of(Quiet(), SERIAL))


def test_threads_resume_with_the_same() -> None:
    loader, again = loader_of(Quiet(), THREADS), loader_of(Quiet(), FOUR)
    with iter(loader) as iterator:  # type: ignore[attr-defined]  # the loader's own
        seen = list(itertools.chain(*itertools.islice(iterator, 4)))
        again.load_state_dict(loader.state_dict())
    rest, following = epochs(again)
    assert [seen + rest, following] == epochs(loader_of(Quiet(), SERIAL))


# Albumentations, where it is installed


@pytest.fixture
def augment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Makes a pipeline whose transforms draw from one pair of generators, as its `set_random_state` has it."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for its latest version
    albumentations = pytest.importorskip("albumentations")

    def pipeline() -> Any:
        transforms = [
            albumentations.HorizontalFlip(p=0.5),
            albumentations.VerticalFlip(p=0.5),
            albumentations.RandomCrop(12, 12),
            albumentations.OneOf([albumentations.GaussNoise(p=1), albumentations.MultiplicativeNoise(p=1)], p=0.5),
            albumentations.RandomBrightnessContrast(p=1),
        ]
        composed = albumentations.Compose(transforms)
        composed.set_random_state(np.random.default_rng(3), random.Random(3))
        return composed

    yield pipeline


class Photographs(stoker.Dataset[Any]):
    """One photograph, augmented anew for each index."""

    def __init__(self, augment: Any) -> None:
        self.augment = augment
        self.image = np.random.default_rng(0).integers(256, size=(16, 16, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        return index, self.augment(image=self.image)["image"].tobytes()


@pytest.mark.filterwarnings("ignore")  # a library of others
def test_albumentations_repeat_with_the_seed(augment: Callable[[], Any]) -> None:
    made = epochs(loader_of(Photographs(augment()), FOUR))
    images = [image for epoch in made for _, image in epoch]
    assert len(set(images)) == len(images) == 2 * SAMPLES
    assert epochs(loader_of(Photographs(augment()), SERIAL)) == made

    loader, again = loader_of(Photographs(augment()), FOUR), loader_of(Photographs(augment()), ONE)
    with iter(loader) as iterator:  # type: ignore[attr-defined]  # the loader's own
        seen = list(itertools.chain(*itertools.islice(iterator, 4)))
        again.load_state_dict(loader.state_dict())
    rest, following = epochs(again)
    assert [seen + rest, following] == made
