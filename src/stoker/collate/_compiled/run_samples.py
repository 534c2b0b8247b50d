"""The samples of a run of rows, taken out of their collated batch: another worker collates them with other samples.

The default collation of these samples, together with any others, is that of the samples that were collated: a leaf has
the type that it had in its sample, and a Python number the value that its dtype keeps.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.collate._leaves.tensors import over
from stoker.collate.structure import copied


def form_of(sample: Any) -> Any:
    """Returns the sample with the types of its leaves in place of its leaves. Its plan must be `by_rows`."""
    kind = type(sample)
    if kind is dict:
        return {key: form_of(value) for key, value in sample.items()}
    if isinstance(sample, (tuple, list)):
        return _sequence(kind, map(form_of, sample))
    if dataclasses.is_dataclass(kind):
        return _record(sample, {name: form_of(getattr(sample, name)) for name in _names(sample)})
    return np.ndarray if kind is np.memmap else kind


def samples_of(form: Any, run: Any) -> list[Any]:
    """Returns the samples of this form from their collated batch: arrays, or tensors, with a row for each sample."""
    kind = type(form)
    if kind is dict:
        columns = [samples_of(part, run[key]) for key, part in form.items()]
        return [dict(zip(form, values, strict=True)) for values in zip(*columns, strict=True)]
    if isinstance(form, (tuple, list)):
        columns = [samples_of(part, field) for part, field in zip(form, run, strict=True)]
        return [_sequence(kind, values) for values in zip(*columns, strict=True)]
    if not isinstance(form, type):
        names = _names(form)
        columns = [samples_of(getattr(form, name), getattr(run, name)) for name in names]
        return [_record(form, dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]
    return _leaves(form, run)


def _leaves(kind: type, column: Any) -> list[Any]:
    if kind in (str, bytes):
        return list(column)
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        return list((over(column) if isinstance(column, np.ndarray) else column).unbind())
    column = column if isinstance(column, np.ndarray) else column.numpy()
    return column.tolist() if kind in (bool, int, float) else list(column)


def _sequence(kind: type, values: Any) -> Any:
    return list(values) if kind is list else tuple.__new__(kind, values)


def _names(record: Any) -> Sequence[str]:
    return [field.name for field in dataclasses.fields(record) if hasattr(record, field.name)]


def _record(record: Any, values: dict[str, Any]) -> Any:
    clone = copied(record)
    for name, value in values.items():
        object.__setattr__(clone, name, value)
    return clone
