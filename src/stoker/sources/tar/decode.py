"""Decoders of the members of a sample, by extension.

| extensions | decoded to |
|---|---|
| jpg, jpeg, png, webp | a Pillow image, in the mode of the file |
| json | the result of `json.loads` |
| cls, cls2, class, count, index, inx, id | an integer |
| txt, text, transcript | `str`, from UTF-8 |
| npy | a NumPy array, without objects |
| npz | a dict of NumPy arrays |
| pth, pt | what `torch.load(weights_only=True)` gives |

All others stay bytes, pickles too. Of an extension of several parts, "seg.png", the last decides.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stoker._core.exceptions import safe_str
from stoker.errors import MissingExtraError, RecordError

Decoder = Callable[[bytes], Any]


class SampleDecoder:
    """Decodes the members of samples.

    Args:
        decode: True for the decoders of this module, False for bytes as they are; a mapping from extensions to
            functions adds decoders, or replaces those of this module.
        transform: applied to each decoded sample.

    Raises:
        TypeError: an argument is of another type.
    """

    def __init__(self, decode: bool | Mapping[str, Decoder], transform: Callable[[dict[str, Any]], Any] | None) -> None:
        if not isinstance(decode, (bool, Mapping)):
            raise TypeError(f"decode is a {type(decode).__name__}, expected a bool or a mapping of extensions")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, which cannot be called")
        if isinstance(decode, Mapping) and (wrong := [name for name, one in decode.items() if not callable(one)]):
            raise TypeError(f"decode[{wrong[0]!r}] cannot be called: a decoder takes bytes and returns a value")
        self._table: dict[str, Decoder] = {} if decode is False else dict(DECODERS)
        if isinstance(decode, Mapping):
            self._table |= {name.lower().removeprefix("."): one for name, one in decode.items()}
        self._transform = transform

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Returns the decoded and transformed sample; changes `sample`."""
        for extension, data in sample.items() if self._table else ():
            decoder = self._table.get(extension) or self._table.get(extension.rpartition(".")[2])
            if decoder is None or extension.startswith("__"):
                continue
            try:
                sample[extension] = decoder(data)
            except MissingExtraError:
                raise
            except Exception as error:
                raise RecordError(
                    f"{sample['__url__']}: the member {extension!r} ({len(data)} bytes) of the sample "
                    f"{sample['__key__']!r} cannot be decoded: {type(error).__name__}: {safe_str(error)}"
                ) from error
        return sample if self._transform is None else self._transform(sample)


def _image(data: bytes) -> Any:
    try:
        importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError(
            "Pillow decodes images, and is not installed: pip install 'stoker[images]', or pass decode=False for bytes"
        ) from error
    from stoker import images  # here, since Pillow is an extra

    image = images.open(data)
    image.load()
    return image


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _tensors(data: bytes) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtraError(
            "torch decodes .pth members, and is not installed: pip install 'stoker[torch]', or pass decode=False"
        ) from error
    return torch.load(io.BytesIO(data), weights_only=True)


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), _image),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("pth", "pt"), _tensors),
    "json": json.loads,
    "npy": _array,
    "npz": _arrays,
}
