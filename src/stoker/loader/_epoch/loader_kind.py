"""What a state says of its loader: the facts on which the order depends, and the rank to which the state belongs."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.protocol import asked, offered
from stoker.datasets._stream.rank_share import rank_share
from stoker.loader._epoch import epoch, ranks
from stoker.samplers.permutation import FORMAT_VERSION as ORDER_VERSION

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader._state.schema import Place


def owner(options: LoaderOptions) -> ranks.World | None:
    """Returns the rank to which the loader's state belongs; None if all ranks have the same state, or there is one.

    Without `distributed=` each rank may read another part and have another seed.
    """
    here = None if options.distributed is not None else ranks.of_torch()
    return None if here is None or here.size == 1 else here


def with_own_seed(
    options: LoaderOptions, number: int, place: Place, theirs: dict[str, Any]
) -> tuple[Place, dict[str, Any]]:
    """Returns a place in epoch `number` and the kind from a state that may be another rank's, with this rank's seed.

    Ranks with a stream or a sampler of their own have different seeds, or they would draw the same numbers.
    """
    shares_itself = str(theirs.get("order")).startswith(("stream", "walked"))
    seed = options.seed
    if owner(options) is None or not shares_itself or seed is None or theirs.get("seed") in (None, seed):
        return place, theirs
    place = place if place.seed is None else place._replace(seed=epoch.seed_of(options, number))
    return place, {**theirs, "seed": seed}


def kind_of(options: LoaderOptions) -> dict[str, Any]:
    """Returns the facts on which the order of a loader depends: a state of another kind does not fit."""
    dataset, sampler = options.dataset, options.index_sampler
    kind: dict[str, Any] = {"seed": options.seed}
    fingerprint = offered(dataset, "fingerprint")
    if fingerprint is not None:
        kind["fingerprint"] = str(fingerprint() if callable(fingerprint) else fingerprint)
    if options.is_stream:
        shared = options.shard == "auto" and options.worker_init_fn is None
        kind |= {"order": "stream", "batch_size": options.batch_size, "drop_last": options.drop_last}
        if (share := rank_share(dataset)) is not None:
            kind |= {"num_shards": share[0], "index": share[1]}
        return kind | {"shard": "auto" if shared else "none"}
    inner, given = asked(sampler, "sampler"), {"batch_size": None, "drop_last": None}
    kind |= {"samples": epoch.length_if_known(dataset)} | {name: _plain(asked(sampler, name)) for name in given}
    if not epoch.is_computed(options):
        kind["order"] = f"walked from {_named(sampler)}" + (f" over {_named(inner)}" if inner is not None else "")
        kind["num_replicas"] = _plain(asked(sampler if inner is None else inner, "num_replicas"))
        return kind
    known = epoch.knower(options)
    kind |= {"order": f"{_named(known)}/{ORDER_VERSION}", "of": epoch.length_if_known(known)}
    kind |= {"ranks": epoch.world_of(options).size}
    return kind | {"distributed": options.distributed, "batches_per_epoch": options.batches_per_epoch}


def _named(sampler: Any) -> str:
    return type(sampler).__qualname__


def _plain(value: Any) -> int | None:
    return value if isinstance(value, bool) else operator.index(value) if isinstance(value, (int, np.integer)) else None
