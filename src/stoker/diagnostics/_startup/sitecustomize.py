"""Runs at the start of each Python process below `stoker run`: attaches the hooks, and runs the module it hides."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_hidden = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or os.curdir) != _here]
)
if _hidden is not None and _hidden.loader is not None:
    _module = importlib.util.module_from_spec(_hidden)
    sys.modules["sitecustomize"] = _module
    _hidden.loader.exec_module(_module)

try:
    from stoker.diagnostics.attach import attach
except ImportError:  # another Python, without Stoker
    pass
else:
    attach()
