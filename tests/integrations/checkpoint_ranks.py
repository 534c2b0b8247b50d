"""One rank of a job that saves loaders' states in three ways, and resumes from each.

`checkpoint_ranks.py FOLDER BEFORE RESULT`: writes what the rank read before and after each resume, and undisturbed.
BEFORE is the number of ranks of an earlier job in the folder whose merged states are resumed too, or 0.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import stoker  # noqa: E402
from stoker.errors import StateMismatchError  # noqa: E402

LENGTHS = (9, 5, 14, 3, 6, 1, 8)
SAMPLES = 20


def drawn(number: int) -> tuple[int, int]:
    """A sample with a random number, from the loader's seed and the sample's position."""
    return number, int(stoker.sample_rng().random_generator.getrandbits(40))


class Drawn(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return drawn(index)


def interleaved(rank: int, ranks: int) -> Any:
    shards = [range(100 * shard, 100 * shard + length) for shard, length in enumerate(LENGTHS)]
    return stoker.InterleaveDataset(shards, open_at_once=2).shard(num_shards=ranks, index=rank)


def loader_of(name: str, rank: int, ranks: int) -> Any:
    how: dict[str, Any] = {"batch_size": 2, "collate_fn": list}
    if name == "stream":
        return stoker.DataLoader(interleaved(rank, ranks), **how)
    if name == "stream with a seed":
        return stoker.DataLoader(stoker.MapDataset(interleaved(rank, ranks), drawn), seed=rank, num_workers=1, **how)
    if name == "sampler":
        sampler = stoker.DistributedSampler(range(SAMPLES), ranks, rank, seed=1)
        return stoker.DataLoader(Drawn(), sampler=sampler, seed=rank, **how)
    return stoker.DataLoader(range(ranks + 1), 1, collate_fn=list, shuffle=True, distributed="exact", seed=1)


def flat(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def resumed(name: str, state: Any, **how: Any) -> list[Any]:
    loader = loader_of(name, dist.get_rank(), dist.get_world_size())
    loader.load_state_dict(state, **how)
    return flat(loader)


def try_all(name: str, folder: Path) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loader = loader_of(name, rank, ranks)
    told: dict[str, Any] = {"whole": flat(loader_of(name, rank, ranks)), "before": flat(itertools.islice(loader, 2))}
    state = loader.state_dict()
    dcp.save({"loader": loader}, checkpoint_id=folder / f"{name} dcp {ranks}")
    again = loader_of(name, rank, ranks)
    dcp.load({"loader": again}, checkpoint_id=folder / f"{name} dcp {ranks}")
    told["state"] = [state["epoch"], state["batches"], state["position"]]
    told["loaded"] = [again.state_dict()[key] for key in ("epoch", "batches", "position")]
    told["dcp"] = flat(again)
    torch.save(state, folder / f"{name} {ranks} {rank}.pt")
    told["torch.save"] = resumed(name, torch.load(folder / f"{name} {ranks} {rank}.pt"))
    told["json"] = resumed(name, json.loads(json.dumps(state)))
    states: list[Any] = [None] * ranks
    dist.all_gather_object(states, state)
    try:
        told["of rank 0"] = resumed(name, states[0])
    except StateMismatchError as error:
        told["of rank 0"] = str(error)
    if rank == 0:
        (folder / f"{name} {ranks}.json").write_text(json.dumps(states))
    return told


def told_in_first_epochs(loader: Any) -> list[str]:
    """Returns the warnings in two epochs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            next(iter(loader))
    return [str(each.message) for each in caught]


def told_in_a_fork(loader: Any) -> list[str]:
    """Returns the warnings in two epochs in a forked process, which must not use its parent's connection."""
    context = multiprocessing.get_context("fork")
    told, child_told = context.Pipe(duplex=False)
    child = context.Process(target=lambda: child_told.send(told_in_first_epochs(loader)))
    child.start()
    child_told.close()
    received: list[str] = told.recv()
    child.join()
    return received


def differing() -> list[list[str]]:
    """Returns the warnings in two epochs of loaders, of which some have another seed or length on the last rank; the
    last rank has forked for the last one."""
    told, odd = [], dist.get_rank() == dist.get_world_size() - 1
    last = (3 if odd else 1, 12)
    for seed, length in ((1, 12), (2 if odd else 1, 12), (1, 6 if odd else 12), (None, 12), last):
        loader = stoker.DataLoader(range(length), 2, seed=seed, distributed="exact", shuffle=True)
        dist.barrier()
        if odd:
            dist.barrier()
        told.append((told_in_a_fork if odd and seed == last[0] else told_in_first_epochs)(loader))
        if not odd:
            dist.barrier()
    return told


def main(folder: Path, before: int, result: Path) -> None:
    dist.init_process_group("gloo")
    told: dict[str, Any] = {
        name: try_all(name, folder) for name in ("stream", "stream with a seed", "sampler", "uneven")
    }
    for name in ("stream", "stream with a seed"):
        if before:
            states = json.loads((folder / f"{name} {before}.json").read_text())
            told[name]["merged"] = resumed(name, stoker.merge_states(states))
            try:
                stoker.merge_states(states[1:])
            except StateMismatchError as error:
                told[name]["one is missing"] = str(error)
    told["differing"] = differing()
    dist.destroy_process_group()
    result.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
