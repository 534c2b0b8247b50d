"""torchvision without its compiled operators, which do not load beside a CPU torch; without it tests are skipped."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torchvision = pytest.importorskip("torchvision")
from torchvision import datasets, transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

__all__ = ["datasets", "torch", "torchvision", "transforms", "v2"]
