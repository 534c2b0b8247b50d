"""`DataLoader.preview()`: the next epoch's first batch, made and drawn in a forked process.

Whatever the epoch draws, counts, opens or caches happens in the fork: the loader, its samplers, its dataset and all
generators of this process stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from stoker._core import exceptions
from stoker._core.protocol import asked
from stoker._engine.fork.native_pools import quiet_about_forks
from stoker._engine.fork.start_zygote import signals_blocked
from stoker._engine.process import linux, process_setup
from stoker._engine.tracebacks import hide_own_frames
from stoker.errors import MissingExtraError, PreviewError, WorkerTraceback
from stoker.loader.record import record_of

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_ENDING = 2.0
"""Seconds that the process has to end after its last byte."""

_IN_PROCESS: dict[str, Any] = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
    "pin_memory": False,
}
"""torch's attributes of a loader that makes batches in its own process."""


def preview(
    loader: Any,
    path: str | os.PathLike[str] | None,
    images: int,
    classes: Sequence[str] | None,
    mean: Any,
    std: Any,
    seconds: float,
) -> Any:
    """Draws the first batch of the next epoch; the arguments and the result are those of `DataLoader.preview`."""
    if images < 1:
        raise ValueError(f"preview(images={images}): at least 1 is needed")
    pil = pillow()
    names = _classes_of(loader.dataset) if classes is None else classes

    def drawn() -> bytes:
        file = io.BytesIO()
        sheet(_first_batch(loader), images, names, mean, std).save(file, "PNG")
        return file.getvalue()

    png = _elsewhere(drawn, seconds)
    if path is None:
        image = pil.Image.open(io.BytesIO(png))
        image.load()
        return image
    with open(path, "wb") as file:
        file.write(png)
    return os.fspath(path)


def _classes_of(dataset: Any) -> Sequence[str] | None:
    """Returns the attribute `classes` of a dataset, or of the one that it wraps."""
    for _ in range(10):
        if (classes := asked(dataset, "classes")) is not None:
            return classes if isinstance(classes, (list, tuple)) and classes else None
        dataset = asked(dataset, "dataset")
        if dataset is None:
            return None
    return None


def _first_batch(loader: Any) -> Any:
    """Returns the first batch of the loader's next epoch. To be called in a fork: the loader is spent."""
    iterator = loader._iterator  # its workers belong to the other process, and must not be ended from here
    for name, value in {**_IN_PROCESS, "_iterator": None}.items():
        object.__setattr__(loader, name, value)
    if (record := record_of(loader)).own()["device"] is not None:
        record.move_to("cpu")  # a fork must not use its parent's
    try:
        return next(iter(loader))
    except StopIteration:
        raise PreviewError("the epoch has no batch: the dataset, or this rank's share of it, is empty") from None
    finally:
        del iterator


def _elsewhere(work: Callable[[], bytes], seconds: float) -> bytes:
    """Returns the result of a function that runs in a forked process.

    Raises:
        PreviewError: the process died, or took longer than `seconds`.
        Exception: the function raised it; its traceback is the `__cause__`.
    """
    reading, writing = os.pipe()
    trainer, pid = os.getpid(), 0
    with contextlib.suppress(Exception):  # otherwise buffered text would be printed twice
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        with signals_blocked() as before, quiet_about_forks():
            pid = os.fork()
            if pid == 0:
                _child(work, reading, writing, trainer, before)
        os.close(writing)
        writing = -1
        data = _received(reading, seconds)
        code, ended = linux.reap(pid, _ENDING), pid
        pid = 0 if code is not None else pid
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
        if pid:
            linux.end(pid)
    if data is None:
        raise PreviewError(f"process {ended}, which made the batch, {linux.exit_text(code)}, and no batch came of it")
    result, error, text = pickle.loads(data)
    if text is None:
        return bytes(result)
    if error is None:
        raise PreviewError(f"the batch could not be made:\n{text}")
    raise pickle.loads(error) from WorkerTraceback(text)


def _child(work: Callable[[], bytes], reading: int, writing: int, trainer: int, mask: set[Any]) -> NoReturn:
    code = 1
    try:
        process_setup.zygote()  # nothing of the trainer's runs here: no handler, no finaliser, no collection
        linux.die_with_parent(trainer)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        process_setup.take_handlers()
        os.close(reading)
        process_setup.one_thread()
        data = pickle.dumps(_outcome(work))
        view = memoryview(_LENGTH.pack(len(data)) + data)
        while view:
            view = view[os.write(writing, view) :]
        code = 0
    finally:
        process_setup.leave(code)


def _outcome(work: Callable[[], bytes]) -> tuple[bytes, bytes | None, str | None]:
    """Returns the result, or the pickled error, if it can be pickled, and its traceback."""
    try:
        return work(), None, None
    except BaseException as error:
        hide_own_frames(error)
        text = exceptions.format_exception(error)
        try:
            packed = pickle.dumps(error)
            pickle.loads(packed)
        except Exception:
            return b"", None, text
        return b"", packed, text


def _received(reading: int, seconds: float) -> bytes | None:
    """Returns a whole message; None if its writer has ended before.

    Raises:
        PreviewError: it took too long.
    """
    deadline, data = time.monotonic() + seconds, bytearray()
    poll = select.poll()  # `select` takes no descriptor above 1023
    poll.register(reading, select.POLLIN)
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        if not poll.poll(1e3 * max(0.0, deadline - time.monotonic())):
            raise PreviewError(f"no batch within {seconds:g} s: give preview(seconds=...) more, or look at a sample")
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            return None
        data += chunk
    return bytes(data[_LENGTH.size :])


# A contact sheet of a batch: its images beside each other, each with its label.


Array = np.ndarray[Any, np.dtype[Any]]

_CHANNELS = (1, 3, 4)
_LARGEST = 224
"""Pixels of the longest side of a shown image."""
_SMALL = 96
"""Pixels of the longest side below which an image is enlarged, by a whole number."""
_MARGIN, _LINE, _BACK, _INK = 6, 16, 255, 0


def pillow() -> Any:
    """Returns the package PIL with the modules that draw.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError as error:
        raise MissingExtraError(
            "a contact sheet is drawn by Pillow, which is not installed: install it (the extra stoker[images])"
        ) from error
    return PIL


def sheet(
    batch: Any,
    count: int,
    classes: Sequence[str] | None = None,
    mean: Any = None,
    std: Any = None,
) -> Any:
    """Returns a PIL image of the first images of a batch.

    Args:
        batch: any structure of arrays or tensors. Its first leaf that holds images is shown.
        count: the number of images at most.
        classes: names of the labels.
        mean: the mean that was subtracted from each channel, of values from 0 to 1.
        std: the deviation that each channel was divided by.

    Raises:
        PreviewError: no leaf holds images.
        ValueError: `mean` or `std` is for another number of channels.
    """
    leaves = list(_leaves(batch))
    images = _images_of(leaves)
    if images is None:
        shapes = ", ".join(f"{path or 'the batch'}: {_shape(leaf)}" for path, leaf in leaves[:10]) or "nothing"
        raise PreviewError(
            "the batch holds no images: expected an array of shape (batch, channels, height, width), (batch, height, "
            "width, channels) with 1, 3 or 4 channels, or (batch, height, width), or a list of images. It holds "
            f"{shapes}"
        )
    pixels = to_pixels([_channels_last(_plain(image)) for image in images[:count]], mean, std)
    labels = _labels_of(leaves, len(images))
    captions = [] if labels is None else [_caption(label, classes) for label in labels[:count]]
    return _drawn(pixels, captions)


def to_pixels(images: Sequence[Array], mean: Any = None, std: Any = None) -> list[Array]:
    """Returns images as uint8. All are scaled alike, so that differences of brightness stay.

    Args:
        images: arrays (height, width, channels). Bytes are kept. Floats from 0 to 1 are multiplied by 255; others, as
            after a normalisation, are scaled from their range, unless `mean` and `std` undo it. Other integers are
            kept if they are at most 255, and scaled from their range else.
        mean: subtracted from each channel before, of values from 0 to 1.
        std: divided by.
    """
    if mean is not None or std is not None:
        factor = np.asarray(1 if std is None else std, np.float64)
        shift = np.asarray(0 if mean is None else mean, np.float64)
        for setting in (factor, shift):
            if setting.size > 1 and any(setting.shape != image.shape[2:] for image in images):
                raise ValueError(
                    f"mean= and std= have a number for each channel: {setting.size} for images of {images[0].shape[2]}"
                )
        images = [image if image.dtype == np.uint8 else np.clip(image * factor + shift, 0, 1) for image in images]
    if all(image.dtype == np.uint8 for image in images):
        return list(images)
    is_float = any(image.dtype.kind == "f" for image in images)
    wide = [image.astype(np.float64) for image in images]
    finite = [numbers for image in wide if (numbers := image[np.isfinite(image)]).size]
    low = min((float(values.min()) for values in finite), default=0.0)
    high = max((float(values.max()) for values in finite), default=1.0)
    wide = [np.nan_to_num(image, nan=max(0.0, low), posinf=high, neginf=low) for image in wide]
    top = 1 if is_float or all(image.dtype == np.bool_ for image in images) else 255
    if low < 0 or high > top:
        is_bytes = low >= 0 and top < high <= 255
        scale, offset = (1.0, 0.0) if is_bytes else (255 / ((high - low) or 1), low)
    else:
        scale, offset = 255 / top, 0.0
    return [np.rint((image - offset) * scale).astype(np.uint8) for image in wide]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a batch with their paths. A list of texts or numbers, or of images, is one leaf."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, (list, tuple)):
        if value and (all(map(_is_image, value)) or all(isinstance(each, (str, int, float)) for each in value)):
            yield path, value
        else:
            for number, each in enumerate(value):
                yield from _leaves(each, f"{path}[{number}]")
    else:
        yield path, value


def _images_of(leaves: list[tuple[str, Any]]) -> Sequence[Any] | Array | None:
    """Returns the images of a batch: of arrays with channels, of lists, or else of arrays without channels."""
    for _, leaf in leaves:
        shape = _shape(leaf)
        if shape is not None and len(shape) == 4 and _is_image(leaf[0] if shape[0] else np.zeros(shape[1:])):
            return _plain(leaf)
        if isinstance(leaf, (list, tuple)) and leaf and all(map(_is_image, leaf)):
            return leaf
    for _, leaf in leaves:
        shape = _shape(leaf)
        if shape is not None and len(shape) == 3 and min(shape[1:]) > 4:
            return _plain(leaf)[..., None]
    return None


def _is_image(value: Any) -> bool:
    """Returns whether this is an array, a tensor or a PIL image of one image with channels."""
    if hasattr(value, "getbands"):
        return True
    shape = _shape(value)
    return shape is not None and len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)


def _shape(value: Any) -> tuple[int, ...] | None:
    shape = getattr(value, "shape", None)
    return tuple(shape) if hasattr(value, "dtype") and shape is not None else None


def _plain(value: Any) -> Array:
    """Returns an array; a tensor of a dtype that NumPy lacks (bfloat16) as float32."""
    if hasattr(value, "getbands") and value.mode not in ("RGB", "L", "I", "F", "I;16"):
        value = value.convert("RGB")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
        return np.asarray(value.numpy())
    return np.asarray(value)


def _channels_last(image: Array) -> Array:
    """Returns (height, width, channels). If both ends may be channels, they come first, as in torch."""
    if image.ndim == 2:
        return image[..., None]
    return image.transpose(1, 2, 0) if image.shape[0] in _CHANNELS and image.shape[2] != 1 else image


def _labels_of(leaves: list[tuple[str, Any]], count: int) -> Sequence[Any] | None:
    """Returns the first leaf with one number or text for each image."""
    for _, leaf in leaves:
        if _shape(leaf) == (count,):
            return list(_plain(leaf).tolist())
        is_list = isinstance(leaf, (list, tuple)) and len(leaf) == count
        if is_list and all(isinstance(each, (str, int, float)) for each in leaf):
            return list(leaf)
    return None


def _caption(label: Any, classes: Sequence[str] | None) -> str:
    is_index = isinstance(label, int) and not isinstance(label, bool)
    if classes is not None and is_index and 0 <= label < len(classes):
        return str(classes[label])
    return f"{label:g}" if isinstance(label, float) else str(label)


def _drawn(pixels: list[Array], captions: list[str]) -> Any:
    pil = pillow()
    tiles = [_tile(pil, image) for image in pixels]
    width = max((tile.width for tile in tiles), default=1)
    height = max((tile.height for tile in tiles), default=1)
    columns = max(1, min(len(tiles), math.ceil(math.sqrt(len(tiles) * height / width))))
    rows = max(1, math.ceil(len(tiles) / columns))
    step_x, step_y = width + _MARGIN, height + _MARGIN + (_LINE if captions else 0)
    result = pil.Image.new("RGB", (columns * step_x + _MARGIN, rows * step_y + _MARGIN), (_BACK,) * 3)
    draw, font = pil.ImageDraw.Draw(result), pil.ImageFont.load_default()
    for place, tile in enumerate(tiles):
        x, y = _MARGIN + place % columns * step_x, _MARGIN + place // columns * step_y
        result.paste(tile, (x, y))
        if place < len(captions):
            draw.text((x, y + height + 2), _fitting(captions[place], font, width), fill=(_INK,) * 3, font=font)
    return result


def _tile(pil: Any, image: Array) -> Any:
    """Returns an image in RGB, of a size to be seen."""
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    tile = pil.Image.fromarray(np.ascontiguousarray(image[..., :3]))
    longest = max(tile.size)
    if longest < _SMALL:
        factor = max(1, _SMALL // longest)
        return tile.resize((tile.width * factor, tile.height * factor), pil.Image.Resampling.NEAREST)
    tile.thumbnail((_LARGEST, _LARGEST))
    return tile


def _fitting(text: str, font: Any, width: int) -> str:
    """Returns a text in one line that is not wider than its image; signs that the font lacks become question marks."""
    text = " ".join(text.split())
    try:
        font.getlength(text)
    except UnicodeEncodeError:  # the font of a Pillow without FreeType
        text = text.encode("latin-1", "replace").decode("latin-1")
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "..") > width:
        text = text[:-1]
    return text + ".."
