from __future__ import annotations

import pytest

import stoker
from stoker.loader import torch_support

torch = pytest.importorskip("torch")


def test_nothing_is_recorded_without_a_profiler(monkeypatch):
    def refuse(name):
        raise AssertionError(f"recorded {name}")

    monkeypatch.setattr(torch.autograd.profiler, "record_function", refuse)
    assert [batch.item() for batch in stoker.DataLoader([1, 2])] == [1, 2]
    with torch.profiler.profile(), pytest.raises(AssertionError, match=r"^recorded enumerate\(DataLoader\)#Loader"):
        next(iter(stoker.DataLoader([1, 2])))


def test_profiler_is_off_where_torch_is_not_loaded(monkeypatch):
    monkeypatch.delitem(torch_support.sys.modules, "torch.autograd.profiler")
    assert not torch_support.is_on()
