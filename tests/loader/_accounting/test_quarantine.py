"""The quarantine file: each fault a line, whatever happens to the disk and the writer, and read back as it was."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gc
import itertools
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import DataLoader
from stoker.errors import QuarantineError, StokerError
from stoker.events import FaultRecord
from stoker.loader._accounting.quarantine import QuarantineFile, QuarantineRecord, line_of, quarantine
from stoker.loader._job.error_policy import ErrorPolicy, _plain

# Fork is safe here: the children call Python alone. NumPy and torch have threads that may be there already
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")

FAULT = {
    "kind": "exception",
    "outcome": "skipped",
    "place": 3,
    "position": 35,
    "index": 517,
    "description": "train/b.jpg",
    "exception": "OSError: image file is truncated",
    "traceback": "Traceback (most recent call last):\n  ...\nOSError: image file is truncated\n",
    "worker": 1,
    "replacement": None,
    "time": 1_700_000_000.25,
    "epoch": 2,
    "batch": 8,
}


def fault(**changes: Any) -> FaultRecord:
    return FaultRecord(**{**FAULT, **changes})


@contextmanager
def opened(path: Path) -> Iterator[QuarantineFile]:
    file = QuarantineFile(path)
    yield file
    assert file.close() is None


def written(path: Path, *faults: FaultRecord) -> Any:
    with opened(path) as file:
        assert [file.write(each) for each in faults] == [None] * len(faults)
    return quarantine(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bad.jsonl"


class TestLine:
    def test_line_has_every_field_of_a_fault(self, path: Path) -> None:
        written(path, fault(rank=3))
        line = json.loads(path.read_text())
        expected = {**FAULT, "time": "2023-11-14T22:13:20.250000+00:00", "rank": 3}
        del expected["place"]
        assert line == expected
        assert quarantine(path).records == [QuarantineRecord(**expected)]

    @pytest.mark.parametrize(
        ("index", "read"),
        [(np.int64(7), 7), ("a.jpg", "a.jpg"), ((1, 2), "(1, 2)"), (1.5, "1.5"), (None, None), (slice(2), None)],
        ids=repr,
    )
    def test_line_holds_any_kind_of_index(self, path: Path, index: Any, read: Any) -> None:
        read = repr(index) if isinstance(index, slice) else read
        (record,) = written(path, fault(index=index, replacement=index))
        assert (record.index, record.replacement) == (read, read)

    @given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=5))
    def test_line_holds_any_text(self, texts: list[str]) -> None:
        lines = [line_of(fault(description=text, exception=text, traceback=text)) for text in texts]
        for text, line in zip(texts, lines, strict=True):
            assert line.endswith(b"\n") and line.count(b"\n") == 1
            found = json.loads(line)
            assert [found[name] for name in ("description", "exception", "traceback")] == [text] * 3

    def test_line_is_readable_text(self) -> None:
        assert "Übung/日本.jpg".encode() in line_of(fault(description="Übung/日本.jpg"))

    def test_line_takes_unknown_objects_as_text(self) -> None:
        assert json.loads(line_of(fault(worker={1})))["worker"] == "{1}"


class TestFile:
    def test_file_exists_from_the_start(self, path: Path) -> None:
        assert len(written(path)) == 0

    def test_file_keeps_earlier_lines(self, path: Path) -> None:
        for index in range(3):
            written(path, fault(index=index))
        assert [record.index for record in quarantine(path)] == [0, 1, 2]

    def test_file_is_not_inherited_by_executed_programs(self, path: Path) -> None:
        with opened(path) as file:
            assert not os.get_inheritable(file._descriptor)

    def test_file_is_opened_in_append_mode(self, path: Path) -> None:
        """Appending keeps the lines of other ranks."""
        with opened(path) as file:
            assert fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & os.O_APPEND

    def test_file_is_closed_once(self, path: Path) -> None:
        with opened(path) as file:
            file.write(fault())
        assert file.close() is None
        assert file.write(fault()) is None
        assert len(quarantine(path)) == 1

    def test_file_is_closed_by_the_garbage_collector(self, path: Path) -> None:
        file = QuarantineFile(path)
        descriptor = file._descriptor
        del file
        gc.collect()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    @pytest.mark.parametrize(
        ("below", "cause", "advice"),
        [
            ("folder", "Is a directory", "name a file in it"),
            ("file/bad.jsonl", "Not a directory", "is a file, not a folder"),
            ("none/bad.jsonl", "No such file or directory", "make it first"),
        ],
    )
    def test_file_that_cannot_be_opened_is_an_error(self, tmp_path: Path, below: str, cause: str, advice: str) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        where = str(tmp_path / below)
        with pytest.raises(QuarantineError, match=f"{re.escape(where)}.*{cause}.*{advice}") as raised:
            QuarantineFile(where)
        assert isinstance(raised.value, OSError) and isinstance(raised.value, StokerError)
        assert isinstance(raised.value.__cause__, OSError)

    def test_file_name_that_no_file_can_have_is_an_error(self) -> None:
        with pytest.raises(QuarantineError, match=r"'a\\x00b' cannot be opened for writing: .*embedded null"):
            QuarantineFile("a\0b")

    def test_forked_child_writes_and_closes_nothing(self, path: Path) -> None:
        """A child has the number of the descriptor, and may long use it for something else."""
        with opened(path) as file:

            def use() -> None:
                assert file.write(fault(index="the child's")) is None
                assert file.close() is None
                file._end()  # as when it is garbage, or the child ends as a program does
                assert _is_open(path)

            in_a_child(use)
            file.write(fault())
        assert [record.index for record in quarantine(path)] == [517]

    def test_file_of_several_ranks_has_whole_lines(self, path: Path) -> None:
        children = []
        for rank in range(4):
            child = os.fork()
            if child == 0:
                with opened(path) as file:
                    for batch in range(100):
                        file.write(fault(rank=rank, batch=batch, traceback="x" * 5000))
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        found = quarantine(path)
        assert found.damaged == 0
        assert sorted((record.rank, record.batch) for record in found) == [(r, b) for r in range(4) for b in range(100)]


def _is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return any(os.path.exists(name) and os.path.samefile(name, path) for name in names)


class TestTrouble:
    def test_full_disk_is_warned_of(self) -> None:
        file = QuarantineFile("/dev/full")
        for _ in range(2):
            error = file.write(fault())
            assert error is not None and error.errno == errno.ENOSPC
        assert len(file._aside) == 2
        error = file.close()
        assert error is not None and error.errno == errno.ENOSPC
        assert file.close() is None

    @pytest.mark.parametrize("room", [0, 1, 100, -1], ids=["none", "a byte", "half a line", "all but the newline"])
    def test_a_disk_that_is_full_for_a_while(self, path: Path, room: int) -> None:
        """A line that fits in part only is written again, as soon as there is room."""

        def write() -> None:
            file = QuarantineFile(path)
            file.write(fault(index=0))
            with limited(len(line_of(fault(index=0))), room):
                assert [_errno(file.write(fault(index=index))) for index in (1, 2)] == [errno.EFBIG] * 2
            assert file.write(fault(index=3)) is None
            with limited(path.stat().st_size, room):
                assert _errno(file.write(fault(index=4))) == errno.EFBIG
            assert file.close() is None

        in_a_child(write)
        found = quarantine(path)
        assert [record.index for record in found] == [0, 1, 2, 3, 4]
        # All of a line but its newline is a line, and written again it is a double
        assert found.damaged == (2 if room in (1, 100) else 0)

    def test_a_disk_that_is_full_until_the_program_ends(self, path: Path) -> None:
        subprocess.run([sys.executable, "-c", ENDS_WITHOUT_CLOSING, path, json.dumps(FAULT)], check=True)
        assert [record.index for record in quarantine(path)] == [517, 517]

    def test_pipe_without_a_reader_is_a_full_disk(self, path: Path) -> None:
        """A full pipe is handled as a full disk: the writer does not wait for a reader."""
        os.mkfifo(path)
        file = QuarantineFile(path)
        line = line_of(fault())
        while (error := file.write(fault())) is None:
            pass
        assert error.errno == errno.EAGAIN
        with open(path, "rb", buffering=0) as reader:
            lines = reader.read(1 << 20).split(b"\n")
            assert file.close() is None
            lines += reader.readall().split(b"\n")
        assert len(lines) > 1 and line[:-1] in lines[-2:]

    def test_file_is_never_a_standard_stream(self, path: Path) -> None:
        """What C code prints would be in it."""

        def write() -> None:
            os.closerange(0, 3)
            file = QuarantineFile(path)
            os.write(0, b"libpng warning\n")
            file.write(fault())
            file.close()

        in_a_child(write)
        assert quarantine(path).damaged == 0

    @pytest.mark.parametrize("torn", [b"{", b'{"index": 3, "kind": "exc', b"\xff"])
    def test_torn_line_of_a_killed_writer_is_passed_over(self, path: Path, torn: bytes) -> None:
        with opened(path) as file:
            file.write(fault(index=1))
            with path.open("ab") as other:  # another rank
                other.write(torn)
            file.write(fault(index=2))
        with path.open("ab") as other:
            other.write(torn)
        found = written(path, fault(index=3), fault(index=4))
        assert found.indices == [1, 2, 3, 4]
        assert found.damaged == 2
        assert b"\n\n" not in path.read_bytes()

    def test_a_writer_is_killed(self, path: Path) -> None:
        reading, writing = os.pipe()
        writer = os.fork()
        if writer == 0:
            file = QuarantineFile(path)
            for index in itertools.count():
                file.write(fault(index=index))
                os.write(writing, b".")
        os.close(writing)
        with open(reading, "rb", buffering=0) as told:
            count = len(told.read(1))
            os.kill(writer, signal.SIGKILL)
            count += len(told.readall())
        assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL
        found = quarantine(path)
        assert found.damaged <= 1  # the kernel may end the last write at the border of a page
        assert count <= len(found) <= count + 1
        assert found.indices == list(range(len(found)))


@contextmanager
def limited(length: int, room: int) -> Iterator[None]:
    """Files of this process may not grow beyond `room` bytes, as on a full disk; a negative room is of a line's."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + room % len(line_of(fault(index=0))), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def in_a_child(function: Callable[[], None]) -> None:
    """Calls it in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _errno(error: OSError | None) -> int | None:
    return None if error is None else error.errno


ENDS_WITHOUT_CLOSING = """
import json, resource, sys
sys.modules["torch"] = None  # not needed, and slow
from stoker.events import FaultRecord
from stoker.loader._accounting.quarantine import QuarantineFile

file, fault = QuarantineFile(sys.argv[1]), json.loads(sys.argv[2])
file.write(FaultRecord(**fault))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
assert file.write(FaultRecord(**{**fault, "epoch": 3}))
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""


class TestReading:
    def test_missing_file_is_an_error(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            quarantine(path)

    @pytest.mark.parametrize(
        "line",
        [
            b"garbage",
            b"[1]",
            b"3",
            b"null",
            b"{}",
            b'{"index": 3}',
            b'{"kind": "skip"}',
            b'{"index": {}, "kind": "skip"}',
            b'{"index": true, "kind": "skip"}',
            b'{"index": 1.5, "kind": "skip"}',
            b'{"index": 1, "kind": ["skip"]}',
            b'{"index": 1, "kind": "skip", "batch": [1]}',
            b"\xff\xfe\x00",
            b"[" * 100_000,
            line_of(fault())[:-2],
        ],
        ids=lambda line: repr(line[:30]),
    )
    def test_a_damaged_line_is_counted(self, path: Path, line: bytes) -> None:
        path.write_bytes(line_of(fault(index=1)) + line + b"\n" + line_of(fault(index=2)))
        found = quarantine(path)
        assert found.indices == [1, 2]
        assert found.damaged == 1
        assert "1  damaged lines" in repr(found)

    @given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b""))))
    def test_no_file_is_too_damaged(self, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
        path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
        path.write_bytes(b"\n".join([*lines, line_of(fault())]))
        found = quarantine(path)
        assert found.indices == [517]
        assert found.damaged == sum(bool(line.strip()) for line in lines)

    def test_unknown_fields_of_later_versions_are_ignored(self, path: Path) -> None:
        path.write_text('{"index": 3, "kind": "exception", "colour": "red"}\n\n')
        found = quarantine(path)
        assert found.records == [QuarantineRecord(3, "exception")]
        assert found.damaged == 0

    def test_repeated_fault_is_read_once(self, path: Path) -> None:
        """As when a run goes on from a state that is older than the file."""
        once = [
            fault(),
            fault(position=36),
            fault(batch=9),
            fault(epoch=3),
            fault(kind="death"),
            fault(rank=1),
            fault(index=518),
        ]
        found = written(path, *once, *(dataclasses.replace(each, time=2e9, worker=5) for each in once))
        assert len(found) == len(once)
        assert {record.worker for record in found} == {1}

    def test_quarantine_indices_are_sorted_and_unique(self, path: Path) -> None:
        kinds = ["exception", "death", "skip", "stall", "exception"]
        indices: list[Any] = [30, "b", 7, "a", 4]
        faults = [fault(index=index, kind=kind) for index, kind in zip(indices, kinds, strict=True)]
        found = written(path, *faults, fault(index=None), fault(index=30, epoch=9), fault(index=(1, 2)))
        assert found.indices == [4, 30, "b", "a", "(1, 2)"]

    def test_quarantine_prints_a_table(self, path: Path) -> None:
        found = written(
            path,
            *(fault(index=index, exception=f"OSError: file {index}\nis truncated") for index in range(1200)),
            fault(kind="skip", exception="too dark", description=None, index=8),
            fault(index=None, description=None, exception="KeyError: " + "x" * 1000),
        )
        assert repr(found).splitlines() == [
            f"1,202 faults in {path}, 1,200 bad samples, 1 in streams, which have no index",
            "   1,200  OSError, first sample 0 (train/b.jpg): OSError: file 0 is truncated",
            "       1  SkipSample, first sample 8: too dark",
            f"       1  KeyError, first in a stream: KeyError: {'x' * 89}…",
        ]

    def test_a_table_of_many_classes(self, path: Path) -> None:
        found = written(path, *(fault(index=index, exception=f"Error{index}: no") for index in range(13)))
        assert "and 3 other classes" in repr(found)
        assert len(repr(found).splitlines()) == 12


class TestWithout:
    @pytest.fixture
    def found(self, path: Path) -> Callable[[list[Any]], Any]:
        return lambda indices: written(path, *(fault(index=index) for index in indices))

    def test_without_returns_a_dataset(self, found: Any) -> None:
        left = found([2, 5, "5"]).without([10 * index for index in range(7)])
        assert len(left) == 5
        assert np.concatenate(list(DataLoader(left, batch_size=2, output="numpy"))).tolist() == [0, 10, 30, 40, 60]

    def test_without_fetches_a_batch_at_once(self, found: Any) -> None:
        class AtOnce(list[int]):
            def __getitems__(self, indices: list[int]) -> list[int]:
                assert all(type(index) is int for index in indices)
                return [self[index] for index in indices]

        assert found([0]).without(AtOnce(range(4))).__getitems__([0, 2]) == [1, 3]

    @given(length=st.integers(0, 30), bad=st.sets(st.integers(-40, 40)), data=st.data())
    def test_without_keeps_the_order_of_the_other_samples(
        self, tmp_path_factory: pytest.TempPathFactory, length: int, bad: set[int], data: st.DataObject
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "without.jsonl"
        path.unlink(missing_ok=True)
        indices = written(path, *(fault(index=index) for index in bad)).without(range(length)).indices
        expected = [index for index in range(length) if index not in bad and index - length not in bad]
        assert list(indices) == expected
        assert len(indices) == len(expected)
        part = data.draw(st.slices(len(expected)))
        assert indices[part] == expected[part]
        assert [indices[-place] for place in range(1, len(expected) + 1)] == expected[::-1]
        for outside in (len(expected), -len(expected) - 1):
            with pytest.raises(IndexError):
                indices[outside]

    def test_without_takes_no_memory_for_each_sample(self, found: Any) -> None:
        left = found([10**11, 3]).without(range(10**12))
        assert len(left) == 10**12 - 2
        assert [left[place] for place in (2, 3, 10**11, -1)] == [2, 4, 10**11 + 2, 10**12 - 1]
        again = pickle.loads(pickle.dumps(left))
        assert again[np.int64(10**11)] == 10**11 + 2


class Torchs:
    """An integer as torch's tensors are: neither an `int` nor NumPy's, and it prints otherwise."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"tensor({self.number})"


class Away:
    """All samples from `first` on raise."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: Any) -> int:
        if index.__index__() >= self.first:
            raise OSError("away")
        return index.__index__()


@pytest.mark.filterwarnings("ignore:sample 7 of batch 0 failed")
def test_indices_of_another_kind_are_integers(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    sampler = [Torchs(number) for number in range(8)]
    list(DataLoader(Away(7), batch_size=8, sampler=sampler, on_error="skip", quarantine=path, output="numpy"))
    found = quarantine(path)
    assert found.indices == [7] and len(found.without(Away(7))) == 7


def test_texts_of_a_class_of_the_users_travel_as_texts() -> None:
    class Key(str):
        pass

    class Texts:
        stoker_protocol = True

        def describe(self, index: str) -> Key:
            return Key("the second")

    said = ErrorPolicy("skip", Texts(), 0)._description("b", 0)
    assert (type(said), said) == (str, "the second")
    assert (type(_plain(Key("b"))), _plain(Key("b"))) == (str, "b")


def test_sample_without_a_replacement_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    loader = DataLoader(Away(0), batch_size=2, on_error="replace", quarantine=path, output="numpy")
    with pytest.raises(StokerError, match="cannot be replaced"):
        next(iter(loader))
    assert [(record.index, record.outcome, record.replacement) for record in quarantine(path)] == [(0, "raised", None)]
