"""The tree that is drawn at the top of errors.py is the tree of classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import stoker
from stoker import errors


def drawn() -> Iterator[tuple[str, str, list[str]]]:
    """Each drawn class: its name, the class it hangs from, and the standard classes beside it."""
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    (?P<branch>[│├└─ ]*)(?P<name>\w+)(?: \((?P<beside>[\w, ]+)\))?(?:  |$)", line)
        if match:
            depth = len(match["branch"]) // 4
            above[depth] = match["name"]
            yield match["name"], above.get(depth - 1, "Exception"), (match["beside"] or "").split(", ")


def test_the_drawn_tree_is_the_real_one() -> None:
    tree = list(drawn())
    for name, parent, beside in tree:
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert bases == [parent, *filter(None, beside)], f"{name} is drawn under {parent} beside {beside}"
    classes = {thing.__name__ for thing in vars(errors).values() if isinstance(thing, type)}
    told_in_words = {"SkipSample", "StokerWarning", "WorkerTraceback"}
    assert {name for name, _, _ in tree} | told_in_words == classes
    leaves = [name for name, parent, _ in tree if parent == "StokerError"]
    assert leaves == sorted(leaves)


CAUGHT = {
    *("StokerError", "StokerWarning", "SkipSample", "WorkerDiedError", "WorkerTraceback", "MemoryLimitError"),
    *("StateError", "BatchError", "ErrorBudgetError", "StalledError", "CannotSendError", "MissingExtraError"),
}


def test_package_exports_the_errors_that_programs_catch() -> None:
    exported = {name for name in stoker.__all__ if hasattr(errors, name)}
    assert exported == CAUGHT
    assert all(getattr(stoker, name) is getattr(errors, name) for name in exported)


def test_every_error_says_what_it_means() -> None:
    for thing in vars(errors).values():
        if isinstance(thing, type):
            assert thing.__doc__
            assert issubclass(thing, errors.StokerError | errors.StokerWarning) or thing is errors.SkipSample
