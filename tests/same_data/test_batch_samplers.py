"""What a batch sampler gives reaches the dataset as torch hands it over: its own type, and the types of its items."""

from __future__ import annotations

import pytest

from stoker import StokerWarning


def items_of_batches(data):
    import numpy as np
    import torch

    class Plain(data.Dataset):
        def __getitem__(self, index):
            return {"index": index, "kind": type(index).__name__, "next": index * 100}

    class Cells(data.Dataset):
        def __getitem__(self, place):
            return float((place * 2).sum()), type(place).__name__

    def batches(dataset, samplers, workers):
        return [list(data.DataLoader(dataset, batch_sampler=[each], num_workers=workers)) for each in samplers]

    numbers = [np.arange(3, dtype=np.uint8), np.array([2, 4], np.int64), torch.tensor([5, 1]), (4, 1), {3: "x", 1: "y"}]
    cells = [np.array([[0, 1], [2, 3]]), torch.tensor([[0, 1], [2, 3]])]
    return [(batches(Plain(), numbers, workers), batches(Cells(), cells, workers)) for workers in (0, 2)]


def test_items_of_batches_are_equal(same):
    same(items_of_batches)


def whole_batches(data):
    import numpy as np
    import torch

    class Whole(data.Dataset):
        def __getitem__(self, index):
            raise AssertionError

        def __getitems__(self, batch):
            kind = type(batch).__name__
            if isinstance(batch, dict):
                return [(kind, number * 10) for number in batch["ids"]]
            return [(kind, number * 10) for number in (batch if isinstance(batch, (list, tuple)) else batch[batch < 8])]

    given = [[3, 1], (3, 1), np.array([1, 7]), torch.tensor([2, 3]), {"ids": [1, 2, 3], "size": 3}]
    return [list(data.DataLoader(Whole(), batch_sampler=given, num_workers=workers)) for workers in (0, 2)]


def test_whole_batches_are_equal(same):
    same(whole_batches)


def iterator_as_batch(data):
    class Numbers(data.Dataset):
        def __getitem__(self, index):
            return index

    return list(data.DataLoader(Numbers(), batch_sampler=[iter([1, 2]), (n for n in (3, 4))]))


def test_an_iterator_as_batch_is_read_once(same):
    same(iterator_as_batch)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at_once", [False, True])
def test_bad_sample_of_an_array_is_left_out(at_once: bool, workers: int) -> None:
    import numpy as np

    from stoker import DataLoader

    class Samples:
        def __getitem__(self, index):
            if index == 3:
                raise ValueError
            return int(index)

    class AtOnce(Samples):
        def __getitems__(self, batch):
            return [self[index] for index in batch]

    given = [np.array([1, 3, 2]), (4, 3), np.array([5])]
    dataset = AtOnce() if at_once else Samples()
    loader = DataLoader(dataset, batch_sampler=given, num_workers=workers, on_error="skip", output="numpy")
    with pytest.warns(StokerWarning):
        assert [batch.tolist() for batch in loader] == [[1, 2], [4], [5]]


def test_batch_is_sent_once() -> None:
    import pickle

    import numpy as np

    from stoker.loader._job.work import GivenBatch

    batch = pickle.loads(pickle.dumps(GivenBatch(np.arange(3, dtype=np.int16))))
    assert isinstance(batch.given, np.ndarray) and [type(each) for each in batch] == [np.int16] * 3
    read = pickle.loads(pickle.dumps(GivenBatch(iter([1, 2]))))
    assert type(read) is list and read == [1, 2]


@pytest.mark.parametrize("batch", ["abc", 3, None])
def test_what_is_no_batch_is_refused(batch) -> None:
    from stoker import DataLoader
    from stoker.errors import SamplerError

    with pytest.raises(SamplerError, match="which is no batch"):
        list(DataLoader(list(range(9)), batch_sampler=[batch]))
