"""Methods and attributes of foreign objects that Stoker uses and torch's loader does not: only if offered.

A class written for torch may have a method `set_epoch`, `shard`, `order` or `describe` with another meaning. Stoker
uses such a name of an object only if one of these holds:

- its class says `stoker_protocol = True`, as do Stoker's classes that torch has no counterpart of, and so all classes
  that are derived from these;
- the class that defines the name is Stoker's own, and the object does not hide it;
- the class that defines the name is a library's, and this module lists both.

See docs/design/17-names.md for all such names.
"""

from __future__ import annotations

from typing import Any

from stoker._core.ours import definer, is_ours

OPT_IN = "stoker_protocol"
"""The class attribute with which a class offers its methods."""

_OF_LIBRARIES = {
    ("torch.utils.data.distributed", "DistributedSampler"): {"set_epoch"},
    ("datasets.iterable_dataset", "IterableDataset"): {"set_epoch", "shard", "num_shards"},
}
"""Names that classes of libraries offer, by module and name of the class that defines them."""


def follows(holder: object) -> bool:
    """Returns whether the class of an object declares that it follows Stoker's protocol."""
    return getattr(type(holder), OPT_IN, False) is True


def offered(holder: object, name: str) -> Any:
    """Returns the method or attribute of this name if Stoker may use it; else None. Runs no code of a class that does
    not offer it, properties and `__getattr__` included.
    """
    if follows(holder):
        return getattr(holder, name, None)
    home = definer(type(holder), name)
    if name in _own_attributes(holder):
        return None
    if is_ours(home) or name in _OF_LIBRARIES.get((str(home.__module__), home.__name__), ()):
        return getattr(holder, name, None)
    return None


def asked(holder: object, name: str, default: Any = None) -> Any:
    """Returns an attribute of a user's object for which torch does not ask, or `default` if it has none.

    A `__getattr__` that knows only its own names may answer with any exception, a bag of settings with KeyError.

    Raises:
        Exception: raised by a property or another attribute that the class itself defines.
    """
    try:
        return getattr(holder, name, default)
    except Exception:
        if any(name in vars(base) for base in type(holder).__mro__):
            raise
        return default


def has(holder: object, name: str) -> bool:
    """Returns whether an object has a method or attribute of this name, offered or not. Runs no code of its class."""
    return name in _own_attributes(holder) or any(name in vars(base) for base in type(holder).__mro__)


def offers(holder: object, name: str) -> bool:
    """Returns whether Stoker may call the method of this name."""
    return callable(offered(holder, name))


def _own_attributes(holder: object) -> Any:
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return ()
