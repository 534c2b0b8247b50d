"""The `repr` of datasets and loaders: their places and sizes, from attributes that are there.

Nothing is opened, and no code of the user's is called: of an object of another package its class is named. URLs are
shown without user, password and query; options of a storage are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PLACES = {"shards": "shard", "files": "file", "paths": "file"}
"""Attributes with places, and the word for one of them."""

PLACE = ("root", "folder", "path", "prefix")
"""Attributes with one place."""

INNER = ("dataset", "datasets", "streams")
"""Attributes with datasets of which this one is made."""

SHOWN, DEEP = 2, 3
"""Datasets side by side, and one within another, that are shown."""

_BASES = ("stoker.datasets.base", "stoker.datasets.stream")


def described(dataset: Any) -> str:
    """Returns the `repr` of a dataset: `<TarDataset: 1,200 samples in 2 shards, shards/a.tar …>`.

    A class of the user's that is derived from none of Stoker's datasets, or an object that is not complete yet, has
    that of any object.
    """
    if not _is_ours(type(dataset)):
        return object.__repr__(dataset)
    try:
        return _described(dataset, DEEP)
    except Exception:  # of attributes that a subclass has replaced
        return object.__repr__(dataset)


def _is_ours(kind: type) -> bool:
    """Returns whether a class is derived from a dataset of Stoker's that reads something."""
    homes = (one.__module__ for one in kind.__mro__ if one.__module__.startswith("stoker."))
    return next(homes, _BASES[0]) not in _BASES


def loaded_by(loader: Any) -> str:
    """Returns what a loader loads: "batches of 64 of <TarDataset: …>, num_workers=4"."""
    own = vars(loader)
    batches, size = own.get("batch_sampler"), own.get("batch_size")
    if size is None:
        size = getattr(batches, "__dict__", {}).get("batch_size")
    how = "single samples" if batches is None else "batches" if size is None else f"batches of {size}"
    return f"{how} of {_part(own.get('dataset'), DEEP + 1)}, num_workers={own.get('num_workers')}"


def _described(dataset: Any, depth: int) -> str:
    own = vars(dataset)
    samples, places = _samples(dataset, own), _places(own)
    where = places and f"{'in' if samples else 'of'} {places}"
    parts = [samples and f": {samples}", where and f" {where}", *(f" of {inner}" for inner in _inner(own, depth))]
    return f"<{type(dataset).__name__.lstrip('_')}{''.join(parts)}>"


def _samples(dataset: Any, own: Mapping[str, Any]) -> str:
    """Returns the number of samples, if it is an attribute, or Stoker's own `__len__` computes it from some."""
    if "indices" in own:
        number = len(own["indices"])
    elif "cumulative_sizes" in own:
        number = own["cumulative_sizes"][-1] if own["cumulative_sizes"] else 0
    else:
        length = getattr(type(dataset), "__len__", None)
        is_unknown = length is None or not length.__module__.startswith("stoker.") or own.get("_ends", 0) is None
        if is_unknown or any(name in own for name in INNER):
            return ""
        number = len(dataset)
    return f"{number:,} sample{'' if number == 1 else 's'}"


def _places(own: Mapping[str, Any]) -> str:
    for name, word in PLACES.items():
        if name in own and len(own[name]):
            count, first = len(own[name]), shown(own[name][0])
            return first if count == 1 else f"{count:,} {word}s, {first} …"
    place = next((own[name] for name in PLACE if isinstance(own.get(name), str)), None)
    return "" if place is None else shown(place)


def _inner(own: Mapping[str, Any], depth: int) -> Iterator[str]:
    if "factory" in own:
        yield getattr(own["factory"], "__name__", type(own["factory"]).__name__)
    for name in INNER:
        if name == "dataset" and name in own:
            yield _part(own[name], depth)
        elif isinstance(inner := own.get(name), (dict, list, tuple)):
            parts = [*inner.values()] if isinstance(inner, dict) else inner
            more = ["…"] if len(parts) > SHOWN else []
            yield f"{len(parts):,}: " + ", ".join([*(_part(part, depth) for part in parts[:SHOWN]), *more])


def _part(value: Any, depth: int) -> str:
    kind = type(value)
    if not (_is_ours(kind) and kind.__repr__.__module__.startswith("stoker.")):
        return kind.__name__
    if depth <= 1:
        return f"<{kind.__name__.lstrip('_')} …>"
    return repr(value) if "__repr__" in vars(kind) else _described(value, depth - 1)


def shown(place: Any) -> str:
    """Returns a place without the parts of a URL that may be secret."""
    scheme, sign, rest = str(place).partition("://")
    if not sign:
        return scheme
    path = rest.partition("?")[0].partition("#")[0]
    return f"{scheme}://{path if scheme == 'hf' else path.rpartition('@')[2]}"
