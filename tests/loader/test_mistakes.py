"""Common mistakes: the first line that Stoker says of each, beside torch's."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker

SERVED = "served"
"""What torch says if it serves the mistake without a word."""


class Photos:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return index


class Fails(Photos):
    def __getitem__(self, index: int) -> Any:
        raise OSError("x" * 3000)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.zeros(shape, np.float32) for shape in shapes]


def epoch(library: Any, *args: Any, **kwargs: Any) -> None:
    for _ in library.DataLoader(*args, **kwargs):
        pass


def numbers() -> Any:
    yield 1


def said(action: Callable[[], object]) -> str:
    """The first line of the error or the warning."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            action()
        except Exception as error:
            known = error.__cause__ if isinstance(error.__cause__, stoker.SamplerError) else error
            return f"{type(error).__name__}: {str(known).splitlines()[0]}"
    return f"{told[0].category.__name__}: {str(told[0].message).splitlines()[0]}" if told else SERVED


MISTAKES: dict[str, tuple[Callable[[Any], object], str, str | None]] = {
    "a short name": (
        lambda library: library.DataLoader(range(4), workers=2),
        r"TypeError: DataLoader.__init__\(\) got an unexpected keyword argument 'workers'. Did you mean num_workers\?",
        r"TypeError: DataLoader.__init__\(\) got an unexpected keyword argument 'workers'",
    ),
    "a name without its underscore": (
        lambda library: library.DataLoader(range(4), batchsize=2),
        r"TypeError: .* argument 'batchsize'. Did you mean batch_size\?",
        r"TypeError: .* argument 'batchsize'",
    ),
    "a text as batch_size": (
        lambda library: library.DataLoader(range(4), batch_size="4"),
        "ValueError: batch_size should be a positive integer value, but got batch_size='4'",
        "ValueError: batch_size should be a positive integer value, but got batch_size=4",
    ),
    "a text as num_workers": (
        lambda library: library.DataLoader(range(4), num_workers="2"),
        "TypeError: num_workers should be an integer or 'auto', but got num_workers='2'",
        "TypeError: '<' not supported between instances of 'str' and 'int'",
    ),
    "shapes that differ": (
        lambda library: epoch(library, arrays((3,), (4,)), 2),
        r"BatchError: stack expects .* \(3,\) in sample 0 and \(4,\) in sample 1 of the batch. .*PadCollator\(\)",
        r"RuntimeError: stack expects each tensor to be equal size, but got \[3\] at entry 0 and \[4\] at entry 1",
    ),
    "channels that differ": (
        lambda library: epoch(library, arrays((3, 8, 8), (1, 8, 8)), 2),
        r'BatchError: stack expects .* \(1, 8, 8\) in sample 1 .* image.convert\("RGB"\)',
        r"RuntimeError: stack expects each tensor to be equal size",
    ),
    "None as a sample": (
        lambda library: epoch(library, [1, None], 2, num_workers=0),
        r"(LeafTypeError: default_collate: .*'NoneType'> in sample 1 .*A dataset returns None if a return statement|R)",
        r"RuntimeError: Could not infer dtype of NoneType",
    ),
    "texts among numbers": (
        lambda library: epoch(library, [1, "b"], 2),
        r"(LeafTypeError: default_collate: .*int'> in sample 0 and <class 'str'> in sample 1|TypeError: )",
        "TypeError: new\\(\\): invalid data type 'str'",
    ),
    "a missing key": (
        lambda library: epoch(library, [{"a": 1, "b": 2}, {"a": 1}], 2),
        r"(MissingFieldError: key 'b' is in sample 0 of the batch, but not in sample 1|KeyError: 'b')",
        "KeyError: 'b'",
    ),
    "an index outside the dataset": (
        lambda library: epoch(library, [0, 1], sampler=[9]),
        "IndexError: the sampler yielded index 9, but the dataset has 2 samples",
        "IndexError: list index out of range",
    ),
    "a batch sampler as sampler": (
        lambda library: epoch(library, [0, 1], sampler=[[0, 1]]),
        r"TypeError: the sampler yielded a list of 2 indices, \[0, 1\], for one sample. .* batch_sampler=",
        "TypeError: list indices must be integers or slices, not list",
    ),
    "an empty dataset": (
        lambda library: epoch(library, []),
        "StokerWarning: the epoch has no batch: the dataset has 0 samples",
        SERVED,
    ),
    "drop_last that leaves nothing": (
        lambda library: epoch(library, range(3), 4, drop_last=True),
        "StokerWarning: the epoch has no batch: the dataset has 3 samples, and drop_last=True .* fewer than 4",
        SERVED,
    ),
    "sampler and shuffle": (
        lambda library: library.DataLoader(range(3), sampler=[0], shuffle=True),
        "ValueError: sampler option is mutually exclusive with shuffle",
        "ValueError: sampler option is mutually exclusive with shuffle",
    ),
    "a text as collate_fn": (
        lambda library: epoch(library, range(3), collate_fn="pad"),
        r"TypeError: collate_fn should be a function .* got collate_fn='pad'. To pad .* stoker.PadCollator\(\)",
        "TypeError: 'str' object is not callable",
    ),
    "a number as generator": (
        lambda library: epoch(library, range(3), shuffle=True, generator=42),
        "TypeError: generator should be .* got generator=42. For the same order in each run pass seed=",
        "(AttributeError|TypeError): .*",
    ),
    "a stream that is shuffled": (
        lambda library: library.DataLoader(Stream(library), shuffle=True),
        "ValueError: DataLoader with IterableDataset: .* shuffle=True. A stream is shuffled by a buffer",
        "ValueError: DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle=True",
    ),
    "a text that names a folder": (
        lambda library: epoch(library, "train"),
        r"TypeError: dataset is a text, 'train', whose .* Did you mean stoker.ImageFolder\('train'\)\?",
        SERVED,
    ),
    "a text that names nothing": (
        lambda library: epoch(library, "data/train"),
        r"StokerWarning: dataset is a text, 'data/train', .* Did you mean stoker.open_dataset\('data/train'\)\?",
        SERVED,
    ),
    "a class as dataset": (
        lambda library: epoch(library, Photos),
        r"TypeError: object of type 'type' has no len\(\): Photos is a class. Call it, as in DataLoader\(Photos\(...\)",
        r"TypeError: object of type 'type' has no len\(\)",
    ),
    "a dict as dataset": (
        lambda library: epoch(library, {"a": 1}),
        r"KeyError: the dataset is a dict, which has no key 0: pass list\(data.values\(\)\)",
        "KeyError: 0",
    ),
    "a generator as dataset": (
        lambda library: epoch(library, (number for number in range(3))),
        r"TypeError: dataset should have __getitem__ .* got generator. .*pass its function, stoker.from_iterable\(",
        r"TypeError: object of type 'generator' has no len\(\)",
    ),
    "a generator function as dataset": (
        lambda library: epoch(library, numbers),
        r"TypeError: dataset should .* got function. It is a generator function: pass stoker.from_iterable\(numbers\)",
        r"TypeError: object of type 'function' has no len\(\)",
    ),
    "a zip as dataset": (
        lambda library: epoch(library, zip([1], [2], strict=True)),
        r"TypeError: dataset should .* got zip. It has no samples by index: pass list\(...\) of it, or",
        r"TypeError: object of type 'zip' has no len\(\)",
    ),
    "a set as dataset": (
        lambda library: epoch(library, {1, 2}),
        r"TypeError: dataset should .* got set. It has no samples by index: pass list\(...\) of it.$",
        r"TypeError: 'set' object is not subscriptable",
    ),
    "a batch sampler as sampler of an array": (
        lambda library: epoch(library, np.arange(4), 2, sampler=[[0, 1, 2], [3]]),
        r"BatchError: the sampler yielded a list of 3 indices, .* pass it as batch_sampler=.* stack expects each",
        None,
    ),
    "a length of 0": (
        lambda library: stoker.BucketBatchSampler([2, 0], 4),
        r"ValueError: lengths should be positive and finite, but lengths\[1\] is 0: .* stoker.Subset\(dataset, keep\)",
        None,
    ),
    "True as distributed": (
        lambda library: library.DataLoader(range(3), distributed=True),
        "ValueError: distributed should be one of None, 'pad', 'drop', 'exact', .*=True. For training use 'pad'",
        None,
    ),
    "an unknown output": (
        lambda library: library.DataLoader(range(3), output="jax"),
        "ValueError: output should be one of 'torch', 'numpy', but got output='jax'",
        None,
    ),
    "threads without a worker": (
        lambda library: library.DataLoader(range(3), threads_per_worker=8),
        "StokerWarning: threads_per_worker=8 has no effect with num_workers=0",
        None,
    ),
    "a long error of a sample left out": (
        lambda library: epoch(library, Fails(), on_error="skip", max_errors=None, max_error_rate=None),
        r"StokerWarning: sample 0 of batch 0 failed, and was left out: OSError: x{291}… \(3,009 characters\)$",
        None,
    ),
    "a wrong folder": (
        lambda library: stoker.ImageFolder("no/photos"),
        r"MissingFolderError: \[Errno 2\] there is no such folder: check the path, .* mounted: '[^']*no/photos'$",
        None,
    ),
    "a pattern that matches nothing": (
        lambda library: stoker.JSONLinesDataset("d/*.json"),
        r"FileNotFoundError: no file matches d/\*.json \(looked in .*/d, which holds a.csv, bad.jsonl\)$",
        None,
    ),
    "url and query swapped": (
        lambda library: stoker.SQLDataset("sqlite:///rows.db", "SELECT * FROM rows"),
        "ValueError: .* The given text is a query: are the arguments swapped",
        None,
    ),
    "a writer without its folder": (
        lambda library: stoker.TarWriter("no/a.tar").write({"__key__": "a", "txt": "b"}),
        r"FileNotFoundError: \[Errno 2\] No such file or directory: TarWriter cannot write this shard, which leaves "
        "nothing behind; there is no complete one: 'no/a.tar'",
        None,
    ),
    "a cache where a file lies": (
        lambda library: stoker.CacheDataset(range(3), folder="d/a.csv", key="v1")[0],
        r"(FileExists|NotADirectory)Error: .*: CacheDataset cannot write to its folder, and has left nothing there",
        None,
    ),
}


def Stream(library: Any) -> Any:
    class OfThree(library.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return iter(range(3))

    return OfThree()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train" / "cats").mkdir(parents=True)
    (tmp_path / "d").mkdir()
    for name in ("a.csv", "bad.jsonl"):
        (tmp_path / "d" / name).touch()


@pytest.mark.parametrize("name", MISTAKES)
def test_first_line_of_a_mistake(name: str) -> None:
    make, ours, _ = MISTAKES[name]
    told = said(lambda: make(stoker))
    assert re.match(ours, told), told


@pytest.mark.parametrize("name", [name for name, (_, _, theirs) in MISTAKES.items() if theirs])
def test_first_line_of_torch(name: str) -> None:
    pytest.importorskip("torch")
    import torch.utils.data

    make, _, theirs = MISTAKES[name]
    told = said(lambda: make(torch.utils.data))
    assert re.match(theirs or "", told), told


TORCHS = ("a short name", "a name without its underscore", "a text as batch_size", "a text as num_workers")
"""Mistakes that torch's constructor refuses before `install()` sees them."""
TORCHS += ("a class as dataset", "sampler and shuffle", "a stream that is shuffled")
TORCHS += ("an empty dataset", "drop_last that leaves nothing")
"""And those that it serves without a word."""
ADVICE = [name for name, (_, _, theirs) in MISTAKES.items() if theirs and name not in TORCHS]


@pytest.mark.parametrize("name", ADVICE)
def test_advice_of_a_mistake_under_install(name: str) -> None:
    """It is in the error, or in the warning that the loader stays on torch's engine."""
    pytest.importorskip("torch")
    import torch.utils.data

    make, ours, _ = MISTAKES[name]
    lines = []
    with stoker.install(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            make(torch.utils.data)
        except Exception as error:
            lines = [f"{type(error).__name__}: {one}" for one in (error, error.__cause__)]
    lines += [f"StokerWarning: {one.message}" for one in told]
    assert any(re.search(ours.rstrip("$"), line) for line in lines), lines


def test_what_torch_serves_is_served() -> None:
    loader = stoker.DataLoader(np.arange(6), sampler=[[0, 1], [4, 5]], batch_size=None, output="numpy")
    assert [batch.tolist() for batch in loader] == [[0, 1], [4, 5]]
    loader = stoker.DataLoader({0: 5, 1: 6}, batch_size=2, output="numpy")
    assert [batch.tolist() for batch in loader] == [[5, 6]]
    with pytest.warns(stoker.StokerWarning, match="dataset is a text"):
        assert list(stoker.DataLoader("no such file", batch_size=2, collate_fn="".join))[:2] == ["no", " s"]


def test_an_epoch_without_a_batch_is_told_once() -> None:
    loader = stoker.DataLoader([], output="numpy")
    with pytest.warns(stoker.StokerWarning, match="no batch") as told:
        assert list(loader) == list(loader) == []
    assert len(told) == 1


@pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="needs obstore")
def test_an_unknown_storage_option_alone_is_named() -> None:
    options = {"key": "k", "acess_key": "a", "endpoint_url": "http://127.0.0.1:9", "region": "eu"}
    with pytest.raises(ValueError, match=r"s3 does not know: acess_key \(did you mean access_key_id\?\)\. The guide"):
        stoker.TarStream("s3://bucket/*.tar", storage_options=options)


def test_the_path_of_a_dataset_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"got PosixPath\. Did you mean stoker\.ImageFolder\('.*train'\)\?"):
        stoker.DataLoader(tmp_path / "train")
