"""One rank of a Lightning run that goes on from a checkpoint of the middle of an epoch.

`lightning_ranks.py RANKS FOLDER FORM,FORM RESULT`: writes the samples that this rank has trained on, before and after,
for each form of loader. With one rank it only goes on, from the checkpoint that another process has written.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning  # noqa: E402
import torch  # noqa: E402

import stoker  # noqa: E402
from stoker.integrations.lightning import StokerCallback  # noqa: E402

SAMPLES, STEPS = 48, 3
LAUNCHED = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # Lightning removes them after a fit


class Stream(stoker.IterableDataset[Any]):
    """Says where it stands, but not how long it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.at = self.at, 0
        for number in range(begin, SAMPLES):
            self.at = number + 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def training_step(self, batch: Any, number: int) -> Any:
        self.seen += batch.tolist()
        return self.weights(batch.float()[:, None]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


class SavesAtTheEnd(lightning.Callback):
    """Writes a checkpoint after the last step that the run makes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        if trainer.global_step == STEPS:
            trainer.save_checkpoint(self.path)


def sharded(rank: int, ranks: int) -> Any:
    shards = [range(6 * shard, 6 * shard + 6) for shard in range(SAMPLES // 6)]
    return stoker.InterleaveDataset(shards, open_at_once=2).shard(num_shards=ranks, index=rank)


def loader_of(form: str) -> tuple[Any, bool]:
    """Returns a loader, and whether Lightning shares its samples out among the ranks."""
    rank, ranks = LAUNCHED
    if form == "shards of torch's loader":
        return torch.utils.data.DataLoader(sharded(rank, ranks), 4), False
    if form.startswith("shards"):
        return stoker.DataLoader(sharded(rank, ranks), 4, seed=rank), False
    if form == "seeds":
        return stoker.DataLoader(range(SAMPLES), 4, shuffle=True, seed=rank), True
    if form == "stream":
        return stoker.DataLoader(Stream(), 4), False
    if form == "distributed":
        return stoker.DataLoader(range(SAMPLES), 4, shuffle=True, seed=3, distributed="pad", num_workers=1), False
    return stoker.DataLoader(range(SAMPLES), 4, shuffle=True, seed=3 if form == "seed" else None), True


def fit(form: str, ranks: int, callbacks: list[Any], steps: int = -1, **checkpoint: Any) -> list[int]:
    loader, shared = loader_of(form)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=1,
        max_steps=steps,
        callbacks=callbacks if form.startswith("shards ") else [StokerCallback(None), *callbacks],
        enable_checkpointing=False,
        use_distributed_sampler=shared,
        **quiet,
    )
    network = Network()
    trainer.fit(network, loader, **checkpoint)
    return network.seen


def stop(form: str, ranks: int, folder: Path) -> list[int]:
    """Trains for some steps of an epoch, and writes a checkpoint after them."""
    return fit(form, ranks, [SavesAtTheEnd(folder / form)], STEPS)


def refused(form: str, ranks: int, folder: Path) -> str:
    try:
        stop(form, ranks, folder)
    except stoker.errors.StateError as error:
        return str(error)
    return "it was not refused"


def main(ranks: int, folder: Path, forms: list[str], result: Path) -> None:
    told: dict[str, Any] = {}
    for form in forms:
        if form == "shards without the callback":
            told[form] = refused(form, ranks, folder)
            continue
        if form == "shards of torch's loader":
            with stoker.install(images=False), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seen = stop(form, ranks, folder)
            told[form] = [seen, [str(each.message) for each in caught if each.category is stoker.StokerWarning]]
            continue
        before = stop(form, ranks, folder) if ranks > 1 else []
        told[form] = [before, fit(form, ranks, [], ckpt_path=folder / form)]
    result.write_text(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), Path(sys.argv[4]))
