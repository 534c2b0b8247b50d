"""`stoker.install()` under torchdata's `StatefulDataLoader`: numbers are drawn when torchdata draws them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import pytest

import stoker
from stoker._core.worker_info import current
from stoker.diagnostics.watched_program import ScriptRun, command_of

torch = pytest.importorskip("torch")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore")  # torchdata's

SAMPLES, BATCH = 10, 3


class Asking(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, int(current.info is not None or current.rng is not None)


def made(shuffle: bool = True, **changes: Any) -> Any:
    return torchdata.StatefulDataLoader(Asking(), batch_size=BATCH, shuffle=shuffle, **changes)


def asked_first(**changes: Any) -> tuple[list[Any], list[int]]:
    """Returns samples and the generator's position in each batch of loaders that are asked for states first.

    Accelerate asks all loaders that it prepares, before the first epoch.
    """
    torch.manual_seed(1)
    loaders = [made(shuffle, **changes) for shuffle in (True, False, True)]
    for loader in loaders:
        loader.state_dict()
    told: list[Any] = [int(torch.get_rng_state().long().sum())]
    engines: set[int] = set()
    for _ in range(2):
        for loader in loaders:
            for samples, made_by in loader:
                told.append((samples.tolist(), int(torch.get_rng_state().long().sum())))
                engines |= set(made_by.tolist())
    return told, sorted(engines)


def is_whole(loader: Any) -> bool:
    """Returns whether an epoch has each sample once."""
    return sorted(index for samples, _ in loader for index in samples.tolist()) == list(range(SAMPLES))


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["none", "workers", "persistent"],
)
def test_states_before_the_first_epoch_leave_torchs_order(changes: dict[str, Any]) -> None:
    torchs, theirs = asked_first(**changes)
    with stoker.install():
        ours, engines = asked_first(**changes)
    assert (theirs, engines) == ([0], [1])
    assert ours == torchs


@pytest.mark.parametrize("workers", [0, 2])
def test_state_before_the_first_batch_is_the_start(workers: int) -> None:
    with stoker.install():
        loader = made(num_workers=workers)
        state = loader.state_dict()
        assert loader.state_dict() == state
        whole = [samples.tolist() for samples, _ in loader]
        again = made(num_workers=workers)
        again.load_state_dict(state)
        assert [samples.tolist() for samples, _ in again] == whole


def test_loaded_state_takes_the_place_of_an_early_iterator() -> None:
    with stoker.install():
        loader = made(num_workers=2)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [samples.tolist() for samples, _ in batches]
        other = made(num_workers=2)
        other.state_dict()
        other.load_state_dict(state)
        assert other.state_dict()["_iterator_finished"] is False
        assert [samples.tolist() for samples, _ in other] == rest
        assert is_whole(other)


@pytest.mark.parametrize("persistent", [False, True])
def test_early_iterator_ends_with_its_loader(persistent: bool) -> None:
    with stoker.install():
        loader = made(num_workers=2, persistent_workers=persistent)
        loader.state_dict()
        loader._iterator = None  # as frameworks end workers
        assert is_whole(loader)
        loader._iterator = None
        made(num_workers=2, persistent_workers=persistent).state_dict()


LOOP = """
    for workers in (0, 2):
        loader = StatefulDataLoader(range(200), batch_size=10, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(2):
            assert sum(map(len, loader)) == 200
    """


@pytest.mark.parametrize("before", ["", "import torch.utils.data; list(torch.utils.data.DataLoader([1]))"])
@pytest.mark.parametrize("engine", ["torch", "stoker"])
def test_stoker_run_measures(engine: Literal["torch", "stoker"], before: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    imports = f"{before}\nfrom torchdata.stateful_dataloader import StatefulDataLoader"
    script.write_text(f"{imports}\n{dedent(LOOP)}")
    run = ScriptRun(command_of(str(script), None, []), engine)
    assert run.run() == 0
    loaders = [one for one in run.measurements.loaders if one.about["batch_size"] == 10]
    assert [one.summary().samples for one in loaders] == [400, 400]
    assert {one.about["engine"] for one in loaders} == {engine}
