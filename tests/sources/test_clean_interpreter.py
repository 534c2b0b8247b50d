from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.sources import clean_interpreter
from stoker.sources.clean_interpreter import CleanInterpreters


def is_there(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_functions_run_in_another_interpreter() -> None:
    interpreters = CleanInterpreters()
    process = interpreters.call(os.getpid)
    assert process != os.getpid() and interpreters.call(os.getpid) == process, "one serves one call after another"
    assert interpreters.call(os.getppid) == os.getpid()
    assert interpreters.call(int, "20", base=3) == 6
    with pytest.raises(ValueError, match="'x'"):
        interpreters.call(int, "x")
    assert interpreters.call(os.getpid) == process, "an error ends nothing"
    interpreters.close()
    assert not is_there(process)
    assert interpreters.call(os.getpid) != process


def test_it_ends_with_the_last_reference() -> None:
    interpreters = CleanInterpreters()
    process = interpreters.call(os.getpid)
    del interpreters
    assert not is_there(process)


def test_close_does_nothing_when_module_globals_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a process, a finalizer may find None in their place. The other interpreter sees the end itself."""
    interpreter = clean_interpreter._Interpreter()
    with monkeypatch.context() as patched:
        patched.setattr(clean_interpreter, "os", None)
        assert interpreter.close() is None
    assert interpreter.close() == -signal.SIGKILL


def test_calls_of_threads_run_side_by_side() -> None:
    interpreters, count = CleanInterpreters(), 3
    together = threading.Barrier(count)

    def call(_: int) -> int:
        together.wait()
        return interpreters.call(sum, range(2_000_000))

    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(call, range(count))) == {sum(range(2_000_000))}


def test_one_that_was_killed_is_replaced() -> None:
    interpreters = CleanInterpreters()
    process = interpreters.call(os.getpid)
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert interpreters.call(os.getpid) != process


def test_function_that_kills_its_interpreter_is_an_error() -> None:
    interpreters = CleanInterpreters()
    with pytest.raises(ChildProcessError, match=r"started to call _exit died \(exit code 7\)"):
        interpreters.call(os._exit, 7)
    assert interpreters.call(abs, -1) == 1


def test_what_cannot_be_pickled_disturbs_no_later_call() -> None:
    interpreters = CleanInterpreters()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        interpreters.call(lambda: 1)
    with pytest.raises(TypeError, match="pickle"):
        interpreters.call(threading.Lock)
    assert interpreters.call(abs, -2) == 2


def test_pickle_and_fork_carry_none() -> None:
    interpreters = CleanInterpreters()
    process = interpreters.call(os.getpid)
    assert pickle.loads(pickle.dumps(interpreters)).call(os.getpid) != process
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if interpreters.call(os.getppid) == os.getpid() else 2
            interpreters.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert interpreters.call(os.getpid) == process, "the child has left its parent's alone"


def test_forked_copy_does_not_end_it() -> None:
    interpreter = clean_interpreter._Interpreter()
    child = os.fork()
    if child == 0:
        interpreter.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert interpreter.call(os.getppid, (), {}) == (True, os.getpid())
    interpreter.close()


def test_idle_one_ends_by_itself() -> None:
    interpreters = CleanInterpreters()
    interpreters.call(exec, f"import {clean_interpreter.__name__} as module; module.IDLE = 1")
    process = interpreters.call(os.getpid)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert interpreters.call(os.getpid) != process


def test_it_ends_when_its_parent_was_killed() -> None:
    code = (
        "import os, signal\n"
        "from stoker.sources.clean_interpreter import CleanInterpreters\n"
        "interpreters = CleanInterpreters()\n"
        "print(interpreters.call(os.getpid), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert program.returncode == -signal.SIGKILL
    process = int(program.stdout)
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 20)[0], "it waits for a parent that is gone"
    finally:
        os.close(descriptor)


def test_start_is_quick() -> None:
    begun = time.process_time()
    CleanInterpreters().call(abs, 1)
    assert time.process_time() - begun < 0.5
