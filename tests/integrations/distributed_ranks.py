"""One rank of a job with torch's own checkpoints: DDP and FSDP2, and a mesh with a dimension of equal data.

`distributed_ranks.py FOLDER stop|resume RESULT`: writes the samples that this rank has trained on, by network.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import stoker  # noqa: E402

SAMPLES = 96
GLOBAL = 12  # samples in a step of all ranks


def network_of(kind: str) -> Any:
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
    return DistributedDataParallel(network) if kind == "ddp" else fully_shard(network)


def train(kind: str, folder: Path, what: str) -> dict[str, Any]:
    network, ranks = network_of(kind), dist.get_world_size()
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9)
    loader = stoker.DataLoader(range(SAMPLES), GLOBAL // ranks, shuffle=True, seed=3, distributed="exact")
    if what == "resume":
        weights, moments = get_state_dict(network, optimizer)
        dcp.load({"network": weights, "optimizer": moments, "loader": loader}, checkpoint_id=folder / kind)
        set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=moments)
    seen = []
    for batch in itertools.islice(loader, 3) if what == "stop" else loader:
        seen.append(batch.tolist())
        network(batch.float()[:, None]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if what == "stop":
        weights, moments = get_state_dict(network, optimizer)
        dcp.save({"network": weights, "optimizer": moments, "loader": loader}, checkpoint_id=folder / kind)
    return {"seen": seen, "loss": float(network(torch.ones(1, 1)).detach().sum())}


def on_a_mesh() -> list[int]:
    """Returns the samples of this rank, where two ranks side by side get the same."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    loader = stoker.DataLoader(range(SAMPLES), 8, shuffle=True, distributed="exact", mesh=(mesh, "dp"))
    return [int(sample) for batch in loader for sample in batch]


def main(folder: Path, what: str, result: Path) -> None:
    dist.init_process_group("gloo")
    told = {kind: train(kind, folder, what) for kind in ("ddp", "fsdp2")}
    told["mesh"] = on_a_mesh() if dist.get_world_size() % 2 == 0 else []  # type: ignore[assignment]
    dist.destroy_process_group()
    result.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
