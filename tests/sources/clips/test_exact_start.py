"""Clips of lossy formats are those of the whole file, which soundfile reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import MediaFileError
from stoker.sources.clips.audio_clips import AudioClips
from stoker.sources.clips.exact_start import OggPages
from tests.sources.clips.media_files import local
from tests.sources.object_servers import Bucket

soundfile = pytest.importorskip("soundfile")

FILES: dict[str, dict[str, Any]] = {
    "one-page.ogg": {"rate": 8_000, "frames": 500},
    "short.ogg": {"rate": 8_000, "frames": 12_345},
    "low.ogg": {"rate": 8_000, "frames": 60_000, "compression_level": 0.9},
    "high.ogg": {"rate": 16_000, "frames": 60_000, "compression_level": 0.0},
    "odd.ogg": {"rate": 22_050, "frames": 60_001, "compression_level": 0.9},
    "large-blocks.ogg": {"rate": 48_000, "frames": 200_001},
    "variable-8.mp3": {"rate": 8_000, "bitrate_mode": "VARIABLE", "compression_level": 0.5},
    "variable-16.mp3": {"rate": 16_000, "bitrate_mode": "VARIABLE", "compression_level": 0.99},
    "variable-24.mp3": {"rate": 24_000, "channels": 2, "bitrate_mode": "VARIABLE", "compression_level": 0.99},
    "average-24.mp3": {"rate": 24_000, "channels": 2, "bitrate_mode": "AVERAGE", "compression_level": 0.99},
    "constant-16.mp3": {"rate": 16_000, "channels": 2, "bitrate_mode": "CONSTANT", "compression_level": 0.99},
    "constant-22.mp3": {"rate": 22_050, "channels": 2, "bitrate_mode": "CONSTANT", "compression_level": 0.99},
    "constant-48.mp3": {"rate": 48_000, "bitrate_mode": "CONSTANT", "compression_level": 0.99},
    "variable-44.mp3": {"rate": 44_100, "channels": 2, "bitrate_mode": "VARIABLE", "compression_level": 0.95},
    "speech.opus": {"rate": 8_000, "frames": 40_000, "compression_level": 1.0, "noise": 0.01},
    "music.opus": {"rate": 24_000, "frames": 80_000, "compression_level": 0.0},
    "plain.flac": {"rate": 8_000, "frames": 12_345},
    "plain.wav": {"rate": 8_000, "frames": 12_345},
    "adpcm.wav": {"rate": 8_000, "frames": 12_345, "subtype": "MS_ADPCM"},
    "telephone.wav": {"rate": 8_000, "frames": 12_345, "subtype": "GSM610"},  # the library cannot seek in it
}


def written(
    path: Path,
    rate: int,
    frames: int | None = None,
    channels: int = 1,
    subtype: str | None = None,
    noise: float = 0.15,
    **options: Any,
) -> Path:
    frames = 5 * rate if frames is None else frames
    seconds = np.arange(frames) / rate
    loudness = np.abs(np.sin(2 * seconds))
    if path.name == "speech.opus":  # a hum, of which the decoder of speech never forgets the begin
        loudness += 0.2
    else:
        loudness **= 6
        loudness[frames // 3 : frames // 2] *= 1e-4
    hiss = np.random.default_rng(0).normal(size=(frames, channels)) * noise
    sound = (hiss + 0.3 * np.sin(2 * np.pi * 220 * seconds)[:, None]) * loudness[:, None]
    form = "OGG" if path.suffix == ".opus" else None
    soundfile.write(path, sound.astype("f4"), rate, format=form, subtype="OPUS" if form else subtype, **options)
    return path


def compare(place: Any, path: Path, starts: int, **options: Any) -> None:
    """Compares clips that begin anywhere, many of them in the last page of an Ogg file, with the whole file's."""
    whole, rate = soundfile.read(path, dtype="float32", always_2d=True)
    length = min(700, len(whole))
    clips = AudioClips(place, seconds=length / rate, hop=1 / rate, **options)
    last = len(whole) - length
    assert len(clips) == last + 1
    spread = np.random.default_rng(1).integers(0, last + 1, starts)
    for start in {0, min(1, last), last, *range(last, max(0, last - 20_000), -1_999), *spread.tolist()}:
        for begin in (start, min(start + length, last)):  # two reads, one behind the other
            found = clips[begin]["audio"].T
            assert np.abs(found - whole[begin : begin + length]).max() < 1e-6, f"{path.name}, frame {begin}"
    assert np.array_equal(AudioClips(place, **options)[0]["audio"].T, whole)


@pytest.mark.parametrize("name", FILES)
def test_clips_are_those_of_the_whole_file(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / name, **FILES[name])
    compare(path, path, starts=15)
    capfd.readouterr()  # the library warns of pieces whose data begin before the ones that it was given


@pytest.mark.parametrize("name", ["high.ogg", "constant-16.mp3", "speech.opus", "music.opus", "telephone.wav"])
def test_clips_of_a_store_are_those_of_the_whole_file(
    name: str, bucket: Bucket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / name, **FILES[name])
    compare(bucket.upload(path), path, starts=2)
    capfd.readouterr()


def test_flac_behind_a_tag_is_whole(bucket: Bucket, tmp_path: Path) -> None:
    path = written(tmp_path / "a.flac", **FILES["plain.flac"])
    path.write_bytes(b"ID3\4\0\0\0\6\x1a\x20" + bytes(6 << 14 | 0x1A << 7 | 0x20) + path.read_bytes())  # a picture
    compare(path, path, starts=10)
    compare(bucket.upload(path), path, starts=2)


def test_two_sounds_in_one_ogg_file_are_read_as_by_the_library(tmp_path: Path) -> None:
    first, second = (written(tmp_path / f"{rate}.ogg", rate=rate, frames=60_000) for rate in (16_000, 8_000))
    path = tmp_path / "chain.ogg"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    compare(path, path, starts=5)
    path.write_bytes(first.read_bytes() + second.read_bytes() * 60)
    assert OggPages(b"\x01vorbis", local(path).open()).ends is None
    with pytest.raises(MediaFileError, match="does not say how long it is"):
        AudioClips(path)[0]


def test_pages_of_an_ogg_file(tmp_path: Path) -> None:
    music = OggPages(b"OpusHead", local(written(tmp_path / "a.opus", **FILES["music.opus"])).open())
    assert music.ends is not None and music.ends[1] == 160_000 + 312
    assert music.hold_music_only(0, music.ends[1]) and not music.hold_music_only(0, music.ends[1] + 1)
    speech = OggPages(b"OpusHead", local(written(tmp_path / "speech.opus", **FILES["speech.opus"])).open())
    assert not speech.hold_music_only(0, 48_000) and not speech.hold_music_only(96_000, 144_000)
    one_page = OggPages(b"\x01vorbis", local(written(tmp_path / "c.ogg", **FILES["one-page.ogg"])).open())
    assert one_page.ends == (0, 500)
    (tmp_path / "no.ogg").write_bytes(b"OggS" * 20_000)
    assert OggPages(b"OpusHead", local(tmp_path / "no.ogg").open()).ends is None


def test_pages_are_found_in_a_long_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.opus", rate=24_000, frames=24_000 * 20, compression_level=0.0)
    assert path.stat().st_size > 1 << 18
    pages = OggPages(b"OpusHead", local(path).open())
    for begin in range(0, 48_000 * 19, 100_003):
        assert pages.hold_music_only(begin, begin + 48_000)
