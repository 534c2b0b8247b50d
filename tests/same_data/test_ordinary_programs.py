from __future__ import annotations

import pytest


def map_style(data):
    class Squares(data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"x": index * index, "name": str(index)}

    batches = [list(data.DataLoader(Squares(), batch_size=4, num_workers=workers)) for workers in (0, 2)]
    return batches, len(data.DataLoader(Squares(), batch_size=4, drop_last=True))


def test_map_style_dataset_is_equal(same):
    same(map_style)


def iterable_that_shards_itself(data):
    class Stream(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return iter(range(20) if info is None else range(info.id, 20, info.num_workers))

    return [list(data.DataLoader(Stream(), batch_size=3, num_workers=workers)) for workers in (0, 1, 3)]


def test_iterable_that_shards_itself_is_equal(same):
    same(iterable_that_shards_itself)


def iterable_that_shards_nothing(data):
    import warnings

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(6))

    warnings.simplefilter("ignore")
    return list(data.DataLoader(Stream(), batch_size=None, num_workers=2))


def test_iterable_that_shards_nothing_differs(same):
    theirs, ours = same(iterable_that_shards_nothing, differs="an iterable dataset that does not shard itself")
    assert len(theirs.result) == 12 and len(ours.result) == 6


def batch_sampler(data):
    class Pairs(data.Sampler):
        def __iter__(self):
            return iter([[3, 1], [2], [0, 4, 5]])

        def __len__(self):
            return 3

    loader = data.DataLoader(list(range(6)), batch_sampler=Pairs(), num_workers=2)
    return [*loader, loader.batch_size, loader.drop_last, len(loader)]


def test_batch_sampler_is_equal(same):
    same(batch_sampler)


def error_in_a_sample(data):
    class Broken(data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5:
                raise ValueError(f"sample {index} is broken")
            return index

    found = []
    for workers in (0, 2):
        iterator = iter(data.DataLoader(Broken(), batch_size=2, num_workers=workers))
        while True:
            try:
                found.append(next(iterator))
            except ValueError as error:
                found.append([error, str(error).strip().splitlines()[-1]])
            except StopIteration:
                break
    return found


def test_error_in_a_sample_is_equal(same):
    same(error_in_a_sample)


def error_that_ends_the_program(data):
    class Broken(data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"a": 1}[index]

    return list(data.DataLoader(Broken(), num_workers=2))


def test_error_that_ends_the_program_is_equal(same):
    same(error_that_ends_the_program, raises="KeyError")


def exit_in_the_script(data):
    import sys

    for batch in data.DataLoader(list(range(100)), num_workers=2):
        if batch == 3:
            sys.exit(7)


def test_exit_in_the_script_is_equal(same):
    theirs, _ = same(exit_in_the_script)
    assert theirs.exit == 7


def kept_workers(data):
    class Counted(data.Dataset):
        def __init__(self):
            self.fetched = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.fetched += 1
            return index, self.fetched

    loader = data.DataLoader(Counted(), num_workers=1, persistent_workers=True)
    return [list(loader) for _ in range(3)]


def test_persistent_workers_keep_their_dataset(same):
    same(kept_workers)


def workers_initialised(data):
    class Told(data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            info = data.get_worker_info()
            return index, info.id, info.num_workers, self.told

    def tell(worker):
        data.get_worker_info().dataset.told = 10 + worker

    return list(data.DataLoader(Told(), num_workers=2, worker_init_fn=tell))


def test_worker_init_fn_is_equal(same):
    same(workers_initialised)


def slow_worker(data):
    class Slow(data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            import time

            time.sleep(60)

    return list(data.DataLoader(Slow(), num_workers=1, timeout=0.2))


def test_timeout_error_is_equal(same):
    same(slow_worker, raises="RuntimeError", messages=False)  # ours says which worker is where


def bad_arguments(data):
    found = []
    for options in (
        {"num_workers": -1},
        {"timeout": -1},
        {"shuffle": True, "sampler": [0]},
        {"batch_size": 2, "batch_sampler": [[0]]},
        {"batch_size": None, "drop_last": True},
        {"persistent_workers": True},
        {"batch_size": 0},
    ):
        try:
            data.DataLoader([0, 1], **options)
        except Exception as error:
            found.append([error, str(error)])
    return found


def test_bad_arguments_raise_equal_errors(same):
    same(bad_arguments)


SPAWNED = """
class Numbers(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * self.factor

def double(worker):
    data.get_worker_info().dataset.factor = 2

def main(data, context):
    return list(data.DataLoader(Numbers(), num_workers=1, multiprocessing_context=context, worker_init_fn=double))
"""


@pytest.mark.slow
def test_spawned_workers_are_equal(same):
    same(SPAWNED, context="spawn", fresh=True)


def clips_in_another_order(data):
    import torch

    class Clips(data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.full((2, 32, 32, 3), float(index)).permute(0, 3, 1, 2)

    batches = list(data.DataLoader(Clips(), batch_size=4, num_workers=2))
    return [(batch.stride(), batch.view(len(batch), -1)) for batch in batches]


def test_clips_from_workers_are_contiguous_in_each_batch(same):
    same(clips_in_another_order)


def datasets_of_loaders_that_are_gone(data):
    import gc
    import random
    import weakref

    class Rows(data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return index

    class RandomRows(Rows):
        def __getitem__(self, index):
            return random.random()

    class InBatches(Rows):
        def __getitems__(self, indices):
            return indices

    class Bad(Rows):
        def __getitem__(self, index):
            if index == self.bad:
                raise KeyError
            return index

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(12))

    def is_gone(kind, bad=None, **options):
        dataset = kind()
        dataset.bad = bad
        seen = weakref.ref(dataset)
        loader = data.DataLoader(dataset, **{"batch_size": 2, **options})
        try:
            for _ in range(2):
                list(loader)
        except KeyError:
            pass
        del dataset, loader
        return seen() is None

    gc.disable()
    options = [{}, {"batch_size": None}, {"collate_fn": list}]
    return [
        *[is_gone(kind, **each) for kind in (Rows, RandomRows, InBatches, Stream) for each in options],
        *[is_gone(Bad, bad, **each) for bad in (0, 8) for each in options],
    ]


def test_a_dataset_ends_with_its_loader(same):
    theirs, _ = same(datasets_of_loaders_that_are_gone)
    assert theirs.result == [True] * 18
