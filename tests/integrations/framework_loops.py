"""Small trainings with frameworks, on torch's `DataLoader`: which samples came, in which order, made by which engine.

    python framework_loops.py lightning      # as JSON: without and with `stoker.install()`

`test_framework_loops.py` runs those that are installed; `scripts/frameworks_matrix.py` runs all, each in an interpreter
of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, STOP = 24, 4, 3  # STOP: batches before the interruption


class Told(NamedTuple):
    """What a framework's training has seen.

    Attributes:
        samples: of the epochs, in order.
        engines: of the samples: 1 for Stoker's, 0 for torch's.
        interrupted: samples before an interruption after `STOP` batches, and those of the resumed run; None if the
            framework has no resume, or resumes by its own means.
    """

    samples: list[int]
    engines: list[int]
    interrupted: tuple[list[int], list[int]] | None = None


def engine() -> int:
    """Returns 1 in a sample that Stoker makes, and 0 in torch's. Asks no module that is not loaded."""
    ours = sys.modules.get("stoker._core.worker_info")
    return int(ours is not None and (ours.current.info or ours.current.rng) is not None)


class Asking(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index)), torch.tensor(float(engine()))


class Seen:
    """Collects what a training step is given."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.engines: set[int] = set()

    def take(self, samples: Any, engines: Any) -> None:
        self.samples += [int(sample) for sample in samples.reshape(-1)]
        self.engines |= {int(each) for each in engines.reshape(-1)}

    def told(self, interrupted: Any = None) -> Told:
        return Told(self.samples, sorted(self.engines), interrupted)


def loader(**changes: Any) -> Any:
    return DataLoader(Asking(), **{"batch_size": BATCH, "shuffle": True, "num_workers": 2, **changes})


def plain() -> Told:
    seen, torch_loader = Seen(), loader(persistent_workers=True)
    for _ in range(2):
        for batch in torch_loader:
            seen.take(*batch)
    torch_loader._iterator = None
    return seen.told()


def lightning() -> Told:
    import lightning as L

    class Network(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.seen = torch.nn.Linear(1, 1), Seen()

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.take(*batch)
            return self.weights(batch[0][:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def fit(epochs: int, callbacks: Any = (), **checkpoint: Any) -> Seen:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet["enable_checkpointing"] = bool(callbacks)
        network = Network()
        trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=epochs, callbacks=list(callbacks), **quiet)
        trainer.fit(network, loader(), **checkpoint)
        return network.seen

    with tempfile.TemporaryDirectory() as folder:
        saving = L.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=STOP, save_top_k=-1)
        whole = fit(2, [saving])
        torch.manual_seed(99)
        rest = fit(1, ckpt_path=str(Path(folder) / f"step={STOP}.ckpt"))
    return whole.told((whole.samples[: STOP * BATCH], rest.samples))


def fabric() -> Told:
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    made.launch()
    seen, whole = Seen(), made.setup_dataloaders(loader())
    for _ in range(2):
        for batch in whole:
            seen.take(*batch)
    torch_loader, first, rest = loader(), Seen(), Seen()
    if not hasattr(torch_loader, "state_dict"):
        return seen.told()
    running = iter(torch_loader)
    for _ in range(STOP):
        first.take(*next(running))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "saved")
        made.save(path, {"loader": torch_loader})
        again = loader()
        made.load(path, {"loader": again})
    for batch in again:
        rest.take(*batch)
    return seen.told((first.samples, rest.samples))


def accelerate() -> Told:
    from accelerate import Accelerator

    stateful = False
    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.version("torchdata")
        stateful = True

    def prepared() -> tuple[Any, Any]:
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful))
        return accelerator, accelerator.prepare(loader())

    seen, (accelerator, whole) = Seen(), prepared()
    for _ in range(2):
        for batch in whole:
            seen.take(*batch)
    if not stateful:
        return seen.told()
    first, rest = Seen(), Seen()
    with tempfile.TemporaryDirectory() as folder:
        accelerator, part = prepared()
        for number, batch in enumerate(part):
            first.take(*batch)
            if number + 1 == STOP:
                accelerator.save_state(folder)
                break
        torch.manual_seed(99)
        accelerator, part = prepared()
        accelerator.load_state(folder)
        for batch in part:
            rest.take(*batch)
    return seen.told((first.samples, rest.samples))


def transformers() -> Told:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Named(Asking):
        def __getitem__(self, index: int) -> Any:
            return {"x": float(index), "made_by": float(engine()), "labels": 0.0}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.seen = torch.nn.Linear(1, 1), Seen()

        def forward(self, x: Any, made_by: Any, labels: Any = None) -> Any:
            self.seen.take(x, made_by)
            given = self.weights(x[:, None])
            return {"loss": given.pow(2).mean() * 1e-6, "logits": given}

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = state.global_step == STOP
            return control

    def train(folder: str, epochs: int, callbacks: Any = (), resume: bool = False) -> Seen:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=epochs,
            dataloader_num_workers=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="steps",
            save_steps=1,
        )
        network = Network()
        with contextlib.redirect_stdout(sys.stderr):
            made = Trainer(network, arguments, train_dataset=Named(), callbacks=list(callbacks))
            made.train(resume_from_checkpoint=resume)
        return network.seen

    with tempfile.TemporaryDirectory() as folder:
        whole = train(f"{folder}/whole", 2)
        first = train(f"{folder}/part", 1, [Stop()])
        rest = train(f"{folder}/part", 1, resume=True)
    return whole.told((first.samples, rest.samples))


def ignite() -> Told:
    from ignite.engine import DeterministicEngine, Engine, Events

    seen = Seen()
    Engine(lambda _, batch: seen.take(*batch)).run(loader(), max_epochs=2)

    def run(state: Any = None) -> tuple[Seen, Any]:
        torch.manual_seed(12)
        part, kept = Seen(), []
        made = DeterministicEngine(lambda _, batch: part.take(*batch))
        if state is None:

            @made.on(Events.ITERATION_COMPLETED(once=STOP))
            def _(engine: Any) -> None:
                kept.append(engine.state_dict())
                engine.terminate()

        else:
            made.load_state_dict(state)
        made.run(loader(), max_epochs=1, epoch_length=SAMPLES // BATCH)
        return part, kept

    first, kept = run()
    rest, _ = run(kept[0])
    return seen.told((first.samples, rest.samples))


def skorch() -> Told:
    import numpy as np
    from skorch import NeuralNetClassifier

    seen = Seen()

    class Labelled(Asking):
        def __getitem__(self, index: int) -> Any:
            return np.array([index, engine()], np.float32), index % 2

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            if self.training:
                seen.take(x[:, 0], x[:, 1])
            return self.weights(x).softmax(-1)

    given = {"iterator_train__num_workers": 2, "iterator_train__shuffle": True}
    net = NeuralNetClassifier(Network, max_epochs=2, batch_size=BATCH, train_split=None, verbose=0, **given)
    net.fit(Labelled(), y=None)
    assert net.predict(Labelled()).shape == (SAMPLES,)
    return seen.told()


def torchdata() -> Told:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def made() -> Any:
        return StatefulDataLoader(Asking(), batch_size=BATCH, shuffle=True, num_workers=2)

    seen, whole = Seen(), made()
    for _ in range(2):
        for batch in whole:
            seen.take(*batch)
    first, rest, part = Seen(), Seen(), made()
    running = iter(part)
    for _ in range(STOP):
        first.take(*next(running))
    state = part.state_dict()
    del running, part
    torch.manual_seed(99)
    again = made()
    again.load_state_dict(state)
    for batch in again:
        rest.take(*batch)
    return seen.told((first.samples, rest.samples))


def datasets() -> Told:
    from datasets import Dataset as Table

    table = Table.from_dict({"x": list(range(SAMPLES))}).with_transform(
        lambda rows: {"x": rows["x"], "made_by": [engine()] * len(rows["x"])}
    )
    seen = Seen()
    for _ in range(2):
        for batch in DataLoader(table, batch_size=BATCH, shuffle=True, num_workers=2):
            seen.take(batch["x"], batch["made_by"])
    return seen.told()


def geometric() -> Told:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader

    class Graphs(Asking):
        def __getitem__(self, index: int) -> Any:
            edges = torch.zeros(2, 0, dtype=torch.long)
            return Data(x=torch.tensor([[float(index)]]), edge_index=edges, made_by=torch.tensor([engine()]))

    seen = Seen()
    graphs = GraphLoader(Graphs(), batch_size=BATCH, shuffle=True, num_workers=2)
    for _ in range(2):
        for batch in graphs:
            seen.take(batch.x, batch.made_by)
    return seen.told()


def monai() -> Told:
    from monai.data import DataLoader as MonaiLoader
    from monai.data import Dataset as MonaiDataset
    from monai.data import ThreadDataLoader

    items, seen = [{"i": i} for i in range(SAMPLES)], Seen()
    for kind in (MonaiLoader, ThreadDataLoader):
        dataset = MonaiDataset(items, lambda item: {**item, "made_by": engine()})
        for batch in kind(dataset, batch_size=BATCH, shuffle=True, num_workers=2):
            seen.take(batch["i"], batch["made_by"])
    return seen.told()


def fastai() -> Told:
    from fastai.data.load import DataLoader as FastLoader
    from fastai.torch_core import set_seed

    set_seed(1)
    seen, fast = Seen(), FastLoader(Asking(), bs=BATCH, shuffle=True, num_workers=2)
    for _ in range(2):
        for batch in fast:
            seen.take(*batch)
    return seen.told()


def declare_operators() -> torch.library.Library:
    """Declares the compiled operators that torchvision's import asks for, where they do not load beside this torch."""
    spec = find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in Path(folder).glob("_C*.so"):
            with contextlib.suppress(OSError, RuntimeError):
                torch.ops.load_library(str(file))
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def timm() -> Told:
    operators = declare_operators()  # noqa: F841, until the end

    import numpy as np
    from PIL import Image
    from timm.data import create_loader

    class Pictures(Asking):
        transform: Any = None

        def __getitem__(self, index: int) -> Any:
            return self.transform(Image.fromarray(np.full((40, 40, 3), index, np.uint8))), index + 100 * engine()

    seen = Seen()
    for more in ({"use_multi_epochs_loader": True}, {"use_prefetcher": False}):
        made = create_loader(
            Pictures(), (3, 32, 32), BATCH, is_training=True, num_workers=2, device=torch.device("cpu"), **more
        )
        for _, labels in made:
            seen.take(labels % 100, labels // 100)
    return seen.told()


def composer() -> Told:
    operators = declare_operators()  # noqa: F841, until the end

    from composer import Trainer
    from composer.models import ComposerModel

    class Network(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.seen = torch.nn.Linear(1, 1), Seen()

        def forward(self, batch: Any) -> Any:
            self.seen.take(*batch)
            return self.weights(batch[0][:, None])

        def loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.pow(2).mean() * 1e-6

    network = Network()
    made = Trainer(
        model=network, train_dataloader=loader(), max_duration="2ep", device="cpu", progress_bar=False, seed=0
    )
    made.fit()
    made.close()
    return network.seen.told()


LOOPS: dict[str, tuple[Callable[[], Told], str]] = {
    "plain": (plain, "torch"),
    "lightning": (lightning, "lightning"),
    "fabric": (fabric, "lightning"),
    "accelerate": (accelerate, "accelerate"),
    "transformers": (transformers, "transformers"),
    "ignite": (ignite, "pytorch-ignite"),
    "skorch": (skorch, "skorch"),
    "torchdata": (torchdata, "torchdata"),
    "datasets": (datasets, "datasets"),
    "geometric": (geometric, "torch-geometric"),
    "monai": (monai, "monai"),
    "fastai": (fastai, "fastai"),
    "timm": (timm, "timm"),
    "composer": (composer, "mosaicml"),
}
"""The loops, and the package of each."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within the block frameworks print and warn nothing."""
    for name in ("lightning.pytorch", "lightning.fabric", "ignite", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def both(name: str) -> tuple[Told, Told]:
    """Returns what a framework saw without and with `stoker.install()`."""
    import stoker

    run = LOOPS[name][0]
    with quietly():
        torch.manual_seed(1)
        torchs = run()
        torch.manual_seed(1)
        with stoker.install():
            return torchs, run()


def main() -> None:
    name = sys.argv[1]
    operators = declare_operators()  # noqa: F841, until the end: torchmetrics imports torchvision if it is there
    torchs, ours = both(name)
    versions = {package: metadata.version(package) for package in ("torch", LOOPS[name][1])}
    print(json.dumps({"versions": versions, "torch": torchs._asdict(), "stoker": ours._asdict()}))


if __name__ == "__main__":
    main()
