"""How fast do windows of tokens reach the trainer of a language model?

200 million uint16 tokens in a mapped file (page cache warm), windows of 1,024, x and y (x moved on by one) as int64,
64 windows to a batch (1 MB), shuffled. Stoker reads them by `TokenWindows`, which gathers. torch's loader is given a
dataset as one writes it: a slice of the map, converted once, and two views of it; in the trainer's process, which is
torch's best setting here, and with two workers. torchdata's nodes are given it too, and Grain the same in NumPy.
"bare" is NumPy alone: one indexed read of all windows and two
conversions into kept buffers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import counting
import method
import rivals
from method import Case, Figures, Goal

BATCH, LENGTH = 64, 1024


def cases(options: argparse.Namespace) -> list[Case]:
    tokens, seconds = (20_000_000, 0.3) if options.quick else (200_000_000, 2.0)

    def rival(name: str, workers: int = 0) -> dict[str, Any]:
        return {"rival": name, "workers": workers, "tokens": tokens, "seconds": seconds}

    result = [
        Case(
            "tokens",
            {
                "stoker": rival("stoker"),
                "torch": rival("torch"),
                "torch, 2 workers": rival("torch", 2),
                "nodes": rival("nodes"),
                "Grain": rival("Grain"),
                "gather alone": rival("gather alone"),
                "bare": rival("bare"),
            },
            [
                Goal("batches/s", against="torch", at_least=3),
                Goal("batches/s", against="torch, 2 workers", at_least=15),
                *(Goal("batches/s", against=other, at_least=1) for other in ("nodes", "Grain")),
                Goal("batches/s", against="bare", at_least=0.7),
            ],
        ),
        Case("tokens, 2 workers", {"stoker": rival("stoker", 2), "torch": rival("torch", 2)}),
    ]
    return rivals.left_out([case for case in result if case.name != "tokens, 2 workers"]) if options.quick else result


def measure(rival: str, workers: int, tokens: int, seconds: float) -> Figures:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, tokens, np.uint16).tofile(path)
        np.fromfile(path, np.uint16).max()
        return counting.or_not_installed(
            lambda: batches_of(rival, workers, path), lambda made: counting.counted(made, seconds, read)
        )


def read(batch: Any) -> None:
    """One number of every page. By NumPy for all: torch takes three times as long for it, and the limit has arrays."""
    for numbers in batch:
        array = numbers.numpy() if hasattr(numbers, "numpy") else numbers
        array.reshape(-1)[::512].max()


def batches_of(rival: str, workers: int, path: Path) -> Any:
    if rival == "bare":
        yield from bare(path)
    elif rival == "gather alone":
        yield from gathered(path)
    elif rival == "nodes":
        yield from rivals.nodes(Windows(path), BATCH, workers)
    elif rival == "Grain":
        yield from rivals.grain(Windows(path, of_torch=False), BATCH, workers, in_memory=True)
    elif rival == "stoker":
        import stoker
        from stoker.datasets.tokens import TokenWindows

        loader: Any = stoker.DataLoader(TokenWindows(path, LENGTH), BATCH, shuffle=True, num_workers=workers)
        while True:
            yield from loader
    else:
        import torch.utils.data

        loader = torch.utils.data.DataLoader(Windows(path), BATCH, shuffle=True, num_workers=workers)
        while True:
            yield from loader


class Windows:
    """As one writes it by hand."""

    def __init__(self, path: Path, of_torch: bool = True) -> None:
        import numpy as np

        self.tokens, self.of_torch = np.memmap(path, np.uint16, "r"), of_torch

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch

        start = index * LENGTH
        window: Any = self.tokens[start : start + LENGTH + 1].astype(np.int64)
        window = torch.from_numpy(window) if self.of_torch else window
        return window[:-1], window[1:]


def gathered(path: Path) -> Any:
    """What Stoker's dataset and collation give, without the loader."""
    from stoker import collate
    from stoker.datasets.gather import gatherer
    from stoker.datasets.tokens import TokenWindows

    dataset = TokenWindows(path, LENGTH)
    batches = collate.gathering(collate.default_collate, dataset, gatherer(dataset))  # type: ignore[arg-type]
    for indices in orders(len(dataset)):
        yield batches(indices)


def bare(path: Path) -> Any:
    import numpy as np

    tokens = np.asarray(np.memmap(path, np.uint16, "r"))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
    x, y = (np.empty((BATCH, LENGTH), np.int64) for _ in range(2))
    for indices in orders(len(windows)):
        block = windows[indices]
        x[...] = block[:, :-1]
        y[...] = block[:, 1:]
        yield x, y


def orders(windows: int) -> Any:
    import numpy as np

    batches = np.random.default_rng(0).permutation(windows)[: windows // BATCH * BATCH].reshape(-1, BATCH)
    while True:  # the same: they are to lie ready
        yield from batches


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
