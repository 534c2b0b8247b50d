"""Collation: the default collation and conversion, padding, and the memory that they write into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker._core.first_use import loading
from stoker.collate._compiled.compiled import Compiled
from stoker.collate.default import (
    collate,
    default_collate,
    default_convert,
    deferred_collate,
    deferred_convert,
    numpy_collate,
    numpy_convert,
)
from stoker.collate.flavours import (
    Flavoured,
    compiling,
    for_output,
    gathering,
    is_default,
    is_gathered,
    is_ours,
    write_in_place,
)
from stoker.collate.gathered import NOT_GATHERED, Gathered
from stoker.collate.registry import default_collate_fn_map
from stoker.collate.stacking import TensorLeaf
from stoker.collate.structure import form_of, samples_of

if TYPE_CHECKING:
    from stoker.collate.detection import DetectionCollator
    from stoker.collate.graph import GraphCollator
    from stoker.collate.multimodal import MultimodalCollator
    from stoker.collate.pad_to import padded_to
    from stoker.collate.padded import PadCollator, Padded
else:
    __getattr__ = loading(
        __name__,
        {
            "DetectionCollator": "detection",
            "GraphCollator": "graph",
            "MultimodalCollator": "multimodal",
            "PadCollator": "padded",
            "Padded": "padded",
            "padded_to": "pad_to",
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "NOT_GATHERED",
    "Compiled",
    "DetectionCollator",
    "Flavoured",
    "Gathered",
    "GraphCollator",
    "MultimodalCollator",
    "PadCollator",
    "Padded",
    "TensorLeaf",
    "collate",
    "compiling",
    "default_collate",
    "default_collate_fn_map",
    "default_convert",
    "deferred_collate",
    "deferred_convert",
    "for_output",
    "form_of",
    "gathering",
    "is_default",
    "is_gathered",
    "is_ours",
    "numpy_collate",
    "numpy_convert",
    "padded_to",
    "samples_of",
    "write_in_place",
]
