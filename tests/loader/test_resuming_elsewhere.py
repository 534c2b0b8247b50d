"""A loader's state in the hands of others: torch.distributed.checkpoint, and frameworks where they are installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of others
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed"),
]

STEPS = 10  # in an epoch


def loader_of(workers: int = 0) -> stoker.DataLoader[Any]:
    return stoker.DataLoader(range(40), 4, shuffle=True, seed=3, num_workers=workers)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def begun(loader: stoker.DataLoader[Any], steps: int) -> Iterator[Any]:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return iterator


def test_the_loader_itself_is_put_into_a_distributed_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    loader, again = loader_of(), loader_of(workers=1)
    iterator = begun(loader, 3)
    dcp.save({"weights": torch.ones(3), "loader": loader}, checkpoint_id=tmp_path)
    weights = torch.zeros(3)
    dcp.load({"weights": weights, "loader": again}, checkpoint_id=tmp_path)
    assert weights.tolist() == [1, 1, 1]
    assert lists(again) == lists(iterator)
    assert lists(again) == lists(loader)


def test_accelerates_checkpoint_takes_the_loader_along(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader, again = loader_of(), loader_of(workers=1)
    iterator = begun(loader, 7)
    for which, call in ((loader, "save_state"), (again, "load_state")):
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.register_for_checkpointing(which)
        getattr(accelerator, call)(str(tmp_path))
    assert lists(again) == lists(iterator)


@pytest.mark.parametrize("steps", [3, STEPS + 3])
def test_lightning_goes_on_in_the_middle_of_an_epoch(steps: int, tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Network(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.append(batch.tolist())
            return self.weights(batch.float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(callbacks: list[Any], workers: int, **checkpoint: Any) -> list[list[int]]:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet |= {"enable_checkpointing": bool(callbacks)}
        network = Network()
        trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=callbacks, **quiet)
        trainer.fit(network, loader_of(workers), **checkpoint)
        return network.seen

    saving = lightning.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=steps, save_top_k=-1)
    undisturbed = fit([saving], workers=1)
    assert len(undisturbed) == 2 * STEPS
    assert fit([], workers=0, ckpt_path=tmp_path / f"step={steps}.ckpt") == undisturbed[steps:]
