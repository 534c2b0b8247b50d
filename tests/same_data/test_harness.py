from __future__ import annotations

import pytest


def unequal_result(data):
    return data.__name__


def unequal_exit(data):
    import sys

    sys.exit(3 if data.__name__ == "stoker" else 4)


def unequal_error(data):
    raise KeyError if data.__name__ == "stoker" else IndexError


def unequal_message(data):
    raise KeyError(data.__name__)


def unequal_files(data):
    open(data.__name__, "w").close()


def unequal_temporary_files(data):
    import tempfile

    if data.__name__ == "stoker":
        tempfile.mkdtemp()


def unequal_processes(data):
    import os
    import signal

    if data.__name__ == "stoker" and not os.fork():
        os.setsid()
        signal.pause()


PROGRAMS = {
    unequal_result: "result",
    unequal_exit: "exit",
    unequal_error: "exception",
    unequal_message: "message",
    unequal_files: "files",
    unequal_temporary_files: "temporary",
    unequal_processes: "processes_left",
}
RAISES = {unequal_error: "IndexError", unequal_message: "KeyError"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_difference_fails(same, program):
    with pytest.raises(pytest.fail.Exception, match=rf"^torch's loader and Stoker's differ\n  {PROGRAMS[program]}:"):
        same(program, grace=0.1, raises=RAISES.get(program))


def test_fresh_interpreter_runs_the_same_program(same):
    theirs, ours = same("def main(data): return data.__name__", differs="`pin_memory=True`", fresh=True)
    assert (theirs.result, ours.result) == ("torch.utils.data", "stoker")


def test_error_that_the_test_does_not_name_fails(same):
    with pytest.raises(AssertionError, match="torch's program ended with NameError"):
        same("def main(data): return missing")


def test_exemption_needs_a_row_of_the_guide(same):
    with pytest.raises(AssertionError, match="has no row"):
        same(unequal_result, differs="no such row")


def test_exemption_needs_a_difference(same):
    with pytest.raises(AssertionError, match="nothing differs"):
        same("def main(data): pass", differs="`pin_memory=True`")


def hangs(data):
    import signal

    signal.pause()


def test_program_that_hangs_fails(same):
    with pytest.raises(AssertionError, match=r"timed out after 0\.2 s"):
        same(hangs, timeout=0.2)
