"""Finds rank and number of ranks of a loader in a `torch.distributed` DeviceMesh."""

from __future__ import annotations

import sys
from typing import Any


def ranks_of(mesh: Any) -> tuple[int, int]:
    """Returns the number of data-parallel ranks, and the number of this process among them.

    Processes that differ in other dimensions alone get the same numbers, and so the same data.

    Args:
        mesh: a DeviceMesh of one dimension; or a pair of a DeviceMesh and the name of a dimension, or of several, of
            which the last one varies fastest.

    Raises:
        TypeError: no DeviceMesh, or no names.
        ValueError: the mesh has several dimensions and none is named, has no dimension of that name, or does not
            include this process.
    """
    mesh, names = mesh if isinstance(mesh, (tuple, list)) and len(mesh) == 2 else (mesh, None)
    _check_kind(mesh)
    if names is None:
        if mesh.ndim != 1:
            raise ValueError(
                f"mesh has {mesh.ndim} dimensions ({_known(mesh)}): name the data-parallel one, as in "
                "mesh=(mesh, 'dp'), or pass that part of it, mesh['dp']."
            )
        return _size_and_rank(mesh, mesh)
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"mesh=(mesh, names) takes one name of a dimension or several, but got {names!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"mesh=(mesh, names) names a dimension twice: {', '.join(names)}")
    number, rank = 1, 0
    for name in names:
        size, local = _size_and_rank(_part(mesh, name), mesh)
        number, rank = number * size, rank * size + local
    return number, rank


def _check_kind(mesh: Any) -> None:
    module = sys.modules.get("torch.distributed.device_mesh")  # a DeviceMesh cannot exist without it
    if module is None or not isinstance(mesh, module.DeviceMesh):
        raise TypeError(
            "mesh takes a torch.distributed.device_mesh.DeviceMesh, or a pair of one and the name of its data-parallel "
            f"dimension, but got {type(mesh).__name__}. Without a mesh give num_replicas= and rank=."
        )


def _part(mesh: Any, name: str) -> Any:
    if tuple(mesh.mesh_dim_names or ()) == (name,):
        return mesh
    try:
        return mesh[name]
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"mesh has no dimension {name!r}: its dimensions are {_known(mesh)}. ({error})") from error


def _size_and_rank(part: Any, mesh: Any) -> tuple[int, int]:
    if mesh.get_coordinate() is None:
        raise ValueError(
            "this process is not part of the mesh, so it has no share of the data: make the loader in the mesh's "
            "processes alone."
        )
    return int(part.size()), int(part.get_local_rank())


def _known(mesh: Any) -> str:
    sizes = tuple(mesh.shape)
    names = mesh.mesh_dim_names or ("without a name",) * len(sizes)
    return ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
