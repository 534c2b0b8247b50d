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
        *_conditions(known),
        "",
        "- **Printed alike**: the numbers that the script itself prints (losses, accuracies), compared one by one.",
        "  Where samples draw random numbers in workers, those are Stoker's ([randomness](guides/randomness.md)), and",
        "  the numbers need not be equal. With no worker, and where samples draw none, they have to be.",
        "- **CPU per photograph**: CPU time in ms that the training set takes for a sample: reading, decoding,",
        "  transforms. Taken around the dataset's method, with no worker; other work on the machine is not in it.",
        "- **Loaded per second**: samples for each second that the script waited for its training loader, which is the",
        "  time of loading where there is no worker.",
        "",
        "| script | ran | printed alike | CPU per photograph, torch / Stoker | ratio "
        "| loaded per second, torch / Stoker | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in known.items():
        lines.append("| " + " | ".join([_title(name), *_cells(name, result)]) + " |")
    lines += ["", "## Not run", ""]
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
        return ["not run", *["—"] * 5]
    torchs, ours = result["torch"], result["stoker"]
    failed = [f"{engine}: {result[engine]['last'][:120]}" for engine in ("torch", "stoker") if result[engine]["code"]]
    if failed:
        return ["**failed** under " + "; ".join(failed), *["—"] * 5]
    if not ours["loaders"]:
        return ["yes; it makes no loader", _alike(name, torchs, ours), *["—"] * 4]
    clocks, rates = [one["cpu_per_sample"] for one in (torchs, ours)], [_rate(one) for one in (torchs, ours)]
    return [
        "yes",
        _alike(name, torchs, ours),
        f"{1000 * clocks[0]:.2f} / {1000 * clocks[1]:.2f}" if all(clocks) else "—",
        f"{clocks[0] / clocks[1]:.2f}" if all(clocks) else "—",
        f"{rates[0]:,.0f} / {rates[1]:,.0f}" if all(clocks) else "—",
        f"{rates[1] / rates[0]:.2f}" if all(clocks) else "—",
    ]


def _alike(name: str, torchs: dict[str, Any], ours: dict[str, Any]) -> str:
    one, other = torchs["printed"], ours["printed"]
    if one == other and one:
        return f"yes, all {len(one)}"
    why = SCRIPTS[name].unequal
    if not one and not other:
        return "prints none"
    return f"no: {why}" if why else "**no**"


def _rate(run: dict[str, Any]) -> float:
    """Returns samples for each second that the script waited for the loader that gave most of them."""
    loader = max(run["loaders"], key=lambda one: one["samples"])
    return float(loader["samples"] / loader["waited"]) if loader["waited"] else 0.0
