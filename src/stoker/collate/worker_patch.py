"""In a worker, torch's own `default_collate` is made to write into the memory of the batch too: users call it."""

from __future__ import annotations

import sys

from stoker.collate.leaves import TENSORS
from stoker.collate.registry import is_torchs, torch_collation


def write_in_place() -> None:
    """Lets tensors that torch's `default_collate` stacks be written where the batch travels.

    To be called in worker processes only, before each unit of work, because a dataset may import torch at any time;
    it takes less than a microsecond. Without it, torch would allocate a file in /dev/shm for each tensor. Does nothing
    where torch is not loaded, or where the user registered another function for tensors.
    """
    theirs = torch_collation()
    if theirs is None:
        return
    tensor = sys.modules["torch"].Tensor
    if is_torchs(theirs.default_collate_fn_map.get(tensor)):
        theirs.default_collate_fn_map[tensor] = TENSORS.tensors
