from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, IterableDataset, decode_frames
from stoker.errors import BatchError

CAMERAS, FRAMES = 3, 5


@pytest.fixture
def clip(tmp_path: Path, write: Callable[[Path, int], None]) -> list[list[Path]]:
    paths = [[tmp_path / f"{camera}-{frame}.png" for frame in range(FRAMES)] for camera in range(CAMERAS)]
    for camera, row in enumerate(paths):
        for frame, path in enumerate(row):
            write(path, 16 * camera + frame)
    return paths


@pytest.mark.parametrize("threads", [1, 4, 100, None])
def test_frames_are_in_their_places(clip: list[list[Path]], threads: int | None) -> None:
    frames = decode_frames(clip, threads=threads)
    assert frames.shape == (CAMERAS, FRAMES, 6, 8, 3) and frames.dtype == np.uint8
    expected = 16 * np.arange(CAMERAS)[:, None] + np.arange(FRAMES)
    assert (frames == expected[..., None, None, None]).all()
    assert (decode_frames(clip[1], threads=threads) == frames[1]).all()


def test_contents_and_a_function_of_ones_own(clip: list[list[Path]]) -> None:
    contents = [path.read_bytes() for path in clip[0]]
    assert decode_frames(contents).shape == (FRAMES, 6, 8, 3)
    assert decode_frames([[1, 2], [3, 4]], lambda number: np.float32(number)).tolist() == [[1, 2], [3, 4]]


def test_an_array_is_written_into(clip: list[list[Path]]) -> None:
    out = np.zeros((2, CAMERAS, FRAMES, 6, 8, 3), np.uint8)
    assert decode_frames(clip, threads=2, out=out[1]).base is out
    assert (out[1] == decode_frames(clip)).all() and not out[0].any()
    for wrong in (out, out[1].astype(np.int8)):
        with pytest.raises(ValueError, match=r"expected uint8 and \(3, 5, 6, 8, 3\)"):
            decode_frames(clip, out=wrong)


def test_threads_run_at_once_and_end() -> None:
    together = threading.Barrier(3, timeout=60)

    def decode(number: int) -> Any:
        if number:
            together.wait()
        return np.uint8(number)

    assert decode_frames(range(4)[:] and [0, 1, 2, 3], decode, threads=3).tolist() == [0, 1, 2, 3]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-frames")]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_error_of_the_earliest_frame_is_raised(threads: int) -> None:
    def decode(number: int) -> Any:
        if number in (7, 9):
            raise KeyError(f"frame {number}")
        return np.uint8(number)

    with pytest.raises(KeyError, match="frame 7") as caught:
        decode_frames([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], decode, threads=threads)
    assert caught.value.__notes__ == ["raised by the image at [1, 2] (7)"]


def test_frames_of_another_shape(clip: list[list[Path]], write: Callable[[Path, int], None]) -> None:
    def decode(path: str) -> Any:
        return np.zeros((2, 2) if path.endswith("1-3.png") else (2, 3), np.uint8)

    with pytest.raises(BatchError, match=r"at \[1, 3\] .*shape \(2, 2\), the first one of uint8 and \(2, 3\)"):
        decode_frames(clip, decode, threads=2)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "an empty list"),
        ([[], []], "an empty list"),
        ("a.jpg", "a str, expected a list"),
        ([["a"], ["a", "b"]], r"2 items at \[1\], expected 1"),
        ([["a"], "b"], r"a str at \[1\], expected 1"),
        (["a", ["b"]], r"a list at \[1\]"),
    ],
)
def test_sources_that_are_no_grid(sources: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_frames(sources, lambda source: np.uint8(0))
    with pytest.raises(ValueError, match="at least 1"):
        decode_frames(["a"], lambda source: np.uint8(0), threads=0)


class Clips:
    """Samples of many images, decoded in the worker."""

    def __init__(self, clip: Any) -> None:
        self.clip = clip

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return decode_frames(self.clip) + np.uint8(index), decode_frames([0], lambda _: threading.active_count())[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_worker_decodes_frames(clip: list[list[Path]], workers: int) -> None:
    with DataLoader(Clips(clip), 2, num_workers=workers, output="numpy") as loader:
        batches = list(loader)
    assert [batch.shape for batch, _ in batches] == [(2, CAMERAS, FRAMES, 6, 8, 3)] * 2
    assert [int(batch[0, 0, 0, 0, 0, 0]) for batch, _ in batches] == [0, 2]


class Stream(IterableDataset[Any]):
    """A stream that knows nothing of workers."""

    def __iter__(self) -> Any:
        for number in range(6):
            yield decode_frames([number], np.uint8)[0]


def test_a_stream_has_not_asked_for_its_worker() -> None:
    with pytest.warns(UserWarning), DataLoader(Stream(), 1, num_workers=2, output="numpy") as loader:
        assert sorted(int(batch[0]) for batch in loader) == list(range(6))
