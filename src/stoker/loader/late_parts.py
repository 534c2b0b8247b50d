"""What libraries load of themselves when it is first used: loaded before workers are forked, who then share it.

Left to the first sample, each worker loads it: Pillow's decoder of JPEGs takes 5 ms and 2.4 MB of each, most of it
pages that import itself writes to, where it is 2 ms and 0.2 MB before the fork. Only what nearly every dataset of its
kind needs is worth it: the decoder of PNGs takes 6 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

_LATE = {"PIL.Image": "PIL.JpegImagePlugin"}
"""By what is loaded if they are to be used."""


def load() -> None:
    """Loads the late parts of libraries that this process has loaded."""
    for library, part in _LATE.items():
        if library in sys.modules and part not in sys.modules:
            with contextlib.suppress(ImportError):  # an odd build without it: whoever needs it is told there
                importlib.import_module(part)
