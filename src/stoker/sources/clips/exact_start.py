"""Where decoding begins, so that a clip has the values that it has in the whole file.

Decoders of lossy formats carry data from one piece to the next, and libsndfile's seeks give them too little of it.
"""

from __future__ import annotations

from typing import Any

from stoker.sources.clips.clip_file import OpenClipFile
from stoker.sources.clips.ogg_pages import OggPages


def exact_start(sound: Any, file: OpenClipFile, start: int, total: int) -> int:
    """Returns the frame, `start` or one before it, from which the library is to read.

    Args:
        sound: the open file, of soundfile.
        file: from which it was opened.
        start: the first frame of the clip.
        total: frames of the file.

    Raises:
        OSError: the file cannot be read.
    """
    if not start or not sound.seekable():
        return 0
    if sound.subtype.startswith("MPEG"):
        return max(0, start - _frames_before(sound.samplerate, sound.channels))
    if sound.subtype == "VORBIS":
        return _vorbis(OggPages(b"\x01vorbis", file), start, total)
    if sound.subtype == "OPUS":
        return _opus(OggPages(b"OpusHead", file), start, total, sound.samplerate)
    return start


def _frames_before(rate: int, channels: int) -> int:
    """Returns the frames to be decoded before a clip of an MP3 file.

    The data of a piece may begin some hundred bytes earlier, which are many pieces where these are small; and four
    more, since each piece is blended with the next.
    """
    held, values, kbits, side = (511, 1152, 32, (17, 32)) if rate >= 32_000 else (255, 576, 8, (9, 17))
    least = values * 125 * kbits // rate - 6 - side[channels - 1]  # bytes of data in the smallest piece
    return (held // least + 4) * values


def _vorbis(pages: OggPages, start: int, total: int) -> int:
    """The library takes the end of the last page for that of its last piece, which reaches further."""
    if pages.ends is None:
        return 0
    before, last = pages.ends
    return max(0, min(start, total - (last - before) - 1))


def _opus(pages: OggPages, start: int, total: int, rate: int) -> int:
    """The decoder of music forgets within a second, that of speech never."""
    begin = start - rate
    if pages.ends is None or begin <= 0:
        return 0
    first, end = (pages.ends[1] - (total - frame) * 48_000 // rate for frame in (begin, start))
    return begin if pages.hold_music_only(first - 48_000, end) else 0  # the library itself begins 0.66 s earlier
