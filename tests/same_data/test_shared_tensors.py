"""Tensors in shared memory are one memory of the trainer and all workers, under every start method."""

from __future__ import annotations

import pytest

SHARED_TENSORS = """
    import torch
    import torch.multiprocessing

    class Cached(data.Dataset):
        def __init__(self):
            self.cache = torch.full((16,), -1.0).share_memory_()
            self.view = self.cache[8:]
            self.setting = torch.zeros((), dtype=torch.int64).share_memory_()
            self.model = torch.nn.Linear(1, 1).share_memory()
            self.empty = torch.zeros(0).share_memory_()
            self.storage = torch.zeros(16, dtype=torch.uint8).share_memory_().untyped_storage()
            self.sparse = torch.eye(4).to_sparse()

        def __len__(self):
            return 16

        def __getitem__(self, index):
            known = self.cache[index].item()
            if known < 0:
                self.cache[index] = index
                self.storage[index] = index
            later = self.view[index - 8].item() if index >= 8 else 0.0
            return known, later, self.setting.item(), self.model.bias.item(), self.sparse.to_dense().sum().item()

    def epoch(loader):
        return [[column.tolist() for column in batch] for batch in loader]

    def main(data, context):
        seen = []
        for strategy in "file_descriptor", "file_system":
            torch.multiprocessing.set_sharing_strategy(strategy)
            dataset = Cached()
            torch.nn.init.zeros_(dataset.model.bias)
            loader = data.DataLoader(
                dataset, batch_size=4, num_workers=2, multiprocessing_context=context, persistent_workers=True
            )
            first = epoch(loader)
            dataset.setting.fill_(7)
            torch.nn.init.ones_(dataset.model.bias)
            second = epoch(loader)
            again = epoch(data.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context))
            seen += [first, second, again, dataset.cache.tolist(), list(dataset.storage), dataset.cache.is_shared()]
        return seen
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_shared_tensors_are_one_memory(same, context):
    same(SHARED_TENSORS, context=context, fresh=True, timeout=120, grace=10)  # torch's manager ends after 2 s


QUEUES_OF_TENSORS = """
    import torch
    import torch.multiprocessing

    class Exchange(data.Dataset):
        def __init__(self, context):
            self.tasks, self.results = context.Queue(), context.SimpleQueue()

        def __len__(self):
            return 6

        def __getitem__(self, index):
            task = self.tasks.get(timeout=60)
            task += 1  # seen by the trainer, which has put this tensor
            self.results.put(task * 10)
            return index

    def main(data, context):
        dataset = Exchange(torch.multiprocessing.get_context(context))
        tasks = [torch.full((3,), float(number)) for number in range(6)]
        for task in tasks:
            dataset.tasks.put(task)
        seen = []
        for index in data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context):
            seen += [index, dataset.results.get()]
        dataset.tasks.close()
        dataset.tasks.join_thread()
        return seen, tasks
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_queues_of_tensors_work_as_in_torch(same, context):
    same(QUEUES_OF_TENSORS, context=context, fresh=True, timeout=120)


PLAIN_TENSOR = """
    import torch

    class Counted(data.Dataset):
        def __init__(self):
            self.calls = torch.zeros(4)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.calls[index] += 1
            return index

    def main(data, context):
        dataset = Counted()
        list(data.DataLoader(dataset, num_workers=1, multiprocessing_context=context))
        return dataset.calls.tolist(), dataset.calls.is_shared()
"""


@pytest.mark.slow
def test_plain_tensors_stay_private_to_each_worker(same):
    row = "plain tensors of a dataset, there"
    same(PLAIN_TENSOR, context="spawn", fresh=True, timeout=60, differs=row)
    same(PLAIN_TENSOR, context="fork")
