"""The checks of `stoker doctor`: each yields findings. `ALL` has those of the machine, `OF_DATA` those of a dataset."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.diagnostics.checks import dataset, machine
from stoker.diagnostics.checks.finding import Finding
from stoker.diagnostics.target import Target

ALL = (
    machine.cpu,
    machine.memory,
    machine.shared_memory,
    machine.descriptors,
    machine.system_calls,
    machine.start_method,
    machine.packages,
    machine.compiled_part,
    machine.cuda,
    machine.threads,
    machine.hash_seed,
    machine.utilisation,
)
"""Checks of the machine and of installed packages, in the order in which they are shown."""

OF_DATA = (
    dataset.fetching,
    dataset.sending,
    dataset.copies,
    dataset.generators,
    dataset.file_systems,
    dataset.last_batch,
)
"""Checks of a dataset, or of a loader and its dataset."""


def findings(target: Target | None = None) -> Iterator[Finding]:
    """Yields the findings about this machine, and about a dataset if one is given."""
    for check in ALL:
        yield from check()
    if target is not None:
        for of_data in OF_DATA:
            yield from of_data(target)
