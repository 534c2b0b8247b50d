"""Writes the page about published scripts from the results of `published_scripts.py`."""

from __future__ import annotations

import platform
from typing import Any

from published_list import SCRIPTS

HOMES = {
    "examples": ("PyTorch's examples", "pytorch/examples"),
    "pytorch-image-models": ("timm", "huggingface/pytorch-image-models"),
    "vision": ("torchvision's references", "pytorch/vision"),
    "pytorch-lightning": ("Lightning", "Lightning-AI/pytorch-lightning"),
    "accelerate": ("Accelerate", "huggingface/accelerate"),
    "transformers": ("transformers", "huggingface/transformers"),
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
        "photographs of 500 x 375 pixels in class folders, digits in MNIST's files, a small text. The models are",
        "small, and training is on the CPU, for one epoch.",
        "",
        "torch is seeded from outside for a script that has no such argument. `torchvision::nms`, which does not load",
        "beside this torch, is declared from outside. Nothing else is changed in a script's surroundings.",
        "",
        *_conditions(known),
        "",
        "- **Printed alike**: the numbers that the script itself prints (losses, accuracies), compared one by one.",
        "  Where samples draw random numbers in workers, those are Stoker's ([randomness](guides/randomness.md)), and",
        "  the numbers need not be equal. With no worker, and where samples draw none, they have to be.",
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
        "A photograph costs less because Stoker's reader decodes only what the crop needs. Reading the file,",
        "`ToTensor` and `Normalize` cost the same under both.",
        "",
        "## Not run",
        "",
    ]
    lines += [f"- {_title(name)}: {result['absent']}." for name, result in known.items() if result.get("absent")]
    lines += [f"- {_title(name)}: not reached in this run." for name in SCRIPTS if name not in known]
    return "\n".join([*lines, ""])


def _title(name: str) -> str:
    script = SCRIPTS[name]
    return f"{HOMES[script.repository][0]}: {script.title}"


def _conditions(known: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines on versions, revisions and the machine."""
    versions = next((result["versions"] for result in known.values() if result.get("versions")), {})
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
        return f"yes, {len(one)} of {len(one)}"
    if SCRIPTS[name].launcher and sorted(one) == sorted(other) and one:
        return f"yes, {len(one)} of {len(one)}; the lines of the ranks mix in another order"
    why = SCRIPTS[name].unequal
    if not one and not other:
        return "the numbers looked for are not printed"
    same = sum(1 for left, right in zip(one, other, strict=False) if left == right)
    number = f"{same} of {max(len(one), len(other))}"
    return f"{number}: {why}" if why else f"**{number}**"


def _waited(run: dict[str, Any]) -> float:
    """Returns the share of its time that the loop over the loader of most samples waited."""
    return float(max(run["loaders"], key=lambda one: one["samples"])["waited_share"])
