from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.loader._random import mersenne_twister
from stoker.loader._random.mersenne_twister import TorchTwister, memory_at, words_of


def _can_be_read() -> bool:
    try:
        with open("/proc/self/mem", "rb"):
            return True
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not _can_be_read(), reason="torch's are looked for there")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def twister_of(generator: Any) -> TorchTwister:
    twister = TorchTwister.of(generator)
    assert twister is not None
    return twister


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="who else has them there is not known")
def test_pythons_words_are_found() -> None:
    generator = random.Random(5)
    generator.random()
    words = words_of(generator)
    assert words is not None
    assert [*words[1:].tolist(), words[0]] == list(generator.getstate()[1])


def test_python_state_words_at_another_place_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mersenne_twister, "memory_at", lambda address: np.zeros(625, np.uint32))
    assert not mersenne_twister._lie_in_objects.__wrapped__()


@needs_proc
def test_torchs_words_are_found(torch: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    _, words, _ = twister_of(generator).read()
    public = generator.get_state().numpy().view(np.uint64)
    assert np.frombuffer(words, np.uint32)[0] == public[2] == 3
    assert np.frombuffer(words, np.uint32)[1:].tolist() == public[3 : 3 + mersenne_twister.WORDS].tolist()


@pytest.mark.parametrize(
    "there_is",
    [
        pytest.param(lambda *args: b"", id="nothing"),
        pytest.param(lambda memory, size, address: bytes(size), id="other-memory"),
        pytest.param(lambda memory, size, address: _pread(memory, size, address)[100:], id="words-without-a-head"),
        pytest.param(lambda memory, size, address: bytes(4) + _pread(memory, size, address)[:-4], id="another-place"),
        pytest.param(lambda memory, size, address: _pread(memory, size, address)[:2600], id="the-end-of-the-memory"),
    ],
)
@needs_proc
def test_unknown_layout_of_torchs_generator_is_not_read(
    torch: Any, there_is: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mersenne_twister.offset_in_torchs.__wrapped__() is not None
    monkeypatch.setattr(os, "pread", there_is)
    assert mersenne_twister.offset_in_torchs.__wrapped__() is None


_pread = getattr(os, "pread", None) or bytes


def test_unreadable_memory_falls_back_to_the_public_calls(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> int:
        raise PermissionError("/proc/self/mem")

    monkeypatch.setattr(os, "open", refused)
    assert mersenne_twister.offset_in_torchs.__wrapped__() is None


@needs_proc
def test_gaps_in_torchs_generator_are_ignored(torch: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    twister = twister_of(generator)
    before, public = twister.read(), generator.get_state()
    offset = mersenne_twister.offset_in_torchs()
    assert offset is not None
    for gap, size in ((-7, 3), (2496, 4), (2505, 3), (2500, 4), (2508, 8)):  # the last two hold nothing back
        memory_at(generator._cdata + offset + gap, ctypes.c_uint8, size)[:] = 0xAB
    assert twister.read() == before
    assert generator.get_state().equal(public)


@needs_proc
def test_twister_reads_the_public_state(torch: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    twister = twister_of(generator)
    seen = [twister.read()]
    for draw in (torch.rand, torch.randn, torch.randn, torch.rand, torch.randn):
        for dtype in (torch.float64, torch.float32):
            draw((), generator=generator, dtype=dtype)
            seen.append(twister.read())
            assert seen[-1] == mersenne_twister.seen_in(generator.get_state().numpy().tobytes())
    assert any(held is not None for _, _, held in seen), "the second of a pair of normal numbers"
    assert len(set(seen)) == len(seen)
    generator.set_state(generator.get_state())
    assert twister.read() == seen[-1]
    generator.manual_seed(6)
    assert twister.read() not in seen
