"""A Stoker loader as torchtitan's `BaseDataLoader`: built from a config, checkpointed by torch.distributed.checkpoint.

    def make(*, dp_world_size, dp_rank, local_batch_size, **_):
        return stoker.DataLoader(
            tokens, local_batch_size, shuffle=True, seed=0, distributed="drop", num_replicas=dp_world_size, rank=dp_rank
        )

    config.dataloader = TitanDataLoader.Config(make=make)

torchtitan builds the loader of each rank from this config.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker import errors
from stoker.extend import merge_states, state_for_all_ranks
from stoker.loader.dataloader import DataLoader
from stoker.loader.record import options_of

try:
    import torch.distributed

    try:
        from torchtitan.components.data.loader import BaseDataLoader
    except ModuleNotFoundError:  # up to 0.3
        from torchtitan.components.dataloader import BaseDataLoader
except ImportError as error:
    raise errors.MissingExtraError(
        f"stoker.integrations.titan needs torchtitan, which cannot be imported ({error}): install the extra "
        "stoker[titan]."
    ) from error

KEY = "stoker"
"""The one key of a state, so that ranks of another number find it in a checkpoint that is read by key."""


class TitanDataLoader(BaseDataLoader):  # type: ignore[misc]  # torchtitan is not installed where types are checked
    """torchtitan's loader contract around a Stoker loader.

    Args:
        config: see `Config`.
        dp_world_size: number of data-parallel ranks.
        dp_rank: this process among them. Ranks along other dimensions have the same one, and get the same batches.
        **build: what else torchtitan passes to a loader (tokenizer, batch size, length of sequences), for `make`.

    The state is that of each data-parallel rank, in one value. A run with another data-parallel degree accepts it: of a
    dataset with indices any, with the batch size of a rank or of all ranks unchanged; of a stream, if its shards have
    names. Samples are neither lost nor repeated. With a stream, `state_dict` gathers from all processes, so each has to
    call it, as torchtitan's checkpoints do.

    Raises:
        TypeError: `make` returned no Stoker loader.
        ValueError: the loader's shares are not those of `dp_world_size` and `dp_rank`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Config of a `TitanDataLoader`.

        Attributes:
            make: returns a new `stoker.DataLoader`, from the arguments `dp_world_size`, `dp_rank` and those that
                torchtitan passes, by name.
            repeat: whether one epoch follows another without end.
        """

        make: Callable[..., DataLoader[Any]]
        repeat: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **build: Any) -> None:
        self._repeats = config.repeat
        self._ranks = dp_world_size, dp_rank
        self.loader = config.make(dp_world_size=dp_world_size, dp_rank=dp_rank, **build)
        if not isinstance(self.loader, DataLoader):
            raise TypeError(f"make should return a stoker.DataLoader, but returned {type(self.loader).__name__}")
        self._check_shares()

    def _check_shares(self) -> None:
        """Refuses a loader that would give ranks the same batches, or the wrong share."""
        options, (size, rank) = options_of(self.loader), self._ranks
        if options.is_stream or (size == 1 and options.distributed is None):
            return
        if (options.num_replicas, options.rank) != (size, rank):
            raise ValueError(
                f"the loader is for rank {options.rank} of {options.num_replicas} with distributed="
                f"{options.distributed!r}, but torchtitan asks for data-parallel rank {rank} of {size}: pass "
                "distributed='drop', num_replicas=dp_world_size and rank=dp_rank to it."
            )

    def __iter__(self) -> Iterator[Any]:
        """Yields batches from the place of a loaded state on; with `repeat`, epoch after epoch."""
        while True:
            empty = True
            for batch in self.loader:
                empty = False
                yield batch
            if empty or not self._repeats:
                return

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all data-parallel ranks, as one value; the same on every process."""
        state, (size, rank) = state_for_all_ranks(self.loader.state_dict()), self._ranks
        states = {rank: state}
        if options_of(self.loader).is_stream and size > 1:
            everyone: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(everyone, (rank, state))
            states = dict(everyone)
        return {KEY: pickle.dumps([states[number] for number in sorted(states)])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a state of any data-parallel degree; an empty state, as torchtitan may pass, changes nothing.

        Raises:
            StateFormatError: the state is another loader's.
            StateMismatchError: it is of other data, or of a stream that cannot be divided anew.
        """
        if not state_dict:
            return
        if KEY not in state_dict:
            raise errors.StateFormatError(
                f"this is no state of a TitanDataLoader: it has the keys {sorted(map(str, state_dict))}. A state of "
                "torchtitan's own loaders cannot be taken over: put 'dataloader' into exclude_from_loading."
            )
        states, (size, rank) = pickle.loads(state_dict[KEY]), self._ranks
        own = options_of(self.loader).is_stream and len(states) == size
        self.loader.load_state_dict(states[rank] if own else merge_states(states))

    def close(self) -> None:
        """Ends the loader's workers."""
        self.loader.close()
