"""Names of foreign objects that Stoker asks for and torch does not."""

from __future__ import annotations

from typing import Any

import pytest

from stoker._protocol import asked


class Bag:
    """Knows its own names, and answers others with KeyError."""

    size = 3

    def __getattr__(self, name: str) -> Any:
        return {}[name]

    @property
    def batch_size(self) -> int:
        raise ValueError("it is not known yet")


def test_name_that_a_getattr_does_not_know_is_none() -> None:
    assert asked(Bag(), "state_dict") is None
    assert asked(Bag(), "sampler", "other") == "other"
    assert asked(Bag(), "size") == 3
    assert asked(None, "size") is None


def test_error_of_a_property_goes_out() -> None:
    with pytest.raises(ValueError, match="not known yet"):
        asked(Bag(), "batch_size")
