"""Training scripts as users of a framework write them, on a folder of photographs; trainers.py runs and measures them.

    python benchmarks/trainer_scripts.py lightning build/trainer-pictures --epochs 4

None knows of Stoker: the loaders are torch's `DataLoader`, or those that the framework makes. Each sample is a random
part of 0.08 to 1 of the area of a photograph, resized to 224 x 224 by Pillow, mirrored or not, normalised, float32.
The network is small, or as slow as the photographs (`--slow`); the trainer computes with one thread.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDE, BATCH, WORKERS, CLASSES = 224, 32, 2, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photographs(folder: Path) -> Any:
    """The dataset: `(image, class)`, of shape (3, SIDE, SIDE), float32, by class folders."""
    import numpy as np
    import torch
    from PIL import Image

    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    class Photographs(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            classes = sorted(path for path in folder.iterdir() if path.is_dir())
            self.files = [(str(p), n) for n, found in enumerate(classes) for p in sorted(found.glob("*.jpg"))]

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            path, label = self.files[index]
            with Image.open(path) as opened:
                image = opened.convert("RGB")
            width, height = image.size
            area, ratio = width * height * random.uniform(0.08, 1), random.uniform(3 / 4, 4 / 3)
            across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            part = image.crop((left, top, left + across, top + down)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(part)).permute(2, 0, 1).contiguous()
            return (pixels.float().div_(255) - mean) / std, label

    return Photographs()


def network(slow: bool) -> Any:
    from torch import nn

    width = 48 if slow else 16
    layers: list[nn.Module] = []
    for inputs, outputs, stride in [(3, width, 4), (width, 2 * width, 2), (2 * width, 2 * width, 2)]:
        layers += [nn.Conv2d(inputs, outputs, 4, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))


def loader(dataset: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)


def plain(dataset: Any, slow: bool, epochs: int) -> None:
    import torch

    model = network(slow)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = loader(dataset)
    for _ in range(epochs):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def lightning(dataset: Any, slow: bool, epochs: int) -> None:
    import lightning as L
    import torch

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(slow)

        def training_step(self, batch: Any, number: int) -> Any:
            images, labels = batch
            return torch.nn.functional.cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=epochs, **quiet)
    trainer.fit(Classifier(), loader(dataset))


def accelerate(dataset: Any, slow: bool, epochs: int) -> None:
    import torch
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), network(slow)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(dataset))
    for _ in range(epochs):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()


def transformers(dataset: Any, slow: bool, epochs: int) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(slow)

        def forward(self, pixel_values: Any, labels: Any = None) -> Any:
            scores = self.model(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}

    def collate(samples: Any) -> Any:
        images, labels = zip(*samples, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=epochs,
            dataloader_num_workers=WORKERS,
            dataloader_drop_last=True,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(Classifier(), arguments, train_dataset=dataset, data_collator=collate).train()


SCRIPTS: dict[str, Callable[[Any, bool, int], None]] = {
    "plain": plain,
    "lightning": lightning,
    "transformers": transformers,
    "accelerate": accelerate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()

    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers have the other CPUs
    SCRIPTS[options.script](photographs(options.folder), options.slow, options.epochs)


if __name__ == "__main__":
    main()
