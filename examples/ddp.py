"""Trains a small network on handwritten digits, in several processes that share each epoch out among them.

    torchrun --nproc-per-node 2 examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py --stop-after 17 --checkpoint digits.pt
    torchrun --nproc-per-node 4 examples/ddp.py --resume digits.pt

The last two are one training, which stops within an epoch and goes on with another number of ranks. It sees the same
digits, in the same batches over all ranks, as if it had not stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import stoker

TRAIN = 1440  # digits of the 1,797; the other 357 validate


def digits() -> tuple[stoker.TensorDataset, stoker.TensorDataset]:
    """Returns what trains and what validates: images, as 64 numbers from 0 to 16, and the digit that each shows."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    train, val = slice(TRAIN), slice(TRAIN, None)
    images = images.float()
    return stoker.TensorDataset(images[train], labels[train]), stoker.TensorDataset(images[val], labels[val])


class Centred(nn.Module):
    """Shifts and scales images so that the numbers of `examples` lie around zero."""

    def __init__(self, examples: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", examples.mean())
        self.register_buffer("std", examples.std())

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def train(options: argparse.Namespace) -> None:
    """Trains to the end, or to the step after which it is to stop."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    train_set, val_set = digits()
    torch.manual_seed(0)
    network = DistributedDataParallel(
        nn.Sequential(Centred(train_set.tensors[0]), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loader = stoker.DataLoader(
        train_set,
        batch_size=options.batch_size // ranks,  # of one rank
        shuffle=True,
        seed=0,  # the same on all ranks: they share one order out
        distributed="pad",
        num_workers=options.workers,
    )
    val_loader = stoker.DataLoader(val_set, batch_size=options.val_batch_size // ranks, distributed="exact")

    epoch = step = 0
    if options.resume:
        saved = torch.load(options.resume)
        epoch, step = saved["epoch"], saved["step"]
        network.module.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    while epoch < options.epochs and step != options.stop_after:
        seen = torch.zeros(2, dtype=torch.float64)  # the sum of the losses, and of how many digits
        for images, labels in loader:
            loss = cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += torch.tensor([loss.item() * len(labels), len(labels)])
            step += 1
            if step == options.stop_after:
                if rank == 0:  # after the same step the loaders of all ranks say the same
                    ours = {"epoch": epoch, "step": step, "loader": loader.state_dict()}
                    theirs = {"network": network.module.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**ours, **theirs}, options.checkpoint)
                break
        dist.all_reduce(seen)
        loss_sum, count = seen.tolist()
        epoch += 1
        if not count:  # it had been stopped after the last step of this epoch
            continue
        right, of = evaluate(network, val_loader)
        if rank == 0:
            print(
                f"epoch {epoch} of {options.epochs}, step {step}: {count:.0f} digits on {ranks} ranks, "
                f"loss {loss_sum / count:.4f}, {right} of {of} recognised ({right / of:.1%})",
                flush=True,
            )


@torch.no_grad()
def evaluate(network: DistributedDataParallel, loader: stoker.DataLoader[list[Tensor]]) -> tuple[int, int]:
    """Returns how many digits were recognised, and of how many, on all ranks together.

    With "exact" each digit is counted once, and some ranks may have one batch less than others, or none. The network's
    copies may exchange messages in a forward pass: `join` lets a rank that is through answer them until all ranks are.
    `no_sync` says that no gradients follow, for which it would wait as well.
    """
    seen = torch.zeros(2, dtype=torch.int64)
    with network.join(), network.no_sync():
        for images, labels in loader:
            seen += torch.tensor([(network(images).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(seen)
    right, of = seen.tolist()
    return right, of


def leave() -> NoReturn:
    """Ends this process without clearing the interpreter up.

    Threads of gloo's may still be about to release tensors, which aborts where the interpreter is gone. With NCCL,
    `dist.destroy_process_group()` does.
    """
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits; start it by torchrun.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=120, help="over all ranks; they divide it")
    parser.add_argument("--val-batch-size", type=int, default=120, help="the same, to validate")
    parser.add_argument("--workers", type=int, default=0, help="for each rank")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="stop after so many steps ...")
    parser.add_argument("--checkpoint", type=Path, default="digits.pt", help="... and save here what it takes to go on")
    parser.add_argument("--resume", type=Path, help="go on from such a file")
    options = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        parser.error("no ranks: start it by `torchrun --nproc-per-node 2 examples/ddp.py`")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options)
    leave()


if __name__ == "__main__":
    main()
