"""An alarm: rings once, when it is set."""

from __future__ import annotations

import errno
import os
import resource
import select
import sys
import time
from collections.abc import Iterator

import pytest

from stoker._core.machine.timer import Timer


@pytest.fixture(params=["of the kernel's", "without"])
def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timer]:
    if request.param == "without":
        monkeypatch.setattr("stoker._core.machine.timer._kernel", lambda: None)
    elif sys.platform != "linux":
        pytest.skip("only Linux has such timers")
    alarm = Timer()
    assert (alarm.descriptor is None) == (request.param == "without")
    yield alarm
    alarm.close()


def rings(alarm: Timer, seconds: float) -> bool:
    if alarm.descriptor is not None:
        assert alarm.patience() is None
        return bool(select.select([alarm.descriptor], [], [], seconds)[0])
    patience = alarm.patience()
    if patience is None or patience > seconds:
        return False
    select.select([], [], [], patience)
    return alarm.patience() == 0


def test_rings_once_it_is_time(alarm: Timer) -> None:
    began = time.monotonic()
    alarm.set(0.05)
    assert alarm.is_set
    assert not rings(alarm, 0)
    assert rings(alarm, 10)
    assert time.monotonic() - began >= 0.05
    assert alarm.quiet()
    assert not alarm.is_set
    assert not rings(alarm, 0)


def test_timer_in_the_past_rings_at_once(alarm: Timer) -> None:
    for late in (0.0, -5.0):
        alarm.set(late)
        assert rings(alarm, 10)


def test_setting_the_timer_replaces_its_last_time(alarm: Timer) -> None:
    alarm.set(0)
    assert rings(alarm, 10)
    alarm.set(1000)
    assert not rings(alarm, 0)
    assert not alarm.quiet()
    assert alarm.is_set


def test_timer_without_a_descriptor_raises() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest that is free: from here on none is
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            Timer()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(free)
    assert caught.value.errno == errno.EMFILE
