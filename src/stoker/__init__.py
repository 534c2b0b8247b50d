"""Stoker keeps accelerators fed: data loading for training with the API that PyTorch users know.

    from stoker import DataLoader

Importing this package loads neither torch nor any module below it: each public name is loaded when it is first used,
because some are subclasses of torch's if torch is installed (see `docs/design`). The names are those of `__init__.pyi`
beside this file. The one side effect is a finder of modules, asked last, for pickles that name a module that moved.
"""

import importlib
import sys

from stoker._core import first_use

__all__ = first_use.public_names()

if first_use.FormerModules not in sys.meta_path:
    sys.meta_path.append(first_use.FormerModules)


def __getattr__(name: str) -> object:
    if name in first_use.HOMES:
        return first_use.loaded(__name__, name, first_use.HOMES)
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("stoker")
    if name in first_use.FORMER_HOMES:
        return getattr(importlib.import_module(first_use.FORMER_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
