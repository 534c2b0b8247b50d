"""Checks of what is installed and how it is set: start method, packages, CUDA, threads, seeds."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator

from stoker._core import native
from stoker._core.machine import cpus
from stoker.diagnostics.checks.finding import Finding

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit the threads of NumPy's and other libraries' arithmetic."""


def start_method() -> Iterator[Finding]:
    """Yields how multiprocessing starts workers here."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method == "fork":
        yield Finding(
            "start method",
            "fine",
            "fork: workers share the dataset's memory, start in milliseconds, and keep locks and threads of the parent "
            "as they were",
        )
        return
    yield Finding(
        "start method",
        "advice",
        f"{method}: each worker is a new Python that imports the script and unpickles the dataset",
        "A dataset that cannot be pickled fails, its memory is copied for each worker, and a script without "
        "`if __name__ == '__main__':` starts itself again.",
        "DataLoader(..., multiprocessing_context='fork') where no thread runs yet; persistent_workers=True",
    )


def packages() -> Iterator[Finding]:
    """Yields the versions of torch, NumPy and Pillow, and how Pillow decodes JPEG."""
    found = {name: _version(name) for name in ("torch", "numpy", "pillow")}
    what = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if not found["torch"]:
        yield Finding(
            "packages", "advice", f"{python}, {what}, no torch", "Batches are NumPy arrays.", "pip install torch"
        )
    else:
        yield Finding("packages", "fine", f"{python}, {what}")
    if found["pillow"]:
        from PIL import features

        if not features.check("libjpeg_turbo"):
            yield Finding(
                "Pillow",
                "advice",
                "Pillow decodes JPEG without libjpeg-turbo",
                "JPEG files take about twice as long.",
                "pip install --force-reinstall --only-binary :all: pillow",
            )


def compiled_part() -> Iterator[Finding]:
    """Yields whether Stoker's compiled part is active."""
    if native.functions is not None:
        yield Finding("compiled part", "fine", "Stoker's compiled part is active")
        return
    yield Finding(
        "compiled part",
        "advice",
        f"Stoker's compiled part is not active ({native.why})",
        "Large batches take up to twice as long, shuffled orders three times; they are the same.",
        "Install a C compiler (Debian: apt install gcc libc6-dev), then install Stoker again.",
    )


def cuda() -> Iterator[Finding]:
    """Yields whether torch can use a GPU, and page-locked memory. Imports torch."""
    if not _version("torch"):
        return
    import torch

    devices = glob.glob("/dev/nvidia[0-9]*")
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
        what = f"{torch.cuda.device_count()} GPUs ({', '.join(sorted(names))}); pin_memory=True works"
        yield Finding("CUDA", "fine", what)
    elif devices:
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built for CPUs alone"
        yield Finding(
            "CUDA",
            "problem",
            f"there are {len(devices)} NVIDIA devices, and torch cannot use them: torch {torch.__version__} {built}",
            "Training runs on the CPU, and competes with the workers for it.",
            "nvidia-smi shows whether the driver answers; pytorch.org/get-started has the command for its CUDA version",
        )
    else:
        yield Finding("CUDA", "fine", "no GPU: pin_memory=True would have no effect")


def threads() -> Iterator[Finding]:
    """Yields the threads that libraries start in each worker."""
    number = cpus.cpus().number
    if importlib.util.find_spec("cv2") is not None:
        import cv2  # type: ignore[import-not-found,unused-ignore]

        if (count := cv2.getNumThreads()) > 1:
            yield Finding(
                "OpenCV",
                "advice",
                f"cv2 uses {count} threads, in each worker",
                "With several workers these compete for the CPUs; forked workers may hang in them.",
                "cv2.setNumThreads(0), at the top of the dataset's module",
            )
    limits = {name: os.environ[name] for name in THREADS if os.environ.get(name)}
    if limits or number == 1:
        what = ", ".join(f"{name}={value}" for name, value in limits.items()) or "one CPU, one thread"
        yield Finding("threads", "fine", f"{what}; torch itself uses one thread in a worker")
        return
    yield Finding(
        "threads",
        "advice",
        f"none of {', '.join(THREADS)} is set: NumPy's arithmetic takes up to {number} threads in each worker",
        "Samples made by matrix products or decompositions then run workers x threads at once. torch itself uses one "
        "thread in a worker.",
        "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python train.py, if samples do such arithmetic",
    )


def hash_seed() -> Iterator[Finding]:
    """Yields whether the order of sets of texts repeats."""
    value = os.environ.get("PYTHONHASHSEED")
    if value not in (None, "", "random"):
        yield Finding("seeds", "fine", f"PYTHONHASHSEED={value}: the order of sets repeats")
        return
    yield Finding(
        "seeds",
        "advice",
        "PYTHONHASHSEED is not set: the order of a set of texts differs from run to run",
        "A dataset that lists classes or files from a set gives each run other labels or another order.",
        "sorted(...) around each set of texts, or PYTHONHASHSEED=0 python train.py",
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
