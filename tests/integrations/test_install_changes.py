"""Attributes of torch's classes that are set, and what they do in place of the ones before."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import pytest

from stoker.integrations._install.current import Changes, subclass_hook

T = TypeVar("T")


class Plain:
    pass


class OfGeneric(Generic[T]):
    """As torch's `DataLoader` is. The method of `Generic` is one in C from Python 3.12 on."""


class OfPatched(Generic[T]):
    seen: ClassVar[list[tuple[type, dict[str, Any]]]] = []

    def __init_subclass__(cls, **named: Any) -> None:
        cls.seen.append((cls, named))


def counted(owner: type, changes: Changes) -> list[type]:
    """Puts a hook on a class, as `install()` does; returns where it notes subclasses."""
    before = subclass_hook(owner)
    noted: list[type] = []

    def __init_subclass__(subclass: Any, /, **named: Any) -> None:
        before(subclass, **named)
        noted.append(subclass)

    changes.put(owner, "__init_subclass__", classmethod(__init_subclass__))
    return noted


@pytest.mark.parametrize("owner", [Plain, OfGeneric, OfPatched])
def test_subclasses_of_a_changed_class_are_made_as_before(owner: Any) -> None:
    changes = Changes()
    noted = counted(owner, changes)
    try:
        made = type("Made", (owner,), {})
    finally:
        changes.undo()
    assert noted == [made]
    assert type("After", (owner,), {}).__mro__[1] is owner
    assert noted == [made]


def test_hook_of_generic_sees_the_subclass() -> None:
    changes = Changes()
    counted(OfGeneric, changes)
    try:

        class Made(OfGeneric[T]):
            pass

        assert Made.__parameters__ == (T,)  # type: ignore[attr-defined]
        assert Made[int].__origin__ is Made  # type: ignore[attr-defined]
    finally:
        changes.undo()


def test_hook_of_a_patch_gets_the_arguments() -> None:
    subclass_hook(OfPatched)(OfPatched, flag=1)
    assert OfPatched.seen[-1] == (OfPatched, {"flag": 1})


def test_wrong_arguments_are_refused_as_before() -> None:
    with pytest.raises(TypeError):
        subclass_hook(Plain)(Plain, flag=1)
