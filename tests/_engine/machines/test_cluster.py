"""The settings of workers on other machines, before a cluster is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stoker
from stoker.errors import MissingExtraError


@pytest.mark.parametrize("folder", [False, True], ids=["nothing", "folder of that name"])
def test_missing_ray_is_named(folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if folder:
        (tmp_path / "ray").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # Ray itself is not on it
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'stoker\[ray\]'"):
        stoker.Ray(num_workers=1).check_installed()
