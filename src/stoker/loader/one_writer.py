"""Frameworks that write the state of one rank alone, and have every rank load it: wrong for the state of a stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stoker.loader._epoch.loader_kind import owner

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord

_TRAINER = (
    "Lightning's Trainer writes the state of rank 0 alone. Add stoker.integrations.lightning.StokerCallback() to its "
    "callbacks: it puts the states of all ranks into the checkpoint."
)
_FABRIC = (
    "fabric.save writes the state of rank 0 alone. Gather the states of all ranks, torch.distributed."
    "all_gather_object(states, loader.state_dict()), save that list, and let each rank load its own."
)
_ACCELERATE = (
    "accelerator.save_state writes the state of rank 0 alone. Prepare the loader with "
    "stoker.integrations.accelerate.prepare(accelerator, loader), and leave out register_for_checkpointing."
)
_WRITERS = {
    "lightning.pytorch.utilities.combined_loader": _TRAINER,
    "pytorch_lightning.utilities.combined_loader": _TRAINER,
    "lightning.fabric.strategies.strategy": _FABRIC,
    "lightning_fabric.strategies.strategy": _FABRIC,
    "accelerate.checkpointing": _ACCELERATE,
}
"""Modules that call `state_dict()` of a loader for a checkpoint of one rank, and what to do instead."""


def refusal(record: LoaderRecord, options: LoaderOptions) -> str | None:
    """Returns why the caller of `state_dict()` gets no state, or None: it writes one rank's part of a stream alone."""
    if not options.is_stream or record.is_gathered or owner(options) is None:
        return None
    frame = sys._getframe(1)
    while frame.f_code.co_name == "state_dict" and frame.f_back is not None:  # ours, and those of derived classes
        frame = frame.f_back
    way = _WRITERS.get(frame.f_globals.get("__name__", ""))
    if way is None:
        return None
    return (
        f"the state of a stream describes the part that one rank reads, and {way} Every other rank would lose its "
        "place."
    )
