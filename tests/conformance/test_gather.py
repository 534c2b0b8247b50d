"""Every dataset of ours that gathers keeps to the protocol: `stoker.testing.gather`, run on all of them."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker.datasets import ConcatDataset, Dataset, MixDataset, StackDataset, Subset, TensorDataset, ZipDataset, columns
from stoker.datasets.gather import Array, Indices
from stoker.datasets.tokens import TokenWindows
from stoker.testing.gather import GatherSuite

RNG = np.random.default_rng(0)
ROWS = RNG.random((23, 4), np.float32)
LABELS = RNG.integers(-5, 5, 23)
FLAGS = LABELS > 0
TOKENS = np.arange(100, dtype=np.uint16)
HOLDER = tempfile.TemporaryDirectory()
FOLDER = Path(HOLDER.name)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Record:
    image: Any
    boxes: list[Any]


class Own(Dataset[Any]):
    """A user's dataset, of nested samples."""

    stoker_protocol = True

    def __init__(self) -> None:
        self.images = RNG.integers(0, 255, (23, 2, 3), np.uint8)

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "record": Record(self.images[index], [ROWS[index, 0], (ROWS[index], LABELS[index])]),
            "pair": Pair(np.asarray(LABELS[index]), float(index % 23)),
        }

    def gather_layout(self) -> Any:
        rows, label = np.empty((0, 4), np.float32), np.empty(0, np.int64)
        record = Record(np.empty((0, 2, 3), np.uint8), [np.empty(0, np.float32), (rows, label)])
        return {"record": record, "pair": Pair(label, np.empty(0))}

    def gather(self, indices: Indices, out: Any) -> None:
        out["record"].image[...] = self.images[indices]
        first, (rows, labels) = out["record"].boxes
        first[...], rows[...], labels[...] = ROWS[indices, 0], ROWS[indices], LABELS[indices]
        out["pair"].x[...], out["pair"].y[...] = LABELS[indices], indices % 23


def array(layout: str) -> Array:
    """The same rows, in memory laid out otherwise."""
    wide = np.zeros((23, 9), np.float32)
    wide[:, 1::2] = ROWS
    unaligned = np.zeros(ROWS.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(ROWS.shape)
    unaligned[...] = ROWS
    return {
        "C": ROWS,
        "F": np.asfortranarray(ROWS),
        "strided": wide[:, 1::2],
        "reversed": ROWS[::-1],
        "big-endian": ROWS.astype(">f4"),
        "unaligned": unaligned,
        "read-only": np.frombuffer(ROWS.tobytes(), np.float32).reshape(ROWS.shape),
    }[layout]


LAYOUTS = ["C", "F", "strided", "reversed", "big-endian", "unaligned", "read-only"]


@pytest.mark.parametrize("dataset", [array(layout) for layout in LAYOUTS], ids=LAYOUTS)
class TestArrays(GatherSuite):
    pass


DTYPES = [np.dtype(code) for code in "?bBhHiIlLqQefdFD"]


@pytest.mark.parametrize("dataset", [LABELS.astype(dtype) for dtype in DTYPES], ids=lambda array: array.dtype.char)
class TestNumbers(GatherSuite):
    pass


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(ROWS, LABELS, FLAGS),
        TensorDataset(np.empty((23, 0)), np.empty((23, 2, 0), np.int8)),
        Subset(ROWS, range(20, 2, -3)),
        Subset(ROWS, [3, -1, 3, 0, 22, 7, 7, 7, 8]),
        Subset(ROWS, np.array([3, 1, 2], np.int32)),
        Subset(Subset(TensorDataset(ROWS), [5, 9, 9, 1]), [3, -4, 0, 1, 2, 2]),
        StackDataset(ROWS, TensorDataset(LABELS)),
        StackDataset(x=ROWS, y=StackDataset(a=LABELS, b=FLAGS)),
        ZipDataset(ROWS, LABELS[:17]),
        columns([(float(i), i, i % 2 == 0) for i in range(23)]),
        columns([{"x": ROWS[i], "y": np.float32(i)} for i in range(23)])[::-2],
        columns([Pair(i, 0.5 * i) for i in range(23)]),
        columns(range(23)),
        Own(),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
class TestDatasets(GatherSuite):
    pass


@pytest.mark.parametrize(
    "dataset",
    [
        ConcatDataset([ROWS, ROWS[:2] + 1, ROWS[:9] - 1]),
        ConcatDataset([TensorDataset(ROWS, LABELS), TensorDataset(ROWS[5:], LABELS[5:])]),
        ConcatDataset([StackDataset(x=ROWS[:9]), StackDataset(x=ROWS[:0]), StackDataset(x=ROWS[9:])]),
        ConcatDataset([Own(), Subset(Own(), range(9))]),
        ConcatDataset([ROWS]),
        MixDataset([TensorDataset(ROWS), TensorDataset(ROWS[5:])], [0.7, 0.3]),
        MixDataset([Own(), Subset(Own(), range(9)), Own()], [5, 1, 2], stop="repeat"),
        MixDataset([TokenWindows(TOKENS, 5), TokenWindows(TOKENS[::-1], 5)], [1, 3], stop="drop"),
    ],
)
class TestConcat(GatherSuite):
    pass


@pytest.mark.parametrize(
    "dataset",
    [
        TokenWindows(np.arange(100, dtype=np.uint16), 8),
        TokenWindows(np.arange(100, dtype=np.int32)[::-3], 5, stride=2),
        TokenWindows(np.arange(60000, 60100, dtype=np.uint16), 8, stride=1, dtype=np.int32),
        TokenWindows(TOKENS, 5, documents=[0, 3, 40, 41, 41, 60], boundaries="within"),
        TokenWindows(TOKENS, 5, stride=2, documents=[0, 3, 40, 41, 41, 60], boundaries="positions"),
    ],
)
class TestTokens(GatherSuite):
    pass


def files() -> list[Any]:
    """Datasets over mapped files, made once: pytest would keep those of a test beyond its end."""
    TOKENS.tofile(FOLDER / "tokens.bin")
    np.save(FOLDER / "tokens.npy", TOKENS)
    rows = np.memmap(FOLDER / "tokens.bin", np.uint16, "r", shape=(25, 4))
    return [
        TokenWindows(FOLDER / "tokens.bin", 8),
        TokenWindows(FOLDER / "tokens.npy", 8),
        TokenWindows(np.memmap(FOLDER / "tokens.bin", np.uint16, "r")[7:], 8),
        Subset(rows, [3, 1, 24, 0]),
    ]


@pytest.mark.parametrize("dataset", files())
class TestFiles(GatherSuite):
    pass


def test_a_file_travels_as_its_path(tmp_path: Path) -> None:
    np.zeros(100_000, np.uint16).tofile(tmp_path / "tokens.bin")
    windows = TokenWindows(tmp_path / "tokens.bin", 8)
    assert len(pickle.dumps(windows)) < 1000 < len(pickle.dumps(TokenWindows(windows.tokens[1:], 8)))
