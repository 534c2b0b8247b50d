"""The lengths of the samples in a batch that is padded, by its mask or its field of lengths.

Only the standard library is imported. Classes of the user's are not asked: their attributes may do anything.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

from stoker._core.ours import is_ours

LENGTHS = ("lengths", "length", "input_lengths", "seq_lens", "src_lengths")
"""Fields that hold a length for each sample."""


def lengths_in(batch: Any) -> tuple[int, list[int], str] | None:
    """Returns the padded length of a batch, the length of each sample, and the field with them; None if there is none.

    Read are tensors and arrays in the memory of the host: `attention_mask`, Stoker's masks (`ids_mask` beside `ids`,
    and `Padded`), `mask`, and fields of lengths.
    """
    try:
        for part in _parts(batch):
            if (found := _of_fields(part)) is not None:
                return found
    except Exception:  # of an odd array: the program must not see it
        return None
    return None


def _parts(batch: Any) -> Iterator[Mapping[Any, Any]]:
    """Yields the mappings of a batch: itself, or its parts."""
    for part in batch if type(batch) in (list, tuple) else (batch,):
        if type(part) is dict:
            yield part
        elif isinstance(part, UserDict) and type(part).__module__.partition(".")[0] in ("transformers", "collections"):
            yield vars(part)["data"]
        elif is_ours(type(part), "Padded"):
            yield {"values": part.values, "values_mask": part.mask}


def _of_fields(fields: Mapping[Any, Any]) -> tuple[int, list[int], str] | None:
    for name in ("attention_mask", *_masks_beside(fields), "mask"):
        array = _array(fields.get(name), 2, "biu")
        if array is None or not array.size:
            continue
        real = array != 0
        if name == "mask" and not (real[:, 0].all() or real[:, -1].all()):  # real values begin, or end, each row
            continue
        return int(array.shape[1]), real.sum(axis=1).tolist(), name
    for name in LENGTHS:
        array = _array(fields.get(name), 1, "iu")
        if array is None or not array.size:
            continue
        lengths = array.tolist()
        shapes: list[Any] = [getattr(value, "shape", ()) for value in fields.values()]
        wide = [int(shape[1]) for shape in shapes if len(shape) > 1 and shape[0] == len(lengths)]
        if wide and max(lengths) <= wide[0]:
            return wide[0], lengths, name
    return None


def _masks_beside(fields: Mapping[Any, Any]) -> Iterator[str]:
    for name in fields:
        if isinstance(name, str) and f"{name}_mask" in fields:
            yield f"{name}_mask"


def _array(value: Any, dimensions: int, kinds: str) -> Any:
    """Returns a tensor of the host or an array as an array; None for anything else."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        if value.dim() != dimensions or value.device.type != "cpu":
            return None
        value = value.detach().numpy()
    elif (kind.__module__, kind.__name__) != ("numpy", "ndarray"):
        return None
    return value if value.ndim == dimensions and value.dtype.kind in kinds else None
