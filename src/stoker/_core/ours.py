"""Which classes and functions are Stoker's own: those that stand in its modules, where they are defined.

`__module__` alone is no answer: a class may say anything there, and whoever asks for one file forgets the next. A
subclass of the user's is foreign, and so is each method that it defines: `is_ours(definer(type(dataset), "gather"))`
asks whether the method that would be called is Stoker's.
"""

from __future__ import annotations

import sys
from types import FunctionType


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
