from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.datasets.tokens import TokenWindows
from stoker.errors import ArrayFileError, FileChangedError

TOKENS = np.arange(21, dtype=np.uint16)


def windows(*given: Any, **named: Any) -> list[tuple[list[int], list[int]]]:
    data = TokenWindows(*given, **named)
    return [(x.tolist(), y.tolist()) for x, y in (data[index] for index in range(len(data)))]


def test_y_is_what_follows_x() -> None:
    assert windows(TOKENS[:9], 4) == [([0, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8])]
    assert len(TokenWindows(TOKENS[:8], 4)) == 1  # the last window's last token is followed by none
    assert windows(TOKENS[:6], 4, stride=1) == [([0, 1, 2, 3], [1, 2, 3, 4]), ([1, 2, 3, 4], [2, 3, 4, 5])]


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_fewer_tokens_than_a_window_make_none(tokens: int) -> None:
    data = TokenWindows(TOKENS[:tokens], 4)
    assert len(data) == 0
    with pytest.raises(IndexError):
        data[0]


def test_samples_are_int64_unless_another_is_asked_for() -> None:
    x, y = TokenWindows(TOKENS, 4)[-1]
    assert x.dtype == y.dtype == np.int64
    assert TokenWindows(TOKENS, 4, dtype=np.int32)[0][0].dtype == np.int32


def test_a_sample_is_a_copy() -> None:
    data = TokenWindows(TOKENS, 4)
    data[0][0][...] = 77
    assert data[0][0].tolist() == [0, 1, 2, 3]


def test_x_and_y_share_nothing() -> None:
    x, y = TokenWindows(TOKENS, 4)[0]
    assert not np.shares_memory(x, y)
    x[2] = 77
    assert y.tolist() == [1, 2, 3, 4]


def test_only_a_number_is_an_index() -> None:
    data = TokenWindows(TOKENS, 4)
    assert data[np.int64(1)][0].tolist() == [4, 5, 6, 7]
    for index in (slice(0, 3), np.array([0, 1]), None):
        with pytest.raises(TypeError):
            data[index]  # type: ignore[index]


def test_tokens_are_read_from_files(tmp_path: Path) -> None:
    TOKENS.astype(np.uint32).tofile(tmp_path / "raw.bin")
    np.save(tmp_path / "tokens.npy", TOKENS)
    expected = windows(TOKENS, 4)
    assert windows(tmp_path / "raw.bin", 4, file_dtype=np.uint32) == expected
    assert windows(str(tmp_path / "tokens.npy"), 4) == expected


def test_token_dataset_refuses_bad_arguments() -> None:
    with pytest.raises(TypeError, match="tokens are float64, expected integers"):
        TokenWindows(np.zeros(9), 4)
    with pytest.raises(ValueError, match=r"tokens have shape \(3, 3\), expected one dimension"):
        TokenWindows(np.zeros((3, 3), int), 4)
    with pytest.raises(ValueError, match="length is 0"):
        TokenWindows(TOKENS, 0)
    with pytest.raises(TypeError, match=r"stride is 1\.5"):
        TokenWindows(TOKENS, 4, stride=1.5)  # type: ignore[arg-type]


def test_a_token_that_does_not_fit_is_refused() -> None:
    data = TokenWindows(np.array([1, 2, 3, 40_000, 5], np.uint16), 2, dtype=np.int16)
    assert data[0][1].tolist() == [2, 3]
    out = [np.empty((2, 2), np.int16) for _ in range(2)]
    data.gather(np.array([0, 0]), out)
    assert out[0].tolist() == [[1, 2], [1, 2]]
    with pytest.raises(ValueError, match="token 40000 does not fit dtype=int16"):
        data[1]
    with pytest.raises(ValueError, match="token 40000 does not fit dtype=int16"):
        data.gather(np.array([0, 1]), out)


def test_no_tokens_make_no_window() -> None:
    assert len(TokenWindows([], 4)) == 0


def test_a_file_that_is_mapped_travels_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(10_000, dtype=np.uint16).tofile(path)
    from_there = np.memmap(path, np.uint16, "r", offset=20)
    for data, first in ((TokenWindows(path, 4), 0), (TokenWindows(from_there, 4), 10)):
        pickled = pickle.dumps(data)
        assert len(pickled) < 1000
        assert pickle.loads(pickled)[-1][0].tolist() == data[-1][0].tolist()
        assert pickle.loads(pickled)[0][0].tolist() == [*range(first, first + 4)]


def test_a_file_without_a_name_travels_by_its_contents() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(TOKENS.tobytes())
        file.flush()
        data = TokenWindows(np.memmap(file, np.uint16, "r"), 4)
    again = pickle.loads(pickle.dumps(data))
    assert again[0][1].tolist() == [1, 2, 3, 4]


def test_windows_within_documents() -> None:
    begins = [0, 5, 5, 11, 20]
    assert windows(TOKENS, 4, documents=begins, boundaries="within") == [
        ([0, 1, 2, 3], [1, 2, 3, 4]),
        ([5, 6, 7, 8], [6, 7, 8, 9]),
        ([11, 12, 13, 14], [12, 13, 14, 15]),
        ([15, 16, 17, 18], [16, 17, 18, 19]),
    ]
    assert TokenWindows(TOKENS, 4, documents=begins, boundaries="within").unused_tokens == 21 - 16
    overlapping = TokenWindows(TOKENS, 4, stride=1, documents=begins, boundaries="within")
    assert [overlapping.first_token(index) for index in range(len(overlapping))] == [0, 5, 6, 11, 12, 13, 14, 15]
    assert overlapping.unused_tokens == 21 - (4 + 5 + 8)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 5, 9])
def test_windows_within_random_documents(length: int, stride: int) -> None:
    rng = np.random.default_rng(length * 10 + stride)
    tokens = np.arange(200)
    begins = np.array([0, *np.sort(rng.integers(0, 201, 30))])
    data = TokenWindows(tokens, length, stride=stride, documents=begins, boundaries="within")
    ends = [*begins[1:], 200]
    expected = [first for begin, end in zip(begins, ends, strict=True) for first in range(begin, end - length, stride)]
    assert [data.first_token(index) for index in range(len(data))] == expected
    used = {token for first in expected for token in range(first, first + length)}
    assert data.unused_tokens == 200 - len(used)
    out = [np.empty((len(data), length), int) for _ in range(2)]
    data.gather(np.arange(len(data)), out)
    assert out[0][:, 0].tolist() == expected and (out[1] == out[0] + 1).all()
    places = TokenWindows(tokens, length, stride=stride, documents=begins, boundaries="positions")
    for index in range(len(places)):
        x, _, positions = places[index]
        assert positions.tolist() == [token - begins[begins <= token][-1] for token in x]


def test_documents_are_checked() -> None:
    for documents in ([1, 3], [0, 5, 3], [0, 22], []):
        with pytest.raises((ValueError, TypeError), match="documents"):
            TokenWindows(TOKENS, 4, documents=documents, boundaries="within")
    with pytest.raises(TypeError, match="documents are float64"):
        TokenWindows(TOKENS, 4, documents=[0.0, 1.0], boundaries="within")
    with pytest.raises(ValueError, match="choose 'positions' or 'within'"):
        TokenWindows(TOKENS, 4, documents=[0, 3])
    with pytest.raises(ValueError, match="needs documents="):
        TokenWindows(TOKENS, 4, boundaries="positions")
    with pytest.raises(ValueError, match="boundaries is 'no'"):
        TokenWindows(TOKENS, 4, boundaries="no")  # type: ignore[arg-type]


def test_files_of_tokens_that_are_cut_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(7))
    (tmp_path / "b.bin").touch()
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01")
    for name in ("a.bin", "b.bin", "c.npy"):
        with pytest.raises(ArrayFileError, match=rf"{name} \(\d+ bytes\) cannot be read as tokens"):
            TokenWindows(tmp_path / name, 4)
    TOKENS.tofile(tmp_path / "a.bin")
    pickled = pickle.dumps(TokenWindows(tmp_path / "a.bin", 4))
    os.truncate(tmp_path / "a.bin", 20)
    with pytest.raises(FileChangedError, match=r"a\.bin was changed .* it has 20 bytes, and had at least 42"):
        pickle.loads(pickled)
