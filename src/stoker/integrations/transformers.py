"""Stoker's engine and states under the Trainer of Hugging Face transformers.

    class Trainer(StokerTrainerMixin, transformers.Trainer): ...

The rest of a training script stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker import errors
from stoker.integrations.accelerate import Checkpointed, prepare, skip_first_batches

try:
    import torch
    import transformers.trainer
    from transformers.trainer_utils import get_last_checkpoint, seed_worker
except ImportError as error:
    raise errors.MissingExtraError(
        f"stoker.integrations.transformers needs transformers, which cannot be imported ({error}): install the extra "
        "stoker[transformers]."
    ) from error

FILE = "stoker_loader.pt"
"""The file of a checkpoint with the loader's state."""


class StokerTrainerMixin:
    """Puts Stoker beneath the training loader of a Trainer, and its state into the Trainer's checkpoints.

    The first base of a class whose second is `transformers.Trainer` or one derived from it. The training loop, its
    arguments and the order of the samples stay the Trainer's. `resume_from_checkpoint` continues from the loader's
    state: with the batches and the augmentation of a run that never stopped, and without a read to skip anything.
    A `get_train_dataloader` of your own may return a loader of Stoker's; with `seed=` the order is that loader's.

    Rank 0 writes the state beside the Trainer's own files; all ranks load it. A checkpoint without it, from a run
    without this class, is resumed as the Trainer does it.
    """

    _checkpoint: str | None = None
    _loader: Any = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as `transformers.Trainer.train`, and resumes from the loader's state."""
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        with _skips_nothing():
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        """Returns the Trainer's loader on Stoker's engine, at the place of the checkpoint that the run resumes from."""
        loader = super().get_train_dataloader()  # type: ignore[misc]
        if getattr(getattr(loader, "worker_init_fn", None), "func", None) is seed_worker:
            getattr(loader, "base_dataloader", loader).worker_init_fn = None  # it only seeds, as Stoker does by itself
        loader = prepare(self.accelerator, loader)  # type: ignore[attr-defined]
        self._loader = loader
        if self._checkpoint is not None:
            path = os.path.join(self._checkpoint, FILE)
            if os.path.exists(path):
                Checkpointed(loader).load_state_dict(torch.load(path, weights_only=False))
        return loader

    def _save_rng_state(self, output_dir: str) -> None:
        """Writes what a resume needs, on every rank: here the loader's state is added."""
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        if self._loader is not None:
            state = Checkpointed(self._loader).state_dict()
            if self.args.should_save:  # type: ignore[attr-defined]
                torch.save(state, os.path.join(output_dir, FILE))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Sets the generators, after the first batches: what the loader has drawn from them before does not count."""
        super()._load_rng_state(checkpoint)  # type: ignore[misc]
        if self._loader is not None:
            self._loader.forget_draws()


@contextmanager
def _skips_nothing() -> Iterator[None]:
    """Makes the Trainer's loop skip batches by the loader's state, for as long as it runs."""
    module: Any = transformers.trainer
    own, module.skip_first_batches = module.skip_first_batches, skip_first_batches
    try:
        yield
    finally:
        module.skip_first_batches = own
