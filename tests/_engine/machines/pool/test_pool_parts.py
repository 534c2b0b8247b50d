"""The parts that ranks send to a pool: equal whichever process pickled them, and other ones differ."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stoker._engine.machines.pool.pool_parts import RankParts, number_as

FIRST, SECOND = "0123456789abcdef" * 2, "fedcba9876543210" * 2


def digest(pickled: bytes, *large: bytes, numbers: tuple[str, ...] = ()) -> str:
    share = RankParts(False, "m.Kind", b"settings", numbers)
    return share.order("pool", pickled, [memoryview(view) for view in large]).parts.digest


def test_other_parts_have_another_digest() -> None:
    found = {digest(b"ab"), digest(b"ac"), digest(b"ab", b"c"), digest(b"ab", b"cd"), digest(b"ab", b"c", b"d")}
    assert len(found) == 5 and digest(b"ab", b"c") in found


def test_numbers_of_classes_count_by_their_places() -> None:
    one, other = (f"x{first}y{second}z{first}".encode() for first, second in ((FIRST, SECOND), (SECOND, FIRST)))
    assert digest(one) != digest(other)
    numbers = (FIRST, SECOND, "a" * 32)
    assert digest(one, numbers=numbers) == digest(other, numbers=numbers[::-1])
    assert digest(one, numbers=numbers) != digest(f"x{FIRST}y{SECOND}z{SECOND}".encode(), numbers=numbers)


def test_label_names_class_size_and_digest() -> None:
    order = RankParts(True, "m.Kind", b"own", (SECOND, FIRST)).order(
        "p", f"{FIRST}{SECOND}".encode(), [memoryview(b"xyz")]
    )
    assert order.parts.label == f"m.Kind (67 bytes, digest {order.parts.digest[:8]})"
    assert order.parts.classes == (FIRST, SECOND) and order.parts.settings == b"own" and order.once


def test_class_has_the_number_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        pass

    by_class = {Kind: FIRST}
    numbered = SimpleNamespace(_DYNAMIC_CLASS_TRACKER_BY_ID={FIRST: Kind}, _DYNAMIC_CLASS_TRACKER_BY_CLASS=by_class)
    monkeypatch.setitem(sys.modules, "cloudpickle.cloudpickle", numbered)
    number_as((FIRST,), (SECOND,))
    assert by_class == {Kind: SECOND} and numbered._DYNAMIC_CLASS_TRACKER_BY_ID[SECOND] is Kind
