"""The control groups of this process: versions 1 and 2, every visible level.

A container may see only its own group (a bind mount or a cgroup namespace), the whole tree, or nothing. If the path of
`/proc/self/cgroup` is not found below a mount, the mount's root is the nearest known group.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Cgroup:
    """One group: `directory` holds its files, `name` is its path in the hierarchy, `version` is 1 or 2."""

    directory: str
    name: str
    version: int

    def read(self, file: str) -> str | None:
        """Returns the text of one of its files, or None if the file cannot be read."""
        return read(f"{self.directory}/{file}")

    def __str__(self) -> str:
        return f"cgroup {self.name} (v{self.version})"


def read(path: str) -> str | None:
    """Returns the text of a file, or None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def own(controller: str, root: str = "") -> tuple[Cgroup, ...]:
    """Returns the groups that may limit `controller` ("memory", "cpu") for this process, innermost first.

    Reads the membership at each call, because a process can be moved or forked, and the mounts once for each
    membership. `root` is a prefix of `/proc` and of the mount points.
    """
    membership = read(f"{root}/proc/self/cgroup")
    return _levels(controller, root, membership) if membership else ()


@lru_cache(maxsize=32)
def _levels(controller: str, root: str, membership: str) -> tuple[Cgroup, ...]:
    cgroups: list[Cgroup] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 2 or controller in controllers.split(","):
            views: list[list[Cgroup]] = [
                _up_to_the_mount(path, top, point, version) for top, point in _mounts(root, version, controller)
            ]
            views.sort(key=len)  # the mount that shows the most levels is used
            cgroups += views[-1] if views else []
    return tuple(cgroups)


def _mounts(root: str, version: int, controller: str) -> Iterator[tuple[str, str]]:
    """Yields, for each mount of a hierarchy, the group at its root and the mount point."""
    for line in (read(f"{root}/proc/self/mountinfo") or "").splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2" if version == 2 else kind == "cgroup" and controller in options.split(","):
            top, point = mount.split(" ")[3:5]
            yield _unescaped(top), root + _unescaped(point)


def _unescaped(path: str) -> str:
    """Returns the path with its octal escapes resolved: mountinfo writes a space as backslash 040."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), path)


def _up_to_the_mount(path: str, top: str, point: str, version: int) -> list[Cgroup]:
    """Returns the group `path` and its ancestors, as far as a mount of the group `top` at `point` shows them."""
    relative = posixpath.relpath(path, top)
    hidden = ".." in path.split("/") or relative.startswith("..") or not os.path.isdir(f"{point}/{relative}")
    parts = [] if hidden or relative == "." else relative.split("/")
    return [
        Cgroup(posixpath.join(point, *parts[:depth]), posixpath.join(top, *parts[:depth]), version)
        for depth in range(len(parts), -1, -1)
    ]
