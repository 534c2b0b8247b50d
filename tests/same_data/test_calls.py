"""User code is asked for a sample as often as by torch's loader: a sample may be the next record of a queue, a
simulator or a replay buffer, and a second call would lose one.
"""

from __future__ import annotations

from typing import Any

import pytest

SAMPLES = 90
PROGRAM = '''
import os
import random
import tempfile

import numpy as np
import torch

import stoker.loader._random.sample_seeding as seeding

# Stoker looks at a worker's first 1,000 samples: here at 20, so that draws begin behind them
seeding._PROBES, seeding._DEAR = 20, 1e9


def noted(what):
    os.write(file, f"{what}\\n".encode())


def draw(index):
    """From other generators with each third of the dataset, and from none at first."""
    if index >= 30:
        random.random()
    if index >= 50:
        np.random.rand()
    if index >= 70:
        torch.rand(())


class Counted(data.Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, index):
        noted(index)
        draw(index)
        return index


class InBatches(Counted):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(data.IterableDataset):
    def __iter__(self):
        for index in range(90):
            noted(index)
            draw(index)
            yield index


class Shared(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        for index in range(0 if info is None else info.id, 90, 1 if info is None else info.num_workers):
            noted(index)
            draw(index)
            yield index


def nothing(worker):
    pass


def calls(dataset, **options):
    """How often each sample was asked for, in two epochs."""
    global file
    with tempfile.TemporaryFile() as opened:
        file = opened.fileno()
        loader = data.DataLoader(dataset, **options)
        given = sum(np.asarray(batch).size for _ in range(2) for batch in loader)
        del loader
        opened.seek(0)
        asked = sorted(map(int, opened.read().split()))
    return given, [asked.count(index) for index in range(90)]


OPTIONS = [
    {},
    {"batch_size": 7},
    {"batch_size": None},
    {"batch_size": 16, "shuffle": True},
    {"batch_size": 16, "drop_last": True},
    {"batch_size": 8, "collate_fn": list},
    {"batch_sampler": [[0, 40, 80], [1, 2], list(range(50, 90))]},
    {"batch_size": 4, "sampler": list(range(89, -1, -1))},
]
WORKERS = [
    {"num_workers": 1},
    {"num_workers": 2, "batch_size": 8},
    {"num_workers": 2, "batch_size": 8, "persistent_workers": True},
    {"num_workers": 2, "batch_size": 45, "prefetch_factor": 1},
    {"num_workers": 2, "batch_size": 5, "worker_init_fn": nothing},
    {"num_workers": 2, "batch_size": 5, "in_order": False},
]
'''
IN_PROCESS = f"""{PROGRAM}

def main(data):
    return [calls(kind(), **options) for kind in (Counted, InBatches) for options in OPTIONS] + [
        calls(kind(), **options) for kind in (Stream, Shared) for options in OPTIONS[:3]
    ]
"""
WITH_WORKERS = f"""{PROGRAM}

def main(data):
    return [calls(Counted(), **options) for options in WORKERS] + [
        calls(InBatches(), **WORKERS[1]), calls(Stream(), **WORKERS[0]), calls(Shared(), **WORKERS[1])
    ]
"""


def test_calls_without_workers_are_torchs(same: Any) -> None:
    theirs, _ = same(IN_PROCESS, timeout=60)
    assert theirs.result[0] == {"tuple": [180, [2] * SAMPLES]}


def test_calls_in_forked_workers_are_torchs(same: Any) -> None:
    theirs, _ = same(WITH_WORKERS, timeout=60)
    assert theirs.result[0] == {"tuple": [180, [2] * SAMPLES]}


RECORDS = """
class Records(data.Dataset):
    '''A sample is the next record, and its crop is drawn where the record is long.'''

    def __init__(self):
        self.at = 0

    def __len__(self):
        return 144

    def __getitem__(self, index):
        import random

        self.at += 1
        crop = random.random() if self.at > 30 else 0.0
        return self.at + 0 * crop


def main(data):
    import stoker.loader._random.sample_seeding as seeding

    seeding._PROBES, seeding._DEAR = 8, 1e9
    return [[batch.tolist() for batch in data.DataLoader(Records(), 16, num_workers=n)] for n in (0, 1)]
"""


def test_next_records_are_all_delivered(same: Any) -> None:
    same(RECORDS)


CLEAN = """
import os
import random
import tempfile


class Counted(data.Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 90

    def __getitem__(self, index):
        import stoker.loader._random.sample_seeding as seeding

        seeding._PROBES, seeding._DEAR = 20, 1e9
        with open(self.path, "a") as file:
            file.write(str(index) + " ")
        if index >= 40:
            import torch

            torch.rand(())
        return index


def main(data, context):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "asked")
        loader = data.DataLoader(Counted(path), 5, num_workers=2, multiprocessing_context=context)
        given = [batch.tolist() for batch in loader]
        with open(path) as file:
            return given, sorted(map(int, file.read().split()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_calls_in_clean_workers_are_torchs(same: Any, context: str) -> None:
    same(CLEAN, context=context, fresh=True, timeout=120)
