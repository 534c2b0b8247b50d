"""`mesh=`: the ranks that share an epoch, from torch's DeviceMesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)
fakes = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's meshes

Meshes = Callable[..., Any]


@pytest.fixture
def mesh_of() -> Iterator[Meshes]:
    """Makes the mesh of one rank of a job, with torch's process group that sends nothing."""
    from torch.distributed.device_mesh import init_device_mesh

    def end() -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def made(rank: int, shape: tuple[int, ...], *names: str) -> Any:
        end()
        world = torch.Size(shape).numel()
        torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=fakes.FakeStore())
        return init_device_mesh("cpu", shape, mesh_dim_names=names or None)

    yield made
    end()


def loader_of(mesh: Any, **how: Any) -> stoker.DataLoader[Any]:
    how = {"distributed": "exact", "shuffle": True, "seed": 3, "output": "numpy"} | how
    return stoker.DataLoader(range(24), 2, mesh=mesh, **how)


def numbers(loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch]


def test_ranks_beside_the_dimension_get_the_same_data(mesh_of: Meshes) -> None:
    shares = [numbers(loader_of((mesh_of(rank, (2, 3), "dp", "tp"), "dp"))) for rank in range(6)]
    assert shares[0] == shares[1] == shares[2]
    assert shares[3] == shares[4] == shares[5]
    assert sorted(shares[0] + shares[3]) == list(range(24))


def test_shares_are_those_of_num_replicas_and_rank(mesh_of: Meshes) -> None:
    loader = loader_of((mesh_of(4, (2, 3), "tp", "dp"), "dp"))
    assert (loader.num_replicas, loader.rank, loader.mesh) == (3, 1, None)
    assert numbers(loader) == numbers(loader_of(None, num_replicas=3, rank=1))


def test_several_names_make_one_dimension(mesh_of: Meshes) -> None:
    seen = []
    for rank in range(8):
        mesh = mesh_of(rank, (2, 2, 2), "replicate", "shard", "cp")
        loader = loader_of((mesh, ("replicate", "shard")))
        assert (loader.num_replicas, loader.rank) == (4, rank // 2)
        seen += numbers(loader)
    assert sorted(seen) == sorted([*range(24)] * 2)


def test_a_mesh_of_one_dimension_needs_no_name(mesh_of: Meshes) -> None:
    loader = loader_of(mesh_of(5, (2, 4), "dp", "tp")["tp"])
    assert (loader.num_replicas, loader.rank) == (4, 1)
    part = mesh_of(6, (2, 4), "dp", "tp")["dp"]
    assert (loader_of((part, "dp")).num_replicas, loader_of((part, "dp")).rank) == (2, 1)
    loader = loader_of(mesh_of(2, (3,)))
    assert (loader.num_replicas, loader.rank) == (3, 2)


def test_the_state_is_the_same_on_all_ranks_and_elastic(mesh_of: Meshes) -> None:
    states, seen = [], []
    for rank in range(4):
        loader = loader_of((mesh_of(rank, (2, 2), "dp", "tp"), "dp"))
        batches = iter(loader)
        mine = [int(sample) for _ in range(3) for sample in next(batches)]
        seen += mine if rank % 2 == 0 else []
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    for rank in (0, 2, 4):
        loader = loader_of((mesh_of(rank, (3, 2), "dp", "tp"), "dp"))
        loader.load_state_dict(states[3])
        seen += numbers(loader)
    assert sorted(seen) == list(range(24))


def test_a_mesh_that_says_too_little_is_refused(mesh_of: Meshes) -> None:
    mesh = mesh_of(1, (2, 3), "dp", "tp")
    with pytest.raises(ValueError, match=r"2 dimensions \(dp \(2\), tp \(3\)\): name the data-parallel one"):
        loader_of(mesh)
    with pytest.raises(ValueError, match=r"no dimension 'data': its dimensions are dp \(2\), tp \(3\)"):
        loader_of((mesh, "data"))
    with pytest.raises(ValueError, match="no dimension 'dp': its dimensions are without a name"):
        loader_of((mesh_of(1, (2, 3)), "dp"))
    with pytest.raises(ValueError, match="twice: dp, dp"):
        loader_of((mesh, ("dp", "dp")))


def test_contradictory_arguments_are_refused(mesh_of: Meshes) -> None:
    mesh = mesh_of(1, (2,), "dp")
    with pytest.raises(ValueError, match="leave out num_replicas and rank"):
        loader_of(mesh, num_replicas=2, rank=1)
    with pytest.raises(ValueError, match="mesh needs distributed='pad'"):
        loader_of(mesh, distributed=None)
    for names in (0, (), ("dp", 1)):
        with pytest.raises(TypeError, match="takes one name of a dimension or several"):
            loader_of((mesh, names))


@pytest.mark.parametrize("mesh", ["dp", 4, ("dp", "dp")], ids=str)
def test_what_is_no_mesh_is_refused(mesh: Any, mesh_of: Meshes) -> None:
    mesh_of(0, (2,))
    with pytest.raises(TypeError, match=r"mesh takes a torch\.distributed\.device_mesh\.DeviceMesh"):
        loader_of(mesh)


def test_a_process_outside_of_the_mesh_is_refused() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    torch.distributed.init_process_group("fake", rank=3, world_size=4, store=fakes.FakeStore())
    try:
        with pytest.raises(ValueError, match="this process is not part of the mesh"):
            loader_of(DeviceMesh("cpu", [0, 1]))
    finally:
        torch.distributed.destroy_process_group()
