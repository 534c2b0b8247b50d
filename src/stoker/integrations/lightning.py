"""Stoker's report in Lightning's Trainer, and exact states of streams.

    trainer = lightning.Trainer(callbacks=[StokerCallback()])

The Trainer saves and loads the state of a Stoker loader by itself, and `fabric.save` that of a loader in its
dictionary: no part of this file is needed for that, unless the loader has no length, or ranks read parts of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from stoker import errors
from stoker.extend import join_states, states_by_rank
from stoker.integrations.install import loader_of
from stoker.loader.dataloader import DataLoader
from stoker.loader.record import record_of

try:
    import torch.distributed
    import torch.utils.data
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities.combined_loader import CombinedLoader
except ImportError as error:
    raise errors.MissingExtraError(
        f"stoker.integrations.lightning needs Lightning, which cannot be imported ({error}): install the extra "
        "stoker[lightning]."
    ) from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class StokerCallback(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """Logs the share of time that the training loop waited for data, prints reports, and keeps states of streams exact.

    After each training epoch it logs `stoker/wait_share`, from 0 to 1, and `stoker/wait_s`, through the module's
    logger; with several loaders, with the loader's place in the name: `stoker/0/wait_share`. Under `stoker.install()`
    loaders of torch's class are included; all others are left out.

    Where a loader has no length, the Trainer fetches one batch ahead, and its checkpoint holds the loader's state after
    that batch, which a resumed run would lose. With this callback the checkpoint holds the state after the last batch
    trained on. That costs one state for each batch.

    The Trainer writes the state of rank 0 alone. With this callback the checkpoint holds the states of all ranks, and
    each resumes from its own: ranks that read parts of a stream, or have a `seed=` of their own. Another number of
    ranks resumes where `merge_states` can merge them. Without it, a checkpoint of several ranks with a stream is
    refused when it is written.

    Args:
        report: when the loader's report is printed, on rank 0: after each "epoch", after "fit", or None for never.

    Raises:
        ValueError: another value of `report`.
    """

    def __init__(self, report: Literal["epoch", "fit"] | None = "fit") -> None:
        if report not in ("epoch", "fit", None):
            raise ValueError(f"report should be one of 'epoch', 'fit', None, but got report={report!r}")
        self.report = report
        self._states: dict[int, Any] = {}
        self._has_failed = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Arranges that the loaders' states are kept before each batch that is fetched ahead."""
        self._has_failed = False
        self._announce(trainer)
        if trainer.num_training_batches != float("inf"):
            return
        loop = trainer.fit_loop.epoch_loop
        fetches = loop._on_before_fetch

        def keep() -> None:
            loaders = _flattened(trainer)
            self._states = {place: loaders[place].state_dict() for place, _ in _loaders(trainer)}
            fetches()

        loop._on_before_fetch = keep

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds loaders that the Trainer has made anew."""
        self._announce(trainer)

    def _announce(self, trainer: Trainer) -> None:
        """Lets the loaders give states to the Trainer: `on_save_checkpoint` gathers them."""
        for _, loader in _loaders(trainer):
            record_of(loader).is_gathered = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the wait of the epoch."""
        loaders = _loaders(trainer)
        for place, loader in loaders:
            counts = loader.report().epoch
            name = "stoker" if len(loaders) == 1 else f"stoker/{place}"
            pl_module.log(f"{name}/wait_share", counts.waited / counts.spent if counts.spent else 0.0)
            pl_module.log(f"{name}/wait_s", counts.waited)
        if self.report == "epoch":
            _show(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the report of the whole fit."""
        if self.report == "fit":
            _show(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Puts the states of all ranks in the place of that of this rank, after the last batch trained on and not after
        the batch fetched ahead."""
        held = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", ())
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:  # else nothing is left to be ahead of
            for place, state in self._states.items():
                held[_stateful(trainer).index(place)] = state
        of_ranks = [place for place, state in enumerate(held) if states_by_rank(state)]  # on all ranks alike
        if of_ranks and not self._has_failed:
            everyone: list[Any] = [None] * trainer.world_size
            torch.distributed.all_gather_object(everyone, [held[place] for place in of_ranks])
            for place, states in zip(of_ranks, zip(*everyone, strict=True), strict=True):
                held[place] = join_states(states)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keeps a checkpoint that is written because of an exception from waiting for the other ranks, which may not
        write one. It holds this rank's states alone, and is refused on the others.
        """
        self._has_failed = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ends what `on_train_start` has arranged."""
        self._states = {}
        vars(trainer.fit_loop.epoch_loop).pop("_on_before_fetch", None)


def _combined(trainer: Trainer) -> Any:
    loaders = trainer.train_dataloader
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders)


def _flattened(trainer: Trainer) -> list[Any]:
    return [] if trainer.train_dataloader is None else list(_combined(trainer).flattened)


def _loaders(trainer: Trainer) -> list[tuple[int, DataLoader[Any]]]:
    """Returns the Stoker loaders of the training, also those behind torch's under `install()`, with their places among
    all.
    """
    found = [(place, _ours(loader)) for place, loader in enumerate(_flattened(trainer))]
    return [(place, loader) for place, loader in found if loader is not None]


def _ours(loader: Any) -> DataLoader[Any] | None:
    return loader_of(loader) if isinstance(loader, (DataLoader, torch.utils.data.DataLoader)) else None


def _stateful(trainer: Trainer) -> list[int]:
    """Returns the places of the loaders whose states a checkpoint holds, in its order."""
    has_state = [callable(getattr(loader, "state_dict", None)) for loader in _flattened(trainer)]
    return [place for place, has in enumerate(has_state) if has]


def _show(trainer: Trainer) -> None:
    if trainer.is_global_zero:
        for line in _reports(trainer):
            print(line)


def _reports(trainer: Trainer) -> Iterator[str]:
    loaders = _loaders(trainer)
    for place, loader in loaders:
        name = "the training loader" if len(loaders) == 1 else f"training loader {place}"
        yield f"Report of {name}:\n{loader.report()}"
