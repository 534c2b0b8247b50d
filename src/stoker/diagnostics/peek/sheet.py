"""The contact sheet of a source: images at equal distances, drawn by `loader.preview()`."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.diagnostics.peek.opened import OpenedSource, spread
from stoker.loader._display.contact_sheet import pillow
from stoker.loader.dataloader import DataLoader


def write_sheet(source: OpenedSource, path: str, images: int) -> None:
    """Writes a contact sheet.

    Args:
        source: whose samples hold images; encoded ones are decoded.
        path: of the PNG.
        images: number of images at most.

    Raises:
        PreviewError: the samples hold no images.
        MissingExtraError: Pillow is not installed.
    """
    if source.stream is not None:
        dataset: Any = list(itertools.islice(source.stream(), images))
        order = list(range(len(dataset)))
    else:
        dataset, order = source.dataset, spread(source.count or 0, 0, images)
    loader: Any = DataLoader(dataset, batch_size=images, sampler=order, collate_fn=columns, output="numpy")
    loader.preview(path, images=images, classes=getattr(source.dataset, "classes", None) or None)


def columns(samples: list[Any]) -> Any:
    """Returns samples as lists, one for each field; encoded images as Pillow's, arrays of one shape as one array."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: columns([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)) and first:
        return [columns([sample[place] for sample in samples]) for place in range(len(first))]
    if isinstance(first, bytes):
        return [_opened(value) for value in samples]
    arrays = [np.asarray(value) for value in samples if hasattr(value, "dtype") and hasattr(value, "shape")]
    if len(arrays) == len(samples) and len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return samples


def _opened(value: bytes) -> Any:
    """Returns the image that bytes encode, or 0."""
    pil = pillow()
    try:
        image = pil.Image.open(io.BytesIO(value))
        image.load()
    except Exception:  # no image, or a damaged one
        return 0
    return image.convert("RGB")
