"""Writes the page about published scripts from the results of `published_scripts.py`."""

from __future__ import annotations

import platform
from typing import Any

from published_list import NOT_FOR_CPU, SCRIPTS

HOMES = {
    "examples": ("PyTorch's examples", "pytorch/examples"),
    "pytorch-image-models": ("timm", "huggingface/pytorch-image-models"),
    "vision": ("torchvision's references", "pytorch/vision"),
    "pytorch-lightning": ("Lightning", "Lightning-AI/pytorch-lightning"),
    "accelerate": ("Accelerate", "huggingface/accelerate"),
    "transformers": ("transformers", "huggingface/transformers"),
    "fastai": ("fastai", "fastai/fastai"),
    "pytorch_geometric": ("PyTorch Geometric", "pyg-team/pytorch_geometric"),
}
"""By folder: a title, and the repository's name."""


def page(known: dict[str, dict[str, Any]]) -> str:
    """Returns the page.

    Args:
        known: by the script's name in `SCRIPTS`: what `published_scripts.run` returned.
    """
    lines = [
        "# Published scripts: what was run",
        "",
        "Training scripts that others have published, unmodified, under torch's loader (`stoker run SCRIPT`) and",
        "under Stoker's (`stoker run --engine stoker SCRIPT`), by `scripts/published_scripts.py`. The data are made:",
        "photographs of 500 x 375 pixels in class folders, digits in MNIST's files, a small text, pairs of sentences,",
        "graphs. The models are small, and training is on the CPU, for one epoch, or three of Accelerate's.",
        "",
        "What a script would get from the hub (a model, a table, a metric) lies under that name in its folder. torch",
        "and `random` are seeded from outside for a script that has no such argument. `torchvision::nms`, which does",
        "not load beside this torch, is declared from outside. Nothing else in a script's surroundings is changed.",
        "",
        *_conditions(known),
        "",
        "- **Printed alike**: the numbers that the script itself prints (losses, accuracies), compared one by one,",
        "  and, where it says so, the weights in the checkpoints that it saves.",
        "  Where samples draw random numbers in workers, those are Stoker's",
        "  ([randomness](../../docs/guides/randomness.md)), and the numbers need not be equal. With no worker,",
        "  and where samples draw none, they have to be.",
        "- **CPU for a sample**: CPU time in ms that the training set takes for one: reading, decoding, transforms;",
        "  the median, taken around the dataset's method. Time that other work on the machine takes is not in it.",
        "- **waited**: share of the loop's time, for the loader of most samples. Left out where both engines ran",
        "  at once.",
        "",
        "| script | ran | printed alike | CPU for a sample, torch / Stoker | ratio | waited, torch / Stoker |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in known.items():
        lines.append("| " + " | ".join([_title(name), *_cells(name, result)]) + " |")
    lines += [
        "",
        "A photograph costs less because Stoker's reader decodes only what the crop needs. Why the ImageNet scripts",
        "do not load twice as fast: `scripts/published_stages.py` takes the CPU time of each stage of their",
        "samples, on photographs of this set, two runs on a loaded machine. Decoding, cropping, resizing and",
        "flipping take 1.78 and 1.93 ms by Pillow, and 1.07 and 1.08 ms by Stoker, 1.66 and 1.79 times less.",
        "Opening the file, drawing the crop, `ToTensor` and `Normalize` take 0.7 to 0.9 ms under both: these are",
        "Python's, Pillow's and torchvision's. Together it is 1.37 and 1.49 times.",
        "",
        "Continued runs: after a state is loaded, torchdata draws a seed once more, and Stoker does not. So dropout",
        "draws other numbers in the continued run with `--use_stateful_dataloader`, from the same samples.",
        "",
        "## Not run",
        "",
    ]
    lines += [f"- {_title(name)}: {result['absent']}." for name, result in known.items() if result.get("absent")]
    lines += [f"- {_title(name)}: not reached in this run." for name in SCRIPTS if name not in known]
    lines += [f"- {title}: {why}." for title, why in NOT_FOR_CPU.items()]
    return "\n".join([*lines, ""])


def _title(name: str) -> str:
    script = SCRIPTS[name]
    return f"{HOMES[script.repository][0]}: {script.title}"


def _conditions(known: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines on versions, revisions and the machine."""
    versions = max((result.get("versions", {}) for result in known.values()), key=len, default={})
    revisions: dict[str, str] = {}
    for name, result in known.items():
        if result.get("revision"):
            revisions[HOMES[SCRIPTS[name].repository][1]] = result["revision"][:10]
    lines = [
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ".",
        "Revisions: " + ", ".join(f"{name} `{revision}`" for name, revision in revisions.items()) + ".",
    ]
    return lines


def _cells(name: str, result: dict[str, Any]) -> list[str]:
    """Returns a row without its title."""
    if result.get("absent"):
        return ["not run", *["—"] * 4]
    torchs, ours = result["torch"], result["stoker"]
    failed = [f"{engine}: {result[engine]['last'][:120]}" for engine in ("torch", "stoker") if result[engine]["code"]]
    if failed:
        why = SCRIPTS[name].outside
        return [f"fails under both: {why}" if why else "**failed** under " + "; ".join(failed), *["—"] * 4]
    if not ours["loaders"]:
        return ["yes; it makes no loader", _alike(name, torchs, ours), *["—"] * 3]
    clocks = [one["cpu_per_sample"] for one in (torchs, ours)]
    return [
        "yes",
        _alike(name, torchs, ours),
        f"{1000 * clocks[0]:.2f} / {1000 * clocks[1]:.2f} ms" if all(clocks) else "—",
        f"{clocks[0] / clocks[1]:.2f}" if all(clocks) else "—",
        "—" if result.get("together") else f"{_waited(torchs):.0%} / {_waited(ours):.0%}",
    ]


def _alike(name: str, torchs: dict[str, Any], ours: dict[str, Any]) -> str:
    one, other = torchs["printed"], ours["printed"]
    if one == other and one:
        return f"yes, {len(one)} of {len(one)}{_saved(torchs, ours)}"
    if SCRIPTS[name].launcher and sorted(one) == sorted(other) and one:
        return f"yes, {len(one)} of {len(one)}; the lines of the ranks mix in another order"
    why = SCRIPTS[name].unequal
    if not one and not other:
        return "the numbers looked for are not printed"
    same = sum(1 for left, right in zip(one, other, strict=False) if left == right)
    number = f"{same} of {max(len(one), len(other))}"
    return f"{number}: {why}" if why else f"**{number}**"


def _saved(torchs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Returns what is to say about the checkpoints of a first run, and of one that continued it."""
    if not ours.get("saved"):
        return ""
    both = [dict(line.split(": ") for line in one["saved"]) for one in (torchs, ours)]
    texts = []
    for what, is_again in (("checkpoints have equal weights", False), ("of the continued run", True)):
        names = [name for name in both[1] if name.startswith("again") is is_again]
        same = sum(1 for name in names if both[0].get(name) == both[1][name])
        texts += [f"{same} of {len(names)} {what}"] if names else []
    return "; " + ", ".join(texts)


def _waited(run: dict[str, Any]) -> float:
    """Returns the share of its time that the loop over the loader of most samples waited."""
    return float(max(run["loaders"], key=lambda one: one["samples"])["waited_share"])
