"""What spawned workers are sent: the parts, pickled once for all of them, and their large buffers beside the pickle.

Each worker is a process of multiprocessing, which prepares it as ever, the import of the main module included. So a
large array exists twice, in the trainer and in the mapping that all workers share.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

from stoker._engine.serialize import pickler, unpicklable
from stoker._engine.serialize.main_module import names_after_import, preparation_of
from stoker._engine.serialize.memory_files import Block
from stoker._engine.spawn import worker
from stoker._engine.transport.segments import Sent


class WorkerPayload:
    """The parts, as an argument of processes that multiprocessing spawns; arrives as a `Parcel`. Closed after that.

    Raises:
        CannotSendError: some part cannot be pickled: named by its path, before anything is started.
        MemoryLimitError: there is not enough memory for a copy.
        RuntimeError: called while this process is itself being prepared: the script lacks its main guard.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts
        self._importable = names_after_import(preparation_of("stoker"))
        self._buffers = Block()
        self._stream = Block()
        self._written: dict[tuple[int, int], tuple[tuple[int, int], memoryview]] = {}  # by address and size
        with pickler.spawning() as handles:
            try:
                self._places = self._write()
            except BaseException as error:
                self.close()
                if isinstance(error, Exception) and not isinstance(error, MemoryError):
                    raise unpicklable.named(parts, self._importable, error) from error
                raise
        self._for_one = bool(handles)  # a lock of multiprocessing is made over to each process by itself

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if self._for_one:
            self._places = self._write()
        return worker.parcel, (Sent(self._stream.fd), Sent(self._buffers.fd), self._places)

    def _write(self) -> list[tuple[int, int]]:
        """Pickles the parts into a new stream; returns where the buffers lie. Who got the last one has a descriptor of
        its own by now."""
        last, self._stream = self._stream, Block()
        last.close()
        written = pickler.write(self._parts, self._importable, self._stream)
        self._lent = written.lent  # kept as long as workers can be started
        return [self._place(view) for view in written.large]

    def _place(self, view: memoryview) -> tuple[int, int]:
        """A buffer is written once, and kept until the end so that no other comes to have its address."""
        key = np.frombuffer(view, np.uint8).ctypes.data, view.nbytes
        if key not in self._written:
            self._written[key] = (self._buffers.align(mmap.PAGESIZE), self._buffers.write(view)), view
        return self._written[key][0]

    def close(self) -> None:
        """Workers that were started have their own descriptors."""
        self._buffers.close()
        self._stream.close()
