"""Mappings, named tuples, sequences and dataclasses: taken apart into fields and rebuilt.

The rules are those of torch's default collation. A caller passes `field(values, key)`, which makes one field of the
result from that field's value in each sample; `key` is its key, position or name. A `BatchError` that it raises gets
the field's path.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from typing import Any

import numpy as np

from stoker.collate import mismatch
from stoker.collate.tensors import over
from stoker.errors import BatchError

Field = Callable[[Sequence[Any], Any], Any]

NOT_A_STRUCTURE = object()
"""Returned for samples without fields."""


def collated(batch: Sequence[Any], field: Field) -> Any:
    """Returns one structure like the first sample's, or `NOT_A_STRUCTURE`.

    Mappings keep their type and attributes, named tuples their type, tuples become lists, other sequences keep their
    type if it can be built.
    """
    elem = batch[0]
    if isinstance(elem, Mapping):
        return rebuilt_mapping(elem, mapping_fields(batch, field))
    if isinstance(elem, Sequence) and not isinstance(elem, (str, bytes)):
        return _collated_sequence(batch, field)
    return NOT_A_STRUCTURE


def mapping_fields(batch: Sequence[Any], field: Field) -> dict[Any, Any]:
    """Returns the fields of samples that are mappings, by the keys of the first."""
    return fields_named(batch, batch[0], field)


def fields_named(batch: Sequence[Any], keys: Iterable[Any], field: Field) -> dict[Any, Any]:
    """Returns these fields of samples that are mappings."""
    fields = {}
    for key in keys:
        try:
            values = [sample[key] for sample in batch]
        except (KeyError, TypeError) as cause:
            raise mismatch.missing_key(batch, key) from cause
        fields[key] = _at(f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", field, values, key)
    return fields


def rebuilt_mapping(elem: Mapping[Any, Any], fields: dict[Any, Any]) -> Any:
    """Returns a mapping of the sample's type with these fields, or a dict if the type cannot be built so."""
    try:
        if isinstance(elem, MutableMapping):
            clone = copy.copy(elem)  # keeps attributes of the mapping
            clone.update(fields)
            return clone
        return type(elem)(fields)  # type: ignore[call-arg]
    except TypeError:
        return fields


def copied(elem: Any) -> Any:
    """Returns a copy of a dataclass for collated fields, without cached properties of the original."""
    clone = copy.copy(elem)
    fields = getattr(clone, "__dict__", {})
    for name in [name for name in fields if isinstance(getattr(type(clone), name, None), functools.cached_property)]:
        del fields[name]
    return clone


def collated_dataclass(batch: Sequence[Any], field: Field) -> Any:
    """Returns the same dataclass with collated fields, or `NOT_A_STRUCTURE`.

    The constructor is not called, because its checks apply to one sample.
    """
    elem = batch[0]
    if not dataclasses.is_dataclass(elem) or isinstance(elem, type):
        return NOT_A_STRUCTURE
    if any(type(sample) is not type(elem) for sample in batch):  # fields of a subclass would be dropped
        raise mismatch.unequal_types(batch)
    clone = copied(elem)
    for name in (f.name for f in dataclasses.fields(elem) if hasattr(elem, f.name)):
        try:
            values = [getattr(sample, name) for sample in batch]
        except AttributeError as cause:
            raise mismatch.missing_field(batch, name) from cause
        object.__setattr__(clone, name, _at(f".{name}", field, values, name))  # works for frozen ones too
    return clone


def _collated_sequence(batch: Sequence[Any], field: Field) -> Any:
    elem = batch[0]
    if len(set(map(type, batch))) > 1 and any(isinstance(s, (str, bytes, Mapping, Set)) for s in batch):
        raise mismatch.unequal_types(batch)
    try:
        lengths = set(map(len, batch))
    except TypeError as cause:
        raise mismatch.unequal_types(batch) from cause
    if len(lengths) > 1:
        raise mismatch.unequal_lengths(batch)
    columns = zip(*batch, strict=True)
    if isinstance(elem, tuple):
        if hasattr(elem, "_fields"):
            named = zip(elem._fields, columns, strict=True)
            return type(elem)(*[_at(f".{name}", field, values, name) for name, values in named])
        return [_at(f"[{at}]", field, values, at) for at, values in enumerate(columns)]
    fields = [_at(f"[{at}]", field, values, at) for at, values in enumerate(columns)]
    try:
        if not isinstance(elem, MutableSequence):
            return type(elem)(fields)
        clone = copy.copy(elem)
        for at, value in enumerate(fields):
            clone[at] = value
        return clone
    except TypeError:
        return fields


def _at(step: str, field: Field, values: Sequence[Any], key: Any) -> Any:
    try:
        return field(values, key)
    except BatchError as error:
        error.path = step + (error.path or "")
        raise


# The samples of a run of rows, taken out of their collated batch, so that another worker can collate them with others.
# A leaf has the type that it had in its sample, and a Python number the value that its dtype keeps.


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
