"""torchtitan's loader contract: torchtitan's own class where it is installed, and stand-ins of both its forms.

torchtitan asks for many packages, so that CI tests the stand-ins: the abstract base with torch's `Stateful` and a
config whose `build` makes its owner, as in torchtitan 0.3 and in its main branch of August 2026, at their two places.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stoker
from stoker.errors import StateFormatError, StateMismatchError

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore")  # of others

PLACES = {"0.3": "torchtitan.components.dataloader", "main": "torchtitan.components.data.loader"}


class Configurable:
    """A component that its nested config builds."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        def build(self, **kwargs: Any) -> Any:
            assert not {field.name for field in fields(self)} & set(kwargs)
            return OWNERS[type(self)](config=replace(self), **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" in vars(cls):
            assert "__slots__" in vars(vars(cls)["Config"])
            assert all(field.kw_only for field in fields(vars(cls)["Config"]))
            OWNERS[vars(cls)["Config"]] = cls


OWNERS: dict[type, type] = {}


class StandIn(torch.distributed.checkpoint.stateful.Stateful, ABC, Configurable):  # type: ignore[misc, name-defined]
    """The contract: a `Stateful` over which a trainer iterates."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        pass


@pytest.fixture(params=["torchtitan", *PLACES])
def titan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The integration, over torchtitan's base or over a stand-in at one of its places."""
    monkeypatch.delitem(sys.modules, "stoker.integrations.titan", raising=False)
    if request.param == "torchtitan":
        pytest.importorskip("torchtitan.components")
    else:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchtitan"]:
            monkeypatch.delitem(sys.modules, name)
        for name in itertools.accumulate(PLACES[request.param].split("."), lambda one, two: f"{one}.{two}"):
            module = ModuleType(name)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules[PLACES[request.param]].BaseDataLoader = StandIn  # type: ignore[attr-defined]
    yield importlib.import_module("stoker.integrations.titan")
    sys.modules.pop("stoker.integrations.titan")


def by_index(*, dp_world_size: int, dp_rank: int, **_: Any) -> stoker.DataLoader[Any]:
    ranks = {"num_replicas": dp_world_size, "rank": dp_rank, "distributed": "exact"}
    return stoker.DataLoader(range(48), 12 // dp_world_size, shuffle=True, seed=3, output="numpy", **ranks)


def by_stream(*, dp_world_size: int, dp_rank: int, **_: Any) -> stoker.DataLoader[Any]:
    stream = stoker.InterleaveDataset([range(100 * i, 100 * i + 6) for i in range(8)], open_at_once=2)
    return stoker.DataLoader(stream.shard(num_shards=dp_world_size, index=dp_rank), 2, seed=dp_rank, output="numpy")


def built(titan: Any, size: int, rank: int, make: Any = by_index, **how: Any) -> Any:
    config = titan.TitanDataLoader.Config(make=make, **how)
    return config.build(dp_world_size=size, dp_rank=rank, tokenizer=None, seq_len=8, local_batch_size=2)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_the_contract_is_kept(titan: Any) -> None:
    loader = built(titan, 1, 0)
    assert isinstance(loader, titan.BaseDataLoader)
    assert isinstance(loader, torch.distributed.checkpoint.stateful.Stateful)
    assert type(loader.Config(make=by_index)) is titan.TitanDataLoader.Config
    loader.load_state_dict({})
    seen = lists(itertools.islice(loader, 10))  # 4 batches in an epoch: it goes on
    assert sorted(itertools.chain(*seen[:4])) == sorted(itertools.chain(*seen[4:8])) == list(range(48))
    assert seen[:4] != seen[4:8]
    loader.close()


def test_one_epoch_ends_where_repeat_is_off(titan: Any) -> None:
    assert len(lists(built(titan, 1, 0, repeat=False))) == 4
    empty = built(titan, 1, 0, make=lambda **_: stoker.DataLoader([], 2))
    assert lists(empty) == []


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (4, 1), (1, 4)])
def test_another_degree_is_accepted_by_a_checkpoint(before: int, after: int, titan: Any, tmp_path: Path) -> None:
    loaders = [built(titan, before, rank) for rank in range(before)]
    seen: list[int] = []
    for batches in itertools.islice(zip(*loaders, strict=True), 2):
        seen += itertools.chain(*lists(batches))
    dcp.save({"dataloader": loaders[-1]}, checkpoint_id=tmp_path, no_dist=True)
    for rank in range(after):
        loader = built(titan, after, rank, repeat=False)
        dcp.load({"dataloader": loader}, checkpoint_id=tmp_path, no_dist=True)
        seen += itertools.chain(*lists(loader))
    assert sorted(seen) == list(range(48))


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_stream_is_divided_anew(after: int, titan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = [built(titan, 2, rank, by_stream) for rank in range(2)]
    seen = [list(itertools.chain(*lists(itertools.islice(loader, 3)))) for loader in loaders]

    def all_gather(everyone: list[Any], mine: Any) -> None:  # four processes: two beside each other have one rank
        everyone[:] = [(rank, loaders[rank].loader.state_dict()) for rank in (0, 0, 1, 1)]
        assert mine in everyone

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather)
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert len(pickle.loads(states[0][titan.KEY])) == 2
    rest = []
    for rank in range(after):
        loader = built(titan, after, rank, by_stream, repeat=False)
        loader.load_state_dict(states[0])
        rest.append(list(itertools.chain(*lists(loader))))
    assert sorted(itertools.chain(*seen, *rest)) == sorted(100 * i + k for i in range(8) for k in range(6))
    if after == 2:  # each goes on with its own shards
        assert all({n // 100 for n in one} & {n // 100 for n in two} for one, two in zip(seen, rest, strict=True))


def test_states_of_other_loaders_are_refused(titan: Any) -> None:
    loader = built(titan, 1, 0)
    with pytest.raises(StateFormatError, match=r"no state of a TitanDataLoader: it has the keys \['dp_rank_0', 'world"):
        loader.load_state_dict({"dp_rank_0": b"", "world_size": 1})
    other = built(titan, 1, 0, make=lambda **_: stoker.DataLoader(range(9), 2))
    with pytest.raises(StateMismatchError, match="samples was 48 and is 9"):
        other.load_state_dict(loader.state_dict())


def test_a_loader_with_the_wrong_share_is_refused(titan: Any) -> None:
    whole = lambda **_: stoker.DataLoader(range(9), 2)  # noqa: E731
    for make in (whole, lambda **_: by_index(dp_world_size=2, dp_rank=0)):
        with pytest.raises(ValueError, match="torchtitan asks for data-parallel rank 1 of 2: pass distributed='drop'"):
            built(titan, 2, 1, make=make)
    with pytest.raises(TypeError, match=r"make should return a stoker\.DataLoader, but returned list"):
        built(titan, 1, 0, make=lambda **_: [])
    assert len(lists(built(titan, 1, 0, make=whole, repeat=False))) == 5
