"""Checks of a dataset or a loader: cost of samples, objects that cannot be sent, copies, generators, file systems."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

from stoker._core.machine import cpus
from stoker._core.machine.cgroups import read
from stoker.diagnostics.checks.finding import Finding
from stoker.diagnostics.target import Target
from stoker.extend import find_generators, pickled_size
from stoker.loader import heap

SAMPLES = 8
"""Samples that are fetched."""

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "gpfs", "ceph", "beegfs", "virtiofs")
"""File systems on another machine, beside all of FUSE."""

MANY = 2_000
"""Objects of a dataset among which file names are looked for."""


def fetching(target: Target) -> Iterator[Finding]:
    """Yields the time and size of a sample, and the cost of handing it to another process by pickling."""
    dataset = target.dataset
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        count = None
    try:
        begun, thread = time.perf_counter(), time.thread_time()
        if hasattr(dataset, "__getitem__") and count is not None:
            number = min(SAMPLES, count)
            with asyncio.Runner() as runner:
                made = (dataset[place * count // number] for place in range(number))
                some = [runner.run(sample) if asyncio.iscoroutine(sample) else sample for sample in made]
        else:
            some = list(itertools.islice(iter(dataset), SAMPLES))
        took, cpu = time.perf_counter() - begun, time.thread_time() - thread
    except Exception as error:
        yield Finding(
            "samples",
            "problem",
            f"a sample cannot be fetched: {type(error).__name__}: {error}",
            "Training ends at this sample.",
            "Fetch it by hand: dataset[0]. stoker.DataLoader(on_error='skip') leaves bad samples out.",
        )
        return
    if not some:
        yield Finding(
            "samples", "problem", "the dataset is empty", "An epoch has no batch.", "Check the path of the data."
        )
        return
    each = took / len(some)
    yield Finding(
        "samples",
        "fine",
        ("" if count is None else f"{count:,} samples; ")
        + f"{1e3 * each:.3g} ms each, {cpu / took:.0%} of it on the CPU",
    )
    yield from _handed_over(some, each)
    if any(map(_holds_image, some)):
        yield Finding(
            "Pillow images",
            "advice",
            "samples hold Pillow images",
            "A worker pickles them one by one, and the default collation refuses them; arrays and tensors of a batch "
            "go through shared memory in one piece.",
            "Return arrays: numpy.asarray(image), or a transform that ends with ToTensor().",
        )


def _holds_image(sample: Any) -> bool:
    values = sample.values() if isinstance(sample, dict) else sample if isinstance(sample, list | tuple) else [sample]
    kinds = (kind for value in itertools.islice(values, 16) for kind in type(value).__mro__)
    return any(kind.__module__.startswith("PIL.") for kind in kinds)


def _handed_over(some: list[Any], each: float) -> Iterator[Finding]:
    try:
        begun = time.thread_time()  # so that a busy machine changes no finding
        data = [pickle.dumps(sample, protocol=pickle.HIGHEST_PROTOCOL) for sample in some]
        for one in data:
            pickle.loads(one)
        cost = (time.thread_time() - begun) / len(some)
    except Exception as error:
        yield Finding(
            "sample sent",
            "problem",
            f"a sample cannot be pickled: {type(error).__name__}: {error}",
            "A worker cannot hand it to the training process.",
            "Return arrays, tensors, numbers and texts from __getitem__.",
        )
        return
    size = sum(map(len, data)) / len(data)
    what = f"{size / 2**10:,.1f} KiB, {1e3 * cost:.3g} ms to pickle and read"
    if cost < 0.2 * each or cost < 1e-4:
        yield Finding("sample sent", "fine", what)
        return
    yield Finding(
        "sample sent",
        "advice",
        f"{what}, {cost / each:.0%} of the time to make it",
        "Workers spend that time for each sample beside making it, if batches are pickled.",
        "Return arrays or tensors instead of many Python objects; stoker.DataLoader writes them into shared memory.",
    )


def sending(target: Target) -> Iterator[Finding]:
    """Yields whether the dataset can be sent to a clean worker, and the path of the object that cannot."""
    try:
        begun = time.perf_counter()
        size = pickled_size({"dataset": target.dataset})
    except TypeError as error:  # CannotSendError
        yield Finding(
            "dataset sent",
            "problem",
            str(error),
            "Workers that are not forked (spawn, forkserver; the default of Python 3.14) cannot be started.",
            "Leave it out in __getstate__, and make it in __setstate__; or multiprocessing_context='fork'",
        )
        return
    took = time.perf_counter() - begun
    yield Finding("dataset sent", "fine", f"can be sent to workers: {size / 2**20:,.1f} MiB in {took:.2g} s")


def copies(target: Target) -> Iterator[Finding]:
    """Yields the memory that workers will copy of the dataset's Python objects."""
    found = heap.heaviest(target.dataset)
    if found is None:
        yield Finding("Python objects", "fine", "the dataset holds no large list or dict that workers would copy")
        return
    workers = getattr(target.loader, "num_workers", 0) or cpus.cpus().number
    yield Finding(
        "Python objects",
        "advice",
        f"{found.path} holds {found.rows:,} rows of Python objects, some {found.size / 2**20:,.0f} MiB; "
        f"{workers} workers: up to {workers * found.size / 2**20:,.0f} MiB more",
        "Reading an object writes its reference count, so each worker ends up with a copy of its own.",
        f"stoker.columns({found.path}) has the same interface in arrays, which all workers share",
    )


def generators(target: Target) -> Iterator[Finding]:
    """Yields the random generators that the dataset holds itself, which torch's workers all begin at the same place."""
    found = find_generators(target.dataset)
    if not found:
        yield Finding("random numbers", "fine", "the dataset holds no generator of its own")
        return
    kinds = ", ".join(sorted({type(generator).__name__ for generator in found}))
    yield Finding(
        "random numbers",
        "problem",
        f"the dataset holds {len(found)} generator(s) of its own ({kinds})",
        "With torch's loader each worker has a copy in the same state, and draws the same numbers as the others, in "
        "every epoch anew. Stoker seeds them for each sample.",
        "worker_init_fn that seeds them from torch.initial_seed(), or from stoker import DataLoader",
    )


def file_systems(target: Target) -> Iterator[Finding]:
    """Yields the file systems under the paths that the dataset holds."""
    kinds: dict[tuple[str, str], str] = {}
    for path in _paths(target.dataset):
        kinds.setdefault(_mount_of(path), path)
    for (point, kind), path in kinds.items():
        name = f"files in {path}"
        if kind in REMOTE or kind.startswith("fuse"):
            yield Finding(
                name,
                "advice",
                f"{kind}, mounted at {point}: on another machine",
                "Opening a small file takes milliseconds there, during which a worker idles.",
                "Copy the data to a local disk, pack small files, or stoker.DataLoader(threads_per_worker=16)",
            )
        elif kind == "overlay":
            yield Finding(
                name,
                "advice",
                f"overlay, mounted at {point}: in the layers of a container",
                "Files are looked up in each layer, and a file that is written is copied first.",
                f"docker run -v /data:{os.path.dirname(path) or path}, which mounts the data from the host",
            )
        else:
            yield Finding(name, "fine", f"{kind}, mounted at {point}")


def _paths(dataset: Any) -> Iterator[str]:
    """Yields existing absolute or relative paths among the attributes of a dataset and what these hold."""
    waiting, seen = [dataset], 0
    while waiting and seen < MANY:
        value = waiting.pop(0)
        seen += 1
        if isinstance(value, str | os.PathLike):
            text = os.fspath(value)
            if isinstance(text, str) and os.sep in text and len(text) < 4096 and os.path.exists(text):
                yield text
            continue
        if type(value) in (list, tuple):  # a subclass may be a dataset, whose samples are not to be fetched
            waiting += value[:4]
        elif type(value) is dict:
            waiting += list(itertools.islice(value.values(), 4))
        if hasattr(value, "__dict__") and not isinstance(value, type):
            waiting += list(vars(value).values())


def _mount_of(path: str) -> tuple[str, str]:
    """Returns the mount point of a path, and the kind of its file system."""
    real, best = os.path.realpath(path), ("/", "unknown")
    for line in (read("/proc/self/mountinfo") or "").splitlines():
        mount, _, system = line.partition(" - ")
        point = mount.split(" ")[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = point, system.split(" ")[0]
    return best


def last_batch(target: Target) -> Iterator[Finding]:
    """Yields whether the last batch of an epoch has a single sample, which BatchNorm refuses in training."""
    loader = target.loader
    size = getattr(loader, "batch_size", None)
    if not size or size == 1:
        return
    try:
        samples = len(loader.sampler)
    except (AttributeError, TypeError, NotImplementedError):
        return
    if samples % size != 1 or getattr(loader, "drop_last", False):
        yield Finding(
            "last batch", "fine", f"{samples % size or size} samples" + (", dropped" if samples % size else "")
        )
        return
    norm = _batch_norm(target.module)
    yield Finding(
        "last batch",
        "problem" if norm else "advice",
        f"the last batch of {samples:,} samples has a single one" + (f", and {norm} has BatchNorm" if norm else ""),
        "BatchNorm raises 'Expected more than 1 value per channel when training', at the end of the first epoch.",
        f"drop_last=True, or a batch_size that does not leave one sample ({size + 1})",
    )


def _batch_norm(module: Any) -> str | None:
    """Returns the name of a network in a module that has BatchNorm."""
    for name, value in vars(module).items():
        children = getattr(value, "modules", None)
        if isinstance(value, type) or not callable(children) or not hasattr(value, "state_dict"):
            continue
        if any("BatchNorm" in type(child).__name__ for child in children()):
            return str(name)
    return None
