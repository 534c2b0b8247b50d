"""`Target`: the dataset or loader that a command is to look at, named as `module:object`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from stoker.errors import TargetError


@dataclass(frozen=True)
class Target:
    """What `module:object` named.

    Attributes:
        dataset: the dataset, or that of the loader.
        loader: the loader, or None if a dataset was named.
    """

    name: str
    module: ModuleType
    dataset: Any
    loader: Any = None


def find(name: str) -> Target:
    """Returns what a name stands for: a dataset, a loader, or a function or class without arguments that makes one.

    The module is imported as a script in this folder would import it; `train.py:make` names a file.

    Raises:
        TargetError: there is no such module, object or dataset. What the user's own code raises is not caught.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not path or not module_name:
        raise TargetError(
            f"{name!r} names no object: write module:object, such as train:dataset or train.py:make_loader"
        )
    module = _imported(module_name)
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise TargetError(f"{module_name} has no {part}{_near(part, [one for one in dir(value) if one[0] != '_'])}")
        value = getattr(value, part)
    if isinstance(value, type) or (
        callable(value) and not hasattr(value, "__getitem__") and not hasattr(value, "__iter__")
    ):
        value = value()
    if hasattr(value, "dataset") and hasattr(value, "batch_size") and hasattr(value, "__iter__"):
        return Target(name, module, value.dataset, value)
    if not hasattr(value, "__getitem__") and not hasattr(value, "__iter__"):
        raise TargetError(f"{name} is a {type(value).__name__}, and neither a dataset nor a loader, nor makes one")
    return Target(name, module, value)


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(name))
        if not os.path.exists(name):
            names = os.listdir(folder) if os.path.isdir(folder) else []
            raise TargetError(f"there is no file {name}{_near(file, names)}")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        name = file.removesuffix(".py")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of an import inside the module
        modules = [one.removesuffix(".py") for one in os.listdir(here) if one.endswith(".py")]
        raise TargetError(f"there is no module {error.name}{_near(error.name, modules)}") from None


def _near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f" (it has {', '.join(sorted(known)[:8])})" if known else ""
