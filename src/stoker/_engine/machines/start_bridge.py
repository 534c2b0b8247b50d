"""Starts the bridge, in the trainer."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from collections.abc import Mapping
from typing import cast

from stoker._engine.backends import OWN, Parts
from stoker._engine.fork.fresh_interpreter import start
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.pool.pool_parts import ClassNumbers, RankParts
from stoker._engine.machines.starts import BridgeSettings
from stoker._engine.serialize.causes import SHARING
from stoker._engine.transport.segments import ArenaFiles
from stoker.errors import CannotSendError

HOOK, HOOK_VARIABLE = "worker_process_setup_hook", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""A function in a runtime environment, and the variable by which Ray sends it: Ray refuses both at once."""


def start_bridge(end: int, arena: ArenaFiles, cluster: Ray, local: int, parts: Parts, once: bool) -> int:
    """Starts a clean interpreter as the bridge; returns its pid.

    Args:
        end: of its connection to the zygote.
        arena: where batches go.
        cluster: where the remote workers are.
        local: number of the workers of this machine.
        parts: what remote workers are sent.
        once: whether the dataset may be unpickled once for several workers.

    Raises:
        CannotSendError: some part cannot be pickled: named by its path, before anything is started.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        client = sys.modules.get("ray.util.client")
        is_client = client is not None and client.ray.is_connected()  # which is refused
        address = "ray://" if is_client else context.gcs_address
        cluster = used_here(cluster, address, {} if is_client else context.runtime_env.to_dict())
    elif cluster.address == "auto" and (named := os.environ.get("RAY_ADDRESS")):  # as Ray does, with our checks
        cluster = dataclasses.replace(cluster, address=named)
    share = None
    if cluster.pool is not None:  # the ranks send the same but for their settings
        own, kind = pickle.dumps(parts[OWN]), type(parts["dataset"])
        share = RankParts(once, f"{kind.__module__}.{kind.__qualname__}", own, ClassNumbers())
        parts = {name: part for name, part in parts.items() if name != OWN}
    settings = BridgeSettings(cluster, local, share)
    try:
        return start("stoker._engine.machines.bridge:run", parts, [end, *arena], settings, by_value=True)
    except CannotSendError as error:
        text = str(error).replace(f", or {SHARING}", "")  # no fork reaches another machine
        sent = "Workers on other machines (remote=) are sent the dataset and the functions."
        raise CannotSendError(f"{text} {sent}") from error.__cause__


def used_here(cluster: Ray, address: str, runtime_env: Mapping[str, object]) -> Ray:
    """Returns the cluster with what this program's own connection says of it: the address, and the runtime environment
    that Ray's actors inherit. The bridge is another program to Ray.
    """
    if cluster.address not in ("auto", address):
        return cluster
    own = cluster.runtime_env or {}
    merged = {**{name: value for name, value in runtime_env.items() if name not in (HOOK, "env_vars")}, **own}
    theirs, mine = (dict(cast("Mapping[str, str]", each.get("env_vars") or {})) for each in (runtime_env, own))
    if HOOK in own:
        theirs.pop(HOOK_VARIABLE, None)
    if theirs or mine:
        merged["env_vars"] = {**theirs, **mine}
    return dataclasses.replace(cluster, address=address, runtime_env=merged or None)
