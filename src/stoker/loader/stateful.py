"""`StatefulDataLoader`: the loader under torchdata's name."""

from __future__ import annotations

from typing import Any

from stoker._options import argument_checks
from stoker.loader.dataloader import DataLoader, T_co
from stoker.loader.record import record_of


class StatefulDataLoader(DataLoader[T_co]):
    """`DataLoader` for users of torchdata: the same arguments, `state_dict` and `load_state_dict`.

    Args:
        *args: as `DataLoader`.
        snapshot_every_n_steps: accepted and ignored: a state is exact after every batch, and costs nothing until
            `state_dict()` is called.
        **kwargs: as `DataLoader`.

    A state of torchdata's cannot be loaded, because it describes torchdata's workers; the error states this.
    """

    def __init__(self, *args: Any, snapshot_every_n_steps: int | None = 1, **kwargs: Any) -> None:
        if snapshot_every_n_steps is not None:
            argument_checks.integer("snapshot_every_n_steps", snapshot_every_n_steps, "None")
        self.snapshot_every_n_steps = snapshot_every_n_steps
        super().__init__(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of `DataLoader.state_dict()`, and torchdata's `_iterator_finished`, which Accelerate reads.

        Raises:
            StateError: a stream's or a sampler's own `state_dict` raised.
        """
        return as_torchdatas(self, super().state_dict())


def as_torchdatas(loader: DataLoader[Any], state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a loader with the key of torchdata's states that frameworks read."""
    return {**state, "_iterator_finished": record_of(loader).progress.is_over}
