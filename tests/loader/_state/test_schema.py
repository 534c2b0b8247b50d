"""The format of a state: what goes in comes out, whatever it travelled by; what is damaged or foreign is named."""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import StateError, StateFormatError, StateMismatchError
from stoker.loader._state.schema import (
    START,
    VERSION,
    Place,
    check_fits,
    join_states,
    packed,
    state_for_all_ranks,
    states_by_rank,
    unpacked,
)
from stoker.samplers import RandomSampler
from tests.loader._state.edits import edited, formerly

NAMES = ["stoker", "epoch", "seed", "batches", "position", "ahead", "kind", "below"]

COUNTS = st.integers(0, 2**63)
TEXTS = st.text(max_size=5)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
STREAMS = st.none() | st.dictionaries(TEXTS, JSON, max_size=3)
PLACES = st.builds(
    Place,
    seed=st.none() | COUNTS,
    batches=st.integers(0, 100),
    position=COUNTS,
    ahead=st.frozensets(st.integers(101, 200), max_size=4),
    mark=JSON,
    over=st.booleans(),
    generators=st.none() | st.tuples(JSON, JSON),
    epochs_ahead=st.lists(st.tuples(TEXTS, st.integers()), max_size=2).map(tuple),
    workers=st.none() | st.lists(STREAMS, min_size=1, max_size=3),
    turn=st.integers(0, 9),
    order=st.none() | COUNTS,
    undrawn=st.integers(0, 2),
    root=st.none() | COUNTS,
    through=st.booleans(),
    before=st.none() | st.lists(JSON, max_size=3),
    drawn=st.lists(TEXTS, max_size=2).map(tuple),
    given=st.just(()),
    past=st.none() | st.lists(STREAMS, min_size=1, max_size=3),
)
KINDS = st.dictionaries(TEXTS, st.none() | st.integers() | TEXTS, max_size=3)


@given(epoch=COUNTS, place=PLACES, kind=KINDS)
def test_state_survives_packing(epoch: int, place: Place, kind: dict[str, Any]) -> None:
    written = packed(epoch, place, kind)
    for travelled in (written, json.loads(json.dumps(written)), pickle.loads(pickle.dumps(written))):
        assert unpacked(travelled) == (epoch, place, kind)


@given(epoch=COUNTS, place=PLACES, kind=KINDS)
def test_every_state_has_the_same_names(epoch: int, place: Place, kind: dict[str, Any]) -> None:
    """So that a checkpoint which is read by name finds all of it."""
    written = packed(epoch, place, kind)
    assert list(written) == NAMES
    assert written["stoker"] == VERSION == 1
    assert isinstance(written["below"], str)
    assert {**written, **json.loads(written["below"])}.items() >= {**written}.items()


def test_keys_of_another_rank_beside_the_one_value_do_not_count() -> None:
    """A checkpoint that is written by key keeps each from one rank or another."""
    state = written()
    for name in NAMES[1:-1]:
        assert unpacked({**state, name: "another rank's"}) == unpacked(state)


def test_state_of_earlier_versions_is_read() -> None:
    state = written()
    assert formerly(state)["below"] == json.dumps({"workers": [{"ended": False}], "turn": 1})
    assert unpacked(formerly(state)) == unpacked(state)
    assert unpacked({**formerly(packed(2, START, {})), "below": None}) == (2, START, {})


def test_state_of_one_rank_names_it() -> None:
    parts = [packed(2, Place(seed=rank), {"samples": 30}, (rank, 2)) for rank in range(2)]
    assert [list(part)[-1] for part in parts] == ["rank 0 of 2", "rank 1 of 2"]
    assert [unpacked(state_for_all_ranks(part))[1].seed for part in parts] == [0, 1]
    both = join_states(parts)
    assert {rank: unpacked(part)[1].seed for rank, part in states_by_rank(json.loads(json.dumps(both))).items()} == {
        (0, 2): 0,
        (1, 2): 1,
    }
    assert states_by_rank(written()) == states_by_rank(None) == {}


@pytest.mark.parametrize(
    "own", [{1: "a key that is no text"}, {"a": (1, 2)}, {"a": {3}}, {"a": b"3"}, {"a": 1j}], ids=str
)
def test_values_that_json_would_change_are_kept(own: Any) -> None:
    place = START._replace(workers=[own], turn=3)
    written = packed(0, place, {})
    (whole,) = written["below"]  # a tuple: one value for torch.distributed.checkpoint
    assert isinstance(written["below"], tuple)
    assert (whole["workers"], whole["turn"]) == ([own], 3)
    assert unpacked(pickle.loads(pickle.dumps(written)))[1] == place


def test_arrays_in_a_sampler_state_are_kept() -> None:
    numpy = pytest.importorskip("numpy")
    mark = {"order": numpy.arange(3)}
    assert packed(0, START._replace(mark=mark), {})["below"][0]["sampler"] is mark
    assert packed(0, START._replace(mark=numpy.arange(3)), {})["below"][0]["sampler"].tolist() == [0, 1, 2]


# What is no state, or no longer one


def written() -> dict[str, Any]:
    place = Place(seed=7, batches=3, position=12, ahead=frozenset({5}), workers=[{"ended": False}], turn=1)
    return packed(2, place, {"samples": 30})


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_truncated_state_says_what_it_lacks(name: str) -> None:
    rest = {other: value for other, value in written().items() if other != name}
    states = [rest]
    if name not in ("below", "kind"):  # without kind it is a state of an earlier version
        whole = {other: value for other, value in json.loads(written()["below"]).items() if other != name}
        states.append({**written(), "below": json.dumps(whole)})
    for state in states:
        with pytest.raises(StateFormatError, match=f"lacks {name}: it is truncated"):
            unpacked(state)


@pytest.mark.parametrize("version", [2, 0, "1", None, [1]])
def test_state_of_another_format_is_refused(version: Any) -> None:
    with pytest.raises(StateFormatError, match=r"has format .*, and this version of Stoker knows format 1"):
        unpacked({**written(), "stoker": version})


@pytest.mark.parametrize("other", [None, 3, "state", [], ["stoker"], b"{}", {}, {"epoch": 1}], ids=repr)
def test_no_state_at_all(other: Any) -> None:
    with pytest.raises(StateFormatError, match="no state of a Stoker loader"):
        unpacked(other)


def test_a_state_of_torchdata() -> None:
    theirs = {"_snapshot": {"_snapshot_step": 2}, "_steps_since_snapshot": 0, "_iterator_finished": False}
    with pytest.raises(StateFormatError, match=r"\['_iterator_finished', '_snapshot'.*torchdata's StatefulDataLoader"):
        unpacked(theirs)


@pytest.mark.parametrize("name", ["epoch", "seed", "batches", "position"])
@pytest.mark.parametrize("value", [-1, "3", 1.5, [], {}])
def test_invalid_count_in_a_state_is_refused(name: str, value: Any) -> None:
    for state in (edited(written(), **{name: value}), {**formerly(written()), name: value}):
        with pytest.raises(StateFormatError, match=f"{name} is .*, and a count was expected"):
            unpacked(state)


@pytest.mark.parametrize("name", ["epoch", "batches", "position"])
def test_only_a_seed_may_be_missing(name: str) -> None:
    unpacked(edited(written(), seed=None))
    for state in (edited(written(), **{name: None}), {**formerly(written()), name: None}):
        with pytest.raises(StateFormatError, match=f"{name} is None"):
            unpacked(state)


@pytest.mark.parametrize("ahead", [None, 3, "45", {}, ["5"], [2], [1], [None]], ids=repr)
def test_numbers_ahead_that_are_none(ahead: Any) -> None:
    for state in (edited(written(), ahead=ahead), {**formerly(written()), "ahead": ahead}):
        with pytest.raises(StateFormatError, match="the state is damaged"):
            unpacked(state)


@pytest.mark.parametrize(
    "below",
    [
        *(3, "{", "[]", "3", [], '{"workers": []}', '{"workers": 3}', '{"turn": -1}', '{"turn": "1"}'),
        *('{"generators": 3}', '{"generators": [1]}', '{"told": 3}', '{"told": [[1]]}', '{"told": [["a", "b"]]}'),
    ],
    ids=repr,
)
def test_nested_state_is_checked(below: Any) -> None:
    with pytest.raises(StateFormatError, match="the state is damaged"):
        unpacked({**written(), "below": below})


@given(place=PLACES, name=st.sampled_from(NAMES), value=JSON)
def test_any_damage_is_a_state_error_or_none(place: Place, name: str, value: Any) -> None:
    state = packed(2, place, {"samples": 30})
    for damaged in ({**state, name: value}, edited(state, **{name: value}), {**formerly(state), name: value}):
        try:
            epoch, found, kind = unpacked(damaged)
        except StateFormatError:
            continue
        check_fits(kind, kind, False)
        assert unpacked(packed(epoch, found, kind)) == (epoch, found, kind)


# Whether it fits


KIND = {"samples": 30, "order": "RandomSampler/1", "batch_size": 4, "ranks": 2, "distributed": "pad", "seed": 1}


@pytest.mark.parametrize("name", sorted(KIND.keys() - {"ranks"}))
def test_changed_kind_of_loader_is_named(name: str) -> None:
    check_fits(KIND, KIND, ahead=True)
    with pytest.raises(StateMismatchError, match=f"fit this loader: {name} was {KIND[name]!r} and is 'other'"):
        check_fits(KIND, {**KIND, name: "other"}, ahead=False)


def test_all_that_differs_is_named() -> None:
    with pytest.raises(StateMismatchError, match="samples was 30 and is 31; batch_size was 4 and is None"):
        check_fits(KIND, {**{k: v for k, v in KIND.items() if k != "batch_size"}, "samples": 31}, ahead=False)


@pytest.mark.parametrize(
    ("ranks", "batch_size", "fits"), [(4, 4, True), (4, 2, True), (1, 8, True), (4, 1, False), (2, 8, False)]
)
def test_ranks_may_change_and_with_them_the_batch_size(ranks: int, batch_size: int, fits: bool) -> None:
    """By a batch size that stays, or a global one that does."""
    ours = {**KIND, "ranks": ranks, "batch_size": batch_size}
    if fits:
        check_fits(KIND, ours, ahead=False)
    else:
        with pytest.raises(StateMismatchError, match=f"batch_size was 4 and is {batch_size}"):
            check_fits(KIND, ours, ahead=False)


@pytest.mark.parametrize("other", [{"ranks": 4, "batch_size": 2}, {"ranks": 4}, {"batch_size": 2}], ids=str)
def test_state_out_of_order_needs_the_same_batches(other: dict[str, Any]) -> None:
    with pytest.raises(StateMismatchError, match=r"out of order .* 2 ranks x 4 there"):
        check_fits(KIND, {**KIND, **other}, ahead=True)


# Where streams go on


@pytest.mark.parametrize(
    ("ended", "turn", "expected"),
    [
        ([], 0, ([0, 1, 2, 3], 0)),
        ([], 2, ([0, 1, 2, 3], 2)),
        ([], 4, ([0, 1, 2, 3], 0)),
        ([1], 1, ([0, 2, 3], 1)),
        ([2, 3], 3, ([0, 1], 0)),
        ([0, 1, 2], 1, ([3], 0)),
        ([0, 1, 2, 3], 2, ([], 0)),
    ],
)
def test_whose_turn_it_is(ended: list[int], turn: int, expected: tuple[list[int], int]) -> None:
    workers = [{"ended": number in ended, "at": number} for number in range(4)]
    active, place, starts = Place(workers=workers, turn=turn).streams(4)
    assert (active, place) == expected
    assert starts == {number: workers[number] for number in active}


def test_a_stream_starts_with_a_copy_of_its_state() -> None:
    workers = [None, {"ended": False, "stream": {"at": [1]}}]
    _, _, starts = Place(workers=workers).streams(2)
    assert list(starts) == [1]
    starts[1]["stream"]["at"].append(2)
    assert workers[1] == {"ended": False, "stream": {"at": [1]}}


# In a loader


def begun(**settings: Any) -> Any:
    loader = stoker.DataLoader(range(30), batch_size=4, shuffle=True, seed=1, **settings)
    list(itertools.islice(loader, 3))
    return loader


@given(name=st.sampled_from(NAMES), value=JSON)
def test_a_load_that_fails_leaves_the_loader_as_it_was(name: str, value: Any) -> None:
    loader, untouched = begun(), begun()
    try:
        loader.load_state_dict(edited(loader.state_dict(), **{name: value}))
    except StateError:
        assert loader.state_dict() == untouched.state_dict()
        assert str(list(loader)) == str(list(untouched))


def test_a_position_behind_the_end() -> None:
    loader = begun()
    with pytest.raises(StateFormatError, match="stands at position 31 of an order of 30"):
        loader.load_state_dict(edited(loader.state_dict(), position=31))
    loader.load_state_dict(edited(loader.state_dict(), position=30))
    assert list(loader) == []


@pytest.mark.parametrize(
    "mixed",
    [{"epoch": 1}, {"batches": 0}, {"epoch": 1, "batches": 0}, {"position": 0}, {"epoch": 1, "seed": 5}],
    ids=str,
)
def test_numbers_of_two_states_are_refused(mixed: dict[str, Any]) -> None:
    """As a checkpoint of an earlier version mixes those of two ranks: epoch, seed, batches and position."""
    loader, untouched = begun(), begun()
    with pytest.raises(StateFormatError, match="Has a checkpoint mixed the states of several ranks"):
        loader.load_state_dict({**formerly(loader.state_dict()), **mixed})
    assert loader.state_dict() == untouched.state_dict()


def test_a_load_does_not_begin_anything() -> None:
    class Untouched:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> int:
            raise AssertionError("a sample was loaded")

    loader = stoker.DataLoader(Untouched(), batch_size=4, shuffle=True, seed=1, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(begun().state_dict())
    assert loader.state_dict() == begun().state_dict()


def test_a_state_by_itself_changes_nothing() -> None:
    loader, other = begun(), begun()
    for _ in range(3):
        loader.state_dict()
    assert str(list(loader)) == str(list(other))


def test_torchdatas_class_name_loads_the_state() -> None:
    torchdatas = {"snapshot_every_n_steps": 5, "spawn_worker_start_parallelism": 2}
    first = stoker.StatefulDataLoader(range(9), batch_size=2, **torchdatas)
    list(itertools.islice(first, 3))
    second = stoker.StatefulDataLoader(range(9), batch_size=2, collate_fn=list)
    second.load_state_dict(first.state_dict())
    assert list(second) == [[6, 7], [8]]


class Stream(stoker.IterableDataset[int]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 20:
            self.at += 1
            yield self.at

    def state_dict(self) -> Any:
        return {"at": self.at, "nested": {"list": [1, {"deep": None}]}}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
@pytest.mark.parametrize("kind", ["shuffled", "walked", "stream"])
def test_a_checkpoint_that_is_read_by_name(kind: str, tmp_path: Any) -> None:
    """As torch.distributed.checkpoint: only the names that a fresh loader's state has are read."""
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")

    def make() -> Any:
        if kind == "stream":
            return stoker.DataLoader(Stream(), batch_size=2, collate_fn=list, seed=1)
        walked = RandomSampler(range(20), generator=torch.Generator().manual_seed(1)) if kind == "walked" else None
        return stoker.DataLoader(
            range(20), batch_size=2, sampler=walked, shuffle=walked is None, collate_fn=list, seed=1
        )

    first = make()
    iterator = iter(first)
    list(itertools.islice(iterator, 3))
    checkpoint.save({"loader": first}, checkpoint_id=tmp_path)
    checkpoint.save({"loader": formerly(first.state_dict())}, checkpoint_id=tmp_path / "of an earlier version")
    rest = list(iterator)
    for place in (tmp_path, tmp_path / "of an earlier version"):
        second = make()
        checkpoint.load({"loader": second}, checkpoint_id=place)
        assert second.state_dict()["batches"] == 3
        assert list(second) == rest
