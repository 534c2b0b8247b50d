"""The `repr` of datasets and loaders: what they read, without I/O, secrets, or a call of the user's code."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.datasets.described import shown
from tests.pinned import objects, sample_files
from tests.pinned.test_pickles import PICKLES, need

NAMES = [
    *(name for name in objects.of_files(Path()) if isinstance(getattr(stoker, name.partition(",")[0], None), type)),
    *objects.out_of_reach(Path()),
    *objects.of_memory(),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("described")
    sample_files.unpack_files(PICKLES["files"], folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_each_dataset_says_what_it_is(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name)
    dataset = {**objects.of_files(folder), **objects.out_of_reach(folder), **objects.of_memory()}[name]()
    if not isinstance(dataset, stoker.Dataset) or type(dataset) is stoker.Dataset:
        pytest.skip("no dataset of Stoker's")
    monkeypatch.setattr("builtins.open", no_io)
    monkeypatch.setattr("os.stat", no_io)
    monkeypatch.setattr("os.scandir", no_io)
    text = repr(dataset)
    assert re.fullmatch(r"<[A-Z]\w+.*>", text, re.DOTALL) and "object at 0x" not in text


def no_io(*_: Any, **__: Any) -> Any:
    raise AssertionError("a repr reads nothing")


def test_secrets_are_not_shown() -> None:
    place = "https://me:secret@host/a.tar?X-Amz-Signature=secret#secret"
    stream = stoker.TarStream([place, place], storage_options={"headers": {"Authorization": "secret"}})
    assert repr(stream) == "<TarStream of 2 shards, https://host/a.tar …>"
    assert repr(stoker.DataLoader(stream, 4)) == (
        "<DataLoader: batches of 4 of <TarStream of 2 shards, https://host/a.tar …>, num_workers=0>"
    )
    assert shown("https://me:se/cr@et@host/a") == "https://host/a"


def test_a_stream_of_a_function_names_it() -> None:
    assert repr(stoker.from_iterable(no_io)) == "<FromIterable of no_io>"


class Mine(stoker.Dataset[int]):
    def __len__(self) -> int:
        raise AssertionError("may take long")

    def __getitem__(self, index: int) -> int:
        raise AssertionError("may take long")


class Half(stoker.TensorDataset):
    def __len__(self) -> int:
        raise AssertionError("may take long")


class Unmade(stoker.Subset[int]):
    def __init__(self) -> None:
        self.indices: Any = None


def test_no_code_of_the_users_is_called() -> None:
    assert repr(mine := Mine()) == object.__repr__(mine)
    assert repr(stoker.RetryDataset(Mine())) == "<RetryDataset of Mine>"
    assert repr(stoker.Subset(Mine(), range(3))) == "<Subset: 3 samples of Mine>"
    assert repr(Half(np.arange(3))) == "<Half>"
    assert "Unmade object at" in repr(Unmade())


def test_deep_and_wide_ones_are_cut() -> None:
    dataset: Any = stoker.TensorDataset(np.arange(3))
    for _ in range(2000):
        dataset = stoker.RetryDataset(dataset)
    assert repr(dataset) == "<RetryDataset of <RetryDataset of <RetryDataset of <RetryDataset …>>>>"
    wide = stoker.ConcatDataset([stoker.TensorDataset(np.arange(2)), [1], [2], [3]])
    assert repr(wide) == "<ConcatDataset: 5 samples of 4: <TensorDataset: 2 samples>, list, …>"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch_size": None}, "single samples of list, num_workers=0"),
        ({"batch_sampler": [[0, 1], [2]]}, "batches of list, num_workers=0"),
        ({"batch_sampler": stoker.BatchSampler([0, 1, 2], 2, False)}, "batches of 2 of list, num_workers=0"),
        ({"batch_size": 3, "num_workers": 2}, "batches of 3 of list, num_workers=2"),
    ],
    ids=["samples", "lists", "batch sampler", "workers"],
)
def test_loaders_say_what_they_load(given: dict[str, Any], text: str) -> None:
    assert repr(stoker.DataLoader([0, 1, 2], **given)) == f"<DataLoader: {text}>"


def test_names_of_packages_can_be_completed() -> None:
    packages = [stoker, *(each for each in pkgutil.iter_modules(stoker.__path__) if not each.name.startswith("_"))]
    for each in packages:
        module = each if each is stoker else importlib.import_module(f"stoker.{each.name}")
        assert set(getattr(module, "__all__", ())) <= set(dir(module)), module
