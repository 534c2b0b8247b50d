"""Clips of audio files as a dataset by index."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from stoker.errors import ClipLengthError, MediaFileError, MissingExtraError
from stoker.extend import sample_rng
from stoker.sources.clips.clip_file import ClipFile, OpenClipFile, check_is_whole
from stoker.sources.clips.clips_of_files import ClipsOfFiles, Cut
from stoker.sources.clips.exact_start import behind_tag, exact_start, length_without_header
from stoker.sources.places import Place
from stoker.sources.storage import HELD

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
    read alone or cut from the whole file, as `soundfile.read` gives it, up to rounding (below 1e-6) in MP3 and Opus. To
    this end, decoding begins a little before a clip; in Opus files of speech (below some 32 kbit/s), GSM and G.72x at
    the begin of the file, since their decoders never forget. The sample rate is the file's: a `transform` resamples
    (for instance with `soxr` or `torchaudio.functional.resample`), and files of several rates need one, since their
    clips have different numbers of frames.

    Nothing is open between samples, so nothing is inherited or pickled. Thread safe, as long as `transform` is.

    Args:
        files: places of the files: paths, a glob or brace pattern, URLs of object stores or web servers, or a list.
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
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a place leads to no file.
        MissingExtraError: soundfile is not installed.
        LabelCountError: the numbers of files and labels differ.
        TypeError: `seconds` or `hop` is no number, or `transform` cannot be called.
        MissingExtraError: obstore is not installed, and a place is a URL.
        ValueError: there are no files, `seconds` or `hop` is not positive, or `hop` has no clips to apply to.

    Attributes:
        files: the paths, as a sequence.
        labels: the labels, as a sequence; None if there are none.

    At each access:
        IndexError: the index is out of range.
        MediaFileError: the file is empty, truncated, damaged, or holds no audio that the library knows.
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
        seconds: float | None = None,
        hop: float | None = None,
        random: bool = False,
        mono: bool = False,
        short: str = "raise",
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        _soundfile()
        self._mono = mono
        super().__init__(
            files, labels, Cut.checked(seconds, hop, random, short), transform, storage_options, cache, cache_size
        )

    def _count(self, file: ClipFile) -> int:
        with _opened(file, whole=False) as (_, sound, total):
            return self._cut.count(total, sound.samplerate)

    def _read(self, file: ClipFile, number: int) -> dict[str, Any]:
        with _opened(file, whole=self._cut.seconds is None) as (opened, sound, total):
            rate = sound.samplerate
            if not total:
                raise MediaFileError(f"{file.name} holds no frame of audio: was it written completely?")
            length = self._cut.length(total, rate)
            start = self._cut.start(number, rate)
            if self._cut.random and total > length:
                start = sample_rng().random_generator.randint(0, total - length)
            if start + length > total and not self._cut.pads:
                raise ClipLengthError(
                    f"{file.name} is shorter than a clip: it has {total / rate:g} seconds, and seconds="
                    f'{self._cut.seconds:g}. Leave it out, make clips shorter, or fill up with short="pad".'
                )
            frames = min(length, total - start)
            begin = exact_start(sound, opened, start, total)
            if sound.seekable():
                sound.seek(begin)
            # Once: behind each read of its own, the library seeks
            data = sound.read(start - begin + frames, dtype="float32", always_2d=True)[start - begin :]
            if len(data) != frames:
                raise MediaFileError(
                    f"{file.name} ends after {start + len(data):,} frames, and its header promises {total:,}: it is "
                    "truncated or damaged"
                )
        audio = np.zeros((1 if self._mono else data.shape[1], length), np.float32)
        audio[:, :frames] = data.mean(axis=1) if self._mono else data.T
        sample = {"audio": audio, "sample_rate": rate, "start": start / rate}
        return {**sample, "length": frames} if self._cut.pads else sample


@contextmanager
def _opened(file: ClipFile, whole: bool) -> Iterator[tuple[OpenClipFile, Any, int]]:
    """Opens an audio file, finds its number of frames, and names the file in the errors of the library.

    Args:
        whole: whether all of it will be read: a store is then asked once.
    """
    soundfile = _soundfile()
    contents = file.open()
    name, size = file.name, contents.version.size
    if not size:
        raise MediaFileError(f"{name} is empty: was it written or copied completely?")
    try:
        with contents.errors_of_store():
            check_is_whole(contents)
            with soundfile.SoundFile(_for_library(contents, whole)) as sound:
                counted = length_without_header(contents) if sound.format == "MP3" else None
                frames = sound.frames if counted is None else counted
                if not 0 <= frames <= _MOST_FRAMES * size or counted == 0:
                    copy = "-c copy " if sound.format == "MP3" else ""
                    raise MediaFileError(
                        f"{name} does not say how long it is ({frames:,} frames in {size:,} bytes), as files written "
                        "into a pipe, or MP3 files of a variable bit rate without their header. Write it anew: "
                        f"`ffmpeg -i in.{sound.format.lower()} {copy}out.{sound.format.lower()}`."
                    )
                yield contents, sound, frames
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).strip(" .")  # without the path
        raise MediaFileError(
            f"{name} ({size:,} bytes) cannot be read: {reason}. Is it an audio file, and was it written and "
            f"copied completely? libsndfile reads {', '.join(soundfile.available_formats())}."
        ) from error


def _for_library(file: OpenClipFile, whole: bool) -> Any:
    size, begin = file.version.size, behind_tag(file)
    if begin and file.read(begin, 4) != b"fLaC":
        begin = 0  # behind a tag, the library cannot seek in FLAC
    if file.path is not None and not begin:
        return os.fsencode(file.path)
    return io.BytesIO(file.read(begin, size - begin)) if whole and size <= HELD else file.stream(begin)


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library that it loads is missing
        raise MissingExtraError(
            f"AudioClips needs soundfile, which cannot be imported ({error}): install the extra stoker[audio]."
        ) from error
    return soundfile
