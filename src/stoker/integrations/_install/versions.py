"""The oldest versions of torch and of frameworks that `install()` knows."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from stoker import errors

OLDEST = {"torch": "2.6", "torchdata": "0.10", "fastai": "2.7.13", "accelerate": "1.0", "lightning": "2.4"}
"""By package. Others ran in all versions that were tried."""


def check(*packages: str) -> None:
    """Refuses packages that are loaded and too old.

    Raises:
        FrameworkVersionError: names the first of them.
    """
    for package in packages:
        if package in sys.modules and (found := _found(package)) is not None and _is_older(found, OLDEST[package]):
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


def _is_older(one: str, other: str) -> bool:
    return _numbers(one) < _numbers(other)


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found.group().split(".")] if found else []
