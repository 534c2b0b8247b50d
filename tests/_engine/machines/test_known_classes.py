"""The unpickler of what workers on other machines send."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import fractions
import io
import os
import pickle
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import stoker
from stoker._engine.backend import Failure, UnitReport
from stoker._engine.machines.known_classes import KnownClasses
from stoker._engine.messages import UnitDone, packed, plain
from stoker._engine.transport import leaves
from stoker.errors import CannotSendError
from tests._engine.machines.local_cluster import LocalCluster
from tests._engine.machines.local_pool import LocalPool, await_end


class Pair(NamedTuple):
    """Batches of the tests contain it."""

    number: int
    text: str


@dataclasses.dataclass
class Sample:
    """Batches of the tests contain it."""

    rows: Any


class OddError(Exception):
    """Raised by a dataset of the tests."""


class PlacedError(Exception):
    """It is not made from a message."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__(row, column)


class Hostile:
    """Its pickle runs a program where it is read."""

    def __init__(self, file: object) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


PLAIN: list[Any] = [
    {"a": [1, 2.5, None, True, complex(1, 2), b"x", "text", (1,), {2}, frozenset([3]), bytearray(b"y"), slice(1, 2)]},
    [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), ZoneInfo("UTC"), datetime.timedelta(1), Path("a")],
    [
        collections.ChainMap({1: 2}),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, {1: [2]}),
        collections.Counter("aab"),
    ],
    [
        ValueError,
        ...,
        decimal.Decimal("0.1"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=7),
        array.array("f", [1]),
        range(3),
    ],
    [collections.UserDict(a=[1]), collections.UserList([1]), collections.deque([1], 2), types.SimpleNamespace(a=1)],
    [np.float32(1), np.bool_(True), np.datetime64("2026-01-01"), np.dtype("f4"), np.float32],
]


@pytest.mark.parametrize("value", PLAIN, ids=["builtins", "dates", "collections", "values", "containers", "numpy"])
def test_plain_values_are_known(value: Any) -> None:
    data = leaves.dumps(value, lambda leaf: None)
    assert leaves.loads(data, (), KnownClasses().loads) == value


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6).reshape(2, 3).T,
        np.array(["a", None], object),
        np.ones(2, "i4,f8"),
        np.array(["a", "bc"], "T" if np.__version__ > "2" else "U"),
    ],
)
def test_arrays_are_known(values: Any) -> None:
    data = leaves.dumps([values], lambda leaf: None)
    (got,) = leaves.loads(data, (), KnownClasses().loads)  # type: ignore[misc]
    assert got.dtype == values.dtype and got.tolist() == values.tolist()


def test_tensors_are_known() -> None:
    torch = pytest.importorskip("torch")
    sent = [
        torch.ones(3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(1)),
    ]
    got: Any = leaves.loads(leaves.dumps([sent, torch.float32], lambda leaf: None), (), KnownClasses().loads)
    for one, other in zip(got[0], sent, strict=True):
        assert type(one) is type(other) and one.dtype == other.dtype and torch.equal(one.to_dense(), other.to_dense())
    assert got[1] is torch.float32


def test_messages_are_known() -> None:
    message = packed(UnitDone(1, "batch", (0, 8, b"", b"", {}), 0.5, plain(UnitReport()), 0.5))
    assert KnownClasses().loads(pickle.dumps(message, 5)) == message


@pytest.mark.parametrize("call", [(os.system, "true"), (eval, "1"), (np.load, "x"), (pickle.loads, b""), (open, "x")])
def test_function_is_not_called(call: Any) -> None:
    class Calls:
        def __reduce__(self) -> Any:
            return call[0], call[1:]

    with pytest.raises(CannotSendError, match=call[0].__name__):
        KnownClasses().loads(pickle.dumps(Calls()))


def test_stored_tensor_runs_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Calls:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (pickle.dumps(Hostile(tmp_path / "made"), 2),)

    with pytest.raises(pickle.UnpicklingError, match=r"posix\.system"):
        KnownClasses().loads(pickle.dumps(Calls()))
    assert not (tmp_path / "made").exists()


def test_named_class_is_known() -> None:
    data = pickle.dumps(Pair(1, "a"))
    with pytest.raises(CannotSendError, match=rf'classes=\["{__name__}:Pair"\]'):
        KnownClasses().loads(data)
    assert KnownClasses(map(str, stoker.Ray(1, classes=[Pair]).classes)).loads(data) == Pair(1, "a")


def test_error_lists_all_classes_at_once() -> None:
    data = pickle.dumps(
        {"pairs": collections.OrderedDict(a=Pair(1, "a")), "samples": {Sample([Pair(2, "b")]).rows[0]: [Sample(1)]}}
    )
    both = rf'classes=\["{__name__}:Pair", "{__name__}:Sample"\]'
    with pytest.raises(CannotSendError, match=both):
        KnownClasses().loads(data)
    with pytest.raises(CannotSendError, match=both):
        KnownClasses().checked(UnitReport()._replace(since=pickle.dumps(1) + data))
    named = map(str, stoker.Ray(1, classes=[Pair, f"{__name__}:Sample"]).classes)
    assert KnownClasses(named).loads(data) == pickle.loads(data)


def test_class_of_a_function_is_to_be_moved() -> None:
    class Inner:
        pass

    with pytest.raises(CannotSendError, match="Move what is made within a function to the top of a module"):
        KnownClasses().loads(leaves.dumps([Inner()], lambda leaf: None))


def test_classes_of_the_first_local_batch_are_known() -> None:
    known, sent = KnownClasses(), pickle.dumps([Sample(1), os.path.join])
    assert known.reader(True)(pickle.dumps(1)) == 1
    assert known.reader(False)(sent) == [Sample(1), os.path.join]
    assert known.reader(False) is pickle.loads
    assert known.reader(True)(pickle.dumps(Sample(2))) == Sample(2)
    for other in (Pair(1, "a"), os.path.join):
        with pytest.raises(CannotSendError):
            known.loads(pickle.dumps(other))


def test_failure_keeps_a_class_that_is_loaded(tmp_path: Path) -> None:
    failed = Failure.of(OddError("odd"), "in batch 1")
    assert isinstance(KnownClasses().failure(pickle.dumps(failed)).rebuilt(), OddError)
    placed = KnownClasses().failure(pickle.dumps(Failure.of(PlacedError(3, 4), "in batch 1"))).rebuilt()
    assert isinstance(placed, PlacedError) and placed.args == (3, 4)
    failed.instance = failed.kind = pickle.dumps(Hostile(tmp_path / "made"))
    error = KnownClasses().failure(pickle.dumps(failed)).rebuilt()
    assert type(error) is RuntimeError and "OddError" in str(error) and not (tmp_path / "made").exists()


def test_failure_is_read_once_whatever_its_class_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pickle may write attributes of known classes."""
    failed = dataclasses.replace(
        Failure.of(OddError("odd"), "in batch 1"), kind=pickle.dumps(Hostile(tmp_path / "made"))
    )
    data = pickle.dumps(failed)
    monkeypatch.setattr(Failure, "__setattr__", lambda *_: None, raising=False)
    assert "OddError" in str(KnownClasses().failure(data).rebuilt()) and not (tmp_path / "made").exists()


@pytest.mark.parametrize("function", [[].append, os.system, eval], ids=["method", "system", "eval"])
def test_no_error_advises_to_name_what_can_do_anything(function: Any) -> None:
    with pytest.raises(CannotSendError, match="return plain values") as caught:
        KnownClasses().loads(pickle.dumps({"a": function}))
    assert "classes=[" not in str(caught.value)


def test_state_of_a_stream_is_pickled_again() -> None:
    """Those who read it next use plain pickle."""
    torch = pytest.importorskip("torch")
    state = pickle.dumps({"row": torch.arange(3)})
    checked = KnownClasses().checked(UnitReport()._replace(stream_state=state, since=state + pickle.dumps(8)))
    assert checked.stream_state is not None and checked.since is not None and checked.stream_state != state
    assert pickle.loads(checked.stream_state)["row"].tolist() == [0, 1, 2]
    since = io.BytesIO(checked.since)
    assert pickle.load(since)["row"].tolist() == [0, 1, 2] and pickle.load(since) == 8


def test_state_of_a_stream_is_checked(tmp_path: Path) -> None:
    state = pickle.dumps({"row": 7})
    KnownClasses().checked(UnitReport()._replace(stream_state=state, since=state + state))
    with pytest.raises(CannotSendError, match="system"):
        KnownClasses().checked(UnitReport()._replace(since=state + pickle.dumps(Hostile(tmp_path / "made"))))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("classes", ["a:B", [1], ["a.B"], [":B"], Pair])
def test_classes_that_are_none_are_refused(classes: Any) -> None:
    with pytest.raises(TypeError, match="classes should"):
        stoker.Ray(1, classes=classes)


def test_class_of_a_function_is_refused() -> None:
    class Inner:
        pass

    with pytest.raises(ValueError, match="move it to the top of a module"):
        stoker.Ray(1, classes=[Inner])


class Pairs(stoker.Dataset[Any]):
    """Its samples are pairs, and one is hostile if there is a `file`."""

    def __init__(self, file: str = "") -> None:
        self.file = file

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return Hostile(self.file) if self.file and index == 3 else Pair(index, "x" * index)


class Shared(Pairs):
    """The local worker's second batch waits for one of the remote worker."""

    def __getitem__(self, index: int) -> Any:
        info = stoker.get_worker_info()
        if info is not None and info.id == 1:
            Path(self.file).touch()
        while index >= 2 and not os.path.exists(self.file):
            time.sleep(0.01)
        return Pair(index, "x" * index)


class Failing(Pairs):
    def __getitem__(self, index: int) -> Any:
        raise OddError("odd")


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def batches(dataset: Any, **settings: Any) -> Iterator[Any]:
    cluster = LocalCluster(1, **settings)
    with stoker.DataLoader(dataset, 2, num_workers=0, collate_fn=as_list, remote=cluster) as loader:
        yield from loader


def test_remote_batch_of_an_unknown_class_names_it() -> None:
    with pytest.raises(CannotSendError, match=rf'classes=\["{__name__}:Pair"\]'):
        list(batches(Pairs()))
    assert [each for batch in batches(Pairs(), classes=[Pair]) for each in batch] == [
        *map(Pairs().__getitem__, range(8))
    ]


@pytest.mark.slow
def test_class_of_a_local_batch_needs_no_name(tmp_path: Path) -> None:
    dataset = Shared(str(tmp_path / "gate"))
    with stoker.DataLoader(dataset, 2, num_workers=1, collate_fn=as_list, remote=LocalCluster(1)) as loader:
        assert [each for batch in loader for each in batch] == [*map(Pairs().__getitem__, range(8))]


@pytest.mark.slow
def test_pool_refuses_a_class_that_is_not_named(tmp_path: Path) -> None:
    cluster = LocalPool(1, pool="p", folder=str(tmp_path))
    arguments: Any = {"collate_fn": as_list, "persistent_workers": True, "remote": cluster}
    with (
        stoker.DataLoader(Pairs(), 2, **arguments) as loader,
        pytest.raises(CannotSendError, match='classes=\\["') as told,
    ):
        list(loader)
    assert f"{__name__}:Pair" in str(told.value) and "The batch came from" in str(told.value.__notes__)
    arguments["remote"] = dataclasses.replace(cluster, classes=[Pair])
    with stoker.DataLoader(Pairs(), 2, **arguments) as loader:
        assert [each for batch in loader for each in batch] == [*map(Pairs().__getitem__, range(8))]
    await_end(str(tmp_path))


def test_hostile_remote_batch_runs_nothing(tmp_path: Path) -> None:
    with pytest.raises(CannotSendError, match=r"posix\.system"):
        list(batches(Pairs(str(tmp_path / "made")), classes=[Pair]))
    assert not (tmp_path / "made").exists()


def test_error_of_a_remote_worker_has_its_class() -> None:
    with pytest.raises(OddError, match="odd"):
        list(batches(Failing()))


PROGRAM = """
import dataclasses
from typing import NamedTuple
import stoker
from tests._engine.machines.local_cluster import LocalCluster

class Letters(NamedTuple):
    order: list

@dataclasses.dataclass
class Sample:
    number: int
    letters: Letters

class OddError(Exception):
    pass

class Own:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3:
            raise OddError("odd")
        return sample(index)

def sample(index):
    return Sample(index, Letters([*set("abcdefgh")]))

def first(samples):
    return samples[0]

if __name__ == "__main__":
    remote = LocalCluster(1, classes=[Sample, Letters])
    iterator = iter(stoker.DataLoader(Own(), 1, collate_fn=first, timeout=100, remote=remote))
    assert [next(iterator) for _ in range(3)] == [*map(sample, range(3))]
    try:
        next(iterator)
    except OddError as error:
        print("odd" in str(error) and "__getitem__" in str(error))
"""


@pytest.mark.slow
def test_classes_of_the_main_program_are_known(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
