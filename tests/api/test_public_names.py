"""The public surface, name by name: whoever changes it changes this list, and so has it reviewed."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

PUBLIC = {
    "stoker._worker_info": ["WorkerInfo", "get_worker_info"],
    "stoker.collate": ["PadCollator", "default_collate", "default_convert"],
    "stoker.datasets": [
        "CacheDataset",
        "ChainDataset",
        "ConcatDataset",
        "Dataset",
        "FilterDataset",
        "InterleaveDataset",
        "IterableDataset",
        "MapDataset",
        "MixDataset",
        "PackDataset",
        "ShuffleDataset",
        "StackDataset",
        "Stream",
        "StreamIterator",
        "Subset",
        "TensorDataset",
        "TextLineDataset",
        "TokenWindows",
        "ViewsDataset",
        "WindowDataset",
        "ZipDataset",
        "average_views",
        "columns",
        "from_iterable",
        "random_split",
    ],
    "stoker.errors": [
        "BatchError",
        "CannotSendError",
        "DeviceInWorkerError",
        "EmptyBatchError",
        "ErrorBudgetError",
        "ErrorPolicyError",
        "GradientInWorkerError",
        "IntegerSizeError",
        "IteratorBusyError",
        "IteratorClosedError",
        "LeafTypeError",
        "LoaderTimeoutError",
        "MemoryLimitError",
        "MissingExtraError",
        "MissingFieldError",
        "QuarantineError",
        "SamplerError",
        "ShardingError",
        "SickBirthError",
        "SkipSample",
        "StalledError",
        "StateError",
        "StateFormatError",
        "StateMismatchError",
        "StokerError",
        "StokerWarning",
        "StreamLostError",
        "WorkerDiedError",
        "WorkerStartError",
        "WorkerTraceback",
    ],
    "stoker._events": ["Event"],
    "stoker._freeze": ["freeze"],
    "stoker.loader.dataloader": ["DataLoader"],
    "stoker.loader.faults": ["ErrorRecord"],
    "stoker.loader.in_step": ["in_step"],
    "stoker.loader.merging": ["merge_states"],
    "stoker.loader.quarantine": ["Quarantine", "quarantine"],
    "stoker.loader.report": ["Report"],
    "stoker.loader.stateful": ["StatefulDataLoader"],
    "stoker.samplers": [
        "BalancedBatchSampler",
        "BatchSampler",
        "BucketBatchSampler",
        "DistributedSampler",
        "RandomSampler",
        "Sampler",
        "SequentialSampler",
        "StratifiedBatchSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
        "weights_from_labels",
    ],
}
HOMES = {name: module for module, names in PUBLIC.items() for name in names}
METHODS_OF_THE_LOADER = ["close", "describe", "from_torch", "load_state_dict", "report", "state_dict"]


def test_the_list_is_the_surface() -> None:
    assert stoker.__all__ == sorted([*HOMES, "errors"])
    assert {*stoker.__all__, "__version__"} <= set(dir(stoker))
    public = {name for name in vars(stoker) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(stoker, name))}
    assert public - modules - set(stoker.__all__) == {"TYPE_CHECKING", "Any", "annotations"}


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(stoker.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {"__version__": "", "errors": "stoker"}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.name: str(node.module) for alias in node.names}
    assert seen == HOMES | {"__version__": "", "errors": "stoker"}


@pytest.mark.parametrize("name", HOMES)
def test_each_name_has_its_home_and_a_docstring(name: str) -> None:
    thing = getattr(stoker, name)
    assert thing is getattr(importlib.import_module(HOMES[name]), name)
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert (own or "").strip(), f"{name} says nothing about itself"


@pytest.mark.parametrize("name", [name for name in HOMES if name[0].isupper()])
def test_methods_that_a_class_shows_are_documented(name: str) -> None:
    own = {n: m for n, m in vars(getattr(stoker, name)).items() if not n.startswith("_") and callable(m)}
    silent = [n for n, method in own.items() if not inspect.getdoc(getattr(getattr(stoker, name), n))]
    assert not silent, f"{name}.{silent} without a docstring"


def test_the_loader_offers_what_is_new() -> None:
    for name in METHODS_OF_THE_LOADER:
        assert inspect.getdoc(getattr(stoker.DataLoader, name))


def test_the_version_is_that_of_the_installed_package() -> None:
    try:
        version = importlib.metadata.version("stoker")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from the source folder, without an installation")
    assert stoker.__version__ == version


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'stoker' has no attribute 'DataLoder'"):
        _ = stoker.DataLoder


def test_no_module_hides_a_public_name() -> None:
    """A module of the same name would replace a function as soon as anybody imports it."""
    program = f"""
import importlib, pkgutil, stoker
for module in pkgutil.walk_packages(stoker.__path__, "stoker."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name, home in {HOMES!r}.items():
    assert getattr(stoker, name) is getattr(importlib.import_module(home), name), name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
