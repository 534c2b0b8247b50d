"""A video file that is read by the times of its frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker.errors import MediaFileError
from stoker.sources.clips.clip_file import ClipFile
from stoker.sources.clips.frame_times import frame_times
from stoker.sources.clips.open_container import first_video, named_errors, opened_container

Frames = np.ndarray[Any, np.dtype[np.uint8]]


class VideoFile:
    """An open video. Belongs to one process and, at a time, to one thread. Runs no thread.

    Args:
        file: which is opened.

    Attributes:
        times: of the frames.

    Raises:
        MediaFileError: the file is truncated, damaged, or holds no video.
        OSError: it cannot be read.
    """

    def __init__(self, file: ClipFile) -> None:
        self.times = frame_times(file)
        given = self.times.given.tolist()
        self._shown = dict(zip(given, self.times.frames.tolist(), strict=True)) if given else {}
        self._file = file._replace(known=self.times.version).open()
        self._name = file.name
        self._last: Any = None  # the last frame that came out of the decoder
        self._decoded: Iterator[Any] = iter(())
        self._open()

    def read(self, rows: Sequence[int], size: tuple[int, int] | None) -> Frames:
        """Returns frames in RGB, as an array (frames, height, width, 3).

        Args:
            rows: the numbers of the frames, ascending. A number may occur several times.
            size: height and width; None for those of the video.

        Raises:
            MediaFileError: a frame cannot be decoded, or has another size than the first, without `size`.
        """
        out: Frames | None = None
        picture, held = None, -1
        for place, row in enumerate(rows):
            if row != held:
                with named_errors(self._file, f"cannot be decoded at second {self._second(row):.3f}"):
                    picture, held = _pixels(self._frame(row), size), row
            assert picture is not None
            if out is None:
                out = np.empty((len(rows), *picture.shape), np.uint8)
            if picture.shape != out.shape[1:]:
                raise MediaFileError(
                    f"{self._name} changes its size from {out.shape[1:3]} to {picture.shape[:2]} at second "
                    f"{self._second(row):.3f}: pass size=(height, width)"
                )
            out[place] = picture
        assert out is not None
        return out

    def close(self) -> None:
        """Closes the file."""
        self._last, self._decoded = None, iter(())
        self._container.close()

    def _open(self) -> None:
        self._container = opened_container(self._file)
        self._stream = first_video(self._container, self._name)
        self._decoded = self._container.decode(self._stream)
        self._last = None

    def _reopen(self) -> None:
        self._container.close()
        self._open()

    def _second(self, row: int) -> float:
        return float(self.times.frames[row] - self.times.frames[0]) / self.times.rate

    def _frame(self, row: int) -> Any:
        """Returns a decoded frame: the same one that decoding from the begin of the file gives."""
        time = int(self.times.frames[row])
        key = max(0, int(np.searchsorted(self.times.keys, time, "right")) - 1)
        if self._last is None or not self.times.keys[key] <= self._time(self._last) <= time:
            self._seek(key)
        frame = self._decoded_at(time)
        if frame is None and key:  # it depends on frames before its key frame, as in streams that refresh bit by bit
            self._seek(key - 1)
            frame = self._decoded_at(time)
        if frame is None:
            self._reopen()
            frame = self._decoded_at(time)
        if frame is None or frame.is_corrupt:
            raise MediaFileError(
                f"{self._name} has no whole frame at second {self._second(row):.3f}: it is truncated or damaged"
            )
        return frame

    def _decoded_at(self, time: int) -> Any:
        """Returns the frame of this time from those that follow in the decoder; None if it is not among them."""
        if self._last is not None and self._time(self._last) == time:
            return self._last
        for frame in self._decoded:
            if frame.pts is not None:
                self._last, found = frame, self._time(frame)
                if found >= time:
                    return frame if found == time else None
        return None

    def _time(self, frame: Any) -> int:
        """Returns the time at which a frame, or a packet's, is shown."""
        time: int = self._shown.get(frame.pts, frame.pts)
        return time

    def _seek(self, key: int) -> None:
        """Moves the decoder to a key frame, or before it. Containers seek by the one or the other kind of time."""
        self._last = None
        shown, decoded = int(self.times.keys[key]), int(self.times.key_decoding[key])
        for target in dict.fromkeys((shown, decoded)):
            self._container.seek(target, stream=self._stream)
            packets = self._container.demux(self._stream)
            first = next(packets, None)
            if (
                first is not None
                and first.size
                and first.is_keyframe
                and first.pts is not None
                and self._time(first) <= shown
            ):
                packets = itertools.chain([first], packets)
                self._decoded = itertools.chain.from_iterable(packet.decode() for packet in packets)
                return
        self._reopen()


def _pixels(frame: Any, size: tuple[int, int] | None) -> Frames:
    """Returns a frame in RGB as it is to be shown: a phone stores how it was held."""
    turns = round(frame.rotation / 90)
    height, width = size or (None, None)
    if turns % 2:
        height, width = width, height
    pixels: Frames = frame.to_ndarray(format="rgb24", height=height, width=width, threads=1)  # 0, the default, is many
    return np.rot90(pixels, turns) if turns else pixels
