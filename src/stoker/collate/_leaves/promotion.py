"""The dtype of a batch of mixed dtypes, by torch's rules, for NumPy arrays too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.collate._leaves import mismatch


def common_dtype(dtypes: set[np.dtype[Any]], batch: Sequence[Any]) -> np.dtype[Any]:
    """Returns the dtype to which torch promotes these, in native byte order.

    Unlike in NumPy, the kind decides first: int64 and float32 give float32.
    """
    kinds = {dtype.kind for dtype in dtypes}
    if not kinds <= set("buifc"):
        if len(kinds) > 1 and "O" not in kinds:  # NumPy would convert numbers to texts
            raise mismatch.unequal_dtypes(batch, "Dtypes of different kinds have no common dtype")
        return np.result_type(*dtypes)
    if len(dtypes) > 1 and "f" not in kinds and any(d.kind == "u" and d.itemsize > 1 for d in dtypes):
        raise mismatch.unequal_dtypes(batch, "Promotion for uint16, uint32, uint64 types is not supported")
    deciding = "fc" if "c" in kinds else "f" if "f" in kinds else "biu"
    common = np.result_type(*[dtype for dtype in dtypes if dtype.kind in deciding])
    return np.dtype(f"{common.kind}{common.itemsize}")  # among C's integer types of one size, the one torch supports
