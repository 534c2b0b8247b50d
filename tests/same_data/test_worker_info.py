"""`get_worker_info()`: None in the trainer, and what a stream reads of it to share itself out, or to log it."""

from __future__ import annotations


def branches_on_none(data):
    class Branches(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            info = data.get_worker_info()
            return index if info is None else 100 + index

    return [[batch.tolist() for batch in data.DataLoader(Branches(), num_workers=workers)] for workers in (0, 2)]


def test_info_is_none_without_workers(same):
    same(branches_on_none)


def stream_that_logs_its_worker(data):
    import warnings

    class Logs(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            self.line = "reading" if info is None else f"reading in worker {info.id}, {info!r}"
            return iter(range(6))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = list(data.DataLoader(Logs(), batch_size=None, num_workers=2))
    return samples, data.__name__ == "torch.utils.data" or len(caught) == 1


def test_stream_that_logs_its_worker_is_read_as_torch_does(same):
    same(stream_that_logs_its_worker)


def module_behind_a_proxy(data):
    import sys
    import types

    import torch

    name = "torch.utils.data._utils.worker"

    class Proxy(types.ModuleType):
        def __getattr__(self, attribute):
            return getattr(real, attribute)

    real = sys.modules[name]
    sys.modules[name] = Proxy(name)

    class Asks(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.utils.data.get_worker_info().num_workers

    return [batch.tolist() for batch in data.DataLoader(Asks(), num_workers=2)]


def test_workers_do_without_torchs_own_module_object(same):
    same(module_behind_a_proxy)
