"""The first hour of three new users, as real runs from a clean environment: what it takes, in minutes and lines.

    python scripts/first_hour.py                  # all three
    python scripts/first_hour.py --walk text      # one of them: images, text, platform

*images*: pip, `stoker run` on a script with JPEG files, the changed import beside torch's loader. *text*: JSON Lines in
buckets on two ranks, kill -9, and the samples after it. *platform*: an object store, a small `/dev/shm`, secrets,
errors, the site and the table of mistakes. Each figure stands beside its goal; the exit code is 1 if one is missed. A
step that this machine cannot run (no root for the small `/dev/shm`, no moto) is named and is no failure.

The clean environment is a venv with nothing but Stoker, built from this checkout by pip. What this Python has besides
(torch, Pillow, typer) is on its path, as on a machine that has torch. Nothing is loaded from a network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from first_hour_programs import MISTAKE, PHOTOS, SMALL, STORE, TEXT

ROOT = Path(__file__).parents[1]
CHECKS = {"mistakes": "tests/loader/test_mistakes.py", "the site's links": "tests/docs/test_site.py"}
"""Tests of this checkout that are part of a walk."""


class Figure(NamedTuple):
    """A figure of a walk. `met` is None if the step was not run, and `value` says why."""

    walk: str
    what: str
    value: str
    goal: str
    met: bool | None


class CleanEnvironment:
    """A venv with Stoker from this checkout, and programs that run in it. Made at first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0

    @property
    def python(self) -> str:
        home = self.folder / "clean"
        if not home.exists():
            begun = time.perf_counter()
            venv.create(home, with_pip=True)
            python = str(home / "bin" / "python")
            site = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
            others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
            Path(site.decode().strip(), "machine.pth").write_text("\n".join(others) + "\n")
            pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
            subprocess.run([*pip, "--force-reinstall", str(ROOT)], check=True)
            self.seconds = time.perf_counter() - begun
        return str(home / "bin" / "python")

    def run(self, program: str, *arguments: str, name: str = "train.py", by: tuple[str, ...] = ()) -> tuple[int, str]:
        """Runs a program; returns its exit code and its output with its errors."""
        process = self.start(program, *arguments, name=name, by=by)
        said, _ = process.communicate(timeout=900)
        return process.returncode, said

    def start(
        self, program: str, *arguments: str, name: str = "train.py", by: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """Starts a program, `by` a command in place of Python."""
        python = self.python
        (self.folder / name).write_text(program)
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        return subprocess.Popen(
            [*(by or (python,)), name, *arguments],
            cwd=self.folder,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def images(clean: CleanEnvironment, options: argparse.Namespace) -> Iterator[Figure]:
    """A slow image script, and twenty minutes."""
    photos = clean.folder / "photos"
    make = "import sys; from pathlib import Path; from stoker.diagnostics.demo import make_pictures as make; "
    make += f"make(Path(sys.argv[1]), {options.photographs}, lambda *_: None)"
    subprocess.run([sys.executable, "-c", make, str(photos)], check=True)
    shown = (str(Path(clean.python).parent / "stoker"), "run")
    begun = time.perf_counter() - clean.seconds
    code, said = clean.run(PHOTOS.replace("{package}", "torch.utils.data"), str(photos), "1", by=shown)
    minutes = (time.perf_counter() - begun) / 60
    verdict = re.search(r"[\w-]+-bound|Too short", said)
    found = f"{minutes:.1f} min ({clean.seconds / 60:.1f} of pip): {verdict[0] if verdict else said[-300:]}"
    yield Figure("images", "pip to a first verdict", found, "3 min", code == 0 and bool(verdict) and minutes < 3)
    rates: dict[str, list[float]] = {"torch.utils.data": [], "stoker": []}
    for number in range(options.rounds):
        for package in [*rates][:: -1 if number % 2 else 1]:
            _, said = clean.run(PHOTOS.replace("{package}", package), str(photos), "2")
            rates[package].append(float(said.split("RATE")[1]))
    torchs, ours = rates.values()
    ratio = median(one / other for one, other in zip(ours, torchs, strict=True))  # of each round: the load changes
    found = f"{ratio:.2f} ({median(ours):,.0f} and {median(torchs):,.0f} images/s)"
    yield Figure("images", "import change, beside torch", found, "1.9", ratio >= 1.9)


def text(clean: CleanEnvironment, options: argparse.Namespace) -> Iterator[Figure]:
    """Texts, buckets, two ranks and a kill -9."""
    rows = [{"id": number, "text": "word " * (1 + number * 7 % 23)} for number in range(400)]
    (clean.folder / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def ranks(*arguments: str) -> list[tuple[int, dict[int, str]]]:
        both = [
            clean.start(TEXT, str(clean.folder), *arguments, name="program.py", RANK=str(rank), WORLD_SIZE="2")
            for rank in range(2)
        ]
        said = [process.communicate(timeout=900)[0] for process in both]
        steps = [dict(re.findall(r"^(\d+) (\[.*\])$", one, re.MULTILINE)) for one in said]
        if not all(steps):
            sys.stderr.write("".join(said))
        return [(process.returncode, found) for process, found in zip(both, steps, strict=True)]

    whole = ranks("60", "99", "new")
    killed = ranks("60", "30", "new")
    again = ranks("60", "99", "resume")
    sizes = f"{[len(found) for _, found in whole]} steps"
    yield Figure("text", "two ranks, buckets", sizes, "60 each", all(len(found) == 60 for _, found in whole))
    were = [code == -signal.SIGKILL and len(found) == 30 for code, found in killed]
    yield Figure("text", "killed by kill -9 at step 30", f"{sum(were)} of 2", "2", all(were))
    equal = sum(
        bool(after) and after == {step: ids for step, ids in first.items() if int(step) > 20}
        for (_, after), (_, first) in zip(again, whole, strict=True)
    )
    yield Figure("text", "steps 21 to 60 equal after it", f"{equal} of 2 ranks", "2", equal == 2)


def platform(clean: CleanEnvironment, options: argparse.Namespace) -> Iterator[Figure]:
    """An evaluation for a company."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        if _answers(server, port):
            code, said = clean.run(STORE, address, "a-secret-of-ours", name="program.py")
            ended = "100 samples" if code == 0 else said[-300:]
            yield Figure("platform", "S3 by moto, 2 workers", ended, "100 samples", code == 0)
            secrets = said.rpartition("SECRETS ")[2].strip()
            yield Figure("platform", "secrets in repr, state, report", secrets[:40], "0", secrets == "0")
        else:
            yield Figure("platform", "S3 by moto", "moto's server does not answer", "100 samples", None)
    finally:
        server.kill()
        server.wait()
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "
    if subprocess.run(["unshare", "-m", "sh", "-c", f"{mount} true"], capture_output=True).returncode:
        yield Figure("platform", "64 MB of /dev/shm", "needs root, and unshare", "6 batches", None)
    else:
        code, said = clean.run(
            SMALL, name="program.py", by=("unshare", "-m", "sh", "-c", f'{mount} {clean.python} "$0"')
        )
        yield Figure("platform", "64 MB of /dev/shm", said.strip()[-60:], "6 batches", said.strip() == "BATCHES 6")
    code, said = clean.run(MISTAKE, name="program.py")
    lines = len(said.strip().splitlines())
    yield Figure("platform", "a KeyError in a sample, 2 workers", f"{lines} lines", "20", code == 1 and lines <= 20)
    for what, path in CHECKS.items():
        if not (ROOT / path).exists():
            yield Figure("platform", what, f"no {path}", "passes", None)
            continue
        outcome = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", path], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        yield Figure("platform", what, outcome.stdout.strip().splitlines()[-1], "passes", outcome.returncode == 0)


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        except ConnectionRefusedError:
            time.sleep(0.1)
    return False


WALKS: dict[str, Callable[[CleanEnvironment, argparse.Namespace], Iterator[Figure]]] = {
    "images": images,
    "text": text,
    "platform": platform,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", choices=WALKS, action="append", help="one walk; may be given several times")
    parser.add_argument("--photographs", type=int, default=600, help="pictures of the demo, 500 x 375 (default 600)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each image program, by turns (default 3)")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        clean = CleanEnvironment(Path(folder))
        for name in options.walk or WALKS:
            for figure in WALKS[name](clean, options):
                figures.append(figure)
                mark = {True: "yes", False: "MISSED", None: "not run"}[figure.met]
                print(f"{figure.walk:<9} {figure.what:<34} {mark:<8} goal {figure.goal:<12} {figure.value}", flush=True)
    missed = sum(figure.met is False for figure in figures)
    print(f"{missed} of {len(figures)} goals missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
