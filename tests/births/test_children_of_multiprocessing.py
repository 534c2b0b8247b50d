"""A worker is a child of multiprocessing: what is registered with it is done at the worker's birth and at its end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

BEGINNING = """
import atexit, io, multiprocessing, os, pathlib, sys, threading, time
from multiprocessing import util
from stoker import DataLoader

HERE = pathlib.Path(os.environ["PLACE"])
ME = multiprocessing.current_process

def note(text):
    with open(HERE / f"{ME().name}-{os.getpid()}", "a") as file:
        file.write(text + chr(10))

def notes():
    return sorted(line for path in HERE.glob("stoker-worker-*") for line in path.read_text().splitlines())

class Data:
    begun = False
    length = 8
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        if not self.begun:
            self.begun = True
            self.begin()
        return self.value(index)
    def begin(self):
        pass
    def value(self, index):
        return index

def loader(data, **settings):
    settings = {"num_workers": 2, "output": "numpy", "multiprocessing_context": BIRTH} | settings
    return DataLoader(data, **settings)

class Finalized(Data):
    def begin(self):
        util.Finalize(None, note, ["finalizer"], exitpriority=0)
"""


@pytest.fixture
def program(run: Any, birth: str) -> Any:
    """Runs the script behind `BEGINNING`; returns its lines."""

    def program(text: str) -> list[str]:
        told: list[str] = run(birth, BEGINNING + dedent(text)).splitlines()
        return told

    return program


WAYS = {
    "last batch": "list(loader(data))",
    "persistent": "it = loader(data, persistent_workers=True); list(it); list(it); it.close()",
    "close": "it = iter(loader(data)); list(zip(it, range(4))); it.close()",
    "break": """
        for number, batch in enumerate(loader(data)):
            if number == 4:
                break
    """,
    "error": """
        try:
            for number, batch in enumerate(loader(data)):
                if number == 4:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_finalizers_run_however_the_loader_ends(program: Any, way: str) -> None:
    way_out = "\n".join("    " + line for line in dedent(WAYS[way]).strip().splitlines())
    assert program(f"if __name__ == '__main__':\n    data = Finalized()\n{way_out}\n    print(notes())") == [
        "['finalizer', 'finalizer']"
    ]


def test_finalizers_run_when_the_program_ends(program: Any, tmp_path: Path) -> None:
    program("""
    if __name__ == '__main__':
        kept = [iter(loader(Finalized())) for _ in range(2)]
        for it in kept:
            list(zip(it, range(6)))
    """)
    assert sum("finalizer" in path.read_text() for path in tmp_path.glob("stoker-worker-*")) == 4


def test_finalizers_of_retired_workers_run(program: Any) -> None:
    assert program("""
    class Slow(Finalized):
        def begin(self):
            note("begun")
            util.Finalize(None, time.sleep, [0.4], exitpriority=1)  # longer than workers without duties have
            super().begin()
    if __name__ == '__main__':
        list(loader(Slow(), num_workers=1, max_samples_per_worker=2))
        print(notes().count("begun") > 1, notes().count("begun") == notes().count("finalizer"))
    """) == ["True True"]


def test_busy_workers_run_their_finalizers(program: Any) -> None:
    """Though the finalizer was registered in the sample that they are busy with."""
    assert program("""
    class Busy(Data):
        def value(self, index):
            if index:
                util.Finalize(None, note, ["finalizer"], exitpriority=0)
                note("busy")
                while not (HERE / "closing").exists():
                    time.sleep(0.01)
                time.sleep(0.6)
            return index
    if __name__ == '__main__':
        it = iter(loader(Busy()))
        next(it)
        while len(notes()) < 2:
            time.sleep(0.01)
        (HERE / "closing").touch()
        it.close()
        print(notes())
    """) == ["['busy', 'busy', 'finalizer', 'finalizer']"]


@pytest.mark.parametrize("duty", ["False", "True"])
def test_stuck_workers_are_ended(program: Any, duty: str) -> None:
    [seconds] = program(f"""
    class Stuck(Finalized):
        def begin(self):
            if {duty}:
                super().begin()
        def value(self, index):
            if index:
                note("stuck")
                time.sleep(60)
            return index
    if __name__ == '__main__':
        it = iter(loader(Stuck()))
        next(it)
        while len(notes()) < 2:
            time.sleep(0.01)
        start = time.monotonic()
        it.close()
        print(time.monotonic() - start)
    """)
    assert 5 <= float(seconds) < 8 if duty == "True" else float(seconds) < 2


def test_threads_are_joined(program: Any) -> None:
    assert program("""
    class Threaded(Data):
        def begin(self):
            def work():
                threading.main_thread().join()
                time.sleep(0.5)
                note("thread")
            threading.Thread(target=work).start()
    if __name__ == '__main__':
        print(len(list(loader(Threaded()))), notes())
    """) == ["8 ['thread', 'thread']"]


@pytest.mark.parametrize(("count", "size"), [(40_000, 10), (16, 4_000_000)])
def test_queues_are_written_out(program: Any, count: int, size: int) -> None:
    """Much of it when the workers are told to end."""
    assert program(f"""
    class Filling(Data):
        def __init__(self, queue):
            self.queue = queue
        def value(self, index):
            for number in range({count} // self.length):
                self.queue.put((index, number, bytes({size})))
            return index
    if __name__ == '__main__':
        queue = multiprocessing.get_context(BIRTH).Queue()
        seen = set()
        def read():
            while len(seen) < {count}:
                index, number, data = queue.get()
                assert len(data) == {size}
                seen.add((index, number))
        it = iter(loader(Filling(queue)))
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        print(len(list(it)))
        reader.join(10)
        print(len(seen))
    """) == ["8", str(count)]


def test_a_managers_connection_is_each_processes_own(program: Any) -> None:
    assert program("""
    class Proxied(Data):
        length = 2000
        def __init__(self, values):
            self.values = values
        def value(self, index):
            return self.values[index]
    if __name__ == '__main__':
        with multiprocessing.get_context(BIRTH).Manager() as manager:
            values = manager.list(range(2000))
            print(len(values))
            batches = list(loader(Proxied(values), batch_size=20, num_workers=3))
            print([int(value) for batch in batches for value in batch] == list(range(2000)), len(values))
    """) == ["2000", "True 2000"]


def test_hooks_after_fork_run_in_each_worker(program: Any) -> None:
    lines = program("""
    class Hooked:
        pid = None
    hooked = Hooked()
    util.register_after_fork(hooked, lambda it: setattr(it, "pid", (os.getpid(), ME().name)))
    class Asked(Data):
        def value(self, index):
            return repr(hooked.pid == (os.getpid(), ME().name))
    if __name__ == '__main__':
        batches = list(loader(Asked(), max_samples_per_worker=2))
        print({value for batch in batches for value in batch}, hooked.pid)
    """)
    # modules are imported before the hooks run: in each worker, or in the helper
    assert lines == ["{'True'} None"] or lines[0].startswith("{'False'}")


def test_handlers_of_the_trainer_do_not_run(program: Any, birth: str) -> None:
    """Those of a worker do where they do in a child of multiprocessing."""
    run_in_workers = birth == "spawn" or sys.version_info >= (3, 13)
    assert program("""
    class Registering(Data):
        def begin(self):
            atexit.register(note, "worker")
    if __name__ == '__main__':
        atexit.register(lambda: print("trainer" if ME().name == "MainProcess" else "wrong"))
        list(loader(Registering()))
        print(notes())
    """) == [str(["worker"] * 2 if run_in_workers else []), "trainer"]


def test_a_patched_bootstrap_is_called(run: Any) -> None:
    """As coverage patches it; what it does at the end may take longer than workers without duties have."""
    assert (
        run(
            "fork",
            BEGINNING
            + dedent("""
        from multiprocessing.process import BaseProcess
        original = BaseProcess._bootstrap
        def patched(self, *args, **kwargs):
            try:
                return original(self, *args, **kwargs)
            finally:
                time.sleep(0.5)
                note(f"saved {type(self).__name__} {self is ME()}")
        BaseProcess._bootstrap = patched
        list(loader(Data()))
        print(notes())
        """),
        )
        == "['saved ForkProcess True', 'saved ForkProcess True']"
    )


def test_the_contexts_process_class_is_used(program: Any) -> None:
    assert program("""
    from multiprocessing import context
    base = type(context._concrete_contexts[BIRTH])
    class OwnProcess(base.Process):
        def run(self):
            note("own")
            super().run()
    class Own(base):
        Process = OwnProcess
    if __name__ == '__main__':
        list(loader(Data(), multiprocessing_context=Own()))
        print(notes())
    """) == ["['own', 'own']"]


def test_an_iterator_of_a_foreign_thread_ends_in_silence(run: Any) -> None:
    """threading has no object for such a thread that it could end as the main one, before Python 3.13."""
    assert (
        run(
            "fork",
            BEGINNING
            + dedent("""
        import _thread
        done = threading.Event()
        def work():
            threading.current_thread()
            sys.stderr = io.StringIO()
            list(loader(Finalized(), num_workers=1, worker_init_fn=lambda id: setattr(sys, "stderr", open(
                HERE / "stoker-worker-errors", "w", buffering=1))))
            done.set()
        _thread.start_new_thread(work, ())
        done.wait()
        print(notes())
        """),
        )
        == "['finalizer']"
    )


@pytest.mark.skipif(importlib.util.find_spec("coverage") is None, reason="needs coverage")
@pytest.mark.parametrize("birth", ["fork", pytest.param("forkserver", marks=pytest.mark.long), "spawn"])
def test_coverage_sees_the_lines_of_workers(birth: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        dedent("""
        import sys
        from stoker import DataLoader
        class Data:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                number = index + 1
                return number
        if __name__ == '__main__':
            for batch in DataLoader(Data(), num_workers=2, output="numpy", multiprocessing_context=sys.argv[1]):
                pass
        """).lstrip()
    )
    (tmp_path / ".coveragerc").write_text("[run]\nconcurrency = multiprocessing\nsource = .\n")

    def coverage(*arguments: str) -> str:
        command = [sys.executable, "-m", "coverage", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=55).stdout

    coverage("run", "script.py", birth)
    coverage("combine")
    assert "100%" in coverage("report", "-m")
