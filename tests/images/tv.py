"""torchvision, of which the tests need no compiled operator: these do not load beside a torch of another version."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


def load_operators() -> None:
    """Loads the compiled operators, as the import of torchvision does, if they load."""
    spec = find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in Path(folder).glob("_C*.so"):
            with contextlib.suppress(OSError, RuntimeError):
                torch.ops.load_library(str(file))


load_operators()
_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torchvision = pytest.importorskip("torchvision")
from torchvision import datasets, transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

__all__ = ["datasets", "torch", "torchvision", "transforms", "v2"]
