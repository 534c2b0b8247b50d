"""`StatefulDataLoader`: the loader under torchdata's name."""

from __future__ import annotations

from typing import Any

from stoker.loader._options import argument_checks
from stoker.loader.dataloader import DataLoader, T_co
from stoker.loader.record import record_of


class StatefulDataLoader(DataLoader[T_co]):
    """`DataLoader` for users of torchdata: the same arguments, `state_dict` and `load_state_dict`.

    Args:
        *args: as `DataLoader`.
        snapshot_every_n_steps: a state is exact after every batch. Where the own `state_dict()` of a stream in a worker
            takes more than 2 % of a batch's time, it is called after every n-th batch only, and a resumed run reads the
            batches since then again. None, or 0, for as many as keep it at 2 %.
        spawn_worker_start_parallelism: torchdata's; ignored: workers start at the same time.
        **kwargs: as `DataLoader`.

    A state of torchdata's cannot be loaded, because it describes torchdata's workers; the error states this.
    """

    def __init__(
        self,
        *args: Any,
        snapshot_every_n_steps: int | None = None,
        spawn_worker_start_parallelism: int | None = None,
        **kwargs: Any,
    ) -> None:
        if snapshot_every_n_steps is not None:
            argument_checks.integer("snapshot_every_n_steps", snapshot_every_n_steps, "None")
        self.snapshot_every_n_steps = snapshot_every_n_steps
        super().__init__(*args, **kwargs)
        if snapshot_every_n_steps is not None and snapshot_every_n_steps > 0:
            record_of(self).snapshot_every(snapshot_every_n_steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of `DataLoader.state_dict()`, and torchdata's `_iterator_finished`, which Accelerate reads.

        Raises:
            StateError: a stream's or a sampler's own `state_dict` raised.
        """
        return as_torchdatas(self, super().state_dict())


def as_torchdatas(loader: DataLoader[Any], state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a loader with the key of torchdata's states that frameworks read."""
    return {**state, "_iterator_finished": record_of(loader).progress.is_over}
