"""What tests of the error policy are parametrized by. (Programs that tests start do without pytest: runs.py.)"""

from __future__ import annotations

import pytest

from tests.faults.runs import BACKENDS

EVERY = [pytest.param(name, marks=pytest.mark.slow if name == "clean workers" else ()) for name in BACKENDS]
"""All backends beside the serial one. Clean interpreters take a second to begin."""

EVERYWHERE = [None, *EVERY]
"""With the serial one."""
