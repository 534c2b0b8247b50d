"""Samples as rows: a value for each field, as the formats hold them."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.datasets.awaited import then
from stoker.datasets.base import Dataset
from stoker.errors import PackError
from stoker.extend import describe

Row = dict[str, Any]
"""Fields of a sample: bytes, `str`, numbers, None, arrays, `EncodedFile`, or values of JSON."""


@dataclass(frozen=True)
class EncodedFile:
    """The contents of a file, which are not decoded.

    Attributes:
        extension: without a dot, in lower case.
        path: of the file, relative to the dataset's root.
    """

    data: bytes
    extension: str
    path: str


class RowDataset(Dataset[Row]):
    """A dataset's samples as rows.

    A dict keeps its keys. A pair of a Pillow image and a number has the fields `image` and `label`, another tuple
    or list `0`, `1`, and so on. Any other sample is the field `value`. Tensors become arrays, Pillow images PNG files.
    """

    stoker_protocol = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return then(self.dataset[index], row_of)

    def describe(self, index: int) -> Any:
        return describe(self.dataset, index)


class FileRowDataset(Dataset[Row]):
    """The files of an image folder as rows, as they are on disk: `image`, and `label`, the index of the class.

    Args:
        dataset: a dataset with `samples`, pairs of path and class index, and `root`.
    """

    stoker_protocol = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset.samples)

    def __getitem__(self, index: int) -> Row:
        path, label = self.dataset.samples[index]
        with open(path, "rb") as file:
            data = file.read()
        extension = os.path.splitext(path)[1].removeprefix(".").lower()
        return {"image": EncodedFile(data, extension, os.path.relpath(path, self.dataset.root)), "label": int(label)}

    def describe(self, index: int) -> str:
        return str(self.dataset.samples[index][0])


def row_of(sample: Any) -> Row:
    """Returns a sample as a row."""
    if isinstance(sample, Mapping):
        for name in sample:
            if not isinstance(name, str):
                raise PackError(f"a field of the sample is named {name!r}, expected a text")
        fields = dict(sample)
    elif isinstance(sample, (tuple, list)):
        pair = len(sample) == 2 and _is_image(sample[0]) and _is_number(sample[1])
        names = ("image", "label") if pair else map(str, range(len(sample)))
        fields = dict(zip(names, sample, strict=True))
    else:
        fields = {"image" if _is_image(sample) else "value": sample}
    return {name: _plain(name, value) for name, value in fields.items()}


def _is_image(value: Any) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "getbands")


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, np.ndarray)


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, bool, int, float, EncodedFile)):
        return value
    if _is_image(value):
        return EncodedFile(_png(value), "png", "")
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value
    if callable(getattr(value, "numpy", None)) and hasattr(value, "detach"):
        array = value.detach().numpy()
        return array if array.ndim else array.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(name, each) for key, each in value.items()}
    raise PackError(
        f"the field {name!r} is a {type(value).__name__}, which no format holds: give bytes, texts, numbers, arrays, "
        "tensors or Pillow images, for instance by stoker.MapDataset(dataset, function)"
    )


def _png(image: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format="PNG")
    return data.getvalue()


def equal(one: Any, other: Any) -> bool:
    """Whether two values of rows are equal, arrays with dtype and shape; NaN equals NaN."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            return False
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, EncodedFile) or isinstance(other, EncodedFile):
        return bool(_data(one) == _data(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _data(value: Any) -> Any:
    return value.data if isinstance(value, EncodedFile) else value
