from __future__ import annotations

import pytest

from stoker import _nominal


@pytest.fixture
def torch_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is not installed: samplers draw from NumPy."""
    monkeypatch.setattr(_nominal, "torch_is_wanted", lambda: False)
