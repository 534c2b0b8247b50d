"""How fast do shuffled rows of array files reach the trainer?

200,000 rows of 1,024 float32 (4 kB, 819 MB in all; page cache warm), 256 to a batch (1 MB), in the trainer's process,
in a random order. Stoker reads them by `ArrayDataset`. "bare" is a loop over such an order with the format's own
library, which makes a new array for each batch: one indexed read of `numpy.load(mmap_mode="r")` for .npy, and of the
array in memory for .npz, which NumPy does not map; one read of `get_slice` for each row of safetensors; one `oindex`
read for Zarr. torch's loader is given what one writes by hand: a dataset with `__getitem__` that reads one row by the
same library. "8 files" are the rows in as many .npy files, as a list of maps for the rivals.

Zarr: chunks of 64 rows, compressed by zstd; 40,000 rows, 164 MB, of which Stoker keeps 64 MB. They are read in random
order, and chunk by chunk by `RowGroupSampler`, where bare and torch read in sequence.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import counting
import method
import rivals
from counting import RATE
from method import Case, Figures, Goal

BATCH, WIDTH, CHUNK, FILES = 256, 1024, 64, 8
FORMATS = ("npy", "npy, 8 files", "npz", "safetensors", "zarr", "zarr, by chunks")

WRITE_ZARR = """
import sys, numpy as np, zarr
rows = np.load(sys.argv[1], mmap_mode="r")
array = zarr.create_array(sys.argv[2], shape=rows.shape, dtype=rows.dtype, chunks=(int(sys.argv[3]), rows.shape[1]))
array[:] = np.round(rows[:] * 100) / 100
"""


def cases(options: argparse.Namespace) -> list[Case]:
    result = []
    for name in FORMATS:
        rows = (5_000 if options.quick else 200_000) // (5 if name.startswith("zarr") and not options.quick else 1)
        how = {"name": name, "rows": rows, "data": str(options.data), "seconds": 0.3 if options.quick else 2.0}
        measured = {rival: {"rival": rival, **how} for rival in ("stoker", "bare", "torch")}
        goals = [Goal(RATE, against="bare", at_least=1 / 1.2), Goal(RATE, against="torch", at_least=2)]
        result.append(Case(name, measured, goals))
    return rivals.left_out(result) if options.quick else result


def measure(rival: str, name: str, rows: int, data: str, seconds: float) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    path = written(name.split(",")[0], folder, rows, FILES if "files" in name else 1)
    is_in_order = name == "zarr, by chunks"
    return counting.or_not_installed(
        lambda: forever(rival, name, path, is_in_order), lambda made: counting.counted(made, seconds, read)
    )


def written(kind: str, folder: Path, rows: int, files: int) -> list[Path]:
    """Returns the files, which are made once."""
    import numpy as np

    plain = [folder / f"{rows}-{files}-{number}.npy" for number in range(files)]
    if not plain[-1].exists():
        for number, path in enumerate(plain):
            np.save(path, np.random.default_rng(number).random((rows // files, WIDTH), np.float32))
    if kind == "npy":
        return plain
    path = folder / f"{rows}.{kind}"
    if not path.exists():
        if kind == "npz":
            np.savez(path, rows=np.load(plain[0]))
        elif kind == "safetensors":
            from safetensors.numpy import save_file

            save_file({"rows": np.load(plain[0])}, path)
        else:
            subprocess.run([sys.executable, "-c", WRITE_ZARR, str(plain[0]), str(path), str(CHUNK)], check=True)
    return [path]


def read(batch: Any) -> None:
    """One number of every page."""
    array = next(iter(batch.values())) if isinstance(batch, dict) else batch
    array = array.numpy() if hasattr(array, "numpy") else array
    array.reshape(-1)[::1024].max()


def forever(rival: str, name: str, paths: list[Path], is_in_order: bool) -> Iterator[Any]:
    import numpy as np

    if rival == "stoker":
        import stoker

        dataset = stoker.ArrayDataset(paths)
        sampler = stoker.RowGroupSampler(dataset.chunk_sizes) if is_in_order else None
        loader: Any = stoker.DataLoader(dataset, BATCH, shuffle=None if is_in_order else True, sampler=sampler)
    else:
        table = Table(name.split(",")[0], paths)
        if rival == "bare":
            rng = np.random.default_rng(0)
            order = np.arange(len(table)) if is_in_order else rng.permutation(len(table))
            batches = order[: len(table) // BATCH * BATCH].reshape(-1, BATCH)
            while True:
                yield from map(table.many, batches)
        import torch.utils.data

        loader = torch.utils.data.DataLoader(table, BATCH, shuffle=not is_in_order)  # type: ignore[arg-type]
    while True:
        yield from loader


class Table:
    """Rows by the library of the format."""

    def __init__(self, kind: str, paths: list[Path]) -> None:
        import numpy as np

        self.kind = kind
        if kind == "npy":
            self.maps = [np.load(path, mmap_mode="r") for path in paths]
            self.length, self.each = sum(map(len, self.maps)), len(self.maps[0])
        elif kind == "npz":
            self.maps = [np.load(paths[0])["rows"]]
            self.length = self.each = len(self.maps[0])
        elif kind == "safetensors":
            from safetensors import safe_open

            self.file = safe_open(paths[0], "np")
            self.slice = self.file.get_slice("rows")
            self.length = self.slice.get_shape()[0]
        else:
            import zarr

            self.array = zarr.open_array(paths[0], mode="r")
            self.length = self.array.shape[0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        if self.kind in ("npy", "npz"):
            return np.array(self.maps[index // self.each][index % self.each])
        if self.kind == "safetensors":
            return self.slice[index : index + 1][0]
        return self.array[index]

    def many(self, indices: Any) -> Any:
        """Returns the rows at these indices, in a new array."""
        import numpy as np

        if self.kind in ("npy", "npz"):
            if len(self.maps) == 1:
                return self.maps[0][indices]
            out = np.empty((len(indices), WIDTH), np.float32)
            for number, file in enumerate(self.maps):
                mine = indices // self.each == number
                out[mine] = file[indices[mine] % self.each]
            return out
        if self.kind == "safetensors":
            return np.concatenate([self.slice[index : index + 1] for index in indices.tolist()])
        begin, end = int(indices[0]), int(indices[-1]) + 1
        return self.array[begin:end] if end - begin == len(indices) else self.array.oindex[indices]


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/arrays"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
