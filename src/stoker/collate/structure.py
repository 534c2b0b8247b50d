"""Mappings, named tuples, sequences and dataclasses: taken apart into fields and rebuilt.

The rules are those of torch's default collation. A caller passes `field(values, key)`, which makes one field of the
result from that field's value in each sample; `key` is its key, position or name. A `BatchError` that it raises gets
the field's path.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from typing import Any

from stoker.collate._leaves import mismatch
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
    kept = getattr(clone, "__dict__", {})
    for name in [name for name in kept if isinstance(getattr(type(clone), name, None), functools.cached_property)]:
        del kept[name]
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
