"""Differences that the guide names: each is there, and is what the guide says."""

from __future__ import annotations

import pytest


def unequal_dtypes(data):
    import torch

    class Mixed(data.Dataset):
        def __init__(self, kind):
            self.kind = kind

        def __len__(self):
            return 4

        def __getitem__(self, index):
            sample = torch.full((2,), 1 / 3, dtype=[torch.float32, torch.float64][index % 2])
            return sample if self.kind == "tensor" else sample.numpy()

    loaders = [data.DataLoader(Mixed(kind), 4, num_workers=n) for kind in ("tensor", "array") for n in (0, 1)]
    return [str(batch.dtype) for loader in loaders for batch in loader]


def test_samples_of_unequal_dtypes_are_promoted(same):
    row = "samples of unequal dtypes in one batch"
    theirs, ours = same(unequal_dtypes, differs=row)
    assert str(theirs.result).count("float32") == 2
    assert str(ours.result).count("float64") == 4


GETSTATE = """
    class Numbered(data.Dataset):
        calls = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

        def __getstate__(self):
            type(self).calls += 1
            return {"number": self.calls}

    def main(data, context):
        dataset = Numbered()
        calls = []
        for epoch in range(2):
            list(data.DataLoader(dataset, num_workers=2, multiprocessing_context=context))
            calls.append(dataset.calls)
        return calls
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_getstate_runs_once_for_all_workers(same, context):
    row = "`__getstate__` of a dataset, there"
    theirs, ours = same(GETSTATE, context=context, fresh=True, timeout=90, differs=row)
    assert (theirs.result, ours.result) == ([2, 4], [1, 2])
