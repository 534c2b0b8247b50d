"""`loader.profile()`: the loader's own batches, measured, then a held one; nothing is left behind."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, Dataset, IterableDataset
from stoker.diagnostics.profile import profiling
from stoker.extend import observe
from stoker.loader.record import record_of

BACKENDS = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="serial"),
        pytest.param({"num_workers": 2, "worker_method": "thread"}, id="thread"),
        pytest.param(
            {"num_workers": 2},
            id="fork",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
        ),
    ],
)
SPAWN = {"num_workers": 2, "multiprocessing_context": "spawn"}
SIZE, BATCH = 48, 4
SLOW = 13


class Chain:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for step in self.transforms:
            value = step(value)
        return value


class Jitter:
    def __call__(self, value: Any) -> Any:
        return value + stoker.sample_rng().random_generator.random()


class Wait:
    def __call__(self, value: Any) -> Any:
        time.sleep(0.002)
        return value


class Photos(Dataset[Any]):
    stoker_protocol = True

    def __init__(self, broken: int | None = None) -> None:
        self.transform = Chain([Jitter(), Wait()])
        self.broken = broken

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise ValueError("broken")
        if index == SLOW:
            time.sleep(0.05)
        return {"image": self.transform(np.full(500, index, np.float64)), "label": index}

    def describe(self, index: int) -> str:
        return f"photo-{index}.jpg"


class PhotoStream(IterableDataset[Any]):
    shards_itself = False

    def __iter__(self) -> Any:
        return (Photos()[index] for index in range(SIZE))


def loader_of(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    options.setdefault("shuffle", True)
    return DataLoader(dataset or Photos(), batch_size=BATCH, seed=4, output="numpy", **options)


def plain(batch: Any) -> Any:
    return {name: values.tolist() for name, values in batch.items()}


@BACKENDS
def test_batches_order_and_random_numbers_are_the_loaders_own(options: dict[str, Any]) -> None:
    expected = [plain(batch) for batch in loader_of(**options)]
    profile = loader_of(**options).profile()
    assert [plain(batch) for batch in profile] == expected
    result = profile.result
    assert (result.batches, result.samples, result.errors) == (SIZE // BATCH, SIZE, 0)
    assert result.held is None and not result.is_measured
    assert result.wait.count == result.batches - 1 and result.step.count == result.batches


@pytest.mark.long
def test_workers_in_clean_interpreters() -> None:
    test_batches_order_and_random_numbers_are_the_loaders_own(SPAWN)
    test_figures_of_stages_samples_transforms_and_workers(SPAWN)


@BACKENDS
def test_figures_of_stages_samples_transforms_and_workers(options: dict[str, Any]) -> None:
    result = loader_of(**options).profile(10_000, step=lambda batch: time.sleep(0.001), replay=3)
    assert result.stages["fetch"].count == SIZE // BATCH
    assert result.stages["fetch"].seconds >= SIZE * 0.002 and result.each.count == SIZE
    assert result.cpu_share is not None and 0 < result.cpu_share < 0.9  # most of it is sleep
    (slow,) = [sample for sample in result.slowest if sample.index == SLOW]  # the machine may delay others too
    assert slow.description == f"photo-{SLOW}.jpg" and slow.seconds >= 0.05 > slow.cpu
    assert {step.name: step.calls for step in result.steps} == {
        "transform.0 Jitter": SIZE,
        "transform.1 Wait": SIZE,
    }
    assert result.steps[1].seconds >= SIZE * 0.002
    assert sum(worker.units for worker in result.workers) >= SIZE // BATCH
    assert all(abs(use.busy + use.memory + use.idle - 1) < 1e-6 for use in result.workers)
    assert result.held is not None and result.held.count == 3 and result.is_measured and result.gain >= 1
    assert result.num_workers == options.get("num_workers", 0) and result.rate > 0


@BACKENDS
def test_nothing_stays_in_the_loader(options: dict[str, Any]) -> None:
    dataset = Photos()
    loader, steps = loader_of(dataset, **options), dataset.transform.transforms
    for _ in loader.profile(3):
        pass
    assert record_of(loader).timing_sink is None
    assert dataset.transform.transforms is steps and type(steps) is list
    assert [plain(batch)["label"] for batch in loader] == [
        plain(batch)["label"] for batch in list(_second_epoch(**options))
    ]


def _second_epoch(**options: Any) -> Any:
    loader = loader_of(**options)
    loader.set_epoch(1)
    return loader


@BACKENDS
def test_an_error_of_a_sample_is_raised_in_its_place(options: dict[str, Any]) -> None:
    loader = loader_of(Photos(broken=9), shuffle=False, **options)
    seen: list[Any] = []
    with loader.profile() as profile:
        while True:
            try:
                seen.append(next(profile)["label"].tolist())
            except ValueError as error:
                seen.append(str(error).splitlines()[-1].rpartition(" ")[2])
            except StopIteration:
                break
    assert [*map(len, seen)].count(BATCH) == SIZE // BATCH - 1 and seen[2] == "broken"
    assert profile.result.errors == 1 and profile.result.samples == SIZE - BATCH


@BACKENDS
def test_streams_name_no_index(options: dict[str, Any]) -> None:
    result = loader_of(PhotoStream(), shuffle=None, **options).profile(step=lambda batch: None)
    assert result.samples == SIZE and result.batches >= SIZE // BATCH
    assert {sample.index for sample in result.slowest} <= {None}
    assert "sample" in str(result)


@BACKENDS
def test_leaving_the_loop_restores_the_loader(options: dict[str, Any]) -> None:
    dataset = Photos()
    loader, steps = loader_of(dataset, **options), dataset.transform.transforms
    for _ in loader.profile():
        break
    gc.collect()
    assert record_of(loader).timing_sink is None and dataset.transform.transforms is steps


def test_a_profile_that_is_kept_and_left_ends_with_its_result() -> None:
    loader = loader_of(num_workers=1, persistent_workers=True)
    profile = loader.profile()
    for number, _ in enumerate(profile):
        if number == 4:
            break
    assert record_of(loader).timing_sink is not None
    assert profile.result.batches == 5 and profile.result is profile.result
    assert record_of(loader).timing_sink is None and loader._iterator is None
    assert next(profile, None) is None


def test_a_profile_that_never_begins_changes_nothing() -> None:
    loader = loader_of(num_workers=1, persistent_workers=True)
    with loader:
        next(iter(loader))
        kept = loader._iterator
        profile = loader.profile(5)
        assert profile.result.batches == 0 and profile.result.verdict.kind == "too short"
        assert loader._iterator is kept and str(profile.result)


def test_a_profile_is_not_kept_by_its_loader() -> None:
    loader = loader_of()
    profile = loader.profile()
    next(profile)
    gone = weakref.ref(profile)
    del profile
    assert gone() is None


def test_state_in_the_middle_of_a_profile_resumes_the_epoch() -> None:
    loader = loader_of(num_workers=2)
    expected = [plain(batch) for batch in loader_of(num_workers=2)]
    profile = loader.profile()
    begun = [plain(next(profile)) for _ in range(5)]
    state = loader.state_dict()
    profile.close()
    other = loader_of(num_workers=2)
    other.load_state_dict(state)
    rest = other.profile()
    assert begun + [plain(batch) for batch in rest] == expected


def test_the_held_batch_is_fresh_each_time() -> None:
    labels: list[Any] = []

    def step(batch: Any) -> None:
        labels.append(batch.pop("label").tolist())
        batch["image"] *= 0

    expected = [plain(batch)["label"] for batch in loader_of()]
    result = loader_of().profile(3, step=step, replay=4)
    assert labels == expected[:3] + [expected[1]] * 4
    assert result.batches == 3 and result.held is not None and result.held.count == 4


@pytest.mark.parametrize(("batches", "count"), [(1, 5), (12, 5), (50, 5)])
def test_number_of_steps_on_the_held_batch(batches: int, count: int) -> None:
    result = loader_of().profile(batches, step=lambda batch: None)
    assert result.held is not None and result.held.count == (10 if batches == 50 else count)


def test_long_steps_on_the_held_batch_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "HELD_SECONDS", 0.0)
    result = loader_of().profile(2, step=lambda batch: None, replay=15)
    assert result.held is not None and result.held.count == 3


def test_an_empty_epoch() -> None:
    result = DataLoader(Photos(), batch_size=BATCH, sampler=[], output="numpy").profile(3, step=lambda batch: None)
    assert (result.batches, result.samples, result.gain, result.rate) == (0, 0, 1.0, 0.0)


def test_an_error_of_the_step_ends_the_profile() -> None:
    loader = loader_of(num_workers=1, persistent_workers=True)

    def step(batch: Any) -> None:
        raise KeyError("step")

    with pytest.raises(KeyError, match="step"):
        loader.profile(4, step=step)
    assert record_of(loader).timing_sink is None and loader._iterator is None


@pytest.mark.parametrize("options", [{"batches": 0}, {"replay": -1}])
def test_impossible_numbers_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"profile\("):
        loader_of().profile(**options)


def test_batches_of_another_iterator_do_not_count() -> None:
    loader = loader_of()
    profile = loader.profile(3, replay=0)
    for _ in profile:
        next(iter(loader))
    assert profile.result.samples == 3 * BATCH


def test_samples_without_batching_have_their_index() -> None:
    loader = DataLoader(Photos(), batch_size=None, output="numpy", num_workers=1)
    result = loader.profile(step=lambda sample: None)
    assert SLOW in [sample.index for sample in result.slowest] and result.samples == SIZE


def test_whole_batches_have_no_samples_of_their_own() -> None:
    class Whole(Photos):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    result = loader_of(Whole()).profile(step=lambda batch: None)
    assert result.each.count == 0 and result.slowest == () and result.stages["fetch"].count == SIZE // BATCH


def test_threads_of_a_worker_leave_the_cpu_time_unknown() -> None:
    result = loader_of(num_workers=1, threads_per_worker=3).profile(step=lambda batch: None)
    assert result.cpu_share is None and sum(step.calls for step in result.steps) == 2 * SIZE


def test_automatic_number_of_workers() -> None:
    loader = loader_of(num_workers="auto")
    assert [plain(batch)["label"] for batch in loader.profile()] == [plain(batch)["label"] for batch in loader_of()]


def test_workers_of_a_gpu_loop_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(profiling, "wait_for_device", lambda: (waits.append(1), time.sleep(0.02)))
    result = loader_of().profile(4, step=lambda batch: None, replay=2)
    assert len(waits) == 2 and result.held is not None and result.held.seconds >= 0.02
    assert result.step.seconds >= 0.02 > result.step.longest


def test_profiles_closed_in_the_order_of_opening_leave_nothing() -> None:
    loader = loader_of()
    first, second = loader.profile(), loader.profile()
    next(first), next(second)
    first.close()
    second.close()
    assert record_of(loader).timing_sink is None


@pytest.mark.parametrize("arguments", [{"batches": 2.5}, {"batches": "3"}, {"batches": 3, "replay": 1.5}])
def test_numbers_that_are_no_integers_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="integer"):
        loader_of().profile(**arguments)


class SlowSampler:
    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        for index in range(40):
            time.sleep(0.006)
            yield index


def test_slow_sampler_is_the_stage() -> None:
    loader = DataLoader(list(range(40)), batch_size=2, sampler=SlowSampler(), num_workers=1, output="numpy")
    profile = loader.profile(batches=None)
    assert sum(len(batch) for batch in profile) == 40
    found = profile.result
    assert found.sampler == "SlowSampler" and 0.1 < found.sampled < found.first + found.wait.seconds
    assert found.verdict.stage == "sampler" and str(found.verdict.change).startswith("Make the sampler quicker (Slow")
    assert observe(None) is None
