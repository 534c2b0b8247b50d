from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
from pathlib import Path

import pytest

from stoker._core.machine import reserve as reserving
from stoker._core.machine.memory import Available
from stoker._core.machine.reserve import anonymous, kept_free, lengthen, punch, reserve
from stoker.errors import MemoryLimitError

MB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")

LYING = """
        import os, signal, sys
        from stoker._core.machine import reserve as reserving
        from stoker._core.machine.memory import Available
        from stoker.errors import MemoryLimitError

        def left(size):
            reserving.available = lambda: Available(size << 20, size << 20, "a test")

        def no_child_is_left():
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return True

        memory = os.memfd_create("slots")
"""


@pytest.fixture
def memory():
    fd = os.memfd_create("slots")
    yield fd
    os.close(fd)


def held(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_reserved_memory_is_there(memory):
    reserve(memory, 0, 4 * MB)
    reserve(memory, 8 * MB, 2 * MB)
    assert held(memory) == 6 * MB and os.fstat(memory).st_size == 10 * MB


def test_full_disk_in_place_of_memory_is_named(monkeypatch, tmp_path):
    """Where the system denies files in memory, the file lies in the folder of temporary files."""

    def denied(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", denied)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fd = anonymous()
    try:
        assert not os.get_inheritable(fd) and not list(tmp_path.iterdir())
        monkeypatch.setattr(os, "posix_fallocate", full)
        named = rf"unlinked file in {tmp_path}, [\d,]+ MiB free, because memfd_create is denied"
        for reserving_it in (lambda: reserve(fd, 0, MB), lambda: lengthen(fd, MB)):
            with pytest.raises(MemoryLimitError, match=named):
                reserving_it()
    finally:
        os.close(fd)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_other_errors_of_files_in_memory_are_raised(number, monkeypatch):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(OSError, match=os.strerror(number)):
        anonymous()


def test_punched_memory_is_given_back_and_can_be_reserved_again(memory):
    reserve(memory, 0, 4 * MB)
    os.pwrite(memory, b"x", 1 * MB)
    punch(memory, 1 * MB, 2 * MB)
    assert held(memory) == 2 * MB and os.fstat(memory).st_size == 4 * MB
    assert os.pread(memory, 1, 1 * MB) == b"\0"
    reserve(memory, 0, 4 * MB)
    assert held(memory) == 4 * MB


def test_the_limit_on_the_size_of_files_is_named(memory):
    """It holds for files in memory as well."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MB, limits[1]))
    try:
        with pytest.raises(MemoryLimitError, match="`ulimit -f`"):
            reserve(memory, 0, 2 * MB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert held(memory) == 0
    reserve(memory, 0, 2 * MB)


def test_offsets_beyond_4_gib(memory):
    reserve(memory, 5 << 30, MB)
    punch(memory, 5 << 30, MB)
    assert held(memory) == 0


def test_punching_what_is_no_memory_file_fails():
    hear, say = os.pipe()
    with pytest.raises(OSError):
        punch(hear, 0, MB)
    os.close(hear), os.close(say)


def test_a_refusal_names_the_numbers_and_what_to_change(memory, monkeypatch):
    monkeypatch.setattr(reserving, "available", lambda: Available(150 * MB, 200 * MB, "memory cgroup /box (v2)"))
    with pytest.raises(MemoryLimitError) as caught:
        reserve(memory, 0, 101 * MB)
    for part in ("101.0 MiB", "150.0 MiB", "200.0 MiB", "50.0 MiB", "/box (v2)", "batch_size", "prefetch_factor"):
        assert part in str(caught.value)
    assert held(memory) == 0


def test_memory_for_samples_being_made_is_kept_free(memory, monkeypatch):
    monkeypatch.setattr(reserving, "available", lambda: Available(150 * MB, 200 * MB, "memory cgroup /box (v2)"))
    reserve(memory, 0, 20 * MB, spoken_for=80 * MB)
    with pytest.raises(MemoryLimitError, match=r"kept free .*, and 81\.0 MiB for the samples that workers are making"):
        reserve(memory, 0, 20 * MB, spoken_for=81 * MB)


@pytest.mark.parametrize(("limit", "free"), [(100, 25), (512, 64), (4000, 200), (100_000, 1024)])
def test_reserve_keeps_memory_free(limit, free):
    assert kept_free(limit * MB) == free * MB


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_a_system_that_refuses_raises_the_same_error(memory, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryLimitError, match=os.strerror(number)):
        reserve(memory, 0, MB)


def test_reserve_passes_other_errors_on():
    hear, say = os.pipe()
    with pytest.raises(OSError) as caught:
        reserve(say, 0, MB)
    assert caught.value.errno == errno.ESPIPE and not isinstance(caught.value, MemoryLimitError)
    os.close(hear), os.close(say)


def test_a_system_without_reservations_has_the_file_lengthened(memory, monkeypatch):
    """Also a temporary file on a full disk then says so, where touching a mapping of it would be the end."""
    monkeypatch.delattr(os, "posix_fallocate")
    reserve(memory, 0, MB)
    assert held(memory) == os.fstat(memory).st_size == MB
    os.pwrite(memory, b"kept", 0)
    reserve(memory, 0, MB)
    reserve(memory, MB, 2 * MB)
    assert held(memory) == os.fstat(memory).st_size == 3 * MB
    assert os.pread(memory, 4, 0) == b"kept"


def test_large_reservation_is_made_by_an_expendable_child(script):
    """A child that the kernel would kill first reserves a large part of the memory."""
    script(
        LYING
        + """
        real, hear_say = os.posix_fallocate, os.pipe()

        def tell(*args):
            os.write(hear_say[1], open("/proc/self/oom_score_adj", "rb").read() + b"%d" % os.getpid())
            real(*args)

        os.posix_fallocate = tell
        left(100)
        reserving.reserve(memory, 0, 30 << 20)
        score, pid = map(int, os.read(hear_say[0], 100).split())
        assert score == 1000 and pid != os.getpid() and no_child_is_left()
        assert os.fstat(memory).st_blocks * 512 == 30 << 20

        reserving.reserve(memory, 30 << 20, 20 << 20)
        score, pid = map(int, os.read(hear_say[0], 100).split())
        assert score < 1000 and pid == os.getpid()
        """
    )


def test_errors_of_the_child_arrive(script):
    script(
        LYING
        + """
        left(100)
        hear, say = os.pipe()
        try:
            reserving.reserve(say, 0, 30 << 20)
        except MemoryLimitError:
            sys.exit("the wrong error")
        except OSError as error:
            print(error)
        assert no_child_is_left()
        """
    )


@pytest.mark.parametrize(
    "fate", ["lambda *_: os.kill(os.getpid(), signal.SIGKILL)", "lambda *_: signal.pause()", "lambda *_: 1 / 0"]
)
def test_a_child_that_is_killed_or_stuck_or_fails_is_a_refusal(script, fate):
    script(
        LYING
        + f"""
        reserving._DEADLINE, reserving._SLOWEST = 0.2, 1 << 60
        os.posix_fallocate = {fate}
        left(100)
        try:
            reserving.reserve(memory, 0, 30 << 20)
        except MemoryLimitError as error:
            assert "30.0 MiB" in str(error) and "meanwhile" in str(error)
        else:
            sys.exit("no error")
        assert no_child_is_left() and os.fstat(memory).st_blocks == 0
        """
    )


def test_children_reaped_by_other_code_do_not_disturb(script):
    script(
        LYING
        + """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        left(100)
        reserving.reserve(memory, 0, 30 << 20)
        assert os.fstat(memory).st_blocks * 512 == 30 << 20
        """
    )


def test_a_process_with_threads_does_not_fork(script):
    script(
        LYING
        + """
        import threading

        left(100)
        os.fork = lambda: sys.exit("forked")
        stop = threading.Event()
        threading.Thread(target=stop.wait).start()
        try:
            reserving.reserve(memory, 0, 30 << 20)
        finally:
            stop.set()
        """
    )


@pytest.mark.parametrize("what", ["pipe", "fork"])
def test_reservation_without_a_child_process_is_made_here(script, what):
    script(
        LYING
        + f"""
        import errno

        def refuses():
            raise OSError(errno.EAGAIN, "there are too many")

        left(100)
        os.{what} = refuses
        before = os.listdir("/proc/self/fd")
        reserving.reserve(memory, 0, 30 << 20)
        assert os.fstat(memory).st_blocks * 512 == 30 << 20
        assert os.listdir("/proc/self/fd") == before
        """
    )


def test_beyond_the_limit_of_a_cgroup_nothing_is_killed(cgroup_of_200_mb: Path, script):
    script(
        LYING
        + f"""
        open("{cgroup_of_200_mb}/cgroup.procs", "w").write(str(os.getpid()))
        reserving.reserve(memory, 0, 50 << 20)
        try:
            reserving.reserve(memory, 50 << 20, 400 << 20)
        except MemoryLimitError as error:
            assert "200.0 MiB" in str(error)
        else:
            sys.exit("no error")
        assert os.fstat(memory).st_blocks * 512 == 50 << 20
        """
    )


def test_reservation_that_loses_memory_kills_only_the_child(cgroup_of_200_mb: Path, script):
    script(
        LYING
        + f"""
        open("{cgroup_of_200_mb}/cgroup.procs", "w").write(str(os.getpid()))
        bystander_ends, ready = os.pipe()
        bystander = os.fork()
        if not bystander:
            taken = bytearray(os.urandom(1)) * (100 << 20)
            os.write(ready, b".")
            signal.pause()
        os.read(bystander_ends, 1)

        left(1000)
        try:
            reserving.reserve(memory, 0, 400 << 20)
        except MemoryLimitError as error:
            assert "meanwhile" in str(error)
        else:
            sys.exit("no error")
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0), "the bystander was killed"
        assert os.fstat(memory).st_blocks == 0

        reserving.reserve(memory, 0, 50 << 20)
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)
        """
    )
