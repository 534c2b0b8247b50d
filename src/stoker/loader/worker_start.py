"""Chooses how a loader's worker processes start, and whether each unpickles the dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker._engine.fork import native_pools
from stoker._engine.start_method import StartMethod, choose_start_method
from stoker.datasets.nesting import unpickled_once
from stoker.loader.stokers_own import is_stokers

if TYPE_CHECKING:
    from stoker._options.loader_options import LoaderOptions


def birth_of(options: LoaderOptions, tell: Callable[[str], None] = lambda text: None) -> StartMethod:
    """Returns the start method of the next workers; warns by `tell` if threads of native libraries may hang them.

    Workers start in a clean interpreter only if the user has chosen no start method and the workers run nothing but
    Stoker's own code: other code may depend on flags, patches and open files of the script, which only a fork keeps.
    """
    birth = choose_start_method(options.multiprocessing_context)._replace(once=unpickled_once(options.dataset))
    if not birth.forked or (found := native_pools.find()) is None:
        return birth
    parts = (options.dataset, options.collate_fn, options.worker_init_fn, options.on_error)
    if options.multiprocessing_context is None and is_stokers(parts):
        return birth._replace(forked=False, why=f"{found} does not survive a fork")
    tell(
        f"{found} does not survive a fork, and workers are forked: one that uses {found.library} may wait for it for "
        "ever. Pass multiprocessing_context='forkserver', which starts workers in a clean interpreter, or use "
        f"{found.library} only in the workers."
    )
    return birth
