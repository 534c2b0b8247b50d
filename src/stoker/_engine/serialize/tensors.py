"""Tensors on their way to a clean interpreter: shared ones stay shared, the others go as buffers beside the pickle.

A tensor's own way of pickling ends at its storage, which is what several tensors share. A storage that lies in shared
memory, in a file or on a CUDA device goes as it goes to a process of `torch.multiprocessing`, so that the trainer and
all workers have one memory. torch's reducers would move all other storages to shared memory first: these stay as they
are, and each process has its own.

torch is taken from where the program or the pickle has imported it.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from stoker._core.machine.memory import shm_in_words
from stoker._engine.serialize.buffers import MappedFiles, Reduced
from stoker.errors import CannotSendError, MemoryLimitError


def reducers(files: MappedFiles, lent: list[object]) -> dict[type, Callable[[Any], Reduced]]:
    """Returns, for tensors and storages, the function that takes them apart; nothing where torch is not imported.

    Args:
        files: that this process has mapped.
        lent: gets what the other end opens by its name, and the owner keeps until no process can open it any more.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        torch.Tensor: partial(_reduce_tensor, lent=lent),
        torch.UntypedStorage: partial(_reduce_storage, files=files, lent=lent),
    }


def _reduce_tensor(tensor: Any, lent: list[object]) -> Reduced:
    """torch's own reduction. Its other half wants a typed storage for the newer dtypes (uint16, float8) too."""
    torch = sys.modules["torch"]
    if tensor.device.type == "cuda":
        lent.append(tensor)
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    make, (storage, *rest) = tensor.__reduce_ex__(5)[:2]
    if isinstance(storage, torch.UntypedStorage):
        storage = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    return make, (storage, *rest)


def _reduce_storage(storage: Any, files: MappedFiles, lent: list[object]) -> Reduced:
    torch = sys.modules["torch"]
    if storage.device.type not in ("cpu", "meta"):
        raise CannotSendError(f"memory of a tensor on {storage.device} belongs to this process")
    if storage.device.type == "meta":
        return storage.__reduce_ex__(5)
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    if storage.is_shared() and (shared := _shared(storage, files, lent)) is not None:
        return shared
    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage, (pickle.PickleBuffer(memory),)


def _shared(storage: Any, files: MappedFiles, lent: list[object]) -> Reduced | None:
    """The reduction of a storage that torch calls shared; None for the private mapping of a file.

    Raises:
        MemoryLimitError: torch moves the storage, because the program has changed torch's sharing strategy since, and
            there is no room for it.
    """
    sharing = sys.modules["torch.multiprocessing"]
    if storage.filename is not None:  # torch.from_file(shared=True)
        if not files.hold(storage.filename, storage.data_ptr(), storage.nbytes()):
            return None
        return type(storage).from_file, (os.path.realpath(storage.filename), True, storage.nbytes())
    try:
        if sharing.get_sharing_strategy() == "file_system":
            # torch's reducer counts one process that opens it: any number may open this one
            lent.append(storage)
            return type(storage)._new_shared_filename_cpu, storage._share_filename_cpu_()
        descriptor, _ = storage._share_fd_cpu_()
        return None if descriptor < 0 else sharing.reductions.reduce_storage(storage)
    except RuntimeError as error:
        raise MemoryLimitError(
            f"a clean worker cannot share a tensor of {storage.nbytes() / 2**20:,.1f} MiB: {error}. {shm_in_words()}"
        ) from error


def _storage(memory: bytearray | memoryview) -> Any:
    torch = sys.modules["torch"]
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return (whole.clone() if isinstance(memory, bytearray) else whole).untyped_storage()
