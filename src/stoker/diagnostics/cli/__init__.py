"""The command line `stoker`, with typer and rich. `main` is its entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 1 if it found a problem or failed, 2 for wrong usage.

    Args:
        arguments: of the command line; None for those of the process.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `stoker run train.py 2>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for the rest of the process
    try:
        from stoker.diagnostics.cli.app import run
        from stoker.diagnostics.cli.lasting_output import lasting_output

        with lasting_output():
            return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # while modules are imported; a command ends by itself
        sys.stderr.write("stoker: interrupted.\n")
        return 130
