from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import MediaFileError
from stoker.sources.clips.audio_clips import AudioClips
from stoker.sources.clips.exact_start import length_without_header
from tests.sources.clips.media_files import local

soundfile = pytest.importorskip("soundfile")


def written(path: Path, mode: str, has_header: bool) -> Path:
    """An MP3 file whose loudness falls, with its first frame, the header that counts the others, or without it."""
    fade = np.linspace(1, 0, 44_100 * 4) ** 4
    sound = (np.random.default_rng(0).uniform(-0.5, 0.5, fade.size) * fade).astype("f4")
    soundfile.write(path, sound, 44_100, bitrate_mode=mode, compression_level=0.5)
    if not has_header:
        data = path.read_bytes()
        header = max(data.find(b"Xing"), data.find(b"Info"))
        path.write_bytes(data[data.find(b"\xff\xfb", header + 100) :])
    return path


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
@pytest.mark.parametrize("tag", [b"", b"ID3\4\0\0\0\0\2\1" + bytes(257)])
def test_header_gives_the_length(mode: str, tag: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "a.mp3", mode, has_header=True)
    path.write_bytes(tag + path.read_bytes())
    assert length_without_header(local(path).open()) is None
    assert AudioClips(path)[0]["audio"].shape == (1, 4 * 44_100)


@pytest.mark.parametrize("tag", [b"", b"ID3\4\0\0\0\0\2\1" + bytes(257)])
@pytest.mark.parametrize("end", [b"", b"TAG" + b"x" * 125, b"APETAGEX" + b"x" * 3_000, bytes(500)])
def test_frames_of_one_rate_are_counted_without_a_header(tag: bytes, end: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "a.mp3", "CONSTANT", has_header=False)
    path.write_bytes(tag + path.read_bytes() + end)
    assert length_without_header(local(path).open()) == 155 * 1152
    whole = AudioClips(path)[0]["audio"]
    assert whole.shape == (1, 155 * 1152)
    clips = AudioClips(path, seconds=0.5)
    assert len(clips) == 8
    np.testing.assert_allclose(clips[7]["audio"], whole[:, 7 * 22_050 : 8 * 22_050], atol=1e-6)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda data: data[:-50], "truncated or damaged"),
        (lambda data: data[:2090] + b"x" * 700 + data[2090:], "does not say how long it is"),
    ],
)
def test_damaged_file_without_a_header_is_an_error(damaged: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.mp3", "CONSTANT", has_header=False)
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(MediaFileError, match=message):
        AudioClips(path)[0]


def test_several_rates_without_a_header_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mp3", "VARIABLE", has_header=False)
    with pytest.raises(MediaFileError, match=r"a\.mp3 does not say how long it is .* `ffmpeg -i in\.mp3 -c copy"):
        AudioClips(path)[0]


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xfb", b"\xff" * 50, b"no MP3 file", b"ID3", b"ID3" + b"\x7f" * 9]
)
def test_what_is_no_mp3_has_no_length(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(data)
    assert length_without_header(local(tmp_path / "a.mp3").open()) is None


def test_flac_of_unknown_length_is_an_error_of_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(8_000), 8_000)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # the number of frames, as a program writes it that cannot go back
    path.write_bytes(data)
    for options in ({}, {"seconds": 0.5}, {"seconds": 0.5, "random": True}):
        with pytest.raises(MediaFileError, match=r"a\.flac does not say how long it is"):
            AudioClips(path, **options)[0]  # type: ignore[arg-type]
