"""Puts the installation into place in this process, over versions that it knows, and takes it away."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from stoker import errors
from stoker.integrations._install import behind, delegation
from stoker.integrations._install.current import CURRENT, LOCK, ORIGINAL, Changes, Settings, original_of, subclass_hook
from stoker.loader.record import leave_jpegs_to_pillow

_CHANGES = Changes()

_MODULE = "torch.utils.data.dataloader"


def apply(settings: Settings) -> None:
    """Changes torch's class, as the settings say. Nothing is changed if an error is raised.

    Raises:
        FrameworkVersionError: torch, or a framework that is loaded, is too old.
        InstallError: a script has replaced `DataLoader._get_iterator`.
    """
    torchs = _torchs_module()
    kind = torchs.DataLoader
    check(*OLDEST)
    if not behind.is_torchs_own(original_of(kind, "_get_iterator"), _MODULE):
        found = original_of(kind, "_get_iterator")
        raise errors.InstallError(
            f"torch's DataLoader._get_iterator was replaced by {found.__module__}.{found.__qualname__}: its iterators "
            "are not torch's, and install() would take them away. Nothing was changed. Call stoker.install() before "
            "that code runs, or leave one of the two out."
        )
    with LOCK:
        iter_too = behind.is_torchs_own(original_of(kind, "__iter__"), _MODULE)
        delegation.put_on(kind, _CHANGES, iter_too=iter_too)
        _put(kind, "__reduce_ex__", lambda self, protocol: delegation.reduce_ex(self, protocol, unpickled))
        for subclass in kind.__subclasses__():
            _take_stateful(subclass)
        _CHANGES.put(kind, "__init_subclass__", _init_subclass(kind))
        _CHANGES.put(torchs._MultiProcessingDataLoaderIter, "__new__", delegation.new_of(torchs))
        CURRENT.settings, CURRENT.was_undone = settings, False


def unpickled(settings: Settings, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Returns an unpickled loader, before its state is set. Installs, unless it was undone in this process."""
    if CURRENT.settings is None and not CURRENT.was_undone:
        apply(settings._replace(children=False))
    return make(*arguments)


def _put(kind: type, name: str, value: Any) -> None:
    setattr(value, ORIGINAL, original_of(kind, name))
    _CHANGES.put(kind, name, value)


def _torchs_module() -> Any:
    try:
        import torch.utils.data.dataloader as torchs
    except ImportError as error:
        if "torch" in sys.modules:
            raise  # torch is there, and broken
        raise errors.MissingExtraError(
            "stoker.install() changes torch's DataLoader, and torch is not installed (the extra stoker[torch])."
        ) from error
    return torchs


def unapply() -> None:
    """Restores torch's class. Iterators in use go on to their end; all loaders go on on torch's engine."""
    with LOCK:
        CURRENT.settings, CURRENT.was_undone = None, True
        _CHANGES.undo()
        behind.forget_all()
        leave_jpegs_to_pillow()


def _init_subclass(kind: Any) -> Any:
    before = subclass_hook(kind)

    def __init_subclass__(subclass: Any, /, **named: Any) -> None:
        before(subclass, **named)
        if CURRENT.settings is not None:
            _take_stateful(subclass)

    return classmethod(__init_subclass__)


def _take_stateful(subclass: type) -> None:
    """Gives torchdata's `StatefulDataLoader`, which has an engine of its own, the same functions as torch's class."""
    if subclass.__name__ != "StatefulDataLoader" or subclass.__module__.partition(".")[0] != "torchdata":
        return
    try:
        check("torchdata")
    except errors.FrameworkVersionError as error:  # in the middle of its import, which must not fail
        behind.stays_torchs("torchdata's StatefulDataLoader", str(error))
        return
    delegation.put_on(subclass, _CHANGES, stateful=True)


OLDEST = {"torch": "2.6", "torchdata": "0.10", "fastai": "2.7.13", "accelerate": "1.0", "lightning": "2.4"}
"""By package. Others ran in all versions that were tried."""


def check(*packages: str) -> None:
    """Refuses packages that are loaded and too old.

    Raises:
        FrameworkVersionError: names the first of them.
    """
    for package in packages:
        found = _found(package) if package in sys.modules else None
        if found is not None and _numbers(found) < _numbers(OLDEST[package]):
            raise errors.FrameworkVersionError(
                f"{package} {found} is loaded, and stoker.install() needs {package} {OLDEST[package]} or later: its "
                "loaders are not as install() expects them. Upgrade it, or use stoker.DataLoader in your script."
            )


def _found(package: str) -> str | None:
    module = sys.modules[package]
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found.group().split(".")] if found else []
