from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from stoker.collate import tensors


class Slot:
    """Memory to lend, as a worker's slot is: pieces of one buffer, each given once."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.given: list[int] = []
        self.used = 0

    def __call__(self, size: int) -> memoryview | None:
        start = -(-self.used // 64) * 64
        self.used = start + size
        self.given.append(size)
        return memoryview(self.buffer)[start : start + size] if self.used <= len(self.buffer) else None

    def holds(self, leaf: Any) -> bool:
        array = leaf if isinstance(leaf, np.ndarray) else leaf.detach().numpy()
        return bool(np.shares_memory(array, self.buffer))


def is_tensor(value: object) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def differences(left: Any, right: Any, at: str, bare: bool) -> Iterator[str]:
    """Where two batches differ: in types, dtypes, shapes, values, or what a container carries beside its items."""
    if bare:
        left, right = (bare_array(leaf) for leaf in (left, right))
    if type(left) is not type(right):
        yield f"{at}: {type(left)} and {type(right)}"
    elif is_tensor(left) or isinstance(left, (np.ndarray, np.generic)):
        equal = left == right
        if left.dtype != right.dtype or left.shape != right.shape or not (equal is True or equal.all()):
            yield f"{at}: {left!r} and {right!r}"
    elif isinstance(left, (str, bytes)) or not isinstance(left, (Mapping, Sequence)):
        if left != right:
            yield f"{at}: {left!r} and {right!r}"
    elif len(left) != len(right) or getattr(left, "origin", None) != getattr(right, "origin", None):
        yield f"{at}: {left} and {right}"
    else:
        for key in left if isinstance(left, Mapping) else range(len(left)):
            yield from differences(left[key], right[key], f"{at}[{key!r}]", bare)


def bare_array(leaf: Any) -> Any:
    return np.asarray(leaf) if is_tensor(leaf) or isinstance(leaf, np.ndarray) else leaf


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Compares two batches; with `bare`, whatever kind of array or tensor their leaves are."""

    def check(left: Any, right: Any, bare: bool = False) -> None:
        assert not list(differences(left, right, "batch", bare))

    return check


@pytest.fixture
def slot() -> Iterator[Slot]:
    lent = Slot()
    with tensors.lent_by(lent):
        yield lent


@pytest.fixture(scope="session")
def new_slot() -> type[Slot]:
    return Slot


@pytest.fixture
def torch_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that cannot import torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch.utils.data._utils.collate", raising=False)
