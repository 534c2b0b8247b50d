"""The figures of a report, or of a profile, as one flat dictionary from names to numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

LEFT_OUT = frozenset({"first", "latest"})
"""Parts of a report that describe single samples and events."""

_NUMBER = re.compile(r"^\d+ ")
"""In front of a name, such as "4 workers": a name must not change when the number does."""


def metrics_of(source: Any, prefix: str = "stoker") -> dict[str, float]:
    """Returns the numbers of a loader's report by name, such as `stoker/epoch/delivered`.

    Each dictionary is a part of the name, None and texts are left out. Beside the seconds waited and spent of an epoch
    stand their share, `stoker/epoch/wait_share`, and `stoker/epoch/samples_per_second`. A loader reads the memory of
    its workers for it, which takes some 5 ms of CPU for each.

    Args:
        source: a loader, or what `loader.report()` or `loader.profile()` returned, or its `as_dict()`.
        prefix: begins each name.
    """
    if not isinstance(source, Mapping):
        made = source if hasattr(source, "as_dict") else source.report()
        source = made.as_dict()
    return dict(_numbers(source, prefix))


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        path = f"{prefix}/{_NUMBER.sub('', str(name)).replace(' ', '_')}"
        if isinstance(value, Mapping):
            if name in LEFT_OUT:
                continue
            yield from _numbers(value, path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield path, float(value)
    spent = values.get("spent")
    if spent and "waited" in values and "delivered" in values:
        yield f"{prefix}/wait_share", values["waited"] / spent
        yield f"{prefix}/samples_per_second", values["delivered"] / spent
