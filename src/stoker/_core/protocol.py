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

import sys
from types import FunctionType
from typing import Any

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


# Stoker's own classes and functions are those that its modules define. `__module__` does not tell: a class may set it.
# A user's subclass is foreign, and so is each method that it defines: ask `is_ours(definer(type(dataset), "gather"))`.


def is_ours(thing: type | FunctionType, *names: str) -> bool:
    """Returns whether a class or a function is Stoker's own, and has one of the names, if any are given.

    A class stands in its module under its name. A function is where its code is, also one without a name there.
    """
    if names and thing.__name__ not in names:
        return False
    if isinstance(thing, FunctionType):
        home = str(thing.__globals__.get("__name__"))
        return _is_stokers(home) and _variables(home) is thing.__globals__
    home = str(thing.__module__)  # None for some classes made at run time
    if _variables(home).get(thing.__name__) is thing:
        return _is_stokers(home)
    return any(_variables(name).get(thing.__name__) is thing for name in [*sys.modules] if _is_stokers(name))


def is_ours_or_torchs(kind: type, *names: str) -> bool:
    """Returns whether a class is Stoker's own, or of `torch.utils.data`, and has one of the names, if any are given."""
    is_torchs = str(kind.__module__).startswith("torch.utils.data.") and (not names or kind.__name__ in names)
    return is_torchs or is_ours(kind, *names)


def definer(kind: type, name: str) -> type:
    """Returns the class, `kind` or a base, whose method or attribute of this name is used; `object` if none has it."""
    return next((base for base in kind.__mro__ if name in vars(base)), object)


def _is_stokers(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _variables(module: str) -> dict[str, object]:
    variables: dict[str, object] = getattr(sys.modules.get(module), "__dict__", {})
    return variables
