"""The error policy: the same decisions, batches and counts on every backend with any number of workers."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import SkipSample
from stoker.loader._epoch import ranks
from tests.faults.everywhere import EVERY, EVERYWHERE
from tests.faults.runs import BACKENDS, BAD, N, Samples, fates, faults_in, indices, loader, plain, raises, story

pytestmark = pytest.mark.filterwarnings("ignore::stoker.StokerWarning")


def by_class(record: Any) -> str:
    """A policy of the user's."""
    return {OSError: "skip", ValueError: "replace"}.get(type(record.exception), "raise")


POLICIES: dict[str, Any] = {"raise": "raise", "skip": "skip", "replace": "replace", "callable": by_class}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("backend", EVERY)
def test_error_policy_is_the_same_on_every_backend(backend: str, policy: str, tmp_path: Path) -> None:
    def run(name: str, **settings: Any) -> Any:
        file = tmp_path / name
        made = loader(Samples(BAD), shuffle=True, on_error=POLICIES[policy], quarantine=file, **settings)
        return [(story(made), fates(made)) for _ in range(2)], faults_in(file)

    assert run("this", **BACKENDS[backend]) == run("serial")


def rows(*skipped: int) -> list[list[int]]:
    """The batches of an epoch without these samples."""
    batches = ([index for index in range(first, first + 4) if index not in skipped] for first in range(0, N, 4))
    return [batch for batch in batches if batch]


def test_raise_policy_raises_in_the_batchs_place() -> None:
    made = loader(Samples(BAD))
    expected: list[Any] = rows(8, 31)
    expected[0], expected[1], expected[2], expected[7] = OSError, ValueError, OSError, KeyError
    assert indices(story(made)) == expected
    assert fates(made) == {
        "planned": N,
        "delivered": N - 16,
        "replaced": 0,
        "skipped": 0,  # both wishes lie in batches that are errors
        "quarantined": 0,
        "raised": 16,
        "not_requested": 0,
    }


def test_skip_policy_leaves_bad_samples_out() -> None:
    made = loader(Samples(BAD), on_error="skip")
    assert indices(story(made)) == rows(2, 7, 8, 9, 30, 31)
    counts = fates(made)
    assert (counts["delivered"], counts["skipped"], counts["quarantined"]) == (N - 6, 2, 4)


def test_replace_policy_keeps_the_batch_size() -> None:
    made = loader(Samples(BAD), on_error="replace")
    batches = indices(story(made))
    good = rows(*BAD)
    assert [len(batch) for batch in batches] == [4] * (N // 4)
    for batch, kept in zip(batches, good, strict=True):
        assert set(batch) == set(kept)  # of the same batch, as long as it has one that is good
    counts = fates(made)
    assert (counts["delivered"], counts["replaced"]) == (N - 6, 6)


def test_callable_policy_decides_for_each_fault() -> None:
    made = loader(Samples(BAD), on_error=by_class)
    batches = indices(story(made))
    assert batches[0] == [0, 1, 3] and batches[2] == [10, 11] and batches[7] is KeyError
    assert len(batches[1]) == 4 and set(batches[1]) == {4, 5, 6}
    assert fates(made)["raised"] == 4


@pytest.mark.parametrize("backend", [None, "two workers"])
def test_the_others_draw_what_they_always_draw(backend: str | None) -> None:
    settings = {"shuffle": True, **(BACKENDS[backend] if backend else {})}
    calm = samples(story(loader(Samples(), **settings)))
    skipped = samples(story(loader(Samples(BAD), on_error="skip", **settings)))
    assert skipped == [(index, drawn) for index, drawn in calm if index not in BAD]
    replaced = samples(story(loader(Samples(BAD), on_error="replace", **settings)))
    for now, before in zip(replaced, calm, strict=True):
        assert now[0] not in BAD if before[0] in BAD else now == before


def samples(batches: list[Any]) -> list[tuple[int, float]]:
    """(index, number drawn) of each sample, in order."""
    return [pair for batch in batches for pair in zip(*batch, strict=True)]


EMPTY: Any = iter(())


def runs_out(index: Any) -> Any:
    return next(EMPTY)


def runs_out_of_eights(samples: list[Any]) -> Any:
    found = [index for index, _ in samples]
    return next(EMPTY) if 8 in found else [found]


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("where", ["a sample", "a sample, by threads", "collate_fn"])
def test_stopiteration_of_a_sample_is_an_error_in_its_place(where: str, backend: str | None) -> None:
    """A StopIteration is an error in its batch's place, as others are."""
    settings = dict(BACKENDS[backend]) if backend else {}
    if where == "collate_fn":
        settings["collate_fn"] = runs_out_of_eights
    elif "threads" in where:
        settings["threads_per_worker"] = 1 if "thread" in str(backend) else 3
    iterator = iter(loader(Samples({} if where == "collate_fn" else {9: runs_out}), **settings))
    assert [plain(next(iterator))[0] for _ in range(2)] == rows()[:2]
    with pytest.raises(RuntimeError, match=r"raised StopIteration, .* a next\(\) without a default") as caught:
        next(iterator)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert [plain(batch)[0] for batch in iterator] == rows()[3:]


def test_stopiteration_of_a_sample_can_be_left_out() -> None:
    made = loader(Samples({9: runs_out}), on_error="skip", **BACKENDS["two workers"])
    assert indices(story(made)) == rows(9)


class TestReplacement:
    def test_replacement_depends_on_the_seed_alone(self) -> None:
        def run(seed: int, **settings: Any) -> list[Any]:
            return story(loader(Samples({5: raises(OSError)}, 64), batch_size=16, on_error="replace", seed=seed))[0]

        assert run(1) == run(1)
        assert len({tuple(run(seed)[0]) for seed in range(8)}) > 3

    def test_replacement_is_never_a_bad_sample(self) -> None:
        batches = indices(story(loader(Samples(dict.fromkeys((0, 1, 2), raises(OSError))), on_error="replace")))
        assert batches[0] == [3, 3, 3, 3]

    @pytest.mark.parametrize("backend", ["two workers", "three threads"])
    def test_replacement_comes_from_elsewhere_for_a_bad_batch(self, backend: str) -> None:
        bad = dict.fromkeys(range(8, 12), raises(OSError))

        def run(**settings: Any) -> list[Any]:
            return story(loader(Samples(bad), on_error="replace", **settings))

        batches = run(**BACKENDS[backend])
        assert batches == run()
        assert len(batches[2][0]) == 4 and not set(batches[2][0]) & set(bad)

    def test_walked_sampler_gives_no_replacement_for_a_bad_batch(self) -> None:
        """What the sampler chooses later is not known yet; what it does not choose is never taken."""
        bad = dict.fromkeys((3, 4), raises(OSError))
        made = loader(Samples(bad), sampler=[0, 1, 3, 4, 5, 6], batch_size=2, on_error="replace")
        iterator = iter(made)
        assert plain(next(iterator))[0] == [0, 1]
        with pytest.raises(
            stoker.ErrorBudgetError, match=r"sample 3 cannot be replaced .*: each of the 1 .* fails as well"
        ):
            next(iterator)
        assert fates(made)["delivered"] == 2

    def test_batch_of_one_sample_of_a_sampler_has_no_replacement(self) -> None:
        made = loader(Samples({3: raises(OSError)}), sampler=[1, 3, 5], batch_size=None, on_error="replace")
        with pytest.raises(stoker.ErrorBudgetError, match="there is no other") as caught:
            list(made)
        assert "image file is truncated (3)" in str(caught.value)

    @pytest.mark.parametrize("backend", ["two workers", "three threads"])
    def test_replacement_is_one_of_the_samplers_choices(self, backend: str) -> None:
        chosen = list(range(0, N, 3))
        bad = dict.fromkeys(chosen[:10], raises(OSError))
        settings: dict[str, Any] = {"on_error": "replace", "max_errors": None, **BACKENDS[backend]}
        kinds: list[dict[str, Any]] = [
            {"dataset": Samples(bad), "sampler": stoker.SubsetRandomSampler(chosen)},
            {"dataset": Samples(bad), "sampler": chosen, "batch_size": 16},
            {"dataset": stoker.Subset(Samples(bad), chosen), "shuffle": True},
        ]
        for kind in kinds:
            made = loader(**{**settings, **kind})
            taken = list(itertools.chain.from_iterable(indices(story(made))))
            assert len(taken) == len(chosen) and set(taken) <= set(chosen) - set(bad)


@pytest.mark.parametrize("backend", [None, "two workers", "three threads"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_wish_costs_nothing(policy: str, backend: str | None) -> None:
    bad = dict.fromkeys((8, 31), raises(SkipSample, "too dark"))
    settings = BACKENDS[backend] if backend else {}
    made = loader(Samples(bad), on_error=POLICIES[policy], max_errors=0, **settings)
    batches = indices(story(made))
    counts = fates(made)
    assert counts["delivered"] == N - 2 and counts["quarantined"] == counts["raised"] == 0
    if policy == "replace":
        assert [len(batch) for batch in batches] == [4] * 12 and counts["replaced"] == 2
    else:
        assert batches == rows(8, 31) and counts["skipped"] == 2


class AtOnce(Samples):
    """Fetches a batch at once."""

    def __init__(self, faults: Any = None) -> None:
        super().__init__(faults)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(indices)
        return [self[index] for index in indices]


class TestBatchesAtOnce:
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("backend", ["one thread", "two workers"])
    def test_error_policy_is_the_same_on_every_backend(self, backend: str, policy: str) -> None:
        def run(**settings: Any) -> Any:
            made = loader(AtOnce(BAD), shuffle=True, on_error=POLICIES[policy], **settings)
            return story(made), fates(made)

        assert run(**BACKENDS[backend]) == run()

    def test_bad_sample_of_a_batched_fetch_is_found_one_by_one(self) -> None:
        dataset = AtOnce({5: raises(OSError), 9: raises(SkipSample)})
        made = loader(dataset, on_error="skip")
        assert indices(story(made)) == rows(5, 9)
        assert dataset.asked[1:9] == [[4, 5, 6, 7], [4], [5], [6], [7], [8, 9, 10, 11], [8], [9]]
        assert fates(made)["quarantined"] == fates(made)["skipped"] == 1

    def test_batched_fetch_that_raises_is_not_searched_under_raise(self) -> None:
        dataset = AtOnce({5: raises(OSError)})
        assert indices(story(loader(dataset)))[1] is OSError
        assert dataset.asked[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    def test_a_wish_is_heard(self) -> None:
        assert indices(story(loader(AtOnce({9: raises(SkipSample)})))) == rows(9)


@pytest.mark.parametrize("backend", [None, "two workers", "three threads"])
def test_policy_applies_without_batching(backend: str | None) -> None:
    settings = {"batch_size": None, "shuffle": True, **(BACKENDS[backend] if backend else {})}
    skipping = loader(Samples(BAD), on_error="skip", **settings)
    assert {index for index, _ in story(skipping)} == set(range(N)) - set(BAD)
    assert fates(skipping)["quarantined"] == 4 and fates(skipping)["skipped"] == 2
    replacing = loader(Samples(BAD), on_error="replace", **settings)
    assert len(story(replacing)) == N and fates(replacing)["replaced"] == 6
    raising = loader(Samples(BAD), **settings)
    kinds = [sample for sample in story(raising) if isinstance(sample, type)]
    assert sorted(kind.__name__ for kind in kinds) == ["KeyError", "OSError", "OSError", "ValueError"]


class OfRank(list[list[int]]):
    """Batches of one rank, as a sampler of the user's makes them."""

    num_replicas, rank = 2, 1


def only_late_ones(sample: int) -> int:
    if sample < 4:
        raise OSError(f"{sample} is early")
    return sample


class TestNothingIsLeft:
    BAD = dict.fromkeys(range(8, 12), raises(OSError))

    @pytest.mark.parametrize("backend", [None, "two workers", "three threads", "clean workers"])
    def test_batch_without_samples_is_not_delivered(self, backend: str | None) -> None:
        made = loader(Samples(self.BAD), on_error="skip", **(BACKENDS[backend] if backend else {}))
        assert indices(story(made)) == rows(*self.BAD)
        counts = made.report().epoch
        assert counts.batches == N // 4 - 1 and counts.quarantined == 4 and counts.not_requested == 0

    @pytest.mark.parametrize("place", ["first", "last"])
    def test_at_the_ends_of_an_epoch(self, place: str) -> None:
        bad = dict.fromkeys(range(4) if place == "first" else range(N - 4, N), raises(OSError))
        assert indices(story(loader(Samples(bad), on_error="skip", **BACKENDS["two workers"]))) == rows(*bad)

    @pytest.mark.parametrize("backend", [None, "two workers", "three threads"])
    def test_empty_batch_of_one_rank_is_an_error(self, backend: str | None) -> None:
        settings = {"distributed": "pad", "num_replicas": 2, "rank": 1, **(BACKENDS[backend] if backend else {})}
        bad = dict.fromkeys(range(17, 24, 2), raises(OSError))
        iterator = iter(loader(Samples(bad), on_error="skip", **settings))
        assert [plain(next(iterator))[0][0] for _ in range(2)] == [1, 9]
        with pytest.raises(stoker.errors.EmptyBatchError, match=r"batch 2 .* rank 1 of 2: .*on_error='replace'"):
            next(iterator)
        replacing = indices(story(loader(Samples(bad), on_error="replace", **settings)))
        assert [len(batch) for batch in replacing] == [4] * 6 and not set(replacing[2]) & set(bad)

    @pytest.mark.parametrize("form", ["sampler", "batch_sampler", "torch's batch_sampler", "batches of its own"])
    def test_empty_batch_with_a_distributed_sampler_is_an_error(self, form: str) -> None:
        sampler = stoker.DistributedSampler(range(N), num_replicas=2, rank=1, shuffle=False)
        settings: dict[str, Any] = {"batch_size": 1}
        if form == "sampler":
            settings = {"sampler": sampler}
        elif form == "batch_sampler":
            settings["batch_sampler"] = stoker.BatchSampler(sampler, 4, False)
        elif form == "batches of its own":
            settings["batch_sampler"] = OfRank([[1, 3, 5, 7], [9, 11]])
        else:
            torch_data = pytest.importorskip("torch.utils.data")
            settings["batch_sampler"] = torch_data.BatchSampler(sampler, 4, False)
        bad = dict.fromkeys(range(1, 8, 2), raises(OSError))
        with pytest.raises(stoker.errors.EmptyBatchError, match="rank 1 of 2"):
            list(loader(Samples(bad), on_error="skip", **settings))

    def test_empty_batch_with_a_sampler_that_asks_torch_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(ranks, "of_torch", lambda: ranks.World(1, 2, "torch.distributed"))
        bad = dict.fromkeys(range(1, 8, 2), raises(OSError))
        made = loader(Samples(bad), sampler=range(1, N, 2), on_error="skip", quarantine=tmp_path / "bad")
        with pytest.raises(stoker.errors.EmptyBatchError, match="rank 1 of 2"):
            list(made)
        assert {record.rank for record in stoker.quarantine(tmp_path / "bad")} == {1}

    def test_empty_batch_of_a_stream_is_no_error(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(ranks, "of_torch", lambda: ranks.World(1, 2, "torch.distributed"))
        dataset = stoker.MapDataset(stoker.from_iterable(range, 8), only_late_ones)
        made = loader(dataset, on_error="skip", quarantine=tmp_path / "bad")
        assert [plain(batch) for batch in made] == [[4, 5, 6, 7]]
        assert {record.rank for record in stoker.quarantine(tmp_path / "bad")} == {1}


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_a_run_goes_on_in_the_middle_of_such_an_epoch(policy: str) -> None:
    """From each place, on another backend: what follows is the same, and so is what is counted of it."""
    bad = {**BAD, **dict.fromkeys(range(20, 24), raises(OSError))}

    def make(**settings: Any) -> Any:
        return loader(Samples(bad), on_error=policy, shuffle=True, **settings)

    whole, backends = story(make()), itertools.cycle([{}, BACKENDS["two workers"], BACKENDS["three threads"]])
    for count, settings in zip(range(len(whole) + 1), backends, strict=False):
        first = make(**settings)
        iterator = iter(first)
        for number in range(count):
            if isinstance(whole[number], type):
                with pytest.raises(whole[number]):
                    next(iterator)
            else:
                next(iterator)
        second = make(**next(backends))
        second.load_state_dict(first.state_dict())
        if hasattr(iterator, "close"):
            iterator.close()
        assert story(second) == whole[count:]
        counts = fates(second)
        assert sum(number for name, number in counts.items() if name != "planned") == counts["planned"]


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_sys_exit_in_a_worker_thread_is_a_samples_error(policy: str) -> None:
    """It would end a process, and be found there as what ends workers."""
    made = loader(
        Samples({9: lambda index: sys.exit("no such file")}),
        on_error=policy,
        num_workers=2,
        worker_method="thread",
    )
    told = indices(story(made))
    if policy == "raise":
        assert told == [*rows()[:2], stoker.WorkerDiedError, *rows()[3:]]
    else:
        assert [len(batch) for batch in told] == [4, 4, 3 if policy == "skip" else 4] + [4] * (N // 4 - 3)
        assert all(9 not in batch for batch in told)
    like = made.report().total.faults["WorkerDiedError"]
    assert (like.count, like.first.index) == (1, 9)
    assert "called sys.exit(no such file)" in like.first.exception
    assert "in <lambda>" in like.first.traceback
