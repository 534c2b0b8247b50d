from __future__ import annotations


def rows(data):
    import torch

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    found = []
    for options in ({"dataset": [1, 2, 3]}, {"dataset": [1, 2, 3], "num_workers": 1}, {"dataset": Stream()}):
        with torch.profiler.profile() as profile:
            batches = list(data.DataLoader(**options))
        names = [row.key for row in profile.key_averages() if row.key.startswith("enumerate(DataLoader)#")]
        counts = [row.count for row in profile.key_averages() if row.key in names]
        kinds = [event.is_user_annotation for event in profile.events() if event.name in names]
        found.append([len(batches), [name.rpartition(".")[2] for name in names], counts, kinds])
    return found


def test_rows_of_next_are_equal(same):
    theirs, _ = same(rows)
    assert theirs.result[0] == [3, ["__next__"], [4], [True] * 4]


def failing(data):
    import contextlib

    import torch

    class Broken(data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return [1][index]

    iterator = iter(data.DataLoader(Broken(), num_workers=1))
    with torch.autograd.profiler.profile() as profile:
        next(iterator)
        with contextlib.suppress(IndexError):
            next(iterator)
    return [row.count for row in profile.key_averages() if row.key.startswith("enumerate(DataLoader)#")]


def test_rows_of_errors_are_equal(same):
    same(failing)
