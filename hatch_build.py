"""Compiles the libraries of `src/stoker/_core/native` when Stoker is installed or a wheel is built.

This needs a C compiler.

The libraries know no Python, so a wheel serves every version of it on its platform. Without a compiler the wheel holds
no library, and serves every platform. `STOKER_NATIVE=0` leaves them out; with `STOKER_NATIVE=1` it is an error if they
cannot be built.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/stoker/_core/native")
FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
SOURCES = {"native": [], "collation": [], "seeding": [], "jpeg": ["-ldl", "-lm", "-pthread"]}
"""Libraries, each of one source of the same name, and what each is linked with."""


class NativeBuildHook(BuildHookInterface[Any]):
    """Builds the library beside its source, and has it taken into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is made, also one that only points here (`pip install -e`)."""
        libraries = [Path(self.root, FOLDER, f"{name}.bin") for name in SOURCES]
        wanted = os.environ.get("STOKER_NATIVE")
        if wanted == "0":
            return
        try:
            for library in libraries:
                compile_to(library, library.with_suffix(".c"))
        except (OSError, subprocess.CalledProcessError) as error:
            for library in libraries:
                library.unlink(missing_ok=True)  # that of another source
            said = f"{error}\n{getattr(error, 'stderr', None) or ''}".strip()
            if wanted == "1":
                raise RuntimeError(f"the compiled part of Stoker cannot be built: {said}") from error
            self.app.display_warning(f"Stoker goes without its compiled part, which cannot be built here: {said}")
            return
        build_data["artifacts"] += [f"/{FOLDER}/{library.name}" for library in libraries]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"

    def clean(self, versions: list[str]) -> None:
        """Called by `hatchling build --clean`."""
        for name in SOURCES:
            Path(self.root, FOLDER, f"{name}.bin").unlink(missing_ok=True)


def compile_to(library: Path, source: Path) -> None:
    """Compiles, and puts the library in its place at once: somebody may be using the one before."""
    made = library.with_name(f"{source.stem}.{os.getpid()}.tmp")
    command = [*compiler(), *FLAGS, "-o", str(made), str(source), *SOURCES[source.stem]]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(made, library)
    finally:
        made.unlink(missing_ok=True)


def compiler() -> list[str]:
    """`CC`, or the first of the usual ones that is there. Not that which built Python: it may be a thing of elsewhere.

    Raises:
        OSError: there is none.
    """
    if sys.platform == "win32":
        raise OSError("it is not built on Windows")
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("no C compiler was found (cc, gcc, clang): install one and Stoker again, or go without")


def platform_tag() -> str:
    """The wheel's: that of the machine on which it is built. (`auditwheel` makes it one of many Linuxes.)"""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
