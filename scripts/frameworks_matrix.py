"""Runs small trainings of frameworks without and with `stoker.install()`, and writes `docs/frameworks-matrix.md`.

    python scripts/frameworks_matrix.py build/full             # makes environments there; `make full` does this
    python scripts/frameworks_matrix.py build/full lightning   # some of them, on the page as well

Each framework has an environment of its own on top of this interpreter's, so that none chooses a torch for another.
`--no-deps` stands where a package would bring another torch. One that cannot be installed or run is listed as such.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LOOPS = ROOT / "tests" / "integrations" / "framework_loops.py"
PAGE = ROOT / "docs" / "frameworks-matrix.md"
SAMPLES = 24
LONGEST = 900  # seconds, for an installation or a loop


class Framework(NamedTuple):
    """A row of the matrix.

    Attributes:
        title: as on the page.
        packages: installed with what they depend on.
        alone: installed without.
    """

    title: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


FRAMEWORKS = {
    "plain": Framework("a plain script"),
    "lightning": Framework("Lightning, `Trainer`", ("lightning",)),
    "fabric": Framework("Lightning, Fabric", ("lightning",)),
    "accelerate": Framework("Accelerate, stateful", ("accelerate",), ("torchdata",)),
    "transformers": Framework("transformers, `Trainer`", ("transformers", "accelerate")),
    "ignite": Framework("Ignite", ("pytorch-ignite",)),
    "skorch": Framework("skorch", ("skorch",)),
    "torchdata": Framework("torchdata, `StatefulDataLoader`", ("requests", "urllib3"), ("torchdata",)),
    "datasets": Framework("Hugging Face datasets", ("datasets",)),
    "geometric": Framework("PyTorch Geometric", ("torch-geometric",)),
    "monai": Framework("MONAI", (), ("monai",)),
    "fastai": Framework(
        "fastai",
        ("fastcore", "fastdownload", "fastprogress", "plum-dispatch<2.10", "scikit-learn", "pandas", "matplotlib"),
        ("fastai", "fasttransform"),
    ),
    "timm": Framework("timm, `create_loader`", ("huggingface_hub", "safetensors", "pyyaml"), ("timm", "torchvision")),
    "composer": Framework(
        "Composer",
        (
            "mosaicml-cli",
            "torchmetrics<1.7.5",
            "tqdm",
            "requests",
            "pyyaml",
            "psutil",
            "coolname",
            "tabulate",
            "py-cpuinfo",
            "importlib-metadata",
        ),
        ("mosaicml", "torch-optimizer", "pytorch-ranger", "torchvision"),
    ),
}


def main() -> None:
    folder, *wanted = sys.argv[1:]
    names = wanted or list(FRAMEWORKS)
    rows = [(name, found_in(Path(folder), name)) for name in names]
    text = page(rows)
    if not wanted:
        PAGE.write_text(text)
    print(text)
    failed = [name for name, result in rows if not result.get("absent") and not is_right(result)]
    if failed:
        raise SystemExit(f"not as it should be: {', '.join(failed)}")


def found_in(folder: Path, name: str) -> dict[str, Any]:
    """Returns what a framework's loop says, or why it did not run."""
    python = environment(folder / name, FRAMEWORKS[name])
    if isinstance(python, str):
        return {"absent": python}
    run = _run([str(python), "-W", "ignore", str(LOOPS), name])
    if run.returncode:
        print(run.stderr, file=sys.stderr)
        lines = run.stderr.strip().splitlines()
        return {"absent" if "ModuleNotFoundError" in run.stderr else "error": lines[-1]}
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def environment(folder: Path, framework: Framework) -> Path | str:
    """Returns the interpreter of an environment that sees this one's packages, or why it cannot be made."""
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        made = _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        if made.returncode:
            return made.stderr.strip()
        paths = [path for path in sys.path if path.endswith("site-packages")] + [str(ROOT / "src")]
        (site,) = (folder / "lib").glob("python*/site-packages")
        (site / "outer.pth").write_text("\n".join(paths) + "\n")
        for packages, more in ((framework.packages, ()), (framework.alone, ("--no-deps",))):
            if packages:
                pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *more, *packages]
                if _run(pip).returncode:
                    return "not to be installed here"
        (folder / "made").touch()
    return python


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST)


def is_right(result: dict[str, Any]) -> bool:
    return "error" not in result and all(cell in ("yes", "—") for cell in cells(result)[2:5])


def cells(result: dict[str, Any]) -> list[str]:
    """Returns a row of the page without its title: versions, and an answer for each column."""
    if why := result.get("absent") or result.get("error"):
        word = "did not run" if "absent" in result else "failed"
        return ["—", "—", f"{word}: {why[:90]}", "—", "—", "—", "—"]
    torchs, ours = result["torch"], result["stoker"]
    epochs = [ours["samples"][start : start + SAMPLES] for start in range(0, len(ours["samples"]), SAMPLES)]
    torch, *own = result["versions"].values()
    return [
        own[0] if own else "—",
        torch,
        _said(ours["samples"] == torchs["samples"]),
        _said(all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)),
        _said(ours["engines"] == [1] and torchs["engines"] == [0]),
        _resumed(torchs["interrupted"]),
        _resumed(ours["interrupted"]),
    ]


def _said(is_so: bool) -> str:
    return "yes" if is_so else "**no**"


def _resumed(interrupted: list[list[int]] | None) -> str:
    if interrupted is None:
        return "—"
    first, rest = map(set, interrupted)
    repeated, lost = len(first & rest), SAMPLES - len(first | rest)
    return f"repeats {repeated}, loses {lost} of {SAMPLES}" if repeated or lost else "exact"


def page(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns the page."""
    today = datetime.now(UTC).date()
    lines = [
        "# Frameworks under `install()`: what was run",
        "",
        f"Written by `make full` on {today}, Python {platform.python_version()}, {platform.system()}. The same small",
        "training, without and with `stoker.install()`: two epochs of 24 samples, shuffled, two workers. The samples",
        "themselves ask for the engine that makes them. *Resume* is by the framework's own checkpoint after 3 of 6",
        'batches; "—" if it has none in the middle of an epoch, or if that is not tried here. torchvision\'s compiled',
        "operators, which do not load beside a CPU torch, are declared from outside for those that import it.",
        "Composer asks for an older torch, and gets this one.",
        "",
        "| framework | version | torch | order as torch's | each sample once | served by Stoker | resume, torch | "
        "resume, installed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join([FRAMEWORKS[name].title, *cells(result)]) + " |" for name, result in rows]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
