"""The words for what becomes of processes."""

from __future__ import annotations

import errno

import pytest

from stoker._engine.process import fates, kernel
from stoker.errors import WorkerStartError


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "ulimit -u"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "ulimit -n"),
    ],
)
def test_what_there_is_none_of_any_more_is_named(number: int, limit: str) -> None:
    says = rf"could not start worker 3 of 4: .*`{limit}`"
    with pytest.raises(WorkerStartError, match=says) as caught, fates.starting("worker 3 of 4"):
        raise OSError(number, "none left")
    assert isinstance(caught.value.__cause__, OSError)


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(PermissionError), fates.starting("worker 3 of 4"):
        raise PermissionError(errno.EPERM, "not allowed")


def test_one_that_closed_its_connection_was_not_killed_for_want_of_memory() -> None:
    assert "closed its connection" in str(fates.died(3, 1234, kernel.CLOSED, "batch 2, sample 9"))
