"""Loads the lazy parts of libraries before workers are forked, so that they share them.

Otherwise each worker loads them at its first sample: Pillow's JPEG decoder takes 5 ms and 2.4 MB in each, most of it
pages that import itself writes to, instead of 2 ms and 0.2 MB before the fork. Only parts that nearly every dataset of
a kind needs are worth it: the PNG decoder takes 6 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

_LATE = {"PIL.Image": "PIL.JpegImagePlugin"}
"""Parts to load, by the module that needs them."""


def load() -> None:
    """Loads the late parts of libraries that this process has loaded."""
    for library, part in _LATE.items():
        if library in sys.modules and part not in sys.modules:
            with contextlib.suppress(ImportError):  # an unusual build without it: its users get the error
                importlib.import_module(part)
