"""One rank of a Trainer over a stream of which each rank reads a part: it stops, and resumes from the checkpoint.

`transformers_ranks.py FOLDER RESULT`: writes the samples before and after.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402

import stoker  # noqa: E402
from stoker.integrations.transformers import StokerTrainerMixin  # noqa: E402

SAMPLES, STEPS = 48, 3


class Stream(stoker.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(SAMPLES):
            yield {"x": torch.tensor([float(number)])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return {"loss": self.layer(x).mean()}


class Trainer(StokerTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
    seen: list[int]

    def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
        self.seen += inputs["x"].flatten().int().tolist()
        return super().training_step(model, inputs, *others)


def trained(folder: Path, steps: int, **how: Any) -> list[int]:
    own = {"accelerator_config": {"dispatch_batches": False}, "save_steps": STEPS, "per_device_train_batch_size": 4}
    off = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(str(folder), max_steps=steps, learning_rate=1e-3, **own, **off)
    trainer = Trainer(Model(), arguments, train_dataset=Stream())
    trainer.seen = []
    trainer.train(**how)
    return trainer.seen


def main(folder: Path, result: Path) -> None:
    before = trained(folder, STEPS)
    after = trained(folder, SAMPLES // 8, resume_from_checkpoint=str(folder / f"checkpoint-{STEPS}"))
    torch.distributed.destroy_process_group()
    result.write_text(json.dumps([before, after]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
