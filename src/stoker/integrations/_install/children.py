"""Reaches clean interpreters that this process starts: by their environment, and a `sitecustomize` that they find."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stoker.integrations._install.current import Settings

VARIABLE = "STOKER_INSTALL"
"""The environment variable that holds the settings, as JSON."""

SITE = str(Path(__file__).with_name("site"))
"""The folder of our `sitecustomize.py`."""


class ChildEnvironment:
    """The environment of child processes, set and restored."""

    def __init__(self, settings: Settings) -> None:
        self._before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        path = os.environ.get("PYTHONPATH")
        self._set = {
            VARIABLE: json.dumps({"images": settings.images, "order": settings.order}),
            "PYTHONPATH": SITE if not path else os.pathsep.join([SITE, path]),
        }
        os.environ.update(self._set)

    def restore(self) -> None:
        """Restores the environment; a `PYTHONPATH` that other code has changed meanwhile loses our folder alone."""
        path = os.environ.get("PYTHONPATH")
        if path is not None and path != self._set["PYTHONPATH"]:
            rest = [folder for folder in path.split(os.pathsep) if folder != SITE]
            self._before["PYTHONPATH"] = os.pathsep.join(rest)
        for name, value in self._before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
