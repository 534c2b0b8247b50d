from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.loader._epoch import ranks as module
from stoker.loader._epoch.ranks import LAUNCHERS, World, find


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, rank, size in LAUNCHERS:
        monkeypatch.delenv(rank, raising=False)
        monkeypatch.delenv(size, raising=False)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    def environment(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return environment


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5, get_world_size=lambda: 6
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))  # type: ignore[arg-type]
    return distributed


def test_without_a_launcher_there_is_one_rank() -> None:
    assert find() == World(0, 1, "no launcher found")


def test_arguments_come_first(environment: Any, fake_torch: SimpleNamespace) -> None:
    environment(RANK="1", WORLD_SIZE="2")
    assert find((3, 4)) == World(3, 4, "arguments")


def test_a_process_group_comes_before_the_environment(environment: Any, fake_torch: SimpleNamespace) -> None:
    environment(RANK="1", WORLD_SIZE="2")
    assert find() == World(5, 6, "torch.distributed")


@pytest.mark.parametrize("lacking", ["is_available", "is_initialized"])
def test_no_process_group(environment: Any, fake_torch: SimpleNamespace, lacking: str) -> None:
    setattr(fake_torch, lacking, lambda: False)
    environment(RANK="1", WORLD_SIZE="2")
    assert find()[:2] == (1, 2)


def test_a_torch_that_is_blocked_or_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch in (None, SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
        assert find()[:2] == (0, 1)


@pytest.fixture
def process_group(tmp_path: Any) -> Iterator[None]:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_process_group_of_torch(environment: Any, process_group: None) -> None:
    environment(RANK="1", WORLD_SIZE="2")
    assert find() == World(0, 1, "torch.distributed")


@pytest.mark.parametrize(
    ("launcher", "rank", "size"),
    [
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MPI", "PMI_RANK", "PMI_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
class TestLauncher:
    def test_launcher_gives_rank_and_size(self, environment: Any, launcher: str, rank: str, size: str) -> None:
        environment(**{rank: "2", size: "8"})
        assert find() == World(2, 8, f"{rank} and {size}, set by {launcher}")

    def test_launcher_inside_slurm_is_the_inner_one(
        self, environment: Any, launcher: str, rank: str, size: str
    ) -> None:
        environment(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2", SLURM_NTASKS="2")
        environment(**{rank: "9", size: "16"})
        assert find()[:2] == (9, 16)

    def test_launcher_rank_outside_of_the_world_is_refused(
        self, environment: Any, launcher: str, rank: str, size: str
    ) -> None:
        environment(**{rank: "8", size: "8"})
        with pytest.raises(ValueError, match=f"{rank} 8 is outside of a world of 8 ranks .{size}.: .*{launcher}"):
            find()

    @pytest.mark.parametrize("value", ["", "one", "1.0"])
    def test_launcher_value_that_is_no_integer_is_refused(
        self, environment: Any, launcher: str, rank: str, size: str, value: str
    ) -> None:
        environment(**{rank: "0", size: value})
        with pytest.raises(ValueError, match=f"{size} is '{value}', which is no integer\\. Check .*{launcher}"):
            find()

    def test_launcher_that_gives_the_size_alone_is_refused(
        self, environment: Any, launcher: str, rank: str, size: str
    ) -> None:
        environment(**{size: "8"})
        with pytest.raises(ValueError, match=f"{size} is '8' in the environment, but {rank} is not set.*Set {rank}"):
            find()


@pytest.mark.parametrize(("rank", "size"), [names for _, *names in LAUNCHERS if names[0] != "SLURM_PROCID"])
def test_a_rank_without_a_size(environment: Any, rank: str, size: str) -> None:
    environment(**{rank: "1"})
    with pytest.raises(ValueError, match=f"{rank} is '1' in the environment, but {size} is not set.*Set {size}"):
        find()


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, id="a batch script"),
        pytest.param({"SLURM_NTASKS": "4"}, id="the shell of salloc"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, id="an interactive step"),
    ],
)
def test_one_process_in_a_slurm_allocation_for_four_is_one_rank(environment: Any, variables: dict[str, str]) -> None:
    environment(**variables)
    assert find()[:2] == (0, 1)


@pytest.mark.parametrize("given", [(2, 2), (-1, 2), (0, 0), (0, -1), (5, 3)])
def test_a_rank_outside_of_the_world(given: tuple[int, int]) -> None:
    rank, size = given
    with pytest.raises(ValueError, match=f"rank {rank} is outside of a world of {size} ranks .world size.*arguments"):
        find(given)


@pytest.mark.parametrize(("given", "named"), [((0.5, 2), "rank is 0.5"), ((0, None), "world size is None")])
def test_rank_that_is_no_integer_is_refused(given: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}, which is no integer"):
        find(given)


def test_integers_of_other_kinds_are_integers() -> None:
    numpy = pytest.importorskip("numpy")
    world = find((numpy.int32(1), numpy.uint8(2)))  # type: ignore[arg-type]
    assert world[:2] == (1, 2)
    assert [type(number) for number in world[:2]] == [int, int]


def test_torch_is_never_imported() -> None:
    code = f"import sys; from {module.__name__} import find; find(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
