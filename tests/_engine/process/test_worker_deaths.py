"""The words for what becomes of processes."""

from __future__ import annotations

import errno

import pytest

from stoker._engine.process import linux
from stoker._engine.process.worker_events import died, starting
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
def test_start_error_names_the_exhausted_limit(number: int, limit: str) -> None:
    says = rf"could not start worker 3 of 4: .*`{limit}`"
    with pytest.raises(WorkerStartError, match=says) as caught, starting("worker 3 of 4"):
        raise OSError(number, "none left")
    assert isinstance(caught.value.__cause__, OSError)


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(PermissionError), starting("worker 3 of 4"):
        raise PermissionError(errno.EPERM, "not allowed")


def test_closed_connection_is_not_reported_as_out_of_memory() -> None:
    assert "closed its connection" in str(died(3, 1234, linux.CLOSED, "batch 2, sample 9"))
