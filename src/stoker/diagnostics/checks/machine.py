"""Checks of the machine or container, of its GPUs (by NVML), and of installed packages and their settings."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import multiprocessing
import os
import select
import sys
from collections.abc import Iterator

from stoker._core import native
from stoker._core.machine import cpus, reserve, timer
from stoker._core.machine import memory as machine_memory
from stoker._core.machine.gpu_activity import GpuReading, Nvml
from stoker.diagnostics.checks.finding import Finding

SMALL_SHM = 1 << 30
"""Bytes of `/dev/shm` below which the batches of torch's loader may not fit."""

FEW_DESCRIPTORS = 4096
LITTLE = 0.1
"""Share of the memory limit that should be free."""


def cpu() -> Iterator[Finding]:
    """Yields the CPUs that this process may use, by machine, affinity and cgroups."""
    usable, all_of_them = cpus.cpus(), os.cpu_count() or 1
    what = f"{usable.number} CPUs ({usable.source})"
    if usable.number == all_of_them:
        yield Finding("CPUs", "fine", what)
        return
    yield Finding(
        "CPUs",
        "advice",
        f"{what}; the machine has {all_of_them}, and os.cpu_count() says so",
        "Workers and threads that are counted by os.cpu_count() share the fewer CPUs and slow each other down.",
        f"num_workers={usable.number} at most (stoker.DataLoader: num_workers='auto'), OMP_NUM_THREADS={usable.number}",
    )


def memory() -> Iterator[Finding]:
    """Yields the memory that is left, by machine and cgroups."""
    free = machine_memory.available()
    what = f"{free.bytes / 2**30:.1f} GiB free of {free.limit / 2**30:.1f} GiB ({free.source})"
    if free.bytes >= LITTLE * free.limit:
        yield Finding("memory", "fine", what)
        return
    yield Finding(
        "memory",
        "problem",
        what,
        "The kernel ends a process when the limit is passed, and a worker is often the first (signal 9).",
        "End other programs, raise the container's limit, or pass fewer workers or a smaller batch_size.",
    )


def shared_memory() -> Iterator[Finding]:
    """Yields the size of `/dev/shm`, through which torch's loader sends batches."""
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        size, free = 0, 0
    else:
        size, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    what = f"{free / 2**20:,.0f} MiB free of {size / 2**20:,.0f} MiB" if size else "there is none"
    if free >= SMALL_SHM:
        yield Finding("/dev/shm", "fine", what)
        return
    yield Finding(
        "/dev/shm",
        "advice",
        what,
        "The workers of torch's DataLoader send num_workers x prefetch_factor batches through it; a batch that does "
        "not fit is a bus error. Stoker's batches do not use it.",
        "docker run --shm-size=8g (Kubernetes: an emptyDir of medium Memory), or from stoker import DataLoader",
    )


def system_calls() -> Iterator[Finding]:
    """Yields the system calls that Stoker replaces, because a filter (seccomp) denies them."""
    calls = {"timerfd_create": timer.works(), "epoll_create1": _has_epoll()}
    denied = [name for name, works in calls.items() if not works]
    file = reserve.replaced_by()
    if file is None and not denied:
        yield Finding("system calls", "fine", "files in memory, timers and epoll are there")
        return
    what = ([f"batches lie in {file}"] if file else []) + ([f"{' and '.join(denied)}: denied"] if denied else [])
    yield Finding(
        "system calls",
        "advice" if file else "fine",
        "; ".join(what),
        "The system may write batches to the disk, and a full disk is a MemoryLimitError." if file else "",
        "Allow memfd_create in the container's seccomp profile, or set TMPDIR to a folder in memory" if file else "",
    )


def _has_epoll() -> bool:
    if hasattr(select, "epoll"):  # Linux
        try:
            select.epoll().close()
        except OSError:
            return False
    return True


def descriptors() -> Iterator[Finding]:
    """Yields the limit on open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_DESCRIPTORS:
        yield Finding("open files", "fine", f"up to {'any number' if soft == resource.RLIM_INFINITY else f'{soft:,}'}")
        return
    can = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    yield Finding(
        "open files",
        "advice",
        f"up to {soft:,} in a process ({can} if it asks)",
        "torch's loader holds a descriptor for each tensor that is kept from a worker's batch ('Too many open files', "
        "'received 0 items of ancdata'). Stoker's batches need none.",
        f"ulimit -n {min(65536, hard) if hard != resource.RLIM_INFINITY else 65536}, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    )


def utilisation() -> Iterator[Finding]:
    """Yields each GPU's utilisation and memory at this moment; nothing where there is no driver."""
    nvml = Nvml.opened()
    if nvml is None:
        return
    if nvml.code:
        yield Finding(
            "GPUs",
            "problem",
            f"NVML, the library of the NVIDIA driver, does not start (code {nvml.code})",
            "No program can use the GPUs.",
            "nvidia-smi says why; in a container: docker run --gpus all",
        )
        return
    try:
        for number, reading in enumerate(nvml.readings()):
            yield Finding(f"GPU {number}", "fine", _described(reading))
    finally:
        nvml.close()


def _described(gpu: GpuReading) -> str:
    parts = [gpu.name]
    if gpu.busy is not None:
        parts.append(f"busy {gpu.busy:.0%} of the last moment")
    if gpu.free is not None and gpu.total is not None:
        parts.append(f"{gpu.free / 2**30:.1f} GiB free of {gpu.total / 2**30:.1f} GiB")
    return ", ".join(parts)


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
