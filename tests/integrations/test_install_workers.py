"""`stoker.install(num_workers="auto")`: which loaders get another number of workers, and what stays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

import stoker
from stoker._core.machine import cpus
from stoker._core.machine.cpus import Cpus
from stoker.loader._autotune import controller
from stoker.loader._epoch import ranks
from tests.integrations.test_installed_order import KINDS, Drawing, Numbers, made, run
from tests.loader._autotune.test_policy import ToAndFro

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:'pin_memory' argument",
    "ignore:thread '.*' of this process",  # the frameworks of other tests start threads
)


class BackAndForth(ToAndFro):
    """Two workers and one by turns, and one at last."""

    last = 1
    course = (2, 1, 2, 1, 2, 1)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has two CPUs, and a trial without clock."""
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(2, 2.0, "a test"))
    monkeypatch.setattr(controller, "Trial", BackAndForth)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.fixture
def automatic() -> Iterator[stoker.Installation]:
    with stoker.install(images=False, num_workers="auto") as installation:
        yield installation


def text_of(loader: Any) -> str:
    hidden: Any = stoker.loader_of(loader)
    return str(hidden.workers_text)


@pytest.mark.parametrize("workers", [{"num_workers": 3}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("kind", ["shuffled", "weighted", "replacement", "generator", "batch sampler"])
def test_order_and_generator_stay_torchs(kind: str, workers: dict[str, Any]) -> None:
    torchs = run(made(KINDS[kind], workers), made(KINDS["shuffled"], workers))
    with stoker.install(images=False, num_workers="auto"):
        ours = run(made(KINDS[kind], workers), made(KINDS["shuffled"], workers))
    assert ours == torchs


def test_generator_is_left_as_torch_leaves_it_after_a_break() -> None:
    """A RandomSampler draws once more at its end, which is reached, or not, by what workers have drawn ahead."""

    def left_early() -> list[Any]:
        loader = data.DataLoader(
            list(range(24)), 4, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=3
        )
        return [next(iter(loader)).tolist() for _ in range(3)]

    torchs = left_early()
    with stoker.install(images=False, num_workers="auto"):
        assert left_early() == torchs


def test_numbers_that_samples_draw_do_not_depend_on_it() -> None:
    found = []
    for num_workers in (None, "auto"):
        torch.manual_seed(1)
        with stoker.install(images=False, num_workers=num_workers):
            loader = made(KINDS["shuffled"], {"num_workers": 1}, Drawing())
            found.append([[value.tolist() for value in batch] for _ in range(3) for batch in loader])
    assert found[0] == found[1]


def test_number_is_found_and_torchs_attribute_stays(automatic: stoker.Installation) -> None:
    loader = made(KINDS["shuffled"], {"num_workers": 3, "prefetch_factor": 3}, list(range(200)))
    hidden: Any = stoker.loader_of(loader)
    assert text_of(loader).startswith("num_workers=3 of the program is 2 at first")
    for _ in range(3):
        assert len(list(loader)) == 50
    assert (loader.num_workers, loader.prefetch_factor) == (3, 3)
    assert (hidden.num_workers, hidden.prefetch_factor) == (1, 3) and hidden is stoker.loader_of(loader)
    assert text_of(loader).startswith("num_workers=3 of the program is 1 of at most 2, because the training loop")
    assert "auto        1 of at most 2" in hidden.describe()
    assert hidden.report().epoch.delivered == 200
    loader.num_workers = 2  # the program's word: it is found anew
    assert text_of(loader).startswith("num_workers=2 of the program is 2 at first")
    assert hidden is not stoker.loader_of(loader)


class Own(data.RandomSampler):
    """May draw as it goes."""


class Stream(data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def nothing(worker: int) -> None:
    pass


KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"num_workers": 0}, "the loop may look at what its dataset does in this process: pass num_workers=1"),
    "stream": ({"dataset": Stream()}, "a stream is read by a fixed number of workers"),
    "init": ({"worker_init_fn": nothing}, "worker_init_fn prepares a fixed number"),
    "spawn": ({"multiprocessing_context": "spawn"}, "starts in a clean interpreter, and holds a copy of the dataset"),
    "class": ({"sampler": Own(range(20))}, "its Own may draw random numbers while the epoch runs"),
    "batches": ({"batch_sampler": data.BatchSampler(Own(range(20)), 2, False)}, "its Own may draw random numbers"),
    "generator": ({"shuffle": True, "generator": torch.Generator()}, "its RandomSampler with a generator may draw"),
}


@pytest.mark.parametrize("name", KEPT)
def test_loaders_keep_their_number(name: str, automatic: stoker.Installation) -> None:
    settings, reason = KEPT[name]
    loader = data.DataLoader(**{"dataset": Numbers(), "num_workers": 1, **settings})
    hidden: Any = stoker.loader_of(loader)
    assert hidden.num_workers == loader.num_workers
    assert text_of(loader).startswith(f"num_workers={loader.num_workers} is kept: ") and reason in text_of(loader)
    assert hidden.describe().endswith(text_of(loader))


def test_ranks_share_the_cpus(automatic: stoker.Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "of_torch", lambda: ranks.World(1, 2, "a test"))
    loader = made(KINDS["in order"], {"num_workers": 2})
    assert "is kept: LOCAL_WORLD_SIZE, the number of ranks that share" in text_of(loader)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loader = made(KINDS["in order"], {"num_workers": 2})
    assert text_of(loader).startswith("num_workers=2 of the program is 1 at first (2 CPUs, shared by 2 ranks")


def test_stokers_order_needs_no_sampler_that_draws_first() -> None:
    with stoker.install(images=False, num_workers="auto", order="stoker"):
        for settings in (KEPT["class"][0], KEPT["generator"][0]):
            loader = data.DataLoader(Numbers(), num_workers=1, **settings)
            assert text_of(loader).startswith("num_workers=1 of the program is 2 at first")
            assert sorted(int(index) for index in loader) == list(range(20))


first = ToAndFro.__init__


class InWorkers(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int, int]:
        info = data.get_worker_info()
        return index, info.id, info.num_workers


def test_samples_are_made_in_workers_alone(automatic: stoker.Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(BackAndForth, "__init__", lambda self, *given: asked.append(given[1]) or first(self, *given))
    batches = list(data.DataLoader(InWorkers(), 2, num_workers=1))
    rows = [[int(value) for value in row] for batch in batches for row in zip(*batch, strict=True)]
    assert asked == [False], "a trial that may not make batches in the trainer"
    assert [index for index, _, _ in rows] == list(range(20)) and all(worker < count for _, worker, count in rows)


def test_state_of_the_trial_resumes_without_it(automatic: stoker.Installation) -> None:
    batches = iter(loader := made(KINDS["shuffled"], {"num_workers": 2}))
    for _ in range(2):
        next(batches)
    state, rest = loader.state_dict(), [batch.tolist() for batch in batches]
    automatic.undo()
    with stoker.install(images=False):
        again = made(KINDS["shuffled"], {"num_workers": 1})
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == rest


def test_open_loaders_share_the_cpus(automatic: stoker.Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(6, 6.0, "a test"))
    train, check, third = (made(KINDS["in order"], {"num_workers": number}, Numbers()) for number in (2, 3, 1))
    opened = [iter(train), iter(check), iter(third)]
    numbers = [vars(stoker.loader_of(loader))["num_workers"] for loader in (train, check, third)]
    assert numbers == [6, 3, 1], "the others get what the program gave them, and no more"
    for each in opened:
        each._shutdown_workers()
    assert cpus.taken() == 0


def test_memory_limits_the_number(automatic: stoker.Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "MEMORY_OF_A_WORKER", 1 << 60)
    loader = made(KINDS["in order"], {"num_workers": 2})
    assert len(list(loader)) == 5
    assert vars(stoker.loader_of(loader))["num_workers"] == 1


def test_kept_workers_stay_and_become_fewer(automatic: stoker.Installation) -> None:
    loader = made(KINDS["in order"], {"num_workers": 2, "persistent_workers": True}, Processes())
    makers = [{int(pid) for batch in loader for pid in batch} for _ in range(4)]
    assert len(makers[0]) == 2 and len(makers[1]) == 1 and makers[1] == makers[2] == makers[3]
    loader._iterator = None


class Processes(Numbers):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_children_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_INSTALL", raising=False)
    with stoker.install(images=False, children=True, num_workers="auto"):
        assert json.loads(os.environ["STOKER_INSTALL"])["num_workers"] == "auto"
    assert "STOKER_INSTALL" not in os.environ


def test_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_workers should be 'auto', or None to .*, but got num_workers=4"):
        stoker.install(num_workers=4)  # type: ignore[arg-type]
