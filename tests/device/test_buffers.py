"""`device_buffers=`: fixed addresses in turn, valid for as many batches as there are sets."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import StokerWarning
from stoker.device import buffers
from tests.device.test_transfer import Loop, loader_of

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("sets", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_sets_are_used_in_turn(late: Any, sets: int, workers: int) -> None:
    loop = Loop(late(sets))
    loader = loader_of(6, device_buffers=sets, num_workers=workers)
    addresses = []
    for _ in range(2):  # a graph that was captured in the first epoch goes on in the second
        for batch in loader:
            addresses.append(batch[0].data_ptr())
            loop.step(batch)
    loop.device.finish()
    assert len(set(addresses)) == sets
    assert all(addresses[number] == addresses[number % sets] for number in range(12))
    assert [images[0] for images, _ in loop.seen] == [8 * number for number in range(6)] * 2


def test_batch_is_valid_until_its_set_is_used_again(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(6, device_buffers=2, num_workers=2))
    first, second = next(iterator), next(iterator)
    device.finish()
    assert (first[0][0, 0], second[0][0, 0]) == (0, 8)
    third = next(iterator)
    device.finish()
    assert third[0].data_ptr() == first[0].data_ptr() and second[0][0, 0] == 8 and third[0][0, 0] == 16
    iterator.close()


def test_sets_outlive_inference_mode(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(3, device_buffers=1))
    with torch.inference_mode():
        next(iterator)
    batch = next(iterator)
    device.finish()
    assert not batch[0].is_inference() and batch[0][0, 0] == 8


def test_other_shapes_have_sets_of_their_own(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "SHAPES", 1)
    loop = Loop(late())
    loader = loader_of(2, device_buffers=1)
    loader.dataset.rows -= 3
    with pytest.warns(StokerWarning, match="no buffers for a batch of another shape"):
        for batch in loader:
            loop.step(batch)
    loop.device.finish()
    assert loop.seen[1][1] == [8, 9, 10, 11, 12]
