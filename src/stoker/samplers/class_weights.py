"""Weights with which `WeightedRandomSampler` draws all classes equally often, or nearly so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.integer[Any]]]

_BLOCK = 65536  # labels processed at once


def weights_from_labels(labels: Any, *, beta: float | None = None) -> Floats:
    """Returns the weight of each sample that balances the classes: the inverse of the size of the sample's class.

    With `beta` the weight is the inverse of the "effective number" of the class's samples, (1 - beta**size) /
    (1 - beta): samples of a large class are alike, so each adds less than the one before (Cui et al., "Class-Balanced
    Loss Based on Effective Number of Samples", CVPR 2019). 0 gives all samples the same weight; towards 1, the weights
    approach those without `beta`. The paper uses 0.9 to 0.9999.

    The same labels give the same weights, to the last bit, on every machine. A label takes 10 ns, and no memory beside
    its weight, if the labels are an array or tensor of integers within a range of at most as many numbers as there are
    labels; otherwise 0.1 to 1 us and 8 to 32 bytes.

    Args:
        labels: one for each sample: a list, array, tensor, `columns`, or other sequence of integers or strings.
        beta: at least 0 and below 1.

    Returns:
        The weights, as an array of shape (n,).

    Raises:
        ValueError: the labels are empty or not one-dimensional, or `beta` is out of range.
        TypeError: a label is neither an integer nor a string.
    """
    if beta is not None and not 0 <= beta < 1:
        raise ValueError(f"beta should be at least 0 and below 1, but got beta={beta}")
    codes, lowest, span = _codes(labels)
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(codes), _BLOCK)]
    sizes = np.zeros(span, np.int64)
    for block in blocks:
        np.add.at(sizes, _above(lowest, codes[block]), 1)
    of_class = 1 / np.maximum(sizes, 1) if beta is None else 1 / _effective(np.maximum(sizes, 1), beta)
    weights = np.empty(len(codes))
    for block in blocks:
        weights[block] = of_class[_above(lowest, codes[block])]
    return weights


def _effective(sizes: Any, beta: float) -> Floats:
    """Returns (1 - beta**size) / (1 - beta), without the loss of precision for a beta close to 1.

    Uses the doubling formulas f(2s) = f(s) (2 - (1 - beta) f(s)) and f(s + 1) = 1 + beta f(s), because the C library's
    power function differs between machines.
    """
    effective = np.zeros(len(sizes))
    for bit in range(int(sizes.max()).bit_length() - 1, -1, -1):
        effective *= 2 - (1 - beta) * effective
        effective = np.where(sizes >> bit & 1, 1 + beta * effective, effective)
    return effective


def _codes(labels: Any) -> tuple[Codes, int, int]:
    """Returns an integer for each label, the lowest integer, and the size of their range."""
    if hasattr(labels, "detach"):  # a tensor
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray) and labels.ndim != 1:
        raise ValueError(
            f"labels should be in one dimension, one for each sample, but have shape {labels.shape}"
            + (": argmax(1) makes labels of one-hot rows" if labels.ndim == 2 else "")
        )
    if len(labels) == 0:
        raise ValueError("there are no labels: give one for each sample of the dataset")
    if not isinstance(labels, np.ndarray) or labels.dtype.kind == "O":
        classes: dict[Any, int] = {}
        numbers = (classes.setdefault(label, len(classes)) for label in _checked(labels))
        return np.fromiter(numbers, np.int64, len(labels)), 0, len(classes)
    if labels.dtype.kind not in "biuUS":
        raise TypeError(
            f"labels should be integers or strings, but are {labels.dtype}: labels.astype(int) makes them so"
        )
    if labels.dtype.kind in "biu":
        lowest, highest = int(labels.min()), int(labels.max())
        if highest - lowest < max(len(labels), _BLOCK):
            return labels, lowest, highest - lowest + 1
    names, codes = np.unique(labels, return_inverse=True)
    return codes, 0, len(names)


def _above(lowest: int, codes: Codes) -> Any:
    # Modulo 2**64, so that no difference overflows: it is small for codes of any type and sign.
    return (codes.astype(np.uint64) - np.uint64(lowest % 2**64)).astype(np.int64)


def _checked(labels: Sequence[Any]) -> Iterator[Any]:
    """Yields the labels; refuses types that may compare unexpectedly, such as tensors, which never compare equal."""
    remaining = iter(labels)
    start = 0
    while block := list(islice(remaining, _BLOCK)):
        for kind in set(map(type, block)):
            if not issubclass(kind, int | np.integer | np.bool_ | str | bytes):
                place = next(place for place, label in enumerate(block) if type(label) is kind)
                raise TypeError(
                    f"labels should be integers or strings, but label {start + place} is {block[place]!r}, of type "
                    f"{kind.__name__}. Give one class for each sample; for a list of tensors torch.stack(labels)."
                )
        yield from block
        start += len(block)
