"""One rank of an Accelerate job: stops in the middle of an epoch, and goes on from the checkpoint.

`accelerate_ranks.py FOLDER RESULT`: writes, for each set-up, the samples before and after, and in each step.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DataLoaderConfiguration, set_seed  # noqa: E402

import stoker  # noqa: E402
from stoker.integrations.accelerate import prepare  # noqa: E402


class Numbers(stoker.Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class Stream(stoker.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(torch.tensor, range(48))


def loader_of(samples: int, **how: Any) -> stoker.DataLoader[Any]:
    if samples == 0:
        return stoker.DataLoader(Stream(), 4, shard="auto", **how)
    return stoker.DataLoader(Numbers(samples), 4, **how)


def setups() -> Iterator[tuple[str, dict[str, Any], int, dict[str, Any], int]]:
    """Yields name, Accelerate's configuration, samples, the loader's arguments, and steps before the checkpoint."""
    for split, steps in itertools.product((False, True), (1, 3, 5)):
        how = {"num_workers": 1} if steps == 3 else {}
        yield f"dispatch {split} {steps}", {"dispatch_batches": True, "split_batches": split}, 48, how, steps
    shuffled = {"shuffle": True}
    for seed, samples in itertools.product((None, 3), (48, 22)):
        for conf in ({}, {"split_batches": True}, {"even_batches": False}, {"use_seedable_sampler": True}):
            yield f"shard {seed} {samples} {conf}", conf, samples, {**shuffled, "seed": seed}, 2
    yield "stream dispatched", {"dispatch_batches": True}, 0, {}, 2
    yield "stream shared", {"dispatch_batches": False}, 0, {}, 2


def made(conf: dict[str, Any], samples: int, how: dict[str, Any], seed: int) -> tuple[Any, Any]:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**conf))
    set_seed(seed)
    return accelerator, prepare(accelerator, loader_of(samples, **how))


def main(folder: Path, result: Path) -> None:
    told: dict[str, Any] = {}
    for number, (name, conf, samples, how, steps) in enumerate(setups()):
        checkpoint = str(folder / str(number))
        accelerator, loader = made(conf, samples, how, 5)
        whole = [batch.tolist() for batch in loader] if number % 2 else []  # every other one in its second epoch
        before = []
        for batch in loader:
            before.append(batch.tolist())
            if len(before) == steps:
                accelerator.save_state(checkpoint)
                break
        accelerator.wait_for_everyone()
        accelerator, loader = made(conf, samples, how, 6)
        accelerator.load_state(checkpoint)
        after = [batch.tolist() for batch in loader]
        told[name] = {"whole": whole, "before": before, "after": after}
    told["files"] = sorted(path.name for path in (folder / "0").iterdir())

    accelerator, loader = made({}, 22, {}, 5)
    told["metrics"] = [accelerator.gather_for_metrics(batch).tolist() for batch in loader]
    accelerator.end_training()
    result.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
