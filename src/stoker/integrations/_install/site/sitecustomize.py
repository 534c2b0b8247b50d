"""Found by interpreters whose environment `stoker.install(children=True)` has set: installs at their first loader.

Imports nothing but a part of importlib before the program imports torch. Runs the `sitecustomize` that it hides.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_AWAITED = "torch.utils.data"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _DataFinder:
    """Waits for the import of torch's data package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if importlib.util.find_spec("stoker") is not None:  # another environment's interpreter may lack it
                from stoker.integrations import first_loader

                first_loader.wait()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_hidden() -> None:
    path = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("STOKER_INSTALL"):
    sys.meta_path.insert(0, _DataFinder())
_run_hidden()
