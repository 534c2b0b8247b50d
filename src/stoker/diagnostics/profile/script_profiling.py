"""`ScriptProfiling` runs an unchanged program up to some batches of its loaders, and has the profile of one of them."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.settings.batch_limit import ProfileOrder
from stoker.diagnostics.settings.engine_comparison import STAYS
from stoker.diagnostics.watched_program import GRACE, WatchedProgram
from stoker.errors import ProgramFailedError

if TYPE_CHECKING:
    from stoker.diagnostics.profile.loader_profile import LoaderProfile

INTERRUPTED = 0.6
"""Seconds that a program may take to end itself after Ctrl-C."""


@dataclass(frozen=True)
class ScriptProfile:
    """The profile of one of a program's loaders.

    Attributes:
        engine: "stoker", or "torch" if Stoker's engine has refused the loader.
        is_own: whether the program uses Stoker's loader by itself.
        refused: why it has; None if it has not.
        wanted: number of batches that were to be measured.
        is_over: whether so many were, or as many as leave room for steps on a held batch.
        ended_by: site of another loader that gave so many first, and so ended the program; None if there was none.
        inferred: why the gain is inferred from the waits, and not measured; None if it was measured.
        others: sites of the other loaders, with the seconds waited for each, most first.
    """

    site: str
    rank: str | None
    engine: str
    is_own: bool
    refused: str | None
    profile: LoaderProfile
    wanted: int
    is_over: bool
    ended_by: str | None
    inferred: str | None
    others: tuple[tuple[str, float], ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the profile as plain JSON values: those of the loader's profile, and those of the program."""
        program = {name: value for name, value in vars(self).items() if name != "profile"}
        program["others"] = [{"site": site, "waited": waited} for site, waited in self.others]
        return {**self.profile.as_dict(), "program": program}


class ScriptProfiling:
    """Profiles the loaders of a program, on Stoker's engine.

    Args:
        batches: number of batches of a loader after which the program is ended.
        site: the line that iterates ("train.py:31"); None for the loader for which the program waits most.

    Attributes:
        result: the profile; None before the program has ended, or if it gave no batch.
        failure: why the program failed; None if it did not.
    """

    def __init__(self, command: Sequence[str], batches: int, site: str | None = None, stacks: bool = False) -> None:
        self._command = command
        self._batches = batches
        self._site = site
        self._stacks = stacks
        self.result: ScriptProfile | None = None
        self.failure: str | None = None

    def run(self, watch: Callable[[Measurements], None]) -> None:
        """Runs the program. An exception, as of Ctrl-C, ends it; what was measured until then stays in `result`.

        Args:
            watch: called some times in a second.

        Raises:
            ProgramFailedError: the program gave no batch of a loader.
        """
        folder = tempfile.mkdtemp(prefix="stoker-profile-")
        order = ProfileOrder(folder, self._batches, self._site, self._stacks)
        try:
            with WatchedProgram(self._command, "stoker", profile=order) as program:
                try:
                    self._watched(program, folder, watch)
                except BaseException:
                    program.interrupt(INTERRUPTED)
                    with contextlib.suppress(ProgramFailedError):
                        self._read(program, folder)
                    raise
                self._read(program, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watched(self, program: WatchedProgram, folder: str, watch: Callable[[Measurements], None]) -> None:
        patience = None
        while program.look():
            watch(program.measurements)
            if program.measurements.enough is not None:
                now = time.perf_counter()
                patience = now + GRACE if patience is None else patience
                if now > patience:
                    program.kill()
        if program.shortage is not None:
            self.failure = program.shortage
        elif program.measurements.enough is None and program.code and not any(one["is_over"] for one in _loops(folder)):
            self.failure = f"it ended with exit code {program.code}: {program.last_words()}"

    def _read(self, program: WatchedProgram, folder: str) -> None:
        loops = _loops(folder)
        most = sorted(loops, key=lambda one: -float(one["waited"]))
        found = next((one for one in most if self._site in (None, one["site"])), None)
        if found is None:
            raise ProgramFailedError(self._nothing(program, {one["site"] for one in most}))
        from stoker.diagnostics.profile.loader_profile import LoaderProfile

        profile = LoaderProfile.of_dict(found["profile"])
        refused = None
        if found["engine"] != "stoker":
            refused = program.said(STAYS) or "the program leaves it on torch's"
        others: dict[str, float] = {}
        for one in most:
            if one["site"] != found["site"]:
                others[one["site"]] = max(one["waited"], others.get(one["site"], 0.0))
        self.result = ScriptProfile(
            found["site"],
            found["rank"],
            found["engine"],
            found["is_own"],
            refused,
            profile,
            self._batches,
            found["is_over"],
            None if found["is_over"] else next((one["site"] for one in most if one["is_over"]), None),
            None if profile.is_measured else self._why_inferred(found),
            tuple(others.items()),
        )

    def _why_inferred(self, found: dict[str, Any]) -> str:
        if found["inferred"] is not None:
            return str(found["inferred"])
        if found["is_over"]:
            return "the program ended before steps on a held batch"
        count = found["profile"]["batches"]
        return f"the loader gave {count} of {self._batches} batches"

    def _nothing(self, program: WatchedProgram, sites: set[str]) -> str:
        if self._site is not None and sites:
            return f"no loader is iterated over at {self._site}: there are {', '.join(sorted(sites))}"
        if self.failure is not None:
            return f"the program failed before a loader gave a batch: {self.failure}"
        return (
            "no loader gave a batch: there was no torch.utils.data.DataLoader and no stoker.DataLoader, or it was "
            f"empty. The program's last line was: {program.last_words()}"
        )


def _loops(folder: str) -> list[dict[str, Any]]:
    """Returns the loops that the processes of the program have written."""
    loops = []
    for path in sorted(Path(folder).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # a program that cleans temporary files deletes it meanwhile
            written = json.loads(path.read_text(encoding="utf-8"))
            loops += [{**one, "rank": written["rank"]} for one in written["loops"]]
    return loops
