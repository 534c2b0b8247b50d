"""The fault matrix as data: what befalls a process (columns) while it does what (rows), and what comes of it.

`tests/faults/test_matrix.py` shows each cell; `page.py` beside this writes `docs/fault-matrix.md` from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAULTS: dict[str, str] = {
    "exception": "it raises an exception",
    "sys.exit": "it calls `sys.exit(3)`; in C, libc's `exit(3)`",
    "os._exit": "it calls `os._exit(3)`; in C, libc's `_exit(3)`",
    "SIGKILL": "it is killed",
    "SIGSEGV in C": "a function in C reads at address 0",
    "SIGSTOP": "it is stopped, and nothing lets it continue",
    "busy loop": "a function in C never returns, and keeps the interpreter's lock",
    "rlimit": "it needs more memory than `RLIMIT_AS` allows",
    "memory cgroup": "the kernel kills it, because its cgroup exceeds its memory limit",
    "unpicklable exception": "it raises an exception that cannot be pickled",
    "half a message": "it writes the first half of a message, and is killed",
}

PHASES: dict[str, str] = {
    "spawn": "a worker, between its fork and its first batch",
    "init function": "a worker, in `worker_init_fn`",
    "receive dataset": "the only worker, not forked (`forkserver`, `spawn`), while it unpickles the dataset",
    "read": "a worker, in the dataset's `__getitem__`",
    "decode in C": "the same, inside a function in C",
    "collate": "a worker, in `collate_fn`",
    "write to the arena": "a worker that has copied half of its batch",
    "hand over": "a worker that reports its batch to the helper process",
    "idle": "a worker between two batches",
    "shut down": "a worker that was told to exit, while it flushes its standard output",
    "helper": "the helper process that forks the workers and hands out their work, while it holds a worker's answer",
}

Which = Literal["none", "its own", "its worker's", "all", "the rest"]


@dataclass(frozen=True)
class Outcome:
    """What the user sees.

    Attributes:
        words: for the page.
        which: the batches that are errors in their place; with "the rest" the run ends by one. Each other batch is bit
            for bit that of a calm run.
        error: class of these errors.
        told: kind of the event that tells of it, if the user gets no error.
        says: a pattern in the message of the error, else of the event.
    """

    words: str
    which: Which = "none"
    error: str | None = None
    told: str | None = None
    says: str = ""


@dataclass(frozen=True)
class Cell:
    """What comes of a fault that comes once, and of one that comes each time: None where that is the same."""

    once: Outcome
    always: Outcome | None = None


@dataclass(frozen=True)
class Cannot:
    """Why there is no such case."""

    reason: str


Row = dict[str, Cell | Cannot]

RAISED = "image file is truncated"
KILLED = "is killed by signal: Killed"
CRASHED = "is killed by signal: Segmentation fault"
LEFT = "exited unexpectedly with exit code 3"
FAILED = "exited unexpectedly with exit code 1"
HUNG = "takes longer than stall_warning"
DEATHS = {
    "sys.exit": LEFT,
    "os._exit": LEFT,
    "SIGKILL": KILLED,
    "SIGSEGV in C": CRASHED,
    "memory cgroup": KILLED,
}
HANGS = ("SIGSTOP", "busy loop")
ERRORS = {
    "exception": f"OSError: {RAISED}",
    "rlimit": "MemoryError",
    "unpicklable exception": f"UnpicklableError: {RAISED}",
}
NOTHING_SENT = Cannot("The process writes no message at that point.")


def raises(error: str, which: Which, says: str) -> Outcome:
    """Batches are errors in their place."""
    whose = {"its own": "its batch raises", "its worker's": "its worker's batches raise", "all": "each batch raises"}
    return Outcome(f"{whose[which]} `{error}`", which, error, says=says)


def ends(error: str, says: str) -> Outcome:
    """Batches that were made are delivered; then the run ends."""
    return Outcome(f"the run ends: `{error}`", "the rest", error, says=says)


def replaced(says: str, where: str) -> Outcome:
    """Another takes the dead one's place."""
    return Outcome("batches are unchanged", told="death", says=f"{says}.*{where}")


def restarted(where: str) -> Outcome:
    """It is ended for its stall, and another takes its place."""
    return Outcome("batches are unchanged", told="stall", says=f"has been at .*{where}.* another makes the batch")


def at_work(where: str, located: str, which: Which = "its own", raised: str | None = None) -> Row:
    """In a unit: what is raised is its batch's, and so is in the end what ends each worker that tries it.

    Args:
        where: a pattern for the place, in the story of a death.
        located: the same in the batch's error.
        which: the batches that meet the fault when it comes each time.
        raised: the same as `located`, in an error that was raised, where that says less.
    """
    row: Row = {
        name: Cell(replaced(how, where), raises("WorkerDiedError", which, f"{how}.*{located}"))
        for name, how in DEATHS.items()
    }
    row |= {name: Cell(restarted(where), raises("StalledError", which, f"{HUNG}.*{located}")) for name in HANGS}
    classes = {"exception": "OSError", "rlimit": "MemoryError", "unpicklable exception": "UnpicklableError"}
    row |= {
        name: Cell(raises(classes[name], "its own", f"{raised or located}.*{says}")) for name, says in ERRORS.items()
    }
    return {**row, "half a message": NOTHING_SENT}


def beside(where: str) -> Row:
    """Outside of all user code: whatever happens ends the worker, another takes its place, and no batch is to blame."""
    how = {**DEATHS, **dict.fromkeys(ERRORS, FAILED)}
    row: Row = {name: Cell(replaced(how[name], where), _too_many(how[name])) for name in how}
    row |= {name: Cell(restarted(where), _too_many(KILLED)) for name in HANGS}
    return {**row, "half a message": NOTHING_SENT}


def _too_many(how: str) -> Outcome:
    return ends("WorkerDiedError", f"{how}.*max_restarts")


def _while_it_unpickles() -> Row:
    unpickles = "while it made its copy of the dataset"
    killed = Cell(replaced(KILLED, unpickles), ends("WorkerDiedError", f"{KILLED}.*{unpickles}"))
    row: Row = {"SIGKILL": killed, "memory cgroup": killed, "half a message": _another_zygote(FAILED)}
    row |= {
        name: Cell(ends("WorkerDiedError", f"{how}.*{unpickles}"))
        for name, how in {"os._exit": LEFT, "SIGSEGV in C": CRASHED}.items()
    }
    row |= dict.fromkeys(HANGS, Cannot("A worker that hangs while it unpickles is ended after ten minutes."))
    says = {**ERRORS, "sys.exit": "SystemExit: 3"}
    sent = "could not rebuild what it was sent"
    return row | {name: Cell(ends("WorkerStartError", f"{sent}: {how}")) for name, how in says.items()}


def _of_the_zygote() -> Row:
    how = {**DEATHS, **dict.fromkeys(HANGS, "no sign of life"), "half a message": KILLED}
    how |= {**ERRORS, "sys.exit": "SystemExit: 3"}
    return {name: _another_zygote(says) for name, says in how.items()}


def _another_zygote(says: str) -> Cell:
    return Cell(
        Outcome(
            "batches are unchanged",
            told="helper_death",
            says=f"the helper process .*{says}.*Another helper process is started",
        ),
        ends("WorkerDiedError", f"the helper process .*{says}"),
    )


def _at_the_end() -> Row:
    row: Row = dict.fromkeys(FAULTS, Cell(Outcome("nothing is left"), Outcome("nothing is left")))
    return {**row, "half a message": Cannot("A worker exits without a message: the helper sees its socket close.")}


def _in_the_init_function() -> Row:
    row = at_work("in worker_init_fn", "worker process", "all")
    for name in ERRORS:
        raised = row[name]
        assert isinstance(raised, Cell)
        error, says = str(raised.once.error), raised.once.says
        row[name] = Cell(raises(error, "its worker's", says), raises(error, "all", says))
    return row


def _handing_over() -> Row:
    row = beside("while the batch was handed over")
    half = Cell(replaced(KILLED, "while the batch was handed over"), _too_many(KILLED))
    return {**row, "half a message": half}


_OF_C = {"exception": Cell(raises("error", "its own", "at sample 9.*requires a buffer of 8 bytes"))}
_HALF_WRITTEN = {
    "half a message": Cell(
        replaced(KILLED, "while the batch was handed over"),
        raises("WorkerDiedError", "its own", f"{KILLED}.*at samples 8, 9, "),
    )
}

CELLS: dict[str, Row] = {
    "spawn": beside("before it began"),
    "init function": _in_the_init_function(),
    "receive dataset": _while_it_unpickles(),
    "read": at_work("sample 9", "at sample 9"),
    "decode in C": at_work("sample 9", "at sample 9") | _OF_C,
    "collate": at_work("in collate_fn", "at samples 8, 9, "),
    "write to the arena": at_work(
        "while the batch was handed over", "at samples 8, 9, ", raised="in DataLoader worker process"
    )
    | _HALF_WRITTEN,
    "hand over": _handing_over(),
    "idle": beside("(before it began|while it was idle)"),
    "shut down": _at_the_end(),
    "helper": _of_the_zygote(),
}
"""By phase, then by fault. With `max_restarts=2`, and `stall_action="restart"` where something hangs."""
