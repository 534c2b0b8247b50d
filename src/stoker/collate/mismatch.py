"""Errors for samples that do not make a batch: the samples that differ, the difference, and the remedy.

Positions are those in the batch. `structure` adds the path to the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from types import CoroutineType
from typing import Any

import numpy as np

from stoker.errors import BatchError, IntegerSizeError, LeafTypeError, MissingFieldError

FOUND = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
"""torch's wording, for which programs search."""

_SHOWN = 8


def unequal_shapes(batch: Sequence[Any], advice: str | None = None) -> BatchError:
    """Returns the error for arrays or tensors of different shapes.

    Args:
        advice: what to change; None to name a padding collator that accepts them.
    """
    shapes = [tuple(leaf.shape) for leaf in batch]
    if advice is None and len({len(shape) for shape in shapes}) == 1:
        dims = tuple(dim for dim, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)
        padding = "stoker.PadCollator()" if dims == (0,) else f"stoker.PadCollator(dims={dims})"
        advice = f"Make them one size in the dataset, or pad them: collate_fn={padding}."
        if len(shapes[0]) == 3 and dims in ((0,), (2,)) and {shape[dims[0]] for shape in shapes} <= {1, 2, 3, 4}:
            advice = 'Are they images of 1 and of 3 channels? image.convert("RGB") in the dataset gives all of them 3.'
    elif advice is None:
        advice = "They differ in their number of dimensions, so padding cannot help: check the dataset."
    return BatchError(
        f"stack expects each tensor to be equal size, but got {_by(shapes)} of the batch. {advice}", places=_odd(shapes)
    )


def unequal_lengths(batch: Sequence[Any]) -> BatchError:
    """Returns the error for lists or tuples of different lengths."""
    lengths = list(map(len, batch))
    return BatchError(
        f"each element in list of batch should be of equal size, but got {_by(lengths, 'length {}')} of "
        "the batch. If it is a list of numbers, collate_fn=stoker.PadCollator() pads it; other lists need "
        "a collate_fn.",
        places=_odd(lengths),
    )


def unequal_types(batch: Sequence[Any]) -> LeafTypeError:
    """Returns the error for leaves without a collate function, or of incompatible types."""
    types = list(map(type, batch))
    if type(None) in types:
        advice = (
            "A dataset returns None if a return statement is missing, or to skip a sample: return a value for every "
            "sample, raise stoker.SkipSample to leave a sample out, or give a collate_fn that drops None."
        )
    elif CoroutineType in types:
        advice = (
            "Samples were not awaited: those of torch's StackDataset are by stoker.StackDataset; in a dataset of your "
        )
        advice += "own, write `async def __getitem__` and await them there."
    elif len(set(types)) > 1:
        advice = "Return the same type for every sample."
    else:
        advice = "Convert it in the dataset, register its type in default_collate_fn_map, or give a collate_fn."
    return LeafTypeError(f"{FOUND}{_by(types)} of the batch. {advice}", places=_odd(types))


def missing_key(batch: Sequence[Any], key: Hashable) -> BatchError:
    """Returns the error for a sample that lacks a key of the first one, or has no keys at all."""
    if not all(hasattr(sample, "keys") for sample in batch):
        return unequal_types(batch)
    without = [place for place, sample in enumerate(batch) if key not in sample]
    return MissingFieldError(
        f"key {key!r} is in sample 0 of the batch, but not in {_places(without)}, which has "
        f"{list(batch[without[0]].keys()) if without else 'refused it'}. Give every sample the same keys, or give a "
        "collate_fn that adds missing keys.",
        places=without,
    )


def missing_field(batch: Sequence[Any], name: str) -> BatchError:
    """Returns the error for a dataclass that lacks a field of the first sample, or for another type."""
    without = [place for place, sample in enumerate(batch) if not hasattr(sample, name)]
    if not all(isinstance(batch[place], type(batch[0])) for place in without):
        return unequal_types(batch)
    return MissingFieldError(
        f"field {name!r} is set in sample 0 of the batch, but not in {_places(without)}. Give every sample the same "
        "fields, or give a collate_fn that adds missing fields.",
        places=without,
    )


def unequal_dtypes(batch: Sequence[Any], cause: object) -> BatchError:
    """Returns the error for dtypes without a common one."""
    dtypes = [leaf.dtype for leaf in batch]
    return BatchError(f"{cause}: {_by(dtypes)} of the batch. Convert them in the dataset.", places=_odd(dtypes))


def overflow(batch: Sequence[int], where: str | None = None) -> IntegerSizeError:
    """Returns the error for integers of more than 64 bits. `where` names their container, if it is not the batch."""
    large = [place for place, value in enumerate(batch) if not -(2**63) <= value < 2**63]
    subject = f"{where} to be padded" if where else f"{_places(large[:1])} of the batch"
    return IntegerSizeError(
        f"Overflow when unpacking long long: {batch[large[0]]} in {subject} is no 64 bit integer. Give it "
        "as a string or as a float.",
        places=() if where else large,
    )


def _odd(values: Sequence[Any]) -> list[int]:
    """Returns the positions of values that differ from the most frequent one."""
    counts = Counter(values)
    most = max(counts, key=lambda value: counts[value])
    return [place for place, value in enumerate(values) if value != most]


def _by(values: Sequence[Any], wording: str = "{}") -> str:
    """Returns each value with its positions, in words: `(3, 4) in samples 0-6 and (3, 5) in sample 7`."""
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    texts = [f"{wording.format(value)} in {_places(at)}" for value, at in list(places.items())[:_SHOWN]]
    if len(places) > _SHOWN:
        texts.append(f"{len(places) - _SHOWN} more")
    return _joined(texts)


def _places(places: Sequence[int]) -> str:
    """Returns positions in words: `sample 3`, or `samples 0-2 and 5`."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1][1:] = [place]
        else:
            runs.append([place])
    texts = ["-".join(map(str, run)) for run in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        texts.append("others")
    return f"sample{'s' if len(places) > 1 else ''} {_joined(texts)}"


def _joined(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def common_dtype(dtypes: set[np.dtype[Any]], batch: Sequence[Any]) -> np.dtype[Any]:
    """Returns the dtype to which torch promotes these, in native byte order.

    Unlike in NumPy, the kind decides first: int64 and float32 give float32.
    """
    kinds = {dtype.kind for dtype in dtypes}
    if not kinds <= set("buifc"):
        if len(kinds) > 1 and "O" not in kinds:  # NumPy would convert numbers to texts
            raise unequal_dtypes(batch, "Dtypes of different kinds have no common dtype")
        return np.result_type(*dtypes)
    if len(dtypes) > 1 and "f" not in kinds and any(d.kind == "u" and d.itemsize > 1 for d in dtypes):
        raise unequal_dtypes(batch, "Promotion for uint16, uint32, uint64 types is not supported")
    deciding = "fc" if "c" in kinds else "f" if "f" in kinds else "biu"
    common = np.result_type(*[dtype for dtype in dtypes if dtype.kind in deciding])
    return np.dtype(f"{common.kind}{common.itemsize}")  # among C's integer types of one size, the one torch supports
