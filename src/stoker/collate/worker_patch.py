"""Makes torch's own `default_collate`, which users call in workers, write into the memory of the batch."""

from __future__ import annotations

import sys

from stoker.collate._leaves.stacking import TENSORS
from stoker.collate.registry import is_torchs, torch_collation


def write_in_place() -> None:
    """Makes torch's `default_collate` stack tensors in the memory in which the batch travels.

    Call it only in worker processes, before each unit, because a dataset may import torch at any time; a call takes
    less than a microsecond. Without it, torch would allocate a file in /dev/shm for each tensor. Does nothing if torch
    is not loaded or the user registered another function for tensors.
    """
    theirs = torch_collation()
    if theirs is None:
        return
    tensor = sys.modules["torch"].Tensor
    if is_torchs(theirs.default_collate_fn_map.get(tensor)):
        theirs.default_collate_fn_map[tensor] = TENSORS.tensors
