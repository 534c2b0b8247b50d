"""`SourcePeek`: the contents of a source, from some of its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stoker._core.exceptions import safe_str
from stoker.datasets.described import describe
from stoker.diagnostics.peek.class_balance import ClassBalance, class_balance
from stoker.diagnostics.peek.fields import FieldSummary, fields_of, leaves
from stoker.diagnostics.peek.opened import OpenedSource

SHOWN = 5
"""First samples that are shown."""

LONGEST = 40
"""Letters of a value that is shown."""


@dataclass(frozen=True)
class SourcePeek:
    """The contents of a source.

    Attributes:
        name: of the source, as given.
        kind: the class or format that opened it.
        count: number of samples; None if it is not known.
        looked: number of samples looked at.
        fields: of the samples, by path.
        balance: samples of each class, or None.
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
