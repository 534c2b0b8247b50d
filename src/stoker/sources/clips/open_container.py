"""Video files opened by PyAV, without threads and without its network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.errors import MediaFileError, MissingExtraError
from stoker.sources.clips.clip_file import OpenClipFile

_OPTIONS = {"fflags": "+genpts"}
_LOCAL, _REMOTE = {"protocol_whitelist": "file"}, {"protocol_whitelist": "none"}
"""A playlist that poses as a video may name files of this machine, if it is one itself, but no URL."""


def opened_container(file: OpenClipFile) -> Any:
    """Returns an open container.

    Raises:
        MediaFileError: the file is empty, truncated, damaged, or of no format that the library knows.
        MissingExtraError: PyAV is not installed.
        OSError: the file cannot be read.
    """
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
    """Returns the first stream of pictures, to be decoded without threads: they would not survive a fork.

    Raises:
        MediaFileError: there is none.
    """
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
    """Names the file in the errors of the library.

    Raises:
        MediaFileError: the library raised an error.
        OSError: the store failed, or the file was changed.
    """
    try:
        with file.errors_of_store():
            yield
    except pyav().FFmpegError as error:
        raise MediaFileError(
            f"{file.name} {what}: {error.strerror}. Is it a video, and was it written and copied completely?"
        ) from error


def pyav() -> Any:
    """Returns the module `av`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingExtraError(
            f"VideoClips needs PyAV, which cannot be imported ({error}): install the extra stoker[video]."
        ) from error
    return av
