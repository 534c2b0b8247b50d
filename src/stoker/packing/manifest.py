"""The progress of a pack, in a file beside the data, so that a pack that was killed goes on."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.errors import PackError

NAME = ".stoker-pack.json"
_VERSION = 1


class Manifest:
    """The progress of a pack in its folder.

    Attributes:
        samples: written safely, counted from the first.
        state: of the loader at or before that sample, and the number of samples that it has delivered; or None.
        files: complete files, in order, relative to the folder.
    """

    def __init__(self, folder: str, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._settings = dict(settings)
        self.samples = 0
        self.state: tuple[Any, int] | None = None
        self.latest: tuple[Any, int] | None = None  # becomes `state` at the next commit
        self.files: list[str] = []
        self.is_complete = False

    @classmethod
    def open(cls, folder: str, settings: Mapping[str, Any]) -> Manifest:
        """Returns the manifest of a folder, which is made if it does not exist."""
        os.makedirs(folder, exist_ok=True)
        found = cls(folder, settings)
        path = os.path.join(folder, NAME)
        if not os.path.exists(path):
            others = os.listdir(folder)
            if others:
                raise PackError(
                    f"{folder} holds {others[0]!r}, which `stoker pack` has not written: name a folder that is empty "
                    "or does not exist"
                )
            found.save()
            return found
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            found.samples, found.files = int(said["samples"]), [str(name) for name in said["files"]]
            found.is_complete, written = bool(said["complete"]), said["settings"]
            found.state = found.latest = None if said["state"] is None else (said["state"][0], int(said["state"][1]))
        except (ValueError, KeyError, TypeError) as error:
            raise PackError(f"{path} is damaged ({error}): delete {folder}, and pack again") from error
        changed = [name for name in settings if written.get(name) != settings[name]]
        if changed:
            now, then = settings[changed[0]], written.get(changed[0])
            raise PackError(
                f"{folder} was begun with {changed[0]} {then!r}, now it is {now!r}: use the same settings to go on, or "
                "another folder"
            )
        return found

    def commit(self, samples: int, files: list[str]) -> None:
        """Records that this number of samples is safe, in these files."""
        before = self.samples, self.files, self.state
        self.samples, self.files, self.state = samples, list(files), self.latest
        try:
            self.save()
        except OSError:
            self.samples, self.files, self.state = before
            raise

    def complete(self, files: list[str]) -> None:
        """Records that all is written."""
        self.is_complete, self.files = True, list(files)
        self.save()

    def kept(self) -> str:
        """Returns the consequence of a pack that cannot write, and the remedy, in words."""
        return (
            f"stoker.pack has kept {self.samples:,} of {self._settings['of']:,} samples. Free space on the disk, and "
            "the same call goes on after them"
        )

    def save(self) -> None:
        """Writes the file, atomically."""
        path = os.path.join(self.folder, NAME)
        partial = f"{path}.{secrets.token_hex(4)}"
        said = {
            "version": _VERSION,
            "settings": self._settings,
            "samples": self.samples,
            "state": self.state,
            "files": self.files,
            "complete": self.is_complete,
        }
        try:
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(said, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise


@contextlib.contextmanager
def only_one(folder: str) -> Iterator[None]:
    """Keeps other packs out of a folder. The lock ends with the process, whatever ends it."""
    import fcntl

    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise PackError(f"another process packs into {folder}: wait for it, or name another folder") from error
    try:
        yield
    finally:
        os.close(descriptor)
