"""Runs training scripts that others have published, under torch's loader and under Stoker's, and writes the page.

    python scripts/published_scripts.py REPOSITORIES WORK              # all of `published_list.py`; no network
    python scripts/published_scripts.py REPOSITORIES WORK imagenet     # some of them, the others as they were
    python scripts/published_scripts.py REPOSITORIES WORK --page       # only the page, from the results there are

REPOSITORIES holds checkouts, as pytorch/examples in `examples/`; a file `REVISION` in one, or its git, says which. The
interpreter is that of an environment in WORK, which is made on top of this one, or `--python`. Each script runs twice,
in copies of its folder: `stoker run SCRIPT` and `stoker run --engine stoker SCRIPT`; with `--together` at once, so that
other work on the machine slows both alike. `--plain` adds `python SCRIPT`, without Stoker. The page is
`benchmarks/results/published-scripts.md`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import published_data
from frameworks_matrix import FRAMEWORKS, Framework, environment
from published_list import SCRIPTS, Script
from published_page import page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "published-scripts.md"
ENGINES = ("torch", "stoker")
PACKAGES = ["torch", "torchvision", "pillow", "timm", "transformers", "accelerate", "lightning", "datasets"]
PACKAGES += ["torchdata", "fastai", "torch-geometric"]
LONGEST = 1800  # seconds, for a run
NEEDED = Framework(
    "published scripts",
    (
        "huggingface_hub",
        "safetensors",
        "pyyaml",
        "transformers",
        "datasets",
        "evaluate",
        "accelerate",
        "lightning",
        "jsonargparse[signatures]",
        "scikit-learn",
        "six",
        *FRAMEWORKS["geometric"].packages,
        *FRAMEWORKS["fastai"].packages,
    ),
    ("timm", "torchvision", "torchdata", *FRAMEWORKS["fastai"].alone),
)


class Places(NamedTuple):
    """Where things are.

    Attributes:
        repositories: checkouts, a folder each.
        work: made data, copies of scripts, results.
        python: the interpreter of the scripts.
    """

    repositories: Path
    work: Path
    python: Path

    @property
    def data(self) -> Path:
        return self.work / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *SCRIPTS], help="all, if none is named")
    parser.add_argument("--python", type=Path, help="an interpreter that has what the scripts import")
    parser.add_argument("--images", type=int, default=190, help="photographs, of which 15 %% are to validate")
    parser.add_argument("--together", action="store_true", help="run a script under both engines at once")
    parser.add_argument("--plain", action="store_true", help="run it without Stoker as well")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    work = options.work.resolve()
    results = work / "results"
    results.mkdir(parents=True, exist_ok=True)
    if not options.page:
        python = options.python or environment(work / "environment", NEEDED)
        if isinstance(python, str):
            raise SystemExit(f"no environment for the scripts: {python}")
        places = Places(options.repositories.resolve(), work, python.absolute())
        os.environ["PYTHONPATH"] = str(places.data / "startup")
        published_data.make(places.data, options.images, places.python)
        for name in options.names or SCRIPTS:
            forms = (*ENGINES, *(["python"] if options.plain else []))
            result = run(name, SCRIPTS[name], places, forms, options.together)
            (results / f"{name}.json").write_text(json.dumps(result, indent=1))
            print(f"{name}: {result.get('absent') or {form: said(result[form]) for form in forms}}", flush=True)
    known = {name: json.loads(path.read_text()) for name in SCRIPTS if (path := results / f"{name}.json").exists()}
    PAGE.write_text(page(known))


def said(ran: dict[str, Any]) -> str:
    """Returns a run in a few words, for the terminal."""
    if ran["code"]:
        return f"failed: {ran['last']}"
    clock = f", {1000 * ran['cpu_per_sample']:.2f} ms of CPU a sample" if ran["cpu_per_sample"] else ""
    return f"{len(ran['printed'])} numbers, the last {ran['printed'][-1:]}{clock}"


def run(name: str, script: Script, places: Places, forms: tuple[str, ...], together: bool) -> dict[str, Any]:
    """Runs a script in each form: an engine's name, or "python".

    Returns:
        `revision` of the repository, `versions` of packages, and for each form what `run_once` returns; or `absent`,
        why it did not run.
    """
    source = places.repositories / script.repository
    if not (source / script.file).exists():
        return {"absent": f"no {script.repository}/{script.file} among the checkouts"}
    once = partial(run_once, name, script, places)
    if together:
        with ThreadPoolExecutor(len(forms)) as pool:
            runs = list(pool.map(once, forms))
    else:
        runs = [once(form) for form in forms]
    revision, versions = revision_of(source), versions_of(places.python)
    return {"revision": revision, "versions": versions, "together": together, **dict(zip(forms, runs, strict=True))}


def run_once(name: str, script: Script, places: Places, engine: str) -> dict[str, Any]:
    """Runs a script in a copy of its folder, and once more there if it is to be continued.

    Returns:
        `code`, the `last` line of its output, the numbers `printed`, digests of the files `saved`, `cpu_per_sample` in
        seconds or None, and `loaders` of `stoker run --json`.
    """
    folder = places.work / "runs" / name / engine
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    clocks = folder / "clocks"
    clocks.mkdir()
    here = copy_of(script, places, folder)
    words = {"data": str(places.data), "out": str(out)}
    variables = os.environ | {key: value.format(**words) for key, value in script.environment}
    variables |= {"OMP_NUM_THREADS": "1", "COLUMNS": "500"}
    variables |= {"PUBLISHED_SCRIPTS_SEED": "0"} if script.seeded else {}
    variables |= {"PUBLISHED_SCRIPTS_FETCH": script.fetch, "PUBLISHED_SCRIPTS_CPU": str(clocks)}
    result: dict[str, Any] = {"code": 0, "last": "", "printed": [], "loaders": []}
    for number, all_arguments in enumerate(filter(None, (script.arguments, script.again))):
        command = [*script.launcher.split(), here.name, *(word.format(**words) for word in all_arguments.split())]
        if engine != "python":
            command = ["-m", "stoker", "run", "--json", "--engine", engine, *command]
        try:
            ran = subprocess.run(
                [str(places.python), *command],
                cwd=here.parent,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            result |= {"code": 1, "last": f"no end after {LONGEST} s"}
            break
        (folder / f"stdout{number or ''}").write_text(ran.stdout)
        (folder / f"stderr{number or ''}").write_text(ran.stderr)
        text = ran.stderr if engine != "python" else ran.stdout + ran.stderr
        lines = [line for line in text.strip().splitlines() if line.strip()] or [""]
        result |= {"code": ran.returncode, "last": lines[-1][:200]}
        result["printed"] += ["/".join(found.groups()) for found in re.finditer(script.printed, text)]
        if engine != "python" and ran.stdout.startswith("{"):
            result["loaders"] += json.loads(ran.stdout)["loaders"]
        if ran.returncode:
            break
    saved = sorted(out.glob(script.saved)) if script.saved else []
    digests = [f"{path.relative_to(out)}: {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in saved]
    return result | {"saved": digests, "cpu_per_sample": cpu_per_sample(clocks)}


def cpu_per_sample(clocks: Path) -> float | None:
    """Returns the median of what processes noted about the larger set, without the first fifth; seconds, or None."""
    taken: dict[int, list[float]] = {}
    for file in sorted(clocks.iterdir()):
        mine: dict[int, list[float]] = {}
        for line in file.read_text().splitlines():
            length, seconds, samples = line.split()
            mine.setdefault(int(length), []).append(float(seconds) / int(samples))
        for number, all_seconds in mine.items():
            taken.setdefault(number, []).extend(all_seconds[len(all_seconds) // 5 :])
    return median(taken[max(taken)]) if taken else None


def copy_of(script: Script, places: Places, folder: Path) -> Path:
    """Copies a script with the files beside it, and links made data to where it looks; returns the copy."""
    source = places.repositories / script.repository / script.file
    here = folder / "copy" / script.file
    left_out = shutil.ignore_patterns(".git", "Datasets", "__pycache__")
    shutil.copytree(source.parent, here.parent, ignore=left_out)
    (here.parent / "results").mkdir(exist_ok=True)
    copy = folder / "copy"
    places_of_data = (
        here.parent / "data",
        here.parent.parent / "data",
        copy / "examples" / "Datasets",
        copy / "Datasets",
    )
    for place in places_of_data:
        if place.parent.exists() and not place.exists():
            place.symlink_to(places.data / "datasets")
    for made in (places.data / "beside").iterdir():
        if not (here.parent / made.name).exists():
            (here.parent / made.name).symlink_to(made)
    return here


def versions_of(python: Path) -> dict[str, str]:
    """Returns the versions of the packages that matter, as an interpreter has them."""
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {PACKAGES}}}))"
    ran = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    versions: dict[str, str] = json.loads(ran.stdout or "{}")
    return versions


def revision_of(source: Path) -> str:
    """Returns the commit of a checkout, or an empty string."""
    if (source / "REVISION").exists():
        return (source / "REVISION").read_text().strip()
    found = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
