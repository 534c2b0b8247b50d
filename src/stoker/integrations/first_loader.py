"""Installs at the first loader of a process, also of clean interpreters, which find our `sitecustomize`.

Not right after torch's import: `import stoker` itself imports torch, and would meet itself half loaded.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import errors
from stoker.integrations._install.current import Settings


def wait() -> None:
    """Waits for the first loader, and installs with the settings of the environment."""
    import torch.utils.data.dataloader as torchs

    def install() -> None:
        from stoker.integrations._install.apply import apply
        from stoker.integrations._install.current import CURRENT, Settings

        if CURRENT.settings is None and not CURRENT.was_undone and (told := os.environ.get(VARIABLE)):
            try:
                apply(Settings(**json.loads(told)))
            except (errors.InstallError, errors.FrameworkVersionError) as error:
                warnings.warn(f"stoker is not installed in this child: {error}", errors.StokerWarning, stacklevel=3)

    at_first_loader(torchs, install)


def at_first_loader(torchs: Any, action: Callable[[], None]) -> None:
    """Calls an action, once, before the first loader: of torch's class, of torchdata's, or an iterator made by hand.

    Args:
        torchs: the module of torch's `DataLoader`.
        action: called while the loader, its class, or its iterator is being made.
    """
    from stoker.integrations._install.current import ORIGINAL, Changes, subclass_hook

    loaders, iterators, changes = torchs.DataLoader, torchs._MultiProcessingDataLoaderIter, Changes()
    init, before = loaders.__init__, subclass_hook(loaders)
    waits = True

    def now() -> None:
        nonlocal waits
        if waits:
            waits = False
            changes.undo()  # except methods that another has wrapped since, as Lightning does for the time of a call
            action()

    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        now()
        latest = loaders.__init__  # the action may have wrapped it, as `stoker run` does
        wrapped = latest is not __init__ and getattr(latest, "__wrapped__", None) is init
        (latest if wrapped else init)(self, *arguments, **named)

    def __init_subclass__(kind: Any, /, **named: Any) -> None:
        before(kind, **named)
        if kind.__module__.startswith("torchdata."):
            now()

    def __new__(kind: type, *arguments: Any, **named: Any) -> Any:
        now()
        return kind.__new__(kind, *arguments, **named)

    setattr(__init__, ORIGINAL, init)
    changes.put(loaders, "__init__", __init__)
    changes.put(loaders, "__init_subclass__", classmethod(__init_subclass__))
    changes.put(iterators, "__new__", __new__)


VARIABLE = "STOKER_INSTALL"
"""The environment variable that holds the settings, as JSON."""

SITE = str(Path(__file__).parent / "_install" / "site")
"""The folder of our `sitecustomize.py`."""


class ChildEnvironment:
    """The environment of child processes, set and restored."""

    def __init__(self, settings: Settings) -> None:
        self._before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        path = os.environ.get("PYTHONPATH")
        self._set = {
            VARIABLE: json.dumps({name: of for name, of in settings._asdict().items() if name != "children"}),
            "PYTHONPATH": SITE if not path else os.pathsep.join([SITE, path]),
        }
        os.environ.update(self._set)

    def restore(self) -> None:
        """Restores the environment; a `PYTHONPATH` that other code has changed meanwhile loses our folder alone."""
        path = os.environ.get("PYTHONPATH")
        if path is not None and path != self._set["PYTHONPATH"]:
            rest = [folder for folder in path.split(os.pathsep) if folder != SITE]
            self._before["PYTHONPATH"] = os.pathsep.join(rest)
        for name, value in self._before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
