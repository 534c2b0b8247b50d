"""Clean births of real programs: what arrives in the new interpreter, what does not, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stoker._core.machine.memory import Available
from stoker._engine.fork import fresh_interpreter
from stoker._engine.serialize import payload
from stoker.errors import CannotSendError, MemoryLimitError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are passed as POSIX does")

HERE = Path(__file__).parent
FILE, MODULE, COMMAND, STDIN, SESSION = "file", "module", "command", "stdin", "session"


class Result(list[str]):
    """The lines that a program printed."""

    errors: str


@pytest.fixture
def run(tmp_path: Path):
    def run(script: str, how: str = FILE, flags: tuple[str, ...] = (), status: int = 0, **environment: str) -> Result:
        script = textwrap.dedent(script)
        (tmp_path / "script.py").write_text(script)
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "module.py").write_text(script)
        (package / "sibling.py").write_text("ANSWER = 42\n")
        if how == SESSION:  # as typed at a prompt: a block ends with an empty line
            script = "".join(f"{line}\n" if line else "\n" for line in script.splitlines()) + "\n"
        words = {
            FILE: ["script.py"],
            MODULE: ["-m", "package.module"],
            COMMAND: ["-c", script],
            STDIN: ["-"],
            SESSION: ["-i", "-q"],
        }[how]
        path = os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        program = subprocess.run(
            [sys.executable, *flags, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **environment},
            input=script if how in (STDIN, SESSION) else None,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert program.returncode == status, program.stderr
        if how != SESSION:  # prompts go to stderr
            assert status or program.stderr == ""
        result = Result(program.stdout.splitlines())
        result.errors = program.stderr
        return result

    return run


# The main module

PHOTOS = """
import os
from clean_births import ask

print("top", flush=True)
OFFSET = 1

class Item:
    def __init__(self, value):
        self.value = value

class Photos:
    def __getitem__(self, index):
        return Item(index * 3 + OFFSET)

def third(dataset):
    return dataset[2], type(dataset).__module__, os.getpid()

{guard}
    item, home, pid = ask(third, dataset=Photos())
    print(type(item) is Item, item.value, home, pid != os.getpid())
"""


@pytest.mark.parametrize("how", [FILE, MODULE])
def test_guarded_main_module_classes_go_by_reference(run, how: str) -> None:
    assert run(PHOTOS.format(guard='if __name__ == "__main__":'), how) == ["top", "top", "True 7 __mp_main__ True"]


@pytest.mark.parametrize("how", [FILE, MODULE, COMMAND, STDIN, SESSION])
def test_unguarded_main_module_classes_go_by_value(run, how: str) -> None:
    assert run(PHOTOS.format(guard="if True:"), how) == ["top", "True 7 __main__ True"]


@pytest.mark.parametrize("how", [COMMAND, STDIN, SESSION])
def test_a_guard_does_not_help_where_there_is_no_file(run, how: str) -> None:
    assert run(PHOTOS.format(guard='if __name__ == "__main__":'), how) == ["top", "True 7 __main__ True"]


def test_a_process_of_multiprocessing_can_give_birth(run) -> None:
    """As trainers that are started by torch.multiprocessing.spawn do."""
    script = (
        PHOTOS.replace("{guard}", "def main():")
        + """
if __name__ == "__main__":
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=main)
    process.start()
    process.join()
"""
    )
    assert run(script) == ["top", "top", "top", "True 7 __mp_main__ True"]


def test_relative_imports_of_module_run_by_name_work_by_value(run) -> None:
    script = """
    from clean_births import ask
    def answer():
        from .sibling import ANSWER
        return ANSWER
    print(ask(answer))
    """
    assert run(script, MODULE) == ["42"]


def test_classes_of_guard_and_functions_keep_their_identity(run) -> None:
    script = """
    from clean_births import ask

    def local():
        class Local: pass
        return Local

    if __name__ == "__main__":
        class Guarded: pass
        kind = local()
        print(ask(lambda: Guarded()).__class__ is Guarded)
        print(ask(lambda: kind()).__class__ is kind)
    """
    assert run(script) == ["True", "True"]


def test_a_class_without_a_file_pickles_by_name_in_the_worker(run) -> None:
    """A dataset may cache its samples in files."""
    script = """
    import pickle
    from clean_births import ask
    class Item: pass
    print(ask(lambda: pickle.loads(pickle.dumps(Item())).__class__ is Item))
    """
    assert run(script, COMMAND) == ["True"]


def test_globals_that_by_value_functions_share_stay_shared(run) -> None:
    script = """
    from clean_births import ask
    seen = []
    count = 0
    def remember(x):
        global count
        count += 1
        seen.append(x)
    def recall():
        remember(1), remember(2)
        return seen, count
    print(ask(recall), seen, count)
    """
    assert run(script, COMMAND) == ["([1, 2], 2) [] 0"]


def test_a_name_that_the_guard_rebinds_goes_by_value(run) -> None:
    script = """
    from clean_births import ask
    def transform(): return "outside"
    def replace():
        global other
        def other(): return "replaced"
    def other(): return "outside"
    if __name__ == "__main__":
        def transform(): return "guarded"
        replace()
        print(ask(transform), ask(other))
    """
    assert run(script) == ["guarded replaced"]


def test_main_module_that_cannot_be_reimported_is_reported(run) -> None:
    script = """
    import sys
    from clean_births import ask
    if __name__ != "__main__":
        {fails}
    if __name__ == "__main__":
        print(ask(len, obj=()))
    """
    [line] = run(script.format(fails="raise KeyError('once')"))
    assert line.startswith("WorkerStartError: a clean worker could not import the main module /")
    assert "script.py again: KeyError: 'once'. What stands outside" in line
    assert line.endswith("<- KeyError: 'once'")


def test_a_main_module_that_leaves_when_imported_is_reported(run) -> None:
    script = """
    import sys
    from clean_births import ask
    if __name__ != "__main__":
        sys.exit(3)
    if __name__ == "__main__":
        print(ask(len, obj=()))
    """
    [line] = run(script, MODULE)
    assert "could not import the main module package.module again: SystemExit: 3." in line


def test_birth_outside_the_main_guard_is_an_error(run) -> None:
    """A loader outside the guard is reported, where it would start processes without end."""
    script = """
    from clean_births import ask
    answer = ask(str, object=1)
    if __name__ == "__main__":
        print(answer)
    """
    line, *_ = run(script)
    assert "WorkerStartError: a clean worker could not import the main module" in line
    assert "forgotten to use the proper idiom" in line


# What reaches the new interpreter


def test_clean_worker_gets_environment_directory_and_paths(run) -> None:
    """As with multiprocessing: what ran under the guard is missing; environment, directory and paths are as now."""
    script = """
    import json, os, signal, sys, tempfile, warnings
    from clean_births import ask

    json.outside = "flag"

    def there():
        import probe
        return dict(
            outside=json.outside,
            guarded=getattr(json, "guarded", None),
            patched=os.path.join("a", "b"),
            environment=os.environ.get("SET_LATE"),
            directory=os.path.basename(os.getcwd()),
            probe=probe.HERE,
            argv=sys.argv[1:],
            filters=any(item[0] == "error" and item[2] is ImportWarning for item in warnings.filters),
            flags=(sys.warnoptions, sys.flags.optimize, sys.flags.utf8_mode),
        )

    if __name__ == "__main__":
        json.guarded = "flag"
        os.path.join = lambda *parts: "patched"
        os.environ["SET_LATE"] = "yes"
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        with open("probe.py", "w") as file:
            file.write("HERE = True")
        sys.path.insert(0, os.getcwd())
        sys.argv.append("--word")
        warnings.simplefilter("error", ImportWarning)
        for name, value in ask(there).items():
            print(name, value)
    """
    assert run(script, flags=("-W", "error::UserWarning", "-O", "-X", "utf8")) == [
        "outside flag",
        "guarded None",
        "patched a/b",
        "environment yes",
        "directory elsewhere",
        "probe True",
        "argv ['--word']",
        "filters False",
        "flags (['error::UserWarning'], 1, 1)",
    ]


def test_stoker_is_found_by_the_trainers_paths(run) -> None:
    """Nothing of ours is imported before `sys.path` is the trainer's."""
    script = """
    import os, sys
    sys.path[:0] = os.environ["HIDDEN"].split(os.pathsep)
    from clean_births import ask
    print(ask(lambda: 5))
    """
    hidden = os.pathsep.join([str(HERE), str(Path(fresh_interpreter.__file__).parents[3])])
    assert run(script, COMMAND, PYTHONPATH="", HIDDEN=hidden) == ["5"]


def test_objects_of_multiprocessing_arrive_alive(run) -> None:
    script = """
    import multiprocessing
    from clean_births import ask

    def use(lock, value, array, queue, event, end, free):
        with lock, value.get_lock():
            value.value += 1
            array[1] = 5
        event.set()
        end.send("sent")
        queue.put("queued")
        queue.close()
        queue.join_thread()
        return free.acquire(False), multiprocessing.current_process().name, multiprocessing.get_start_method()

    if __name__ == "__main__":
        multiprocessing.set_start_method("forkserver")
        context = multiprocessing.get_context("spawn")
        value, array, queue, event = context.Value("i", 1), context.Array("i", 3), context.Queue(), context.Event()
        ours, theirs = context.Pipe()
        taken = context.Lock()
        taken.acquire()
        shared = dict(value=value, array=array, queue=queue, event=event, end=theirs, free=taken)
        print(ask(use, lock=context.RLock(), **shared))
        print(value.value, array[:], queue.get(), event.is_set(), ours.recv())
    """
    assert run(script) == ["(False, 'StokerZygote', 'forkserver')", "2 [0, 5, 0] queued True sent"]


def test_resource_tracker_is_shared_and_never_started(run) -> None:
    """A second one would remove shared memory that the trainer still uses."""
    script = """
    from multiprocessing import resource_tracker, shared_memory
    from clean_births import ask
    def there(*_, **__):
        tracker = resource_tracker._resource_tracker._fd
        return tracker
    print(ask(there), there())
    memory = shared_memory.SharedMemory(create=True, size=10)
    print(ask(there, memory=memory) == there() != None)
    memory.close()
    memory.unlink()
    """
    assert run(script, COMMAND) == ["None None", "True"]


def test_a_lock_of_the_fork_context_is_named(run) -> None:
    script = """
    import multiprocessing
    from clean_births import refusal
    class Data:
        def __init__(self):
            self.parts = {"lock": multiprocessing.get_context("fork").Lock()}
    print(refusal(len, dataset=Data()))
    """
    [line] = run(script, COMMAND)
    assert line.startswith("CannotSendError: dataset.parts['lock']: a multiprocessing.synchronize.Lock of the fork")
    assert 'multiprocessing.get_context("spawn")' in line


def test_an_open_file_is_named_before_anything_is_started(run) -> None:
    script = """
    import os
    from clean_births import refusal
    class Data:
        def __init__(self):
            self.transform = [0, open(os.devnull, "rb")]
    started = os.times().children_user
    print(refusal(len, dataset=Data()))
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no child")
    """
    first, second = run(script, STDIN)
    assert first.startswith("CannotSendError: dataset.transform[1]: an open file (BufferedReader) cannot be sent")
    assert second == "no child"


def test_payload_that_cannot_be_rebuilt_is_reported(run) -> None:
    script = """
    import sys, types
    from clean_births import ask
    class Made: pass
    Made.__module__ = "made"
    sys.modules["made"] = types.ModuleType("made")
    sys.modules["made"].Made = Made
    print(ask(type, object=Made()))
    """
    [line] = run(script, COMMAND)
    assert line == (
        "WorkerStartError: a clean worker could not rebuild what it was sent: ModuleNotFoundError: No module named "
        "'made'. It imports modules anew: what was patched or added to one at run time, under the main guard for "
        'instance, is missing there. Do that where the module is imported, or use multiprocessing_context="fork". '
        "<- ModuleNotFoundError: No module named 'made'"
    )


# The process


def test_clean_worker_gets_its_descriptors_and_no_others(run) -> None:
    script = """
    import contextlib, os
    from clean_births import ask
    os.set_inheritable(os.dup(1), True)
    def there():
        found = {}
        for n in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the listing's own
                found[n] = os.readlink(f"/proc/self/fd/{n}").partition(":")[0], os.get_inheritable(n)
        return [found[n] for n in sorted(found) if n > 2]
    print(ask(there))
    """
    # the answer's pipe alone: the memory that was sent is closed once it is read or mapped
    assert run(script, COMMAND) == ["[('pipe', False)]"]


def test_clean_worker_ignores_ctrl_c(run) -> None:
    script = """
    import os, signal
    from clean_births import ask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    def there():
        os.kill(os.getpid(), signal.SIGINT)
        return signal.getsignal(signal.SIGINT).name, signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(ask(there), signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before)
    """
    assert run(script, COMMAND) == ["('SIG_IGN', set()) True"]


def test_zygote_ignores_busy_threads_and_locks_of_trainer(run) -> None:
    script = """
    import logging, threading
    from clean_births import ask
    held, done = threading.Event(), threading.Event()
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    def hold():
        with handler.lock:
            held.set()
            done.wait()
    def spin():
        while not done.is_set():
            sum(range(1000))
    threads = [threading.Thread(target=hold), threading.Thread(target=spin)]
    for thread in threads:
        thread.start()
    held.wait()
    print(ask(lambda: logging.getLogger().handlers or threading.active_count()))
    done.set()
    for thread in threads:
        thread.join()
    """
    assert run(script, COMMAND) == ["1"]


@pytest.mark.slow
def test_torch_is_not_imported_unless_the_dataset_needs_it(run) -> None:
    pytest.importorskip("torch")
    script = """
    import sys
    import torch
    import stoker
    from clean_births import ask
    class Data(stoker.Dataset):
        pass
    print("torch" in sys.modules, isinstance(Data(), torch.utils.data.Dataset))
    print(ask(lambda dataset: "torch" in sys.modules, dataset=Data()))
    print(ask(lambda dataset: "torch" in sys.modules, dataset=torch.zeros(1)))
    """
    assert run(script, COMMAND) == ["True True", "False", "True"]


# Memory

LARGE = """
import os
import numpy as np
from clean_births import ask

class Data:
    def __init__(self):
        self.array = np.ones(1 << 24)  # 128 MiB

def own_memory():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

def there(dataset):
    total = dataset.array.sum()
    shared = own_memory()
    dataset.array[: 1 << 23] = 2
    return total == 1 << 24, shared < 60, 64 <= own_memory() - shared < 70, dataset.array.sum() == 3 << 23
"""


def test_a_large_array_is_mapped_and_written_to_privately(run) -> None:
    script = f"{LARGE}\ndata = Data()\nprint(*ask(there, dataset=data), data.array.sum() == 1 << 24)\n"
    assert run(script, COMMAND) == ["True True True True True"]


def test_a_lack_of_memory_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "available", lambda: Available(1 << 27, 1 << 30, "memory cgroup /box (v2)"))
    with pytest.raises(MemoryLimitError, match=r"100.0 MiB more are needed .* 128.0 MiB are available of 1,024.0 MiB"):
        fresh_interpreter.start("clean_births:answer", {"dataset": bytes(100 << 20)}, [])


def test_the_original_error_is_the_cause() -> None:
    with pytest.raises(CannotSendError, match=r"^dataset: ") as caught:
        fresh_interpreter.start("clean_births:answer", {"dataset": (n for n in ())}, [])
    assert isinstance(caught.value.__cause__, TypeError)


def test_all_arrays_together_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    monkeypatch.setattr(payload, "available", lambda: Available(1 << 27, 1 << 30, "the machine"))
    with pytest.raises(MemoryLimitError, match=r"100.0 MiB more are needed after 0.0 MiB"):
        fresh_interpreter.start(
            "clean_births:answer", {"dataset": [np.zeros(50 << 20, np.uint8) for _ in range(2)]}, []
        )
