"""Makes the data that published training scripts expect: photographs, MNIST's files, text, graphs, small models.

Nothing is downloaded. Digits are those of scikit-learn, enlarged; photographs those of `examples/make_photos.py`; the
models of Hugging Face's hub have random weights, and lie where its client looks for what it has downloaded before, or
beside the script (`published_beside.py`).
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import published_beside

ROOT = Path(__file__).parents[1]
DIGITS_TRAIN, DIGITS_TEST = 6_000, 1_000

STARTUP = '''\
"""Declares torchvision's compiled operators, which do not load beside a CPU torch; seeds for scripts that do not.

Runs at the start of each Python process, and acts when torchvision (or PyTorch Geometric) is imported. The scripts stay
as they are.
"""

import importlib.abc
import importlib.util
import os
import random
import sys
import time


class Finder:
    """Finds nothing; runs before torchvision or PyTorch Geometric is found."""

    def find_spec(self, name, path=None, target=None):
        if name in ("torchvision", "torch_geometric"):
            sys.meta_path.remove(self)
            import torch

            if name == "torchvision":
                global library
                library = torch.library.Library("torchvision", "FRAGMENT")
                for operator in ("nms", "qnms"):
                    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            if seed := os.environ.get("PUBLISHED_SCRIPTS_SEED"):
                random.seed(int(seed))
                torch.manual_seed(int(seed))
        return None


class Clock(importlib.abc.Loader):
    """Takes the CPU time of the method that makes samples, and notes it: length of the set, seconds, samples."""

    def __init__(self, place):
        self.module, _, names = place.partition(":")
        self.owner, _, self.method = names.partition(".")
        self.process = self.file = None

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        owner = getattr(module, self.owner)
        method = getattr(owner, self.method)

        def timed(dataset, which):
            begun = time.thread_time()
            made = method(dataset, which)
            self.note(len(dataset), time.thread_time() - begun, len(which) if isinstance(which, list) else 1)
            return made

        setattr(owner, self.method, timed)

    def note(self, *numbers):
        if self.process != os.getpid():
            self.process = os.getpid()
            self.file = open(os.path.join(os.environ["PUBLISHED_SCRIPTS_CPU"], f"{self.process}.txt"), "a", buffering=1)
        print(*numbers, file=self.file)


sys.meta_path.insert(0, Finder())
if place := os.environ.get("PUBLISHED_SCRIPTS_FETCH"):
    sys.meta_path.insert(0, Clock(place))
'''


def make(folder: Path, images: int, python: Path) -> None:
    """Makes what is missing.

    Args:
        folder: to put it in.
        images: photographs, of which some 15 % are to validate with.
        python: the interpreter of the scripts, which has torch, timm and transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "startup").mkdir(exist_ok=True)
    (folder / "startup" / "sitecustomize.py").write_text(STARTUP)
    published_beside.metrics(folder / "beside")
    published_beside.pairs(folder / "beside")
    makers = {"photos": _photos, "datasets/MNIST": _mnist, "datasets/TU": _graphs, "wikitext-2": _text}
    for name, makes in makers.items():
        if not (folder / name / "made").exists():
            makes(folder, images)
            (folder / name / "made").touch()
    if not (folder / "models" / "made").exists():
        subprocess.run([str(python), __file__, str(folder)], check=True)


def _photos(folder: Path, images: int) -> None:
    """Makes folders of whole files: `photos/train/CLASS`, `photos/val/CLASS`, `pets/CLASS_1.jpg`, and other names."""
    made = folder / f"made-photos-{images}"
    script = ROOT / "examples" / "make_photos.py"
    subprocess.run([sys.executable, str(script), "--data", str(made), "--images", str(images)], check=True)
    with closing(sqlite3.connect(made / "samples.sqlite")) as table:
        rows = table.execute("SELECT file_path, split_tag FROM samples WHERE is_verified = 1").fetchall()
    (folder / "pets").mkdir(exist_ok=True)
    berkeley = folder / "beside" / "dataset" / "BSDS300" / "images"
    for split in ("train", "test"):
        (berkeley / split).mkdir(parents=True, exist_ok=True)
    for number, (path, split) in enumerate(rows):
        place = folder / "photos" / split / path
        place.parent.mkdir(parents=True, exist_ok=True)
        _linked(made / path, place)
        if number < 80:
            _linked(made / path, folder / "pets" / f"{place.parent.name}_{number}.jpg")
            _linked(made / path, berkeley / ("train" if number % 8 else "test") / f"{number}.jpg")
    for name in ("imagenette2-320", "imagewoof2-320"):
        place = folder / "fastai" / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(folder / "photos")


def _linked(source: Path, place: Path) -> None:
    place.unlink(missing_ok=True)
    place.hardlink_to(source)


def _mnist(folder: Path, images: int) -> None:
    """Makes MNIST's four files, as torchvision's class keeps them, of other sizes than MNIST's."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    draws = np.random.default_rng(0)
    raw = folder / "datasets" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", DIGITS_TRAIN), ("t10k", DIGITS_TEST)):
        which = draws.integers(0, len(digits.target), number)
        pixels = np.zeros((number, 28, 28), np.uint8)
        pixels[:, 2:26, 2:26] = (digits.images[which] * 15).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
        for kind, values, magic in (("images-idx3", pixels, 2051), ("labels-idx1", digits.target[which], 2049)):
            data = struct.pack(f">{1 + values.ndim}i", magic, *values.shape) + values.astype(np.uint8).tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(data)
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data, 1))


def _graphs(folder: Path, images: int) -> None:
    """Makes MUTAG's files: rings with a tail, of which the label says whether they are long."""
    draws = np.random.default_rng(0)
    raw = folder / "datasets" / "TU" / "MUTAG" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    edges: list[str] = []
    owners: list[str] = []
    labels: list[str] = []
    for graph in range(1, 189):
        nodes = int(draws.integers(8, 24))
        first = len(owners) + 1
        ends = [(first + node, first + (node + 1) % (nodes - 2)) for node in range(nodes - 2)]
        ends += [(first, first + nodes - 2), (first + nodes - 2, first + nodes - 1)]
        edges += [f"{one}, {other}" for pair in ends for one, other in (pair, pair[::-1])]
        owners += [str(graph)] * nodes
        labels.append("1" if nodes + draws.integers(-3, 4) > 15 else "-1")
    kinds = {
        "A": edges,
        "graph_indicator": owners,
        "graph_labels": labels,
        "node_labels": [str(kind) for kind in draws.integers(0, 7, len(owners))],
        "edge_labels": [str(kind) for kind in draws.integers(0, 4, len(edges))],
    }
    for kind, lines in kinds.items():
        (raw / f"MUTAG_{kind}.txt").write_text("\n".join(lines) + "\n")


def _text(folder: Path, images: int) -> None:
    """Makes the three files of wikitext-2, of the words of this repository's pages."""
    words = " ".join(page.read_text() for page in sorted((ROOT / "docs" / "guides").glob("*.md"))).split()
    (folder / "wikitext-2").mkdir(exist_ok=True)
    for name, part in (("train", words[:20_000]), ("valid", words[20_000:22_000]), ("test", words[22_000:24_000])):
        lines = [" ".join(part[start : start + 20]) for start in range(0, len(part), 20)]
        (folder / "wikitext-2" / f"{name}.txt").write_text("\n".join(lines) + "\n")


def models(folder: Path) -> None:
    """Makes small transformers, timm's resnet50d where the hub's client looks for it, and graphs as they are read."""
    import timm
    import torch
    from safetensors.torch import save_file
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    published_beside.bert(folder / "beside")
    if importlib.util.find_spec("torch_geometric"):
        from torch_geometric.datasets import TUDataset

        TUDataset(str(folder / "datasets" / "TU"), "MUTAG")
    torch.manual_seed(0)
    vit = folder / "models" / "vit"
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, patch_size=32, image_size=224
    )
    ViTForImageClassification(config).save_pretrained(vit)
    ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(vit)

    model = timm.create_model("resnet50d", pretrained=False)
    hub_id = model.default_cfg["hf_hub_id"]
    place = folder / "hub" / "hub" / f"models--{hub_id.replace('/', '--')}"
    snapshot = place / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True, exist_ok=True)
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text("0" * 40)
    save_file(model.state_dict(), snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps({"architecture": "resnet50d"}))
    (folder / "models" / "made").touch()


if __name__ == "__main__":
    models(Path(sys.argv[1]))
