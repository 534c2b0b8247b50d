"""Names of ours that stand as text, in comments, pages, messages and settings, lead to what they name.

Whoever moves a module, class or file renames it there too, which no interpreter does for them. The texts are read, not
run; `our_names.py` reads the source for what there is.
"""

from __future__ import annotations

import builtins
import keyword
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from stoker.diagnostics import loader_hooks, watched_program
from stoker.integrations import first_loader
from stoker.loader._job import timed_steps
from tests.api import our_names

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="a source distribution has not all the files")

LEFT_OUT = {"__pycache__", "build", "dist", "site-packages"}
UNREAD = {
    "src/stoker/_core/moved.py": "former names, which have a test of their own",
    "tests/_core/test_moved.py": "names that were never there",
    "tests/api/test_names_in_text.py": "names that lead nowhere",
    "benchmarks/results/others-tests.md": "tests of others",
    "benchmarks/results/published-scripts.md": "scripts of others",
    "tests/pinned/behaviour.py": "public names of the time of the pickles",
    "tests/pinned/objects.py": "public names of the time of the pickles",
    "scripts/others_tests.py": "tests of others",
    "scripts/published_beside.py": "scripts of others",
    "scripts/published_data.py": "data of others",
    "scripts/published_list.py": "scripts of others",
}
"""Files with names that are not ours, or not of today."""
KINDS = {".py", ".pyi", ".c", ".h", ".js", ".css", ".html", ".md", ".toml", ".yml", ".yaml"}
OTHER_TEXTS = {"Makefile", ".ci/run"}
FOLDERS_OF_ROOT = ("src", "tests", "docs", "benchmarks", "examples", "scripts")

MADE_UP = {
    "stoker.DataLoder": "a misspelling, for a test",
    "stoker.epoch": "a figure in OpenTelemetry",
    "stoker.events.error": "a tag in MLflow",
    "stoker.integrations.x": "any of the files there",
}
"""Names with dots that begin as ours do, with all that follows them."""
NOT_OURS = {
    *("train.py", "FILE.py", "main.py", "preprocess_data.py", "program.py"),  # of users
    *("malloc.h", "jax/__init__.py", "prng.di.unimi.it/splitmix64.c", "synchronize.py", "threading.py"),  # of others
    *("changes.md", "contributing.md", "index.md", "security.md"),  # pages of the site, made of files of the root
    "results/NAME.json",
}
"""Files that texts name and that are not here."""
FIGURES = re.compile(r"stoker/(epoch|events|memory|stages|total|batches|wait_\w+|\d)\b")
"""Names of a loader's figures in trackers."""


def _files() -> Iterator[tuple[str, Path]]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and (name[0] != "." or name == ".ci"))
        for name in sorted(names):
            path = Path(folder, name)
            yield path.relative_to(ROOT).as_posix(), path


PATHS = dict(_files())
FOLDERS = {parent.as_posix() for name in PATHS for parent in Path(name).parents} - {"."}
ENDS = {"/".join(parts[n:]) for parts in (name.split("/") for name in {*PATHS, *FOLDERS}) for n in range(len(parts))}
"""All files and folders by each end of their paths: `worker.py`, `process/worker.py`, ..."""
NAMES_OF_FOLDERS = {name.rpartition("/")[2] for name in FOLDERS}


@cache
def texts() -> dict[str, str]:
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in PATHS.items()
        if name not in UNREAD and (path.suffix in KINDS or name in OTHER_TEXTS)
    }


Problem = tuple[int, str]
"""A place in a text, and what is wrong there."""


# Full names

FULL = re.compile(r"(?<![\w./@-])stoker(?:\.[A-Za-z_]\w*)+(?::\w+)?")
OF_TESTS = re.compile(r"(?<![\w./@-])tests((?:\.[a-z_]\w*)+)")
IMPORT = re.compile(r"\bfrom (stoker[\w.]*) import (?:\(([^)]*)\)|([\w ,]+))")


def problem_of(name: str) -> str | None:
    is_known = any(f"{name}.".startswith(f"{known}.") for known in MADE_UP)
    return None if is_known else our_names.problem_of(name)


def full_names(text: str, file: str) -> Iterator[Problem]:
    """Modules and their names, with dots, from `stoker.` or `tests.` on, and in imports."""
    for match in FULL.finditer(text):
        if why := problem_of(match[0].replace(":", ".")):
            yield match.start(), f"{match[0]}: {why}"
    for match in IMPORT.finditer(text):
        lines = re.sub(r"#.*", "", match[2] or match[3])
        for name in re.findall(r"(?:^|,)\s*(\w+)", lines):
            if not keyword.iskeyword(name) and (why := problem_of(f"{match[1]}.{name}")):
                yield match.start(), f"{match[1]}.{name}: {why}"
    for match in OF_TESTS.finditer(text):
        path = "tests" + match[1].replace(".", "/")
        if path not in FOLDERS and f"{path}.py" not in PATHS and f"{path.rpartition('/')[0]}.py" not in PATHS:
            yield match.start(), f"{match[0]}: no such module"


# Paths

FILE = re.compile(r"(?<![\w/.:{}@%$*<>~-])(?:\.{1,2}/)*[\w.-]*\w(?:/[\w.-]*\w)*\.(?:py|pyi|c|h|md)(?![\w./({-])")
FOLDER = re.compile(r"(?<![\w/.:{}@%$*<>~-])(?:\.{1,2}/)*[\w-]+(?:/[\w.-]*\w)+/?(?![\w*{<])")


def is_there(path: str, file: str) -> bool:
    """Whether a path leads to a file or folder: from the root, from the file that names it, or to the end of one."""
    short = re.sub(r"^(\.{1,2}/)+", "", path).rstrip("/")
    if short.partition("/")[0] in FOLDERS_OF_ROOT:
        return short in PATHS or short in FOLDERS or (ROOT / file).parent.joinpath(path).exists()
    return short in ENDS


def is_quoted(match: re.Match[str]) -> bool:
    return match.string[match.start() - 1 : match.start()] == "`"


def paths(text: str, file: str) -> Iterator[Problem]:
    """Files by their endings, with the name of what they define behind a colon, and folders of ours."""
    for match in FILE.finditer(text):
        path = match[0].removeprefix("./")
        if "/" not in path and file.startswith("tests/") and not is_quoted(match):
            continue  # a program that a test writes
        if path in NOT_OURS:
            continue
        if not is_there(match[0], file):
            yield match.start(), f"{path}: no such file"
        elif is_quoted(match) and (name := re.match(r": (\w+)", text[match.end() :])):
            homes = [text for known, text in texts().items() if known.endswith(path.lstrip("./"))]
            if not any(re.search(rf"^(?:class|def) {name[1]}\b", text, re.MULTILINE) for text in homes):
                yield match.start(), f"{path} has no {name[1]}"
    for match in FOLDER.finditer(text):
        path, first = match[0], match[0].partition("/")[0]
        if path in NOT_OURS or FILE.fullmatch(path) or FIGURES.match(path):
            continue
        is_ours = first in FOLDERS_OF_ROOT or re.fullmatch(r"_[a-z]\w+", first)
        if (is_ours or (is_quoted(match) and first in NAMES_OF_FOLDERS)) and not is_there(path, file):
            yield match.start(), f"{path}: no such file or folder"


# Short names, between backticks

SHORT = re.compile(r"(?<!`)`([A-Za-z_]\w*)\.([A-Za-z_]\w*)((?:\.\w+)*)(?:\([^`\n]*\))?`")
PRIVATE = re.compile(r"(?<!`)`(_[a-z]\w+)(?:\(\))?`")
OF_PROGRAMS = {
    *("dataset", "datasets", "error", "event", "images", "loader", "loss", "self", "stream"),  # their variables
    *("accelerator", "fabric", "pipeline", "wandb", "Learner", "Process", "Trainer", "BitGenerator"),  # of libraries
    *("SimpleQueue", "scipy", "torchaudio"),
}
"""Words before a dot that pages and docstrings use for objects of a program."""
SETTINGS = {"isolation.level", "pids.max", "queued.max.messages.kbytes", "NAME.part", "x._y"}
"""Names with dots that are neither ours nor an object's."""
NAMED_FILE = re.compile(r"py|pyi|c|h|md|html|js|css|json|toml|png|svg|txt|npy|pkl|pt|index")


@cache
def packages_of_others() -> set[str]:
    known = {*sys.stdlib_module_names, *dir(builtins)}
    for text in texts().values():
        known.update(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
        known.update(re.findall(r"^\s*import \S+ as (\w+)", text, re.MULTILINE))
    return known


def code_of(text: str, file: str) -> str:
    if file.endswith(".md"):
        return "\n".join(re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL))
    return re.sub(r'"""(?:.|\n)*?"""|#.*', "", text)


def short_names(text: str, file: str) -> Iterator[Problem]:
    """An attribute of a class, or a name of a module, without what stands above it."""
    code = ""
    for match in SHORT.finditer(text):
        first, second, rest = match.groups()
        name = f"{first}.{second}{rest}"
        if first == "stoker" or name in SETTINGS or NAMED_FILE.fullmatch(name.rpartition(".")[2]):
            continue
        if own := our_names.classes().get(first):
            if not our_names.has_attribute(*own, second):
                yield match.start(), f"{name}: the class {first} has no {second}"
            continue
        modules = our_names.STEMS.get(first, [])
        if any(our_names.problem_of(f"{module}.{second}") is None for module in modules):
            continue
        code = code or code_of(text, file)
        if first in OF_PROGRAMS or re.search(rf"\b{first}\b", code):
            continue
        if not modules and (first in packages_of_others() or f"{first}.py" in ENDS):
            continue
        yield match.start(), f"{name}: " + (f"{modules[0]} has no {second}" if modules else f"nothing is named {first}")


@cache
def private_words() -> set[str]:
    """Names that begin with an underscore, in the code of the package, and those of its modules and folders."""
    code = (code_of(text, file) for file, text in texts().items() if file.startswith("src/"))
    words = set(re.findall(r"\b_[a-z]\w+", "\n".join(code)))
    ours = (name for name in {*PATHS, *FOLDERS} if name.startswith("src/"))
    return words | {name.partition(".")[0].rpartition("/")[2] for name in ours}


def private_names(text: str, file: str) -> Iterator[Problem]:
    """A word that begins with an underscore: a module, a folder, or a name in code of the package or of the file."""
    for match in PRIVATE.finditer(text):
        if match[1] not in private_words() and not re.search(rf"\b{match[1]}\b", code_of(text, file)):
            yield match.start(), f"{match[1]}: nothing of the package has this name"


Rule = Callable[[str, str], Iterator[Problem]]
RULES: list[Rule] = [full_names, paths, short_names, private_names]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_names_in_text_lead_somewhere(rule: Rule) -> None:
    stale = [
        f"{file}:{text.count(chr(10), 0, place) + 1}: {problem}"
        for file, text in texts().items()
        for place, problem in rule(text, file)
    ]
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (full_names, "see stoker._engine.proces.worker"),
        (full_names, 'monkeypatch.setattr("stoker.loader.iterator.LoaderIterator._nxt", None)'),
        (full_names, 'stoker = "stoker.diagnostics.cli:mian"'),
        (full_names, "stoker.DataLoader.previw"),
        (full_names, "from stoker.loader.dataloader import (\n    DataLoader,  # torch's\n    DataLoder,\n)"),
        (full_names, "python -m tests.pined.test_pinned"),
        (paths, "(_engine/process/wroker.py)"),
        (paths, "`_engine/transport/arena.py: Arean`"),
        (paths, "see src/stoker/_nativ/native.c"),
        (paths, "make test PYTEST_ARGS=tests/loadr"),
        (paths, "the folder `datasets/_steam/`"),
        (paths, "as `forked_proces.py` has it"),
        (short_names, "`heap_sharing.is_worth_it()`"),
        (short_names, "`StreamIterator.state`"),
        (short_names, "`settle.Leaving`"),
        (private_names, "the folder `_machinery`"),
    ],
)
def test_stale_name_is_noticed(rule: Rule, text: str) -> None:
    assert list(rule(text, "docs/index.md"))


@pytest.mark.parametrize(
    "text",
    [
        "`stoker.DataLoader.preview`, `stoker.images.register`, `stoker._engine.*`, [tool.stoker], stoker.",
        "from stoker import DataLoader, and pass seed=",
        "`_engine/process/worker.py` and `process/worker.py`, `transport/arena.py: Arena`, `tests/api/`, worker.py",
        "`heap_sharing.worth_it`, `StreamIterator.state_dict()`, `torch.save`, `json.dumps(x)`, `loader.report()`",
        "`rows.csv.index`, s3://bucket/rows.py, /home/me/thing.py, {name}.py, `stoker/epoch/delivered`",
        "the folder `_core`, and `_begin`",
    ],
)
def test_name_that_leads_somewhere_is_none(text: str) -> None:
    assert [problem for rule in RULES for problem in rule(text, "docs/index.md")] == []


# What is no name by its form


def test_settings_name_files_and_folders_that_are_there() -> None:
    builds = tomllib.loads(texts()["pyproject.toml"])["tool"]["hatch"]["build"]["targets"]
    named = [*builds["wheel"]["packages"], *(name.lstrip("/") for name in builds["sdist"]["include"])]
    for line in re.findall(r"^(?:BENCHMARKS|SOURCES) :?\+?= (.*)", texts()["Makefile"], re.MULTILINE):
        named += [f"benchmarks/{name}.py" for name in line.split() if name.isidentifier()]
    assert [name for name in named if not is_there(name, "Makefile")] == []


def test_modules_that_programs_run_are_programs() -> None:
    modules = {name for text in texts().values() for name in re.findall(r"-m[\"', ]+(stoker(?:\.\w+)+)", text)}
    assert modules
    assert [name for name in modules if "if __name__" not in our_names.MODULES[name].read_text()] == []


def test_folders_that_the_code_computes_are_those() -> None:
    """By the place of a file, from which other processes and stacks are told apart."""
    package = str(our_names.PACKAGE)
    assert f"{package}{os.sep}" == loader_hooks._OURS
    assert package == timed_steps._STOKER
    assert all(map(os.path.isdir, timed_steps._OURS))
    hooks = {str(path.parent) for path in our_names.PACKAGE.rglob("sitecustomize.py")}
    assert hooks == {first_loader.SITE, watched_program.STARTUP}


def test_exempt_names_and_files_are_in_use() -> None:
    assert [name for name in UNREAD if name not in PATHS] == []
    everything = "\n".join(texts().values())
    words = [*MADE_UP, *NOT_OURS, *SETTINGS, *(f"`{word}." for word in OF_PROGRAMS)]
    assert [word for word in words if word not in everything] == []
