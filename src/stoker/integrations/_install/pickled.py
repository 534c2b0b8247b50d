"""A pickled loader installs in the process that unpickles it: the children of `ddp_spawn` know nothing else of us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.integrations._install.current import CURRENT, HIDDEN
from stoker.loader.dataloader import DataLoader


def reduce_ex(loader: Any, protocol: Any, unpickled: Callable[..., Any]) -> Any:
    """Returns the parts of a torch loader for pickle and copy: those of any object, without the loader behind it.

    Args:
        loader: torch's.
        protocol: pickle's.
        unpickled: called with the settings, a callable and its arguments where the loader is unpickled.
    """
    made = object.__reduce_ex__(loader, protocol)
    settings = CURRENT.settings
    if not isinstance(made, tuple) or isinstance(loader, DataLoader):
        return made
    make, arguments, *rest = made
    rest[:1] = map(_without_ours, rest[:1])
    return (make, arguments, *rest) if settings is None else (unpickled, (settings, make, arguments), *rest)


def _without_ours(state: Any) -> Any:
    """Returns the state of a loader without the loader behind it and without its iterator."""
    if isinstance(state, tuple):  # of a class with slots
        return tuple(map(_without_ours, state))
    if not isinstance(state, dict) or HIDDEN not in state:
        return state
    return {name: value for name, value in state.items() if name != HIDDEN} | {"_iterator": None}
