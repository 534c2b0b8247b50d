"""Chooses how a loader's worker processes start, and whether each unpickles the dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker._engine.fork import native_pools
from stoker._engine.start_method import StartMethod, choose_start_method
from stoker.datasets.nesting import unpickled_once
from stoker.loader.jax_users import jax_named_by
from stoker.loader.stokers_own import is_stokers

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions


def birth_of(options: LoaderOptions, tell: Callable[[str], None] = lambda text: None) -> StartMethod:
    """Returns the start method of the next workers; warns by `tell` if threads of native libraries may hang them.

    Unless the user has chosen a start method, workers start in a clean interpreter in two cases: they run nothing but
    Stoker's own code while a native pool has threads, or their code names JAX, which has started a backend. Other code
    may depend on flags, patches and open files of the script, which only a fork keeps.
    """
    birth = choose_start_method(options.multiprocessing_context)._replace(once=unpickled_once(options.dataset))
    if not birth.forked:
        return birth
    parts = _sent(options).values()
    free = options.multiprocessing_context is None
    if native_pools.jax_has_started() and not is_stokers(parts):
        named = jax_named_by((*parts, options.index_sampler))
        if named and free:
            return birth._replace(
                forked=False, why=f"JAX has started a backend, which survives no fork; named: {named}"
            )
        if named or free:
            tell(
                "JAX has started a backend in this process, which survives no fork, and workers are forked: one that "
                f"uses JAX waits for it for ever{f', and {named} is named' if named else ''}. Pass "
                "multiprocessing_context='forkserver', which starts workers in a clean interpreter, or 'fork' if no "
                "worker uses JAX."
            )
    if (found := native_pools.find()) is None:
        return birth
    if free and is_stokers(parts):
        return birth._replace(forked=False, why=f"{found} does not survive a fork")
    tell(
        f"{found} does not survive a fork, and workers are forked: one that uses {found.library} may wait for it for "
        "ever. Pass multiprocessing_context='forkserver', which starts workers in a clean interpreter, or use "
        f"{found.library} only in the workers."
    )
    return birth


def check_sending(options: LoaderOptions) -> None:
    """Raises CannotSendError if the next workers are clean, torch's would be forked, and a part cannot be sent."""
    by_process = options.capabilities.own_process and options.multiprocessing_context is None
    may_differ = by_process and native_pools.jax_has_started() and choose_start_method(None).forked
    if may_differ and not birth_of(options).forked:
        from stoker._engine.fork.fresh_interpreter import check_parts

        check_parts(_sent(options))


def _sent(options: LoaderOptions) -> dict[str, object]:
    """Returns what clean workers are sent of the user's, by the names under which messages speak of it."""
    names = ("dataset", "collate_fn", "worker_init_fn", "on_error")
    return {name: getattr(options, name) for name in names}
