"""Trains a small network on handwritten digits, and goes on wherever it was stopped.

    python examples/resume.py --checkpoint digits.pt                # stop it as you like: Ctrl-C, kill -9, a power cut
    python examples/resume.py --checkpoint digits.pt                # the same command goes on
    python examples/resume.py --checkpoint digits.pt --workers 0    # with another number of workers, too

Each step prints its loss. However often the training was stopped, and wherever, the losses are those of a run that
never was, to the last bit: the same digits in the same batches, shifted and spoilt in the same way, into a network
that forgets the same of its neurons.

Four parts, from top to bottom: the data set, the checkpoint, the training, the command line.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import stoker

# 1. The data set


class Digits(stoker.Dataset):
    """1,797 handwritten digits, 8 x 8 pixels of 0 to 16 each, and which digit it is.

    Each time a digit is asked for it is another one: shifted by up to a pixel, under noise, with some pixels gone. Here
    that takes the generators of three libraries. The loader seeds them for each sample, so nothing is to be done.
    """

    def __init__(self) -> None:
        images, self.labels = load_digits(return_X_y=True)
        self.images = images.reshape(-1, 8, 8).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        shift = random.randint(-1, 1), random.randint(-1, 1)
        noise = np.random.normal(0, 2, (8, 8)).astype(np.float32)
        kept = torch.rand(8, 8) < 0.9
        return torch.from_numpy(np.roll(self.images[index], shift, (0, 1)) + noise) * kept, int(self.labels[index])


# 2. The checkpoint


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Puts a checkpoint in the place of the last one, at once: a process killed here leaves the old or the new one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(unfinished, "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it gets its name: a power cut would else leave half of it
    os.replace(unfinished, path)


# 3. The training


def train(path: Path, workers: int, epochs: int, batch_size: int, save_every: int) -> None:
    """Trains, from where the checkpoint says if there is one, and saves one every few steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    # With a seed all epochs are fixed. Without one, each is drawn from torch's generator, whose state is saved below
    loader = stoker.DataLoader(Digits(), batch_size, shuffle=True, seed=0, num_workers=workers)
    first_epoch = step = 0

    if path.exists():
        checkpoint = torch.load(path)
        first_epoch, step = checkpoint["epoch"], checkpoint["step"]
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        torch.set_rng_state(checkpoint["generator"])
        print(f"{path}: goes on behind step {step}", flush=True)

    for epoch in range(first_epoch, epochs):
        for images, labels in loader:  # the first time the rest of an epoch, maybe nothing; then whole ones
            loss = cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"epoch {epoch + 1}, step {step}: loss {loss.item()}", flush=True)
            if step % save_every == 0:
                save(
                    path,
                    {
                        "epoch": epoch,
                        "step": step,
                        "network": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),  # behind this batch, however many are made ahead
                        "generator": torch.get_rng_state(),  # from which the dropout draws
                    },
                )


# 4. The command line


def main(
    checkpoint: Annotated[Path, typer.Option(help="The file to go on from, and to save to.")] = Path("digits.pt"),
    workers: Annotated[int, typer.Option(min=0, help="Processes that make batches; 0 is none.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Of 1,797 digits each.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    save_every: Annotated[int, typer.Option(min=1, help="Steps from one checkpoint to the next.")] = 10,
) -> None:
    """Trains a small network on handwritten digits, and goes on wherever it was stopped."""
    torch.set_num_threads(1)  # sums of floats depend on who adds first
    train(checkpoint, workers, epochs, batch_size, save_every)


if __name__ == "__main__":
    typer.run(main)
