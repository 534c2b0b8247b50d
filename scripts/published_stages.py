"""Says where the CPU time of a sample goes in the ImageNet scripts: torchvision's transforms on Pillow's or our images.

    python scripts/published_stages.py FOLDER       # of JPEG files, as WORK/data/photos/train of published_scripts.py

Medians of the CPU time of this thread, by turns without and with Stoker's reader, the first round of each left out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

DECLARED = torch.library.Library("torchvision", "FRAGMENT")  # its compiled operators do not load beside a CPU torch
for operator in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, operator):
        DECLARED.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from PIL import Image  # noqa: E402
from torchvision import transforms  # noqa: E402

import stoker  # noqa: E402

CROP, FLIP = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
REST = transforms.Compose(
    [transforms.ToTensor(), transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])]
)
STAGES = ("open the file", "draw the crop", "decode, crop, resize, flip", "ToTensor, Normalize")
ROUNDS = 4


def measured(files: list[Path]) -> list[list[float]]:
    """Returns CPU seconds of each stage for each file."""
    torch.manual_seed(0)
    taken: list[list[float]] = [[] for _ in STAGES]
    for file in files:
        times = [time.thread_time()]
        with file.open("rb") as opened:
            image: Any = Image.open(opened)
            times.append(time.thread_time())
            box = CROP.get_params(image, CROP.scale, CROP.ratio)
            times.append(time.thread_time())
            image = image.convert("RGB")
        image = FLIP(transforms.functional.resized_crop(image, *box, CROP.size, CROP.interpolation))
        image.load()
        times.append(time.thread_time())
        REST(image)
        times.append(time.thread_time())
        for kept, begun, ended in zip(taken, times, times[1:], strict=False):
            kept.append(ended - begun)
    return taken


def main() -> None:
    torch.set_num_threads(1)
    files = sorted(Path(sys.argv[1]).glob("**/*.jpg"))
    taken: dict[str, list[list[float]]] = {name: [[] for _ in STAGES] for name in ("Pillow", "Stoker")}
    for number in range(ROUNDS):
        for name, stages in taken.items():
            registration = stoker.images.register()
            if name == "Pillow":
                registration.undo()
            found = measured(files)
            registration.undo()
            if number:
                for kept, new in zip(stages, found, strict=True):
                    kept.extend(new)
    print(f"{len(files)} photographs, CPU time in ms: Pillow, Stoker, ratio")
    one, other = ([1000 * median(stage) for stage in stages] for stages in taken.values())
    for stage, theirs, ours in zip((*STAGES, "all"), (*one, sum(one)), (*other, sum(other)), strict=True):
        print(f"{stage}: {theirs:.2f}, {ours:.2f}, {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
