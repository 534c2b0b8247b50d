"""`StatefulDataLoader`: the loader under the name that torchdata gives one with a state."""

from __future__ import annotations

from typing import Any

from stoker.loader import arguments
from stoker.loader.dataloader import DataLoader, T_co


class StatefulDataLoader(DataLoader[T_co]):
    """`DataLoader`, for those who come from torchdata: the same arguments, `state_dict` and `load_state_dict`.

    Args:
        *args: as `DataLoader`.
        snapshot_every_n_steps: accepted and not needed: a state is exact after every batch, and costs nothing until
            it is asked for.
        **kwargs: as `DataLoader`.

    A state of torchdata's cannot be loaded: it describes torchdata's workers, and says so.
    """

    def __init__(self, *args: Any, snapshot_every_n_steps: int | None = 1, **kwargs: Any) -> None:
        if snapshot_every_n_steps is not None:
            arguments.integer("snapshot_every_n_steps", snapshot_every_n_steps, "None")
        self.snapshot_every_n_steps = snapshot_every_n_steps
        super().__init__(*args, **kwargs)
