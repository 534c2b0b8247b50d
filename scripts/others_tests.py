"""Runs data tests of Lightning, Fabric and Accelerate, unmodified, without and with `stoker.install()`.

    python scripts/others_tests.py REPOSITORIES WORK [--python PYTHON]
    python scripts/others_tests.py REPOSITORIES WORK --page    # only the page, from the results there are

REPOSITORIES holds checkouts: `pytorch-lightning/` and `accelerate/`; a file `REVISION` in one, or its git, says which.
Their packages are imported from there; what they need lies in an environment in WORK, which is made on top of this
interpreter's, or in that of `--python`. The page is `benchmarks/results/others-tests.md`. A test that fails only with
`install()` and has no reason in `REASONS` ends this with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from frameworks_matrix import Framework, environment
from published_scripts import revision_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "others-tests.md"
PLUGIN = "others_tests_plugin"
LONGEST = 3600  # seconds, for a suite
PACKAGES = ("torch", "torchdata", "datasets", "pytest", "numpy", "torchmetrics", "lightning-utilities")
NEEDED = Framework(
    "others' tests",
    (
        *("lightning", "cloudpickle", "psutil", "tensorboardX", "jsonargparse[signatures]", "hydra-core", "rich"),
        *("scikit-learn", "pandas", "datasets", "huggingface_hub", "safetensors", "pyyaml", "parameterized"),
        *("pytest", "pytest-timeout", "pytest-random-order", "pytest-rerunfailures"),
    ),
    ("torchdata",),
)


class Suite(NamedTuple):
    """Tests of a repository.

    Attributes:
        title: as on the page.
        repository: the folder of the checkout.
        folder: in it, from which pytest is called.
        files: test files and folders, from there.
        left_out: files below them that are not run, and why.
    """

    title: str
    repository: str
    folder: str
    files: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()


SUITES = (
    Suite(
        "Lightning",
        "pytorch-lightning",
        "tests",
        tuple(
            f"tests_pytorch/{file}"
            for file in (
                "trainer/connectors/test_data_connector.py",
                "trainer/test_dataloaders.py",
                "utilities/test_data.py",
                "utilities/test_combined_loader.py",
                "utilities/test_auto_restart.py",
                "core/test_datamodules.py",
                "callbacks/test_prediction_writer.py",
                "loops",
                "overrides",
                "checkpointing",
            )
        ),
        (("tests_pytorch/checkpointing/test_legacy_checkpoints.py", "it needs checkpoints from the network"),),
    ),
    Suite(
        "Fabric",
        "pytorch-lightning",
        "tests",
        tuple(
            f"tests_fabric/{file}"
            for file in (
                "test_fabric.py",
                "test_wrappers.py",
                "utilities/test_data.py",
                "utilities/test_distributed.py",
                "utilities/test_seed.py",
            )
        ),
    ),
    Suite("Accelerate", "accelerate", "tests", ("test_data_loader.py",)),
)

WHOLE = (
    "it asks that the whole state of the loops is equal in two runs. With `install()` it has the loader's state in it, "
    "and that has the seed of the epoch, which is drawn from torch's generator, as torch's loader draws it, and the "
    "test seeds no run{}"
)
WEIGHTS = ". Losses and weights are equal"
EPOCHS = "; it also counts the loader's epochs, of which a resumed Trainer begins others. The batches are equal"
REASONS = {
    "test_loops.py::test_restart_parity": WHOLE.format(WEIGHTS),
    "test_loops.py::test_restart_with_val_parity": WHOLE.format(WEIGHTS),
    "test_loops.py::test_restart_from_last_parity": WHOLE.format(EPOCHS),
    "test_loops.py::test_restart_from_last_with_val_parity": WHOLE.format(EPOCHS),
}
"""Why tests fail with `install()` only, by the end of their name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--python", type=Path, help="an interpreter that has what the tests import")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    work, repositories = options.work.resolve(), options.repositories.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = options.python or environment(work / "environment", NEEDED)
    if isinstance(python, str):
        raise SystemExit(f"no environment for the tests: {python}")
    found = {suite.title: both(suite, repositories, work, python.absolute(), options.page) for suite in SUITES}
    revisions = {suite.repository: revision_of(repositories / suite.repository)[:10] for suite in SUITES}
    PAGE.write_text(page(found, versions(python.absolute()), revisions))
    print(PAGE.read_text())
    unknown = [name for runs in found.values() for name in only_installed(*runs) if reason(name) is None]
    if unknown:
        raise SystemExit("failed with install() only, and nobody knows why:\n" + "\n".join(unknown))


def both(suite: Suite, repositories: Path, work: Path, python: Path, known: bool) -> list[dict[str, Any]]:
    """Returns the results of a suite without and with `install()`, which run at the same time; or those there are."""
    if known:
        return [json.loads((work / f"{suite.title.lower()}-{installed}.json").read_text()) for installed in "01"]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda installed: run(suite, repositories, work, python, installed), ("0", "1")))


def run(suite: Suite, repositories: Path, work: Path, python: Path, installed: str) -> dict[str, Any]:
    """Runs a suite once, and returns what the plugin found.

    Raises:
        SystemExit: pytest did not come to its end.
    """
    name = f"{suite.title.lower()}-{installed}"
    file = work / f"{name}.json"
    file.unlink(missing_ok=True)
    here = repositories / suite.repository
    paths = [here / "src", here / suite.folder, ROOT / "src", ROOT / "scripts"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    variables |= {"OTHERS_TESTS_RESULTS": str(file), "OTHERS_TESTS_INSTALL": installed}
    command = [str(python), "-m", "pytest", "-p", PLUGIN, "-q", "--color=no", "-p", "no:cacheprovider"]
    command += ["--timeout=300", f"--basetemp={work / name}", *suite.files]
    command += [f"--ignore={left}" for left, _ in suite.left_out]
    with (work / f"{name}.log").open("w") as log:
        subprocess.run(
            command,
            cwd=here / suite.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LONGEST,
        )
    if not file.exists():
        raise SystemExit(f"{suite.title}: pytest did not end; see {work / name}.log")
    results: dict[str, Any] = json.loads(file.read_text())
    return results


def only_installed(plain: dict[str, Any], installed: dict[str, Any]) -> list[str]:
    """Returns the tests that pass without `install()` and do not with it."""
    passed = [name for name, result in plain.items() if result["outcome"] == "passed"]
    return [name for name in passed if installed.get(name, {"outcome": "lost"})["outcome"] != "passed"]


def reason(name: str) -> str | None:
    return next((why for end, why in REASONS.items() if name.endswith(end)), None)


def versions(python: Path) -> str:
    """Returns the versions of what matters besides the checkouts, as an interpreter has them."""
    code = f"import importlib.metadata as m; print(', '.join(f'{{n}} {{m.version(n)}}' for n in {PACKAGES}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def page(found: dict[str, list[dict[str, Any]]], of_packages: str, revisions: dict[str, str]) -> str:
    """Returns the page."""
    left_out = {file: why for suite in SUITES for file, why in suite.left_out}
    python = ".".join(map(str, sys.version_info[:3]))
    commits = ", ".join(f"{name} `{revision}`" for name, revision in revisions.items())
    lines = [
        "# Others' own tests under `install()`",
        "",
        "Data tests of Lightning, Fabric and Accelerate, unmodified, without Stoker and with `stoker.install()`, by",
        "`scripts/others_tests.py`. *Served*: iterators of Stoker's engine in these tests. Skipped are tests that ask",
        "for accelerators or packages that are not there, under both.",
        "",
        f"{commits}; Python {python}, {of_packages}.",
        "",
        "| tests | passed | passed, installed | skipped | served |",
        "|---|---|---|---|---|",
    ]
    for title, (plain, installed) in found.items():
        for file in sorted({name.partition("::")[0] for name in plain}):
            lines.append(f"| {title}: {_inside(file)} | {_row(file, plain, installed)} |")
        lines.append(f"| **{title}** | {_row('', plain, installed)} |")
    lines += ["", "## What fails with `install()` only", ""]
    of = {(title, name): reason(name) for title, runs in found.items() for name in only_installed(*runs)}
    lines += [f"- {title}, `{_inside(name)}`: {why or '**not known**'}." for (title, name), why in of.items()]
    lines += [] if of else ["Nothing."]
    failed = [(title, name) for title, (plain, _) in found.items() for name in _with(plain, "failed")]
    if failed:
        lines += ["", "## What fails without it as well", ""]
        lines += [f"- {title}, `{_inside(name)}`: {found[title][0][name]['why']}" for title, name in failed]
    lines += ["", "## Not run", "", *(f"- `{file}`: {why}." for file, why in left_out.items())]
    return "\n".join([*lines, ""])


def _with(results: dict[str, Any], outcome: str, file: str = "") -> list[str]:
    return [name for name, result in results.items() if result["outcome"] == outcome and name.startswith(file)]


def _row(file: str, plain: dict[str, Any], installed: dict[str, Any]) -> str:
    served = sum(result["served"] for name, result in installed.items() if name.startswith(file))
    counts = [len(_with(*each, file)) for each in ((plain, "passed"), (installed, "passed"), (plain, "skipped"))]
    return " | ".join(map(str, [*counts, served]))


def _inside(name: str) -> str:
    return name.removeprefix("tests/")


if __name__ == "__main__":
    sys.exit(main())
