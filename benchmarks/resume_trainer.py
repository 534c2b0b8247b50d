"""The resume of Lightning's Trainer from its own checkpoint in the middle of an epoch, for resume_frameworks.py."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

BATCH = 8


class Resumed(NamedTuple):
    """A continued run: seconds and CPU-seconds from `Trainer.fit` to its first batch, and samples read for that batch.

    `repeated` are samples of the whole rest of the epoch that the first run had trained on already.
    """

    seconds: float
    cpu: float
    reads: int
    repeated: int


def resumed(installed: bool, steps: int, rest: int = 1000) -> Resumed:
    """Trains for so many steps on samples that cost nothing, and continues from the checkpoint for `rest` more."""
    import lightning as L
    import torch

    if installed:
        import stoker

        stoker.install()

    class Counted(torch.utils.data.Dataset[Any]):
        reads = 0

        def __len__(self) -> int:
            return (steps + rest) * BATCH

        def __getitem__(self, index: int) -> int:
            self.reads += 1
            return index

    class Network(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), torch.zeros(len(dataset), dtype=torch.int64)
            self.first: tuple[float, float, int] | None = None

        def training_step(self, batch: Any, number: int) -> Any:
            if self.first is None:
                self.first = time.perf_counter(), time.process_time(), dataset.reads
            self.seen[batch] += 1
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(folder: str, last: int, **given: Any) -> Network:
        saving = L.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, max_steps=last, callbacks=[saving], **quiet)
        network = Network()
        trainer.fit(network, torch.utils.data.DataLoader(dataset, BATCH, shuffle=True), **given)
        return network

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Counted()
        trained = fit(folder, steps).seen
        dataset = Counted()
        began, used = time.perf_counter(), time.process_time()
        network = fit(folder, steps + rest, ckpt_path=str(Path(folder) / f"step={steps}.ckpt"))
    assert network.first is not None
    seconds, cpu, reads = network.first
    repeated = int(((trained > 0) & (network.seen > 0)).sum())
    return Resumed(seconds - began, cpu - used, reads, repeated)
