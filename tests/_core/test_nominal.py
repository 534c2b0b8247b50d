"""The classes of torch from which ours are derived in name."""

from __future__ import annotations

import pytest

from stoker._core import nominal

dataloader = pytest.importorskip("torch.utils.data.dataloader")
pytestmark = pytest.mark.skipif(not nominal.torch_is_wanted(), reason="torch is installed, and not wanted")


def test_iterators_are_derived_from_torchs() -> None:
    assert nominal.iterator_base() is dataloader._BaseDataLoaderIter


def test_torch_without_its_private_class_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dataloader, "_BaseDataLoaderIter")
    assert nominal.iterator_base() is nominal.PlainBase
