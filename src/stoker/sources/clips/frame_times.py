"""The frame index: the times of the frames of a video, and its key frames, kept in a file beside it.

It is made by reading the packets, without decoding them. Its columns are the times of the frames in the order of
display, the times of the key frames, the decoding times of these (where a container seeks by them), three numbers: the
time at which the last frame ends, and seconds per tick as numerator and denominator; and the times that the decoder
gives to frames, where these do not ascend. Times are ticks of the stream.

AVI keeps no times of display, so B-frames get those of other frames there. Such a file is decoded once, for its index:
the frames come out of the decoder in the order of display.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import FileChangedError, MediaFileError, MissingExtraError
from stoker.sources.clips.clip_file import ClipFile, OpenClipFile, check_is_whole
from stoker.sources.index_file import Integers, index_cache, index_place, load_index, save_index
from stoker.sources.storage import Version

_SUFFIX = ".frames.index"
_FORMAT = "stoker frames 3"


class FrameTimes(NamedTuple):
    """The times of the frames of a video, in ticks.

    Attributes:
        frames: of all frames, ascending: int64.
        keys: of the key frames, ascending: int64. Decoding can begin at each of them.
        key_decoding: the decoding times of the key frames: int64.
        rate: ticks in a second.
        given: the times that the decoder gives to the frames; empty: those of `frames`.
    """

    frames: Integers
    keys: Integers
    key_decoding: Integers
    end: int
    rate: float
    version: Version
    given: Integers

    @property
    def total(self) -> int:
        """The length of the video."""
        return self.end - int(self.frames[0])

    @property
    def slack(self) -> float:
        """Half of the mean length of a frame: containers round the times of frames."""
        return self.total / len(self.frames) / 2


def frame_times(file: ClipFile) -> FrameTimes:
    """Returns the index of a video: the one that is kept, or a new one.

    It is kept beside the file, or in the user's cache folder where the file's own cannot be written, and for files of
    stores.

    Raises:
        MediaFileError: the file is truncated, damaged, or holds no video whose frames have times.
    """
    opened = file.open()
    version = opened.version
    identity = {"format": _FORMAT, **version._asdict()}
    beside, cached = index_place(file.place, _SUFFIX), index_place(file.place, _SUFFIX, index_cache())
    fields = load_index(beside, identity) or load_index(cached, identity)
    if fields is None or len(fields) != 5 or len(fields[3]) != 3:
        fields = _scanned(opened)
        check_is_whole(opened)
        if file.version() != version:
            raise FileChangedError(
                f"{file.name} was written to while its frames were indexed: index it when it is complete"
            )
        if not save_index(beside, identity, fields) and cached != beside:
            save_index(cached, identity, fields)
    frames, keys, key_decoding, (end, numerator, denominator), decoded = fields
    return FrameTimes(frames, keys, key_decoding, int(end), int(denominator) / int(numerator), version, decoded)


def _scanned(file: OpenClipFile) -> list[Integers]:
    """Returns the columns of the index of a file."""
    frames: list[int] = []
    keys: list[tuple[int, int]] = []
    delays: set[int | None] = set()
    end, packets = 0, 0
    with opened_container(file) as container, named_errors(file, "cannot be read to its end"):
        stream = first_video(container, file.name)
        for packet in container.demux(stream):
            if not packet.size:
                continue
            packets += 1
            if packet.is_keyframe and packet.pts is not None:  # decoding begins at one that is not shown too
                keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
            if packet.is_discard:  # decoded for others, not shown: an edit list begins later
                continue
            if packet.pts is None:
                raise MediaFileError(
                    f"{file.name} holds a video whose frames have no times ({container.format.long_name}), so they "
                    "cannot be found by time: put it into another container, for instance with "
                    "`ffmpeg -i in -c copy out.mp4`."
                )
            frames.append(packet.pts)
            delays.add(None if packet.dts is None else packet.pts - packet.dts)
            end = max(end, packet.pts + (packet.duration or 0))
        _check_frames(file.name, container, stream, packets)
        base = stream.time_base
        reorders = stream.codec_context.has_b_frames and ("avi" in container.format.name or len(delays) == 1)
    if not frames or not keys:
        raise MediaFileError(f"{file.name} holds no frame that can be decoded: was it written and copied completely?")
    times = np.unique(np.array(frames, np.int64))
    times = times[times >= min(keys)[0]]  # frames before the first key frame, as in a recording, cannot be decoded
    decoded = np.array(_given(file) if reorders else [], np.int64)
    if len(decoded):
        times = np.sort(decoded)
        shown = dict(zip(decoded.tolist(), times.tolist(), strict=True))
        keys = [(shown[time], decoding) for time, decoding in keys if time in shown]
        if (decoded == times).all():
            decoded = decoded[:0]
    if end <= times[-1]:  # no packet states its duration
        end = int(times[-1] + max(1, (times[-1] - times[0]) // max(1, len(times) - 1)))
    columns = np.array(sorted(keys), np.int64)
    numbers = np.array([end, base.numerator, base.denominator], np.int64)
    return [times, columns[:, 0].copy(), columns[:, 1].copy(), numbers, decoded]


def _given(file: OpenClipFile) -> list[int]:
    """Returns the times that the decoder gives to the frames of a file, in the order of display."""
    decoded = _decoded_times(file)
    times = [time for time in decoded if time is not None]
    if len(set(times)) != len(decoded):
        raise MediaFileError(
            f"{file.name} holds frames that cannot be told apart by their times, as some AVI files do: write it anew, "
            "for instance with `ffmpeg -i in.avi -c:v libx264 -crf 16 out.mp4`."
        )
    return times


def _decoded_times(file: OpenClipFile) -> list[int | None]:
    with opened_container(file) as container, named_errors(file, "cannot be decoded to its end"):
        return [frame.pts for frame in container.decode(first_video(container, file.name))]


def _check_frames(name: str, container: Any, stream: Any, packets: int) -> None:
    """Compares the packets with those that the tables of an MP4 file promise: the library ends where the file does.

    The tables leave out what an edit list cuts away, and hold those of all fragments.
    """
    promised = len(stream.index_entries)
    if "mp4" in container.format.name and packets < promised:
        raise MediaFileError(
            f"{name} is truncated: it has {packets:,} of the {promised:,} frames that its tables promise"
        )


# Video files opened by PyAV, without threads and without its network.


_OPTIONS = {"fflags": "+genpts"}
_LOCAL, _REMOTE = {"protocol_whitelist": "file"}, {"protocol_whitelist": "none"}
"""A playlist that poses as a video may name files of this machine, if it is one itself, but no URL."""


def opened_container(file: OpenClipFile) -> Any:
    """Returns an open container."""
    av = pyav()
    if not file.version.size:
        raise MediaFileError(f"{file.name} is empty: was it written or copied completely?")
    with named_errors(file):
        # titles that are no UTF-8 are an error before version 19 by default
        lenient = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "replace"}
        if file.path is not None:
            return av.open(f"file:{file.path}", options=_OPTIONS | _LOCAL, **lenient)
        return av.open(file.stream(), options=_OPTIONS | _REMOTE, **lenient)


def first_video(container: Any, name: str) -> Any:
    """Returns the first stream of pictures, to be decoded without threads: they would not survive a fork."""
    for stream in container.streams.video:
        if stream.codec_context is not None and "attached_pic" not in str(stream.disposition):
            stream.thread_type = "NONE"
            stream.codec_context.thread_count = 1
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    raise MediaFileError(
        f"{name} ({container.format.long_name}) holds no video that can be decoded: its streams are of "
        f"{', '.join(kinds) or 'no kind'}"
    )


@contextmanager
def named_errors(file: OpenClipFile, what: str = "cannot be opened") -> Iterator[None]:
    """Names the file in the errors of the library."""
    try:
        with file.errors_of_store():
            yield
    except pyav().FFmpegError as error:
        raise MediaFileError(
            f"{file.name} {what}: {error.strerror}. Is it a video, and was it written and copied completely?"
        ) from error


def pyav() -> Any:
    """Returns the module `av`."""
    try:
        import av
    except ImportError as error:
        raise MissingExtraError(
            f"VideoClips needs PyAV, which cannot be imported ({error}): install the extra stoker[video]."
        ) from error
    return av
