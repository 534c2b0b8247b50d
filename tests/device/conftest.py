"""A device of the test in the place of CUDA's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from stoker._engine.transport import owned, registered
from stoker.device import accelerator


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Makes the device; afterwards nothing waits for it, and none of its memory is registered."""
    pytest.importorskip("torch")
    from tests.device.late_device import LateDevice

    made: list[LateDevice] = []

    def make(*args: object, **kwargs: object) -> LateDevice:
        device = LateDevice(*args, **kwargs)  # type: ignore[arg-type]
        made.append(device)
        monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
        monkeypatch.setattr(accelerator, "numbered", lambda device: device)
        return device

    yield make
    for device in made:
        device.captures, device.allowed = False, True
        device.finish()
    gc.collect()
    owned.look()
    registered.end_left()
    assert not owned.pending() and not registered.left
    assert not any(device.registered for device in made)
