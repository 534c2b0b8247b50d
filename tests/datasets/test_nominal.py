"""Ours are torch's in name, and in nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stoker import datasets

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.skipif(
    not issubclass(datasets.Dataset, torch_data.Dataset), reason="torch is installed, and not wanted"
)
CLASSES = [name for name in datasets.__all__ if hasattr(torch_data, name) and name[0].isupper()]


@pytest.mark.parametrize("name", CLASSES)
def test_ours_is_a_subclass_that_shares_no_behaviour(name: str) -> None:
    ours, theirs = getattr(datasets, name), getattr(torch_data, name)
    assert issubclass(ours, theirs)
    behaviour = {
        key
        for key, value in vars(theirs).items()
        if callable(value) or isinstance(value, property | staticmethod | classmethod)
    }
    for key in behaviour - {"__class_getitem__"}:
        home = next(base for base in ours.__mro__ if key in vars(base))
        assert home.__module__.startswith("stoker."), f"{name}.{key} comes from {home}"


@pytest.mark.slow
def test_streams_with_and_without_torch_bases_are_recognised() -> None:
    """A process that avoids torch has plain bases; torch's streams may come along all the same."""
    program = """
import sys
from stoker._core import nominal
nominal.prefer_none()
from stoker.datasets import ChainDataset, ConcatDataset, IterableDataset
assert "torch" not in sys.modules
import torch.utils.data

class Ours(IterableDataset):
    def __iter__(self): return iter([1, 2])

class Theirs(torch.utils.data.IterableDataset):
    def __iter__(self): return iter([3])

assert not issubclass(IterableDataset, torch.utils.data.IterableDataset)
assert list(ChainDataset([Ours(), Theirs()])) == [1, 2, 3]
for stream in (Ours(), Theirs()):
    try:
        ConcatDataset([stream])
    except AssertionError as error:
        assert str(error) == "ConcatDataset does not support IterableDataset"
    else:
        raise SystemExit("accepted")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_torchs_own_accept_ours() -> None:
    class Stream(datasets.IterableDataset[int]):
        def __iter__(self) -> object:  # type: ignore[override]
            return iter([1, 2])

    assert list(torch_data.ChainDataset([Stream()])) == [1, 2]
    assert torch_data.Subset(datasets.StackDataset([5, 6]), [1])[0] == (6,)  # type: ignore[arg-type]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        datasets.Nope  # noqa: B018
