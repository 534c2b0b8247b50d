"""Programs that are run with torch's loader and with Stoker's: changing the import must not change the data.

A program is a function of the test file. It is given the module, `torch.utils.data` or `stoker`, and returns a result:

    def squares(data):
        class Squares(data.Dataset): ...
        return list(data.DataLoader(Squares(), num_workers=2))

    def test_squares_are_equal(same):
        same(squares)

The function's source is run as a script of its own, so it imports what it needs and sees nothing of its test file. A
program may also be a string, the source of such a script: it defines `main(data)`, and what has to be importable by
spawned workers stands at its top level. A program that takes `context` too is given what `same(program, context=...)`
says ("spawn", "forkserver"), else None.

`same` demands that these are equal:
- the result: tensors and arrays by dtype and values, exceptions by class, containers by type and items
- the exception that ended the program: its class, which the test names (`raises="KeyError"`), and the last line of its
  message (not with `messages=False`)
- the exit code
- the names of files in the program's working folder

With Stoker's loader no more may be left behind than with torch's: processes that still run `grace` seconds after the
program's end, and files in its folder of temporary files.

An exemption is a row of "What differs" in docs/guides/from-torch.md: `same(program, differs="a row's first cell")`.
There must be such a row, and there must be a difference. `same` returns both outcomes (`.result`, `.exception`,
`.message`, `.exit`, `.files`, `.processes_left`, `.temporary`), torch's first, so
that a test can say what the difference is.

A program is forked from a process that has imported torch and Stoker; both together take under a second. `fresh=True`
gives each an interpreter of its own: mark such a test as slow, and those of programs that spawn. A program has
`timeout` seconds. It may not sleep to wait for another process.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "from-torch.md"
MODULES = ("torch.utils.data", "stoker")
# Around the program. The first line is what a script changes; spawned workers run it too.
HEAD = """\
import {module} as data
"""
TAIL = """
if __name__ == "__main__":
    import sys
    sys.path.insert(0, {here!r})
    import recording
    sys.path.pop(0)
    with recording.into({record!r}) as record:
        record({main}(*[data, {context!r}][:{arguments}]))
"""


@dataclass(frozen=True)
class Outcome:
    result: Any
    exception: str | None
    message: str
    exit: int | None
    timed_out: bool
    files: list[str]
    processes_left: int
    temporary: Counter[str]
    stderr: str

    def differences(self, other: Outcome, but: tuple[str, ...]) -> list[str]:
        unequal = [
            name
            for name in ("result", "exception", "message", "exit", "files")
            if name not in but and getattr(self, name) != getattr(other, name)
        ]
        more = [name for name in ("processes_left", "temporary") if not getattr(other, name) <= getattr(self, name)]
        return [
            f"{name}:\n    torch:  {getattr(self, name)!r}\n    stoker: {getattr(other, name)!r}"
            for name in (*unequal, *more)
        ]


class Same:
    def __init__(self, server: subprocess.Popen[str]) -> None:
        self.server = server

    def __call__(
        self,
        program: Callable[..., Any] | str,
        *,
        differs: str | None = None,
        context: str | None = None,
        messages: bool = True,
        raises: str | None = None,
        fresh: bool = False,
        timeout: float = 60,
        grace: float = 1,
    ) -> tuple[Outcome, Outcome]:
        if differs is not None:
            assert differs in rows(), f"{GUIDE.name} has no row {differs!r} under 'What differs'"
        with tempfile.TemporaryDirectory(prefix="same-") as parent:
            folders = [Path(parent, module) for module in MODULES]
            for folder, module in zip(folders, MODULES, strict=True):
                write(folder, program, module, context)
            theirs, ours = self.run(folders, fresh=fresh, timeout=timeout, grace=grace)
        assert not (theirs.timed_out or ours.timed_out), f"timed out after {timeout} s:\n{theirs}\n{ours}"
        assert theirs.exception == raises, f"torch's program ended with {theirs.exception}:\n{theirs.stderr}"
        differences = theirs.differences(ours, () if messages else ("message",))
        if differs is not None:
            assert differences, f"nothing differs, so {differs!r} need not be named"
        elif differences:
            pytest.fail(
                "\n  ".join(["torch's loader and Stoker's differ", *differences])
                + f"\ntorch's standard error:\n{theirs.stderr}\nStoker's:\n{ours.stderr}",
                pytrace=False,
            )
        return theirs, ours

    def run(self, folders: list[Path], **how: object) -> list[Outcome]:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps([{"folder": str(folder), **how} for folder in folders]) + "\n")
        self.server.stdin.flush()
        reply = self.server.stdout.readline()
        assert reply, f"the server has ended with {self.server.wait()}"
        return [read(folder, outcome) for folder, outcome in zip(folders, json.loads(reply), strict=True)]


def write(folder: Path, program: Callable[..., Any] | str, module: str, context: str | None) -> None:
    for name in ("cwd", "tmp"):
        (folder / name).mkdir(parents=True)
    if isinstance(program, str):
        source, main = textwrap.dedent(program), "main"
        arguments = 2 if "main(data, context)" in source else 1
    else:
        source, main = textwrap.dedent(inspect.getsource(program)), program.__name__
        arguments = len(inspect.signature(program).parameters)
    tail = TAIL.format(here=str(HERE), record=str(folder / "record"), main=main, arguments=arguments, context=context)
    (folder / "program.py").write_text(HEAD.format(module=module) + source + tail)


def read(folder: Path, outcome: dict[str, Any]) -> Outcome:
    record = json.loads((folder / "record").read_text()) if (folder / "record").exists() else {}
    temporary = (path.name.rpartition("-")[0] for path in (folder / "tmp").iterdir())  # the rest is random
    return Outcome(
        result=record.get("result"),
        exception=record.get("exception"),
        message=record.get("message", ""),
        exit=outcome["exit"],
        timed_out=outcome["timed out"],
        files=sorted(str(path.relative_to(folder)) for path in (folder / "cwd").rglob("*")),
        processes_left=outcome["processes left"],
        temporary=Counter(temporary),
        stderr=(folder / "stderr").read_text(),
    )


def rows() -> set[str]:
    """Returns the first cells of the table "What differs" in the guide."""
    table = GUIDE.read_text().partition("\n## What differs\n")[2].partition("\n## ")[0]
    return {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")}


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def same(server: subprocess.Popen[str]) -> Same:
    pytest.importorskip("torch")
    return Same(server)
