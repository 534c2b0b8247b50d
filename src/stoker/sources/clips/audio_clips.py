"""Clips of audio files as a dataset by index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from stoker._random.sample_rng import sample_rng
from stoker.errors import ClipLengthError, MediaFileError, MissingExtraError
from stoker.sources.clips.clips_of_files import ClipsOfFiles
from stoker.sources.clips.cut import Cut
from stoker.sources.clips.mp3_frames import length_without_header
from stoker.sources.clips.promised_size import check_is_whole
from stoker.sources.places import Place
from stoker.sources.storage import LocalFile

_MOST_FRAMES = 8192
"""Frames for each byte of a file above which its header is wrong: silence takes more in each format."""


class AudioClips(ClipsOfFiles):
    """Clips of audio files, by index: with a length, a true shuffle, exact resume. Needs `stoker[audio]` (soundfile).

        AudioClips("speech/*.flac")                               # each file is a sample
        AudioClips("music/*.wav", seconds=5)                      # all clips of 5 seconds, one after the other
        AudioClips(paths, labels, seconds=2, random=True)         # a random clip of each file, another in each epoch

    A sample is a dict: `"audio"`, a float32 array (channels, frames) with values from -1 to 1; `"sample_rate"`, frames
    in a second; `"start"`, the second at which the clip begins; `"path"`; and `"label"`, if there are labels.

    WAV, FLAC, Ogg (Vorbis and Opus), MP3, AIFF and others of libsndfile's. A clip has the same values whether it is
    read alone or cut from the whole file, up to rounding (below 1e-6) in MP3 and Opus. The sample rate is the file's: a
    `transform` resamples (for instance with `soxr` or `torchaudio.functional.resample`), and files of several rates
    need one, since their clips have different numbers of frames.

    Nothing is open between samples, so nothing is inherited or pickled. Thread safe, as long as `transform` is.

    Args:
        files: places of the files: paths, a glob or brace pattern, or a list of them. Local only.
        labels: one for each file, in their order: a list of numbers or texts, an array, or any object with `__len__`
            and `__getitem__`.
        seconds: the length of a clip, rounded to frames. None for whole files, however long.
        hop: seconds from the begin of a clip to that of the next one; None for `seconds`. The headers of all files are
            then read when the dataset is made, unless there is one clip of each file.
        random: whether a file is one sample: a clip at a place that is drawn anew at each read, from
            `stoker.sample_rng()`, so it repeats with the loader's seed.
        mono: whether the channels are averaged: `"audio"` then has one channel.
        short: for files that are shorter than a clip. `"raise"`: such a file is a sample that raises `ClipLengthError`,
            and the rest at the end of a file is left out. `"pad"`: both are clips that end in zeros, and each
            sample has `"length"`, the number of frames that are no padding.
        transform: a function of the dict, whose result is the sample.

    Raises:
        FileNotFoundError: a place leads to no file.
        MissingExtraError: soundfile is not installed.
        LabelCountError: the numbers of files and labels differ.
        TypeError: `seconds` or `hop` is no number, or `transform` cannot be called.
        ValueError: there are no files, `seconds` or `hop` is not positive, or `hop` has no clips to apply to.

    Attributes:
        files: the paths, as a sequence.
        labels: the labels, as a sequence; None if there are none.

    At each access:
        IndexError: the index is out of range.
        MediaFileError: the file is empty, truncated, damaged, or holds no audio that the library knows.
        ClipLengthError: the file is shorter than a clip.
        FileNotFoundError: the file was removed since.
        FileChangedError: the file was changed since its clips were counted.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        labels: Any = None,
        *,
        seconds: float | None = None,
        hop: float | None = None,
        random: bool = False,
        mono: bool = False,
        short: str = "raise",
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        _soundfile()
        self._mono = mono
        super().__init__(files, labels, Cut.checked(seconds, hop, random, short), transform)

    def _count(self, path: str) -> int:
        with _opened(path) as (file, total):
            return self._cut.count(total, file.samplerate)

    def _read(self, path: str, number: int) -> dict[str, Any]:
        with _opened(path) as (file, total):
            rate = file.samplerate
            if not total:
                raise MediaFileError(f"{path} holds no frame of audio: was it written completely?")
            length = self._cut.length(total, rate)
            start = self._cut.start(number, rate)
            if self._cut.random and total > length:
                start = sample_rng().random_generator.randint(0, total - length)
            if start + length > total and not self._cut.pads:
                raise ClipLengthError(
                    f"{path} is shorter than a clip: it has {total / rate:g} seconds, and seconds="
                    f'{self._cut.seconds:g}. Leave it out, make clips shorter, or fill up with short="pad".'
                )
            found = min(length, total - start)
            file.seek(start)
            data = file.read(found, dtype="float32", always_2d=True)
            if len(data) != found:
                raise MediaFileError(
                    f"{path} ends after {start + len(data):,} frames, and its header promises {total:,}: it is "
                    "truncated or damaged"
                )
        audio = np.zeros((1 if self._mono else data.shape[1], length), np.float32)
        audio[:, :found] = data.mean(axis=1) if self._mono else data.T
        sample = {"audio": audio, "sample_rate": rate, "start": start / rate}
        return {**sample, "length": found} if self._cut.pads else sample


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, int]]:
    """Opens an audio file, finds its number of frames, and names the file in the errors of the library.

    Raises:
        MediaFileError: the file is empty, truncated, damaged, or holds no audio that the library knows.
        OSError: the file cannot be read.
    """
    soundfile = _soundfile()
    size = LocalFile(path).version.size
    if not size:
        raise MediaFileError(f"{path} is empty: was it written or copied completely?")
    check_is_whole(path, size)
    try:
        with soundfile.SoundFile(os.fsencode(path)) as file:
            counted = length_without_header(path) if file.format == "MP3" else None
            frames = file.frames if counted is None else counted
            if not 0 <= frames <= _MOST_FRAMES * size or counted == 0:
                copy = "-c copy " if file.format == "MP3" else ""
                raise MediaFileError(
                    f"{path} does not say how long it is ({frames:,} frames in {size:,} bytes), as files written "
                    "into a pipe, or MP3 files of a variable bit rate without their header. Write it anew: "
                    f"`ffmpeg -i in.{file.format.lower()} {copy}out.{file.format.lower()}`."
                )
            yield file, frames
    except soundfile.SoundFileError as error:
        raise MediaFileError(
            f"{path} ({size:,} bytes) cannot be read: {_said(error)}. Is it an audio file, and was it written and "
            f"copied completely? libsndfile reads {', '.join(soundfile.available_formats())}."
        ) from error


def _said(error: Exception) -> str:
    """Returns the message of the library, without the path that its text begins with."""
    return str(getattr(error, "error_string", error)).strip(" .")


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library that it loads is missing
        raise MissingExtraError(
            f"AudioClips needs soundfile, which cannot be imported ({error}): install the extra stoker[audio]."
        ) from error
    return soundfile
