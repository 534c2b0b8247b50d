from __future__ import annotations

import itertools
import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import ArrayFileError, FileChangedError
from stoker.loader.dataloader import DataLoader
from stoker.sources.megatron import MegatronTokens
from stoker.testing.datasets import DatasetSuite
from stoker.testing.gather import GatherSuite

CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}
TEXTS = [[range(0, 5), range(5, 7)], [range(7, 20)], [], [range(20, 22)], [range(22, 60)], []]
"""Sequences of each document; two documents are empty."""


def written(
    folder: Path, dtype: str = "u2", texts: Sequence[Sequence[Sequence[int]]] = TEXTS, modes: bool = False
) -> Path:
    """Writes a pair of files by the format's description, and returns their prefix."""
    sequences = list(itertools.chain(*texts))
    lengths = [len(sequence) for sequence in sequences]
    size = np.dtype(dtype).itemsize
    index = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, CODES[dtype])
    index += struct.pack("<QQ", len(sequences), len(texts) + 1)
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(lengths)}q", *([0, *itertools.accumulate(size * n for n in lengths)][: len(lengths)]))
    index += struct.pack(f"<{len(texts) + 1}q", 0, *itertools.accumulate(map(len, texts)))
    (folder / "text.idx").write_bytes(index + bytes(len(sequences)) * modes)
    (folder / "text.bin").write_bytes(np.array(list(itertools.chain(*sequences)), dtype).tobytes())
    return folder / "text"


class TestMegatronTokens(DatasetSuite):
    @pytest.fixture(params=["cross", "within", "positions"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        prefix = written(tmp_path)
        return lambda: MegatronTokens(prefix, 4, boundaries=request.param)

    def delete(self, dataset: MegatronTokens) -> str:
        os.unlink(f"{dataset.prefix}.bin")
        return dataset.prefix


class TestGatheredWindows(GatherSuite):
    @pytest.fixture(params=["cross", "within", "positions"])
    def dataset(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        dataset = MegatronTokens(written(tmp_path), 4, boundaries=request.param)
        yield dataset
        dataset.tokens = dataset._windows = None  # type: ignore[assignment]  # pytest keeps the dataset longer


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "i8"])
def test_tokens_are_of_the_dtype_in_the_index(dtype: str, tmp_path: Path) -> None:
    dataset = MegatronTokens(written(tmp_path, dtype, modes=dtype == "u2"), 4)
    assert len(dataset) == 14 and dataset.documents == 6 and len(dataset.tokens) == 60
    x, y = dataset[2]
    assert x.tolist() == [8, 9, 10, 11] and y.tolist() == [9, 10, 11, 12] and x.dtype == np.int64
    assert dataset.describe(-1) == f"window 13: from token 52 on in {tmp_path}/text.bin"


def test_prefix_may_be_either_file(tmp_path: Path) -> None:
    prefix = written(tmp_path)
    datasets = [MegatronTokens(f"{prefix}{end}", 4) for end in ("", ".bin", ".idx")]
    assert {dataset.prefix for dataset in datasets} == {str(prefix)}


def test_windows_within_documents_cross_none(tmp_path: Path) -> None:
    dataset = MegatronTokens(written(tmp_path), 4, boundaries="within")
    firsts = [dataset[index][0][0] for index in range(len(dataset))]
    assert firsts == [0, 7, 11, 15, *range(22, 55, 4)]
    assert all(dataset[index][1].tolist() == [*range(first + 1, first + 5)] for index, first in enumerate(firsts))
    assert dataset.unused_tokens == 60 - 4 * len(firsts)


def test_positions_tell_the_documents(tmp_path: Path) -> None:
    dataset = MegatronTokens(written(tmp_path), 8, boundaries="positions")
    found = np.concatenate([dataset[index][2] for index in range(len(dataset))])
    begins = np.array([0, 7, 20, 22])
    expected = [token - begins[begins <= token][-1] for token in range(56)]
    assert found.tolist() == expected


def test_megatrons_windows_through_workers_and_resume(tmp_path: Path) -> None:
    dataset = MegatronTokens(written(tmp_path), 4, boundaries="positions")
    for birth in ("fork", "spawn"):
        options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 2, "output": "numpy"}
        with DataLoader(dataset, 3, multiprocessing_context=birth, **options) as loader:
            batches = iter(loader)
            firsts = [*next(batches)[0][:, 0], *next(batches)[0][:, 0]]
            state = loader.state_dict()
        with DataLoader(dataset, 3, **options) as loader:
            loader.load_state_dict(state)
            firsts += [first for x, _, _ in loader for first in x[:, 0]]
        assert sorted(firsts) == [*range(0, 56, 4)]


def test_index_and_tokens_must_belong_together(tmp_path: Path) -> None:
    prefix = written(tmp_path)
    with open(f"{prefix}.bin", "ab") as file:
        file.write(bytes(2))
    with pytest.raises(ArrayFileError, match=r"text\.bin has 122 bytes, but its index .*text\.idx describes 120"):
        MegatronTokens(prefix, 4)


def test_damaged_indexes_are_named(tmp_path: Path) -> None:
    prefix = written(tmp_path)
    path = Path(f"{prefix}.idx")
    whole = path.read_bytes()
    for length in (0, 5, 33, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ArrayFileError, match=r"text\.idx"):
            MegatronTokens(prefix, 4)
    for place, value, why in [
        (0, b"TNTIDX", "old format"),
        (9, b"\x02", "of version 2"),
        (17, b"\x09", "dtype code 9"),
    ]:
        path.write_bytes(whole[:place] + value + whole[place + len(value) :])
        with pytest.raises(ArrayFileError, match=why):
            MegatronTokens(prefix, 4)
    path.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(ArrayFileError, match=r"do not run from sequence 0 to 5"):
        MegatronTokens(prefix, 4)


def test_missing_changed_and_unfit_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.bin"):
        MegatronTokens(tmp_path / "nothing", 4)
    with pytest.raises(TypeError, match="tokens are float32"):
        MegatronTokens(written(tmp_path, "f4"), 4)
    prefix = written(tmp_path)
    with pytest.raises(ValueError, match="boundaries is 'inside'"):
        MegatronTokens(prefix, 4, boundaries="inside")  # type: ignore[arg-type]
    pickled = pickle.dumps(MegatronTokens(prefix, 4))
    assert len(pickled) < 1000
    os.utime(f"{prefix}.idx", (1, 1))
    with pytest.raises(FileChangedError, match=r"text\.bin or \.idx was changed"):
        pickle.loads(pickled)


def test_data_set_without_tokens_has_no_window(tmp_path: Path) -> None:
    assert len(MegatronTokens(written(tmp_path, texts=[]), 4)) == 0
    assert len(MegatronTokens(written(tmp_path, texts=[[], []]), 4, boundaries="within")) == 0
