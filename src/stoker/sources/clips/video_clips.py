"""Clips of video files as a dataset by index, and a video file that is read by the times of its frames."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.datasets.combining import positive
from stoker.errors import ClipLengthError, MediaFileError
from stoker.extend import sample_rng
from stoker.sources.clips.clip_file import ClipFile
from stoker.sources.clips.clips_of_files import ClipsOfFiles, Cut
from stoker.sources.clips.frame_times import FrameTimes, first_video, frame_times, named_errors, opened_container, pyav
from stoker.sources.per_process import PerProcess
from stoker.sources.places import Place

_MOST_OPEN = 4
"""Videos that a process holds open. A decoder of a large video holds some 50 MB of frames."""


class VideoClips(ClipsOfFiles):
    """Clips of video files, by index: with a length, a true shuffle, exact resume. Needs `stoker[video]` (PyAV).

        VideoClips("videos/*.mp4", frames=8)                             # 8 frames from each file, evenly spread
        VideoClips(paths, labels, frames=8, random=True)                 # one at random from each 8th of the file
        VideoClips(paths, labels, frames=16, seconds=2, random=True)     # from 2 seconds at a random place
        VideoClips(paths, frames=16, seconds=2, hop=1, size=(112, 112))  # all clips of 2 seconds, a second apart

    A sample is a dict: `"video"`, a uint8 array (frames, height, width, 3) in RGB; `"times"`, the second of each frame,
    counted from the first frame of the file, as float64; `"path"`; and `"label"`, if there are labels. A clip is cut
    into `frames` equal parts, and the frame that is shown in the middle of each part is taken. Where there are fewer
    frames than parts, some come twice. Pictures are turned as the file says.

    Frames are exact: a frame is the same whether it is found by seeking or by decoding the file from its begin. For
    this, an index of the times of all frames is made once and kept beside the file (`a.mp4.frames.index`, 8 bytes for
    each frame), written as a whole and made anew if the file changes. Where the folder cannot be written, it lies in
    `~/.cache/stoker/indexes`. Making it reads the file, without decoding (AVI files with B-frames, which keep no times
    of display, are decoded once): at the first sample of a file, or, for consecutive clips, when the dataset is made.

    Decoding begins at the key frame before a frame, and goes on from frame to frame within a clip. So a clip costs up
    to the distance of two key frames more than its own frames. Each process holds 4 files open, and opens them itself:
    no decoder is inherited or pickled, and none runs threads. `RowGroupSampler(dataset.clip_counts)` shuffles file by
    file. Thread safe, as long as `transform` is.

    Args:
        files: places of the files: paths, a glob or brace pattern, URLs of object stores or web servers, or a list.
        labels: one for each file, in their order: a list of numbers or texts, an array, or any object with `__len__`
            and `__getitem__`.
        frames: the number of frames of a clip.
        seconds: the length of a clip. None for the whole file.
        hop: seconds from the begin of a clip to that of the next one; None for `seconds`.
        random: whether a file is one sample, drawn anew at each read from `stoker.sample_rng()`, so that it repeats
            with the loader's seed: with `seconds`, a clip that begins at any frame; without, any frame of each part.
        size: height and width to which frames are scaled, bilinear. None for those of the file.
        short: for files that are shorter than a clip. `"raise"`: such a file is a sample that raises `ClipLengthError`,
            and the rest at the end of a file is left out. `"pad"`: both are clips, which repeat the last frame.
        transform: a function of the dict, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a place leads to no file.
        MissingExtraError: PyAV is not installed.
        LabelCountError: the numbers of files and labels differ.
        TypeError: a number is none, or `transform` cannot be called.
        MissingExtraError: obstore is not installed, and a place is a URL.
        ValueError: there are no files, a number is not positive, or `hop` has no clips to apply to.

    Attributes:
        files: the paths, as a sequence.
        labels: the labels, as a sequence; None if there are none.

    At each access:
        IndexError: the index is out of range.
        MediaFileError: the file is empty, truncated, damaged, or holds no video; or a frame cannot be decoded, or has
            another size than the first.
        ClipLengthError: the file is shorter than a clip.
        FileNotFoundError: the file was removed since.
        ObjectStoreError: its store failed.
        FileChangedError: the file was changed since its clips were counted.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        labels: Any = None,
        *,
        frames: int,
        seconds: float | None = None,
        hop: float | None = None,
        random: bool = False,
        size: tuple[int, int] | None = None,
        short: str = "raise",
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        pyav()
        self._frames = positive(frames, "frames")
        if size is not None and (not isinstance(size, tuple | list) or len(size) != 2):
            raise TypeError(f"size is {size!r}, expected (height, width)")
        self._size = None if size is None else (positive(size[0], "height"), positive(size[1], "width"))
        self._open: PerProcess[dict[str, VideoFile]] = PerProcess(dict, _close_all)
        super().__init__(
            files, labels, Cut.checked(seconds, hop, random, short), transform, storage_options, cache, cache_size
        )

    def _count(self, file: ClipFile) -> int:
        times = frame_times(file)
        return self._cut.count(times.total, times.rate, times.slack)

    def _read(self, file: ClipFile, number: int) -> dict[str, Any]:
        # A file is taken from the open ones while it is read, so two threads never share a decoder
        opened = self._open.get()
        video = opened.pop(file.place, None)
        if video is not None and file.is_local and video.times.version != file.version():
            video.close()
            video = None
        if video is None:
            video = VideoFile(file)
        try:
            rows = self._rows(file.name, video.times, number)
            pictures = video.read(rows.tolist(), self._size)
        except BaseException:
            video.close()  # its decoder may stand anywhere
            raise
        opened[file.place] = video
        for oldest in list(opened)[: max(0, len(opened) - _MOST_OPEN)]:
            if (other := opened.pop(oldest, None)) is not None:
                other.close()
        times = video.times.frames
        return {"video": pictures, "times": (times[rows] - times[0]) / video.times.rate}

    def _rows(self, name: str, times: FrameTimes, number: int) -> Any:
        """Returns the numbers of the frames of a clip."""
        total, rate = times.total, times.rate
        length = self._cut.length(total, rate)
        start = self._cut.start(number, rate)
        places = np.full(self._frames, 0.5)
        if self._cut.random:
            rng = sample_rng().numpy_generator
            if self._cut.seconds is None:
                places = rng.random(self._frames)
            else:
                begins = times.frames - times.frames[0]
                fitting = int(np.searchsorted(begins, total + times.slack - length, "right"))
                start = int(begins[rng.integers(fitting)]) if fitting else 0
        if start + length > total + times.slack and not self._cut.pads:
            raise ClipLengthError(
                f"{name} is shorter than a clip: it has {total / rate:g} seconds, and seconds={self._cut.seconds:g}. "
                'Leave it out, make clips shorter, or repeat the last frame with short="pad".'
            )
        shown = times.frames[0] + start + (np.arange(self._frames) + places) * (length / self._frames)
        return np.maximum(np.searchsorted(times.frames, shown, "right") - 1, 0)


def _close_all(videos: dict[str, VideoFile]) -> None:
    for video in videos.values():
        video.close()


# A video file that is read by the times of its frames.


Frames = np.ndarray[Any, np.dtype[np.uint8]]


class VideoFile:
    """An open video. Belongs to one process and, at a time, to one thread. Runs no thread.

    Raises:
        MediaFileError: the file is truncated, damaged, or holds no video.
    """

    def __init__(self, file: ClipFile) -> None:
        self.times = frame_times(file)
        times = self.times.given.tolist()
        self._shown = dict(zip(times, self.times.frames.tolist(), strict=True)) if times else {}
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
        """
        out: Frames | None = None
        picture, current_row = None, -1
        for place, row in enumerate(rows):
            if row != current_row:
                with named_errors(self._file, f"cannot be decoded at second {self._second(row):.3f}"):
                    picture, current_row = _pixels(self._frame(row), size), row
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
                self._last, at = frame, self._time(frame)
                if at >= time:
                    return frame if at == time else None
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
