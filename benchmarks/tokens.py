"""How fast do windows of tokens reach the trainer of a language model?

200 million uint16 tokens in a mapped file (page cache warm), windows of 1,024, x and y (x moved on by one) as int64,
64 windows to a batch (1 MB), shuffled. Stoker reads them by `TokenWindows`, which gathers. torch's loader is given a
dataset as one writes it: a slice of the map, converted once, and two views of it; in the trainer's process, which is
torch's best setting here, and with two workers. torchdata's nodes are given it too, and Grain the same in NumPy.
"bare" is NumPy alone: one indexed read of all windows and two
conversions into kept buffers; "bare, own memory" makes an array for each x and y, as a batch that the user keeps needs
it. "Megatron" is Stoker over a pair of .bin and .idx, in documents of 700 tokens that no window crosses (windows of 512
tokens, 128 to a batch).
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
SHORT, DOCUMENT = 512, 700


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
                "bare, own memory": rival("bare, own memory"),
                "bare": rival("bare"),
            },
            [
                Goal("batches/s", against="torch", at_least=3),
                Goal("batches/s", against="torch, 2 workers", at_least=15),
                *(Goal("batches/s", against=other, at_least=1) for other in ("nodes", "Grain")),
                Goal("batches/s", against="bare, own memory", at_least=1 / 1.3),
                Goal("batches/s", against="bare", at_least=0.7),
            ],
        ),
        Case(
            "Megatron's files, within documents",
            {name: rival(name) for name in ("Megatron", "Megatron, bare")},
            [Goal("batches/s", against="Megatron, bare", at_least=1 / 1.3)],
        ),
        Case("tokens, 2 workers", {"stoker": rival("stoker", 2), "torch": rival("torch", 2)}),
    ]
    return rivals.left_out([case for case in result if case.name != "tokens, 2 workers"]) if options.quick else result


def measure(rival: str, workers: int, tokens: int, seconds: float) -> Figures:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, tokens, np.uint16).tofile(path)
        write_index(path, tokens)
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
    if rival in ("bare", "bare, own memory"):
        yield from bare(path, rival == "bare")
    elif rival == "Megatron, bare":
        yield from bare_within(path)
    elif rival == "gather alone":
        yield from gathered(path)
    elif rival == "nodes":
        yield from rivals.nodes(Windows(path), BATCH, workers)
    elif rival == "Grain":
        yield from rivals.grain(Windows(path, of_torch=False), BATCH, workers, in_memory=True)
    elif rival in ("stoker", "Megatron"):
        import stoker

        dataset: Any = stoker.TokenWindows(path, LENGTH)
        if rival == "Megatron":
            dataset = stoker.MegatronTokens(path, SHORT, boundaries="within")
        size = BATCH if rival == "stoker" else BATCH * LENGTH // SHORT
        loader: Any = stoker.DataLoader(dataset, size, shuffle=True, num_workers=workers)
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


def bare(path: Path, is_kept: bool) -> Any:
    import numpy as np

    tokens = np.asarray(np.memmap(path, np.uint16, "r"))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
    x, y = (np.empty((BATCH, LENGTH), np.int64) for _ in range(2))
    for indices in orders(len(windows)):
        if not is_kept:
            x, y = (np.empty((BATCH, LENGTH), np.int64) for _ in range(2))
        block = windows[indices]
        x[...] = block[:, :-1]
        y[...] = block[:, 1:]
        yield x, y


def bare_within(path: Path) -> Any:
    import numpy as np

    tokens = np.asarray(np.memmap(path, np.uint16, "r"))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, SHORT + 1)
    firsts = np.arange(0, len(tokens) - SHORT, DOCUMENT)  # one window fits into each
    for indices in orders(len(firsts), BATCH * LENGTH // SHORT):
        block = windows[firsts[indices]]
        yield block[:, :-1].astype(np.int64), block[:, 1:].astype(np.int64)


def write_index(path: Path, tokens: int) -> None:
    """Writes Megatron's index of documents of one sequence each, beside the file of tokens."""
    import struct

    import numpy as np

    lengths = np.full(-(-tokens // DOCUMENT), DOCUMENT, np.int32)
    lengths[-1] = tokens - (len(lengths) - 1) * DOCUMENT
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    pointers = np.arange(len(lengths), dtype=np.int64) * (2 * DOCUMENT)
    documents = np.arange(len(lengths) + 1, dtype=np.int64)
    path.with_suffix(".idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents.tobytes())


def orders(windows: int, size: int = BATCH) -> Any:
    import numpy as np

    batches = np.random.default_rng(0).permutation(windows)[: windows // size * size].reshape(-1, size)
    while True:  # the same: they are to lie ready
        yield from batches


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
