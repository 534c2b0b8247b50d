"""Which streams of a dataset declare whether they divide themselves, and by which names a warning calls the others."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.datasets.chain import ChainDataset
from stoker.datasets.declared import declared_by_all, streams_in, undeclared
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.testing.streams import Plain
from tests.ownership import moved, named_like


class Declares(Plain):
    shards_itself = True


ONE, OTHER = Plain(3), Declares(3)


def test_streams_in_combinators_of_ours_are_found() -> None:
    chain: Any = ChainDataset([ONE, MapDataset(OTHER, str)])
    assert streams_in(chain) == [ONE, OTHER]
    assert undeclared(chain) == "Plain or a function around it"
    with moved(ChainDataset, type(MapDataset(ONE, str))):
        assert streams_in(chain) == [ONE, OTHER]
        assert undeclared(chain) == "Plain or a function around it"
        assert declared_by_all(MapDataset(OTHER, str)) is True


@pytest.mark.parametrize(
    "kind",
    [
        type("Named", (ChainDataset,), {}),
        type("Own", (ChainDataset,), {"__iter__": lambda chain: iter("ab")}),
        named_like(ChainDataset),
    ],
    ids=["inherits", "overrides", "spelled"],
)
def test_a_users_subclass_is_a_stream_of_its_own(kind: Any) -> None:
    chain = kind([OTHER])
    assert streams_in(chain) == [chain]
    assert undeclared(chain) == kind.__name__ and declared_by_all(chain) is None


def test_torchs_chain_is_a_stream_of_its_own() -> None:
    chain = pytest.importorskip("torch.utils.data").ChainDataset([OTHER])
    assert streams_in(chain) == [chain]


def letters() -> Any:
    return iter("ab")


def test_a_function_is_called_by_its_name() -> None:
    stream = from_iterable(letters)
    assert undeclared(stream) == "from_iterable(letters)"
    with moved(type(stream)):
        assert undeclared(stream) == "from_iterable(letters)"
    users = named_like(type(stream), Plain)(3)
    users.factory = letters
    assert undeclared(users) == "_FromIterable"
