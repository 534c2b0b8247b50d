from __future__ import annotations

from pathlib import Path

import pytest

from stoker.sources.clips.clip_file import promised_size
from tests.sources.clips.media_files import write_audio, write_video

EBML = bytes.fromhex("1a45dfa3") + b"\x81\x00" + bytes.fromhex("18538067")


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (b"RIFF" + (1000).to_bytes(4, "little") + b"WAVE", 1007),
        (b"RIFF" + b"\xff" * 4 + b"WAVE", None),
        (b"FORM" + (1000).to_bytes(4, "big") + b"AIFF", 1007),
        (EBML + b"\x85", 16),
        (EBML + b"\x40\x05", 17),
        (EBML + b"\x01\0\0\0\0\0\x01\0", 18 + 256),
        (EBML + b"\x01" + b"\xff" * 7, None),
        (EBML + b"\xff", None),
        (EBML[:5], None),
        (EBML[:4], None),
        (b"", None),
        (b"fLaC", None),
    ],
)
def test_promised_size(head: bytes, size: int | None) -> None:
    assert promised_size(head) == size


def test_whole_files_are_as_large_as_they_promise(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("av")
    for path in [
        write_audio(tmp_path / "a.wav"),
        write_audio(tmp_path / "a.aiff"),
        write_video(tmp_path / "a.mkv"),
        write_video(tmp_path / "a.avi", codec="mpeg4"),
    ]:
        assert promised_size(path.read_bytes()[:4096]) in (path.stat().st_size, path.stat().st_size - 1)
