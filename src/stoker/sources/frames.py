"""`decode_frames`: many images of one sample, decoded in threads into one array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from stoker._core.machine.cpus import cpus
from stoker._core.worker_info import current
from stoker.datasets.column import Array
from stoker.errors import BatchError
from stoker.sources.read_image import read_rgb

Place = tuple[int, ...]


def decode_frames(
    sources: Any, decode: Callable[[Any], Any] = read_rgb, *, threads: int | None = None, out: Array | None = None
) -> Array:
    """Returns several images as one array, decoded by several threads.

        frames = stoker.decode_frames([[path(camera, frame) for frame in range(36)] for camera in range(8)])
        frames.shape    # (8, 36, height, width, 3)

    For samples of many images, such as several cameras or the frames of a clip, to be called in the dataset's
    `__getitem__`. The threads end before the function returns, so nothing is left behind. They help where `decode`
    releases the GIL, as Pillow and OpenCV do. Thread-safe.

    Args:
        sources: paths of files, or their contents: a list, or lists of equal length in lists.
        decode: takes a path or contents and returns an array, or an image that `numpy.asarray` takes; all of one shape
            and dtype. Several threads call it at once, so it must not draw random numbers: draw them before, and give
            all frames of a sample the same crop. The default gives (height, width, 3) in uint8.
        threads: number of threads. None takes this worker's share of the CPUs, at least 1, and 1 outside of a
            worker: the calling one.
        out: an array of the result's shape and dtype, to write into. None makes one.

    Returns:
        An array of shape `(*shape of sources, *shape of an image)`; `out`, if it was given.

    Raises:
        ValueError: there are no sources, their lists differ in length, `threads` is less than 1, or `out` has another
            shape or dtype.
        BatchError: an image has another shape or dtype than the first; with its place.
        Exception: `decode` raised it: that of the earliest image, with a note that names its place.
    """
    shape, places = _places(sources)
    number = _threads() if threads is None else threads
    if number < 1:
        raise ValueError(f"decode_frames(threads={threads}): at least 1 is needed")
    first = _decoded(decode, places[0])
    wanted = (*shape, *first.shape)
    if out is None:
        out = np.empty(wanted, first.dtype)
    elif out.shape != wanted or out.dtype != first.dtype:
        raise ValueError(
            f"decode_frames(out): an array of {out.dtype} and shape {out.shape}, expected {first.dtype} and {wanted}"
        )
    result = out
    result[places[0][0]] = first

    def write(place: tuple[Place, Any]) -> None:
        image = _decoded(decode, place)
        if image.shape != first.shape or image.dtype != first.dtype:
            raise BatchError(
                f"the image at {_text(place)} is of {image.dtype} and shape {image.shape}, the first one of "
                f"{first.dtype} and {first.shape}: crop or resize them to one shape in decode="
            )
        result[place[0]] = image

    if number == 1 or len(places) == 1:
        for place in places[1:]:
            write(place)
    else:
        _in_threads(write, places[1:], min(number, len(places) - 1))
    return result


def _in_threads(write: Callable[[tuple[Place, Any]], None], places: Sequence[tuple[Place, Any]], number: int) -> None:
    """Calls `write` for all places. Raises the error of the earliest one; the threads have ended then."""
    with ThreadPoolExecutor(number, thread_name_prefix="stoker-frames") as pool:
        waiting: list[Future[None]] = [pool.submit(write, place) for place in places]
        try:
            for each in waiting:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _threads() -> int:
    """Returns this worker's share of the CPUs. A stream that calls this has not asked for its worker's number."""
    several = current.one_of_several
    if several is not None:
        return max(1, cpus().number // several[1])
    return 1 if current.info is None else cpus().number


def _places(sources: Any) -> tuple[Place, list[tuple[Place, Any]]]:
    """Returns the shape of nested lists, and their items with their places."""
    shape: list[int] = []
    level = sources
    while _is_list(level):
        shape.append(len(level))
        if not len(level):
            raise ValueError(f"decode_frames(sources): an empty list, in lists of shape {tuple(shape)}")
        level = level[0]
    if not shape:
        raise ValueError(f"decode_frames(sources): a {type(sources).__name__}, expected a list of paths")
    return tuple(shape), list(_items(sources, shape, ()))


def _items(level: Any, shape: Sequence[int], place: Place) -> Iterator[tuple[Place, Any]]:
    if not shape:
        if _is_list(level):
            raise ValueError(f"decode_frames(sources): a list at {list(place)}, where others have an image")
        yield place, os.fspath(level) if isinstance(level, os.PathLike) else level
        return
    if not _is_list(level) or len(level) != shape[0]:
        shown = f"{len(level)} items" if _is_list(level) else f"a {type(level).__name__}"
        raise ValueError(f"decode_frames(sources): {shown} at {list(place)}, expected {shape[0]} as in the first list")
    for number, each in enumerate(level):
        yield from _items(each, shape[1:], (*place, number))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _decoded(decode: Callable[[Any], Any], place: tuple[Place, Any]) -> Array:
    try:
        return np.asarray(decode(place[1]))
    except Exception as error:
        error.add_note(f"raised by the image at {_text(place)}")
        raise


def _text(place: tuple[Place, Any]) -> str:
    where, source = place
    return f"{list(where)} ({f'{len(source):,} bytes' if isinstance(source, bytes) else source})"
