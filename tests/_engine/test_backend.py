"""Exceptions on their way from a worker to the user."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._engine.backend import BatchIndices, Failure, located


class NeedsTwo(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return NeedsTwo, (self.code, "again")


class NeedsTwoAndCannotTravel(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)


class WithMessage(Exception):
    message = "mine"

    def __init__(self, message: str) -> None:
        super().__init__(message)


def travelled(error: Exception) -> BaseException:
    try:
        raise error
    except Exception as caught:
        failure = Failure.of(caught, "in DataLoader worker process 3, at sample 17")
    return pickle.loads(pickle.dumps(failure)).rebuilt()


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("key"), IndexError(5), WithMessage("m")], ids=repr)
def test_exception_keeps_its_type_and_names_its_origin(error: Exception) -> None:
    got = travelled(error)
    assert type(got) is type(error)
    assert f"Caught {type(error).__name__} in DataLoader worker process 3, at sample 17." in str(got)
    assert "test_backend.py" in str(got) and "\\n" not in str(got)
    assert got.__cause__ is None


def test_exception_not_built_from_a_message_arrives_unchanged() -> None:
    got = travelled(NeedsTwo(5, "bad"))
    assert isinstance(got, NeedsTwo) and got.code == 5
    assert "worker process 3" in "".join(getattr(got, "__notes__", ["worker process 3"]))
    assert "bad" in got.__notes__[0]


def test_exception_that_cannot_travel_arrives_as_text() -> None:
    got = travelled(NeedsTwoAndCannotTravel(5, "bad"))
    assert isinstance(got, RuntimeError)
    assert "NeedsTwoAndCannotTravel" in str(got) and "at sample 17" in str(got)


class Badly(SyntaxError):
    """A parser's own error, whose column is no number."""

    def __init__(self) -> None:
        super().__init__("bad tag", ("page.html", 3, "col 7", "{% x"))


class Exits(Exception):
    def __reduce__(self) -> Any:
        sys.exit("cannot be pickled")

    def __str__(self) -> str:
        sys.exit("says nothing")


class Mute(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("tells nothing")


@pytest.mark.parametrize("kind", [Badly, Exits, Mute])
def test_unprintable_exception_leaves_name_and_traceback(kind: type[Exception]) -> None:
    try:
        raise kind
    except Exception as error:
        caught = error  # not handled here: pytest could not show a failure that has it as its context
    failure = pickle.loads(pickle.dumps(Failure.of(caught, "in DataLoader worker process 3")))
    assert failure.known_kind is kind
    assert kind.__name__ in failure.text
    assert kind.__name__ in failure.traceback and "raise kind" in failure.traceback


def test_a_local_class_tells_its_name() -> None:
    class Local(Exception):
        pass

    got = travelled(Local("bad"))
    assert "Local" in str(got) and "bad" in str(got)


class FailsBeyond(stoker.Dataset[Any]):
    """Sample 5 raises an error whose class only its worker can import."""

    def __init__(self, folder: str, error: str) -> None:
        self.folder = folder
        self.error = error

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            sys.path.insert(0, self.folder)
            raise getattr(importlib.import_module("of_the_worker_alone"), self.error)(5, "bad")
        return index


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU
@pytest.mark.parametrize("error", ["Plain", "OfItsOwn"])
@pytest.mark.parametrize("birth", ["fork", "forkserver", "spawned by the trainer"])
def test_exception_only_the_worker_can_import_arrives_as_text(
    birth: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what comes behind it arrives."""
    (tmp_path / "of_the_worker_alone.py").write_text(
        "class Plain(Exception):\n    pass\n"
        "class OfItsOwn(Exception):\n"
        "    def __init__(self, code, text):\n        super().__init__(code, text)\n"
        "    def __str__(self):\n        return f'{self.args[1]}, my own words'\n"
    )
    how = {"multiprocessing_context": birth}
    if birth not in ("fork", "forkserver"):
        monkeypatch.delattr(os, "fork", raising=False)
        how = {}
    dataset = FailsBeyond(str(tmp_path), error)
    with stoker.DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list, timeout=30, **how) as loader:
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
        with pytest.raises(RuntimeError, match=f"Caught of_the_worker_alone.{error} in DataLoader worker") as caught:
            next(iterator)
        assert "bad" in str(caught.value) and "at sample 5" in str(caught.value)
        assert "__getitem__" in str(caught.value)
        assert list(iterator) == [[6, 7], [8, 9], [10, 11]]


def test_cuda_in_a_forked_worker_comes_with_advice() -> None:
    got = travelled(RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA ..."))
    assert "pass device= to the loader" in str(got) and "spawn" in str(got)


def test_a_place_names_the_sample_or_the_first_of_many() -> None:
    assert located("in worker 1", None) == "in worker 1"
    assert located("in worker 1", "key") == "in worker 1, at sample 'key'"
    assert located("in worker 1", [3, 4]) == "in worker 1, at samples 3, 4 (2 in the batch)"
    many = BatchIndices(range(100, 164))
    many.odd = (59,)
    few = "in worker 1, at samples 100, 101, 102, 103, 104, 105, 106, 107, … (64 in the batch), where 159 differs"
    assert located("in worker 1", many) == f"{few} from the others"
    assert located("in worker 1", list(range(64))).endswith("at samples 0, 1, 2, 3, 4, 5, 6, 7, … (64 in the batch)")
