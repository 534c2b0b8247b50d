"""Clean workers of a template are as those of a new interpreter, and no template outlives its loaders."""

from __future__ import annotations

import gc
import importlib
import os
import random
import resource
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.fork import births, template, trainer, zygote_handle
from stoker._engine.process import linux

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a template needs pidfds"),
]

WITHIN = 20
"""Seconds for the end of a process."""


class Asked:
    """Samples are what a function returns in a worker."""

    def __init__(self, question: Callable[[], Any], module: Any = None) -> None:
        self.question, self.module = question, module

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.question()


def loader_of(dataset: Any, **settings: Any) -> Any:
    default = {"num_workers": 1, "collate_fn": list, "multiprocessing_context": "forkserver", "timeout": 60}
    return stoker.DataLoader(dataset, **default | settings)


def answer(loader: Any) -> Any:
    [[value]] = loader
    return value


def draw_of_sympy() -> float:
    return float(sys.modules["sympy.core.random"].random())


def template_of(loader: Any) -> Any:
    return loader._stoker.births._template


def zygotes_parent() -> int:
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def state_of_a_worker() -> dict[str, Any]:
    """What a worker is born with, without numbers that differ for each process."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    files = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            files[name] = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0], os.get_inheritable(int(name))
        except OSError:  # that of listdir
            continue
    return {
        "status": {name: status[name] for name in ("Umask", "SigBlk", "SigIgn", "SigCgt", "Threads", "Cpus_allowed")},
        "kinds of files": sorted(files.values()),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
        "limits": Path("/proc/self/limits").read_text(),
        "streams": [stream and (stream.fileno(), stream.isatty()) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "modules": {*sys.modules} - {template.__name__},
        "collector": (gc.isenabled(), gc.get_threshold()),
        "main": sys.modules["__main__"].__name__,
        "threads": len(threading.enumerate()),
    }


def test_later_loaders_and_epochs_have_one_template() -> None:
    first, second = loader_of(Asked(zygotes_parent)), loader_of(Asked(zygotes_parent), num_workers=2)
    assert {answer(first), answer(first), answer(second)} == {template_of(first).pid} == {template_of(second).pid}


def test_workers_of_template_are_as_of_new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Asked(state_of_a_worker))
    states = [answer(loader), answer(loader)]
    monkeypatch.setattr(births, "_settings", lambda head: None)
    fresh = answer(loader_of(Asked(state_of_a_worker)))
    assert states == [fresh, fresh]


def test_loaders_that_begin_together_import_together() -> None:
    """The first one's template is still importing when the second one is born."""
    loaders = [loader_of(Asked(zygotes_parent)) for _ in range(2)]
    [(first, second)] = zip(*loaders, strict=True)
    assert [first, second] == [[template_of(loaders[0]).pid], [os.getpid()]]
    assert answer(loaders[1]) == template_of(loaders[0]).pid


def test_module_written_since_the_template_began_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    loader = loader_of(Asked(lambda: __import__("importlib").util.find_spec("written_late") is not None))
    assert not answer(loader)
    times = os.stat(tmp_path)
    (tmp_path / "written_late.py").touch()
    os.utime(tmp_path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if in the same tick of the clock
    assert answer(loader)


def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_TEST_VARIABLE", "changed")


def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def environment_of_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.putenv("STOKER_TEST_C", "changed")


def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)


def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["another"])


def limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else min(4096, hard) if hard >= 0 else 4096, hard))


def mask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.umask(0o077)


@pytest.mark.parametrize(
    "change",
    [
        environment,
        environment_of_c,
        directory,
        limit,
        *(pytest.param(one, marks=pytest.mark.long) for one in (path, arguments, mask)),
    ],
)
def test_workers_see_what_changed_since_the_last_birth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Callable[..., None]
) -> None:
    before = os.umask(0o022), resource.getrlimit(resource.RLIMIT_CORE)
    os.umask(before[0])
    loader = loader_of(Asked(state_of_a_worker))
    old = answer(loader)
    was = template_of(loader).pid
    try:
        change(monkeypatch, tmp_path)
        new = answer(loader)
        with monkeypatch.context() as patch:
            patch.setattr(births, "_settings", lambda head: None)
            assert new == answer(loader_of(Asked(state_of_a_worker))) != old
    finally:
        os.unsetenv("STOKER_TEST_C")
        os.umask(before[0])
        resource.setrlimit(resource.RLIMIT_CORE, before[1])
    assert not Path(f"/proc/{was}").exists()  # no loader has these settings any more


def test_a_stream_of_the_trainer_that_changed_reaches_workers(tmp_path: Path) -> None:
    loader = loader_of(Asked(lambda: os.readlink("/proc/self/fd/1")))
    answer(loader)
    kept = os.dup(1)
    try:
        with open(tmp_path / "out", "w") as file:
            os.dup2(file.fileno(), 1)
        assert answer(loader) == str(tmp_path / "out")
        assert os.readlink(f"/proc/{template_of(loader).pid}/fd/1") == os.devnull  # the template keeps no file open
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class Drawn:
    """Has numbers that each worker draws while it unpickles."""

    def __len__(self) -> int:
        return 1

    def __setstate__(self, state: Any) -> None:
        self.numbers = float(np.random.random()), random.random()

    def __getstate__(self) -> Any:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.numbers


def test_workers_do_not_share_random_numbers_of_template() -> None:
    loader = loader_of(Drawn())
    births_ = [answer(loader) for _ in range(3)]
    assert all(len(set(numbers)) == 3 for numbers in zip(*births_, strict=True))


def test_forks_of_template_seed_the_generators_of_sympy() -> None:
    """Which is imported by Lightning, and by what compiles."""
    sympy = pytest.importorskip("sympy.core.random")
    loader = loader_of(Asked(draw_of_sympy, module=sympy))
    assert len({answer(loader) for _ in range(3)}) == 3
    assert template_of(loader).said() == births.STAYS


@pytest.mark.parametrize(
    "leaves",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "file = open('/dev/null')",
        "import random; generator = random.Random()",
        pytest.param("import numpy; generators = {'of a class': numpy.random.RandomState()}", marks=pytest.mark.long),
        pytest.param("import numpy; draw = numpy.random.default_rng().random", marks=pytest.mark.long),
    ],
    ids=["a thread", "an open file", "a generator", "a state", "a method of a generator"],
)
def test_modules_that_survive_no_fork_have_no_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "leaves_something.py").write_text("import os\nif os.environ.get('CLEAN'):\n    " + leaves)
    monkeypatch.syspath_prepend(packages)
    import leaves_something

    monkeypatch.setenv("CLEAN", "1")
    loader = loader_of(Asked(zygotes_parent, module=leaves_something))
    assert [answer(loader), answer(loader)] == [os.getpid(), os.getpid()]
    assert template_of(loader).said() == births.ALONE
    del sys.modules["leaves_something"]


def test_an_installed_module_that_is_edited_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "is_edited.py").write_text("def factor(): return 1")
    monkeypatch.syspath_prepend(packages)
    import is_edited

    loader = loader_of(Asked(is_edited.factor))
    assert [answer(loader), answer(loader)] == [1, 1]
    (packages / "is_edited.py").write_text("def factor(): return 100")
    importlib.invalidate_caches()
    loader.dataset.question = importlib.reload(is_edited).factor
    assert answer(loader) == 100
    del sys.modules["is_edited"]


def test_numpy_seeded_by_an_installed_module_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "seeds_numpy.py").write_text("import os, numpy\nif 'CLEAN' in os.environ: numpy.random.seed(3)")
    monkeypatch.syspath_prepend(packages)
    import seeds_numpy

    monkeypatch.setenv("CLEAN", "1")
    dataset: Any = Drawn()
    dataset.module = seeds_numpy
    loader = loader_of(dataset, collate_fn=Collected(seeds_numpy))
    expected = np.random.RandomState(3).random()
    assert [batch[0][0] for _ in range(2) for batch in loader] == [expected, expected]
    del sys.modules["seeds_numpy"]


class Collected:
    """Returns the samples; names a module."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


# Endings


def test_template_ends_with_its_last_loader() -> None:
    loaders = [loader_of(Asked(zygotes_parent)), loader_of(Asked(zygotes_parent))]
    for loader in loaders:
        answer(loader)
    process = Path(f"/proc/{template_of(loaders[0]).pid}")
    del loader, loaders[0]
    gc.collect()
    assert process.exists()
    del loaders[0]
    gc.collect()
    assert not process.exists()


def test_iterator_outlives_loader_with_its_template() -> None:
    iterator = iter(loader_of([1, 2, 3], batch_size=1, prefetch_factor=1))
    assert [*iterator] == [[1], [2], [3]]


def test_killed_template_is_followed_by_another() -> None:
    loader = loader_of(Asked(zygotes_parent))
    for _ in range(2):
        assert answer(loader) == template_of(loader).pid
        os.kill(template_of(loader).pid, signal.SIGKILL)
        assert select.select([template_of(loader).descriptor], [], [], WITHIN)[0]


def test_epoch_goes_on_without_its_killed_template() -> None:
    loader = loader_of(range(8), batch_size=1, prefetch_factor=1)
    assert len(list(loader)) > 1
    iterator = iter(loader)
    batches = [next(iterator)]
    os.kill(template_of(loader).pid, signal.SIGKILL)
    assert [*batches, *iterator] == [[number] for number in range(8)]


def stop(child: int) -> None:
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)  # until it has stopped


def test_stopped_template_is_followed_by_another() -> None:
    loader = loader_of(Asked(zygotes_parent))
    stopped = answer(loader)
    stop(stopped)
    assert answer(loader) == template_of(loader).pid != stopped
    assert not Path(f"/proc/{stopped}").exists()


def test_epoch_ends_without_waiting_for_its_stopped_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot say how the zygote has ended."""
    monkeypatch.setattr(zygote_handle, "GONE", float("inf"))
    loader = loader_of(range(8), batch_size=1, prefetch_factor=1)
    for _ in range(2):
        iterator = iter(loader)
        batches = [next(iterator)]
        stop(template_of(loader).pid)
        assert [*batches, *iterator] == [[number] for number in range(8)]


def test_template_that_is_stopped_during_a_birth_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Asked(zygotes_parent))
    stopped = answer(loader)
    stop(stopped)
    with monkeypatch.context() as before:
        before.setattr(linux, "is_stopped", lambda pid: False)
        iterator = iter(loader)
    monkeypatch.setattr(trainer, "HUNG", 0.3)
    with pytest.warns(stoker.StokerWarning, match="did a signal or a debugger stop it"):
        [[value]] = iterator
    assert value == template_of(loader).pid != stopped


def test_killed_zygote_of_template_is_replaced() -> None:
    loader = loader_of(range(50), batch_size=1, prefetch_factor=1)
    assert len(list(loader)) > 1
    iterator = iter(loader)
    batches = [next(iterator)]
    os.kill(iterator._backend.pids[0], signal.SIGKILL)
    with pytest.warns(stoker.StokerWarning, match="is killed by signal: Killed"):
        batches += iterator
    assert batches == [[number] for number in range(50)]


def test_forked_child_has_a_template_of_its_own() -> None:
    loader = loader_of(Asked(zygotes_parent))
    assert answer(loader) == template_of(loader).pid
    pid = os.fork()
    if not pid:
        try:
            own, parents = answer(loader), births._templates
            os._exit(
                0 if own == template_of(loader).pid and template_of(loader).owner == os.getpid() and parents else 1
            )
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert answer(loader) == template_of(loader).pid


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_template_ends_with_a_killed_trainer(tmp_path: Path, stopped: bool) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, stoker
            if __name__ == "__main__":
                loader = stoker.DataLoader(range(4), num_workers=1, multiprocessing_context="forkserver")
                list(loader)
                print(loader._stoker.births._template.pid, flush=True)
                sys.stdin.read()
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        descriptor = os.pidfd_open(int(program.stdout.readline()))
        try:
            if stopped:
                signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            program.kill()
            assert select.select([descriptor], [], [], WITHIN)[0]
        finally:
            os.close(descriptor)


# Descriptors


@pytest.mark.parametrize("numbers", [[60, 61, 62], [61, 60, 62], [62, 60, 61], [61, 62, 63]], ids=str)
def test_descriptors_are_placed_under_numbers_in_use(numbers: list[int]) -> None:
    received = []
    for number, name in zip((60, 61, 62), "abc", strict=True):
        file = os.memfd_create(name)
        os.dup2(file, number)
        os.close(file)
        received.append(number)
    template._place(received, numbers)
    try:
        names = [os.readlink(f"/proc/self/fd/{number}") for number in numbers]
        assert names == [f"/memfd:{name} (deleted)" for name in "abc"]
    finally:
        for number in numbers:
            os.close(number)
