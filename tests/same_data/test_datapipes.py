from __future__ import annotations

import pytest


def shuffle_switched(data):
    import warnings

    import torch
    from torch.utils.data.datapipes.iter import IterableWrapper

    warnings.simplefilter("ignore")
    found = []
    for workers in (0, 1):
        for shuffle in (None, False, True):
            torch.manual_seed(3)
            pipe = IterableWrapper(range(10)).shuffle()
            loader = data.DataLoader(pipe, batch_size=None, shuffle=shuffle, num_workers=workers)
            found.append([int(item) for item in loader])
    return found


def test_shuffle_of_a_datapipe_is_switched(same):
    theirs, _ = same(shuffle_switched)
    assert theirs.result[1] == theirs.result[4] == list(range(10)) and theirs.result[0] != list(range(10))


def shuffle_without_a_shuffler(data):
    import warnings

    from torch.utils.data.datapipes.iter import IterableWrapper

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        batches = list(data.DataLoader(IterableWrapper(range(6)), shuffle=True))
    return batches, [str(warning.message)[:40] for warning in told]


def test_shuffle_without_a_shuffler_is_equal(same):
    same(shuffle_without_a_shuffler)


def bad_arguments(data):
    from torch.utils.data.datapipes.iter import IterableWrapper

    found = []
    for options in (
        {"shuffle": True, "sampler": [1]},
        {"sampler": [1]},
        {"batch_sampler": [[1]]},
        {"shuffle": True, "batch_sampler": [[1]]},
    ):
        try:
            data.DataLoader(IterableWrapper(range(6)).shuffle(), **options)
        except ValueError as error:
            found.append(str(error))
    return found


def test_bad_arguments_raise_equal_errors(same):
    same(bad_arguments)


def epochs_of_workers(data):
    import torch
    from torch.utils.data.datapipes.iter import IterableWrapper

    found = []
    for options in ({}, {"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "prefetch_factor": 4}):
        torch.manual_seed(1)
        pipe = IterableWrapper(range(20)).shuffle().sharding_filter().map(abs)
        found.append([batch.tolist() for batch in data.DataLoader(pipe, batch_size=3, **options)])
    pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
    loader = data.DataLoader(pipe, num_workers=2, persistent_workers=True, generator=torch.Generator().manual_seed(5))
    found.append(next(iter(loader)))
    return found


def test_sharding_filter_shares_out_among_workers(same):
    theirs, _ = same(epochs_of_workers)
    assert sorted(item for batch in theirs.result[2] for item in batch) == list(range(20))


def persistent_epochs(data):
    import torch
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(12)).shuffle().sharding_filter()
    generator = torch.Generator()
    loader = data.DataLoader(pipe, batch_size=2, num_workers=2, persistent_workers=True, generator=generator)
    found = []
    for epoch in range(3):
        generator.manual_seed(epoch)
        found.append(list(loader))
    return found


def test_persistent_workers_are_seeded_for_each_epoch(same):
    theirs, _ = same(persistent_epochs)
    assert theirs.result[0] != theirs.result[1]


PREPARED_BY_THE_USER = """
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

class Told(IterDataPipe):
    def __init__(self, source):
        self.source = source
        self.told = 0

    def __iter__(self):
        return ((item, self.told) for item in self.source)

def tell(worker):
    dataset = data.get_worker_info().dataset
    getattr(dataset, "_datapipe", dataset).told = 10 + worker

def main(data):
    pipe = IterableWrapper(range(6)).sharding_filter()
    return list(data.DataLoader(Told(pipe), num_workers=2, worker_init_fn=tell))
"""


def test_worker_init_fn_runs_behind_sharding(same):
    same(PREPARED_BY_THE_USER)


def sharded_twice(data):
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(6)).sharding_filter().sharding_filter()
    found = []
    for workers in (0, 2):
        try:
            list(data.DataLoader(pipe, num_workers=workers))
        except RuntimeError as error:
            found.append(str(error).strip().splitlines()[-1].rpartition("RuntimeError: ")[2])
    return found


def test_sharding_twice_is_refused_alike(same):
    same(sharded_twice)


SHARDED_MAP = """
import time

from torch.utils.data import MapDataPipe

class Shared(MapDataPipe):
    def __init__(self):
        self.share = None

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.1 if index == 0 else 0.01)  # a worker that is late keeps its batches
        return index, *self.share

    def apply_sharding(self, instances, instance):
        self.share = instances, instance

def main(data):
    return [list(data.DataLoader(Shared(), batch_size=2, num_workers=workers)) for workers in (0, 2)]
"""


def test_map_datapipe_is_shared_out(same):
    same(SHARDED_MAP)


def no_sharding(data):
    import warnings

    from torch.utils.data.datapipes.iter import IterableWrapper

    warnings.simplefilter("ignore")
    return list(data.DataLoader(IterableWrapper(range(4)), batch_size=None, num_workers=2))


def test_datapipe_without_sharding_filter_differs(same):
    theirs, ours = same(no_sharding, differs="an iterable dataset that does not shard itself")
    assert len(theirs.result) == 8 and len(ours.result) == 4


def ranks(data):
    import json
    import os
    import tempfile

    import torch.distributed as dist
    from torch.utils.data.datapipes.iter import IterableWrapper

    def be_rank(number, folder):
        import torch

        dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=number, world_size=2)
        torch.manual_seed(number)
        found = []
        for workers in (0, 2):
            pipe = IterableWrapper(range(12)).shuffle().sharding_filter()
            found.append([int(item) for item in data.DataLoader(pipe, batch_size=None, num_workers=workers)])
        dist.destroy_process_group()
        with open(f"{folder}/{number}", "w") as file:
            json.dump(found, file)

    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for number in range(2):
            pids.append(os.fork())
            if not pids[-1]:
                try:
                    be_rank(number, folder)
                finally:
                    os._exit(0)
        for pid in pids:
            os.waitpid(pid, 0)
        return [json.load(open(f"{folder}/{number}")) for number in range(2)]


@pytest.mark.slow
def test_ranks_shuffle_alike_and_share_out(same):
    theirs, _ = same(ranks)
    first, second = theirs.result
    for mine, others in zip(first, second, strict=True):
        assert sorted(mine + others) == list(range(12))


def dataset_of_the_loader(data):
    from torch.utils.data.datapipes.iter import IterableWrapper

    return type(data.DataLoader(IterableWrapper(range(4))).dataset).__name__


def test_dataset_of_the_loader_differs(same):
    _, ours = same(dataset_of_the_loader, differs="`loader.dataset` of a DataPipe")
    assert ours.result == "IterableWrapperIterDataPipe"
