"""How fast do texts of different lengths reach the trainer, padded and with a mask?

Lists of 20 to 400 token ids in memory, 64 to a batch, shuffled, padded at the end with 0 to the longest of the batch,
and a mask of what is real. Stoker does it by `PadCollator`, torch by a collate function of four lines around
`pad_sequence`, as its users write it; torchdata's nodes and Grain are given that function too. "by hand" fills a kept
array row by row, without a loader.
"""

from __future__ import annotations

import argparse
from typing import Any

import counting
import method
import rivals
from method import Case, Figures, Goal

BATCH = 64


def cases(options: argparse.Namespace) -> list[Case]:
    texts, seconds = (10_000, 0.3) if options.quick else (100_000, 2.0)

    def rival(name: str, workers: int = 0) -> dict[str, Any]:
        return {"rival": name, "workers": workers, "texts": texts, "seconds": seconds}

    result = [
        Case(
            "ragged texts",
            {
                "stoker": rival("stoker"),
                "torch": rival("torch"),
                "torch, 2 workers": rival("torch", 2),
                "nodes": rival("nodes"),
                "Grain": rival("Grain"),
                "by hand": rival("by hand"),
            },
            [
                Goal("batches/s", against="torch", at_least=3),
                *(Goal("batches/s", against=other, at_least=1) for other in ("nodes", "Grain")),
            ],
        ),
        Case(
            "ragged texts, 2 workers",
            {"stoker": rival("stoker", 2), "torch": rival("torch", 2)},
            [Goal("batches/s", against="torch", at_least=3)],
        ),
    ]
    return rivals.left_out(result) if options.quick else result


def measure(rival: str, workers: int, texts: int, seconds: float) -> Figures:
    import numpy as np

    random = np.random.default_rng(0)
    data = [random.integers(0, 50_000, length).tolist() for length in random.integers(20, 401, texts)]
    return counting.or_not_installed(
        lambda: batches_of(rival, workers, data),
        lambda made: counting.counted(made, seconds, lambda batch: batch[0].reshape(-1)[::512].max()),
    )


def batches_of(rival: str, workers: int, data: list[list[int]]) -> Any:
    if rival == "by hand":
        yield from by_hand(data)  # without end, as the following two
    if rival == "nodes":
        yield from rivals.nodes(data, BATCH, workers, fetch=rivals.Fetch(data, padded))
    if rival == "Grain":
        yield from rivals.grain(data, BATCH, workers, in_memory=True, collate=padded)
    pad: Any = padded
    if rival == "stoker":
        from stoker import PadCollator

        pad = PadCollator()
    loader = method.data_loader(rival)(data, BATCH, shuffle=True, num_workers=workers, collate_fn=pad)
    while True:
        yield from loader


def padded(texts: list[list[int]]) -> Any:
    """As one writes it around torch's `pad_sequence`."""
    import torch

    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    return ids, torch.arange(ids.shape[1])[None] < lengths[:, None]


def by_hand(data: list[list[int]]) -> Any:
    import numpy as np

    kept, mask = np.empty((BATCH, 400), np.int64), np.empty((BATCH, 400), np.bool_)
    while True:
        for indices in np.random.default_rng(0).permutation(len(data))[: len(data) // BATCH * BATCH].reshape(-1, BATCH):
            texts = [data[index] for index in indices.tolist()]
            longest = max(map(len, texts))
            kept[...], mask[...] = 0, False
            for row, text in enumerate(texts):
                kept[row, : len(text)] = text
                mask[row, : len(text)] = True
            yield kept[:, :longest], mask[:, :longest]


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
