"""`DataLoader.preview()`: the next epoch's first batch, made and drawn in a forked process.

Whatever the epoch draws, counts, opens or caches happens in the fork: the loader, its samplers, its dataset and all
generators of this process stay as they are.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from stoker._core import exceptions
from stoker._core.protocol import asked
from stoker._engine.fork.native_pools import quiet_about_forks
from stoker._engine.fork.start_zygote import signals_blocked
from stoker._engine.process import linux, process_setup
from stoker.errors import PreviewError, WorkerTraceback
from stoker.loader._display import contact_sheet

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_ENDING = 2.0
"""Seconds that the process has to end after its last byte."""

_IN_PROCESS: dict[str, Any] = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
    "pin_memory": False,
}
"""torch's attributes of a loader that makes batches in its own process."""


def preview(
    loader: Any,
    path: str | os.PathLike[str] | None,
    images: int,
    classes: Sequence[str] | None,
    mean: Any,
    std: Any,
    seconds: float,
) -> Any:
    """Draws the first batch of the next epoch; the arguments and the result are those of `DataLoader.preview`."""
    if images < 1:
        raise ValueError(f"preview(images={images}): at least 1 is needed")
    pil = contact_sheet.pillow()
    names = _classes_of(loader.dataset) if classes is None else classes

    def drawn() -> bytes:
        file = io.BytesIO()
        contact_sheet.sheet(_first_batch(loader), images, names, mean, std).save(file, "PNG")
        return file.getvalue()

    png = _elsewhere(drawn, seconds)
    if path is None:
        image = pil.Image.open(io.BytesIO(png))
        image.load()
        return image
    with open(path, "wb") as file:
        file.write(png)
    return os.fspath(path)


def _classes_of(dataset: Any) -> Sequence[str] | None:
    """Returns the attribute `classes` of a dataset, or of the one that it wraps."""
    for _ in range(10):
        if (found := asked(dataset, "classes")) is not None:
            return found if isinstance(found, (list, tuple)) and found else None
        dataset = asked(dataset, "dataset")
        if dataset is None:
            return None
    return None


def _first_batch(loader: Any) -> Any:
    """Returns the first batch of the loader's next epoch. To be called in a fork: the loader is spent."""
    kept = loader._iterator  # its workers belong to the other process, and must not be ended from here
    for name, value in {**_IN_PROCESS, "_iterator": None}.items():
        object.__setattr__(loader, name, value)
    try:
        return next(iter(loader))
    except StopIteration:
        raise PreviewError("the epoch has no batch: the dataset, or this rank's share of it, is empty") from None
    finally:
        del kept


def _elsewhere(work: Callable[[], bytes], seconds: float) -> bytes:
    """Returns the result of a function that runs in a forked process.

    Raises:
        PreviewError: the process died, or took longer than `seconds`.
        Exception: the function raised it; its traceback is the `__cause__`.
    """
    reading, writing = os.pipe()
    trainer, pid = os.getpid(), 0
    with contextlib.suppress(Exception):  # otherwise buffered text would be printed twice
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        with signals_blocked() as before, quiet_about_forks():
            pid = os.fork()
            if pid == 0:
                _child(work, reading, writing, trainer, before)
        os.close(writing)
        writing = -1
        data = _received(reading, seconds)
        code, ended = linux.reap(pid, _ENDING), pid
        pid = 0 if code is not None else pid
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
        if pid:
            linux.end(pid)
    if data is None:
        raise PreviewError(f"process {ended}, which made the batch, {linux.told(code)}, and no batch came of it")
    result, error, text = pickle.loads(data)
    if text is None:
        return bytes(result)
    if error is None:
        raise PreviewError(f"the batch could not be made:\n{text}")
    raise pickle.loads(error) from WorkerTraceback(text)


def _child(work: Callable[[], bytes], reading: int, writing: int, trainer: int, mask: set[Any]) -> NoReturn:
    code = 1
    try:
        process_setup.zygote()  # nothing of the trainer's runs here: no handler, no finaliser, no collection
        linux.die_with_parent(trainer)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        process_setup.take_handlers()
        os.close(reading)
        process_setup.one_thread()
        data = pickle.dumps(_outcome(work))
        view = memoryview(_LENGTH.pack(len(data)) + data)
        while view:
            view = view[os.write(writing, view) :]
        code = 0
    finally:
        process_setup.leave(code)


def _outcome(work: Callable[[], bytes]) -> tuple[bytes, bytes | None, str | None]:
    """Returns the result, or the pickled error, if it can be pickled, and its traceback."""
    try:
        return work(), None, None
    except BaseException as error:
        text = exceptions.format_exception(error)
        try:
            packed = pickle.dumps(error)
            pickle.loads(packed)
        except Exception:
            return b"", None, text
        return b"", packed, text


def _received(reading: int, seconds: float) -> bytes | None:
    """Returns a whole message; None if its writer has ended before.

    Raises:
        PreviewError: it took too long.
    """
    deadline, data = time.monotonic() + seconds, bytearray()
    poll = select.poll()  # `select` takes no descriptor above 1023
    poll.register(reading, select.POLLIN)
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        if not poll.poll(1e3 * max(0.0, deadline - time.monotonic())):
            raise PreviewError(f"no batch within {seconds:g} s: give preview(seconds=...) more, or look at a sample")
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            return None
        data += chunk
    return bytes(data[_LENGTH.size :])
