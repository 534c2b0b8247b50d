"""`SourcePeek`: the contents of a source, from some of its samples, and its contact sheet of images."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker._core.exceptions import safe_str
from stoker.diagnostics.peek.fields import ClassBalance, FieldSummary, class_balance, fields_of, leaves
from stoker.diagnostics.peek.open_source import OpenedSource, spread
from stoker.extend import describe
from stoker.loader.dataloader import DataLoader

SHOWN = 5
"""First samples that are shown."""

LONGEST = 40
"""Letters of a value that is shown."""


@dataclass(frozen=True)
class SourcePeek:
    """The contents of a source.

    Attributes:
        first: of the first samples the index, the description of the dataset or None, and the fields as text.
        failed: index and error of samples that cannot be read.
    """

    name: str
    kind: str
    count: int | None
    looked: int
    fields: dict[str, FieldSummary]
    balance: ClassBalance | None
    first: list[tuple[int, str | None, dict[str, str]]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def sample_bytes(self) -> float:
        """Returns the mean number of bytes of a sample, by its arrays, images, texts and bytes."""
        return sum(one.size for one in self.fields.values()) / max(1, self.looked - len(self.failed))

    @property
    def has_images(self) -> bool:
        """Returns whether a field holds images: of Pillow, encoded, or arrays with channels."""
        return any(_is_image(one) for one in self.fields.values())

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "count": self.count,
            "looked": self.looked,
            "sample_bytes": round(self.sample_bytes),
            "fields": [one.as_dict() for one in self.fields.values()],
            "classes": None if self.balance is None else self.balance.as_dict(),
            "first": [{"index": index, "description": said, "fields": values} for index, said, values in self.first],
            "failed": [{"index": index, "error": error} for index, error in self.failed],
        }


def peek(source: OpenedSource, samples: int) -> SourcePeek:
    """Returns the contents of a source, from its first samples, and others at equal distances."""
    looked = source.look(SHOWN, samples)
    good = [(index, sample) for index, sample in looked if not isinstance(sample, Exception)]
    values = [sample for _, sample in good]
    return SourcePeek(
        name=source.name,
        kind=source.kind,
        count=source.count,
        looked=len(looked),
        fields=fields_of(values),
        balance=class_balance(source.dataset, values, source.count),
        first=[(index, _said(source.dataset, index), _texts(sample)) for index, sample in good[:SHOWN]],
        failed=[
            (index, f"{type(error).__name__}: {safe_str(error)}")
            for index, error in looked
            if isinstance(error, Exception)
        ],
    )


def _said(dataset: Any, index: int) -> str | None:
    if dataset is None:
        return None
    try:
        said = describe(dataset, index)
    except Exception:  # of the user's method
        return None
    return None if said is None else str(said)


def _texts(sample: Any) -> dict[str, str]:
    return {path: _text(value) for path, value in leaves(sample)}


def _text(value: Any) -> str:
    """Returns a value in one short line."""
    if hasattr(value, "getbands"):
        return f"{value.mode} image {value.width} x {value.height}"
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    shape = tuple(getattr(value, "shape", ()))
    if hasattr(value, "dtype") and shape and (len(shape) > 1 or shape[0] > 6):
        return f"{value.dtype} {' x '.join(map(str, shape))}"
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        value = value.tolist()
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + ".."


def _is_image(one: FieldSummary) -> bool:
    if {"JPEG", "PNG", "GIF"} & set(one.dtypes) or "Image" in " ".join(one.types):
        return True
    return any(len(shape) == 3 and (shape[0] in (1, 3, 4) or shape[2] in (1, 3, 4)) for shape in one.shapes)


def write_sheet(source: OpenedSource, path: str, images: int) -> None:
    """Writes a contact sheet.

    Args:
        source: whose samples hold images; encoded ones are decoded.

    Raises:
        PreviewError: the samples hold no images.
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
    from PIL import Image  # there: `loader.preview` has drawn with it already

    try:
        image = Image.open(io.BytesIO(value))
        image.load()
    except Exception:  # no image, or a damaged one
        return 0
    return image.convert("RGB")
