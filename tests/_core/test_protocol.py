"""Names of foreign objects that Stoker asks for and torch does not."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import MapDataset, RandomSampler, Subset
from stoker._core.protocol import asked, offers
from tests.ownership import moved, named_like


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


class Own(Subset[Any]):
    """Has another meaning of `gather`."""

    def gather(self, indices: Any, out: Any = None) -> None: ...


class Plain(Subset[Any]):
    """Overrides nothing."""


def test_name_is_offered_where_stoker_defines_it() -> None:
    subset = Subset(range(3), [0])
    assert offers(subset, "gather") and offers(Plain(range(3), [0]), "gather")
    assert not offers(Own(range(3), [0]), "gather") and not offers(range(3), "gather")
    assert offers(RandomSampler(range(3)), "order")
    with moved(Subset, RandomSampler):
        assert offers(subset, "gather") and offers(Plain(range(3), [0]), "gather")
        assert not offers(Own(range(3), [0]), "gather")
        assert offers(RandomSampler(range(3)), "order")


def test_name_that_a_users_class_defines_is_not_offered() -> None:
    spelled = named_like(Subset, gather=lambda self, indices, out: None)
    assert not offers(spelled(range(3), [0]), "gather")
    assert not offers(named_like(Subset, object, gather=Subset.gather)(), "gather")

    class OptsOut(MapDataset[Any]):
        stoker_protocol = False

    assert offers(OptsOut(range(3), str), "set_epoch")  # which is still Stoker's
    assert not offers(type("Under", (OptsOut,), {"set_epoch": print})(range(3), str), "set_epoch")


def test_set_epoch_of_torchs_distributed_sampler_is_offered() -> None:
    kind = pytest.importorskip("torch.utils.data.distributed").DistributedSampler
    assert offers(kind(range(3), 1, 0), "set_epoch")
    assert offers(type("Plain", (kind,), {})(range(3), 1, 0), "set_epoch")
    assert not offers(type("Own", (kind,), {"set_epoch": print})(range(3), 1, 0), "set_epoch")
