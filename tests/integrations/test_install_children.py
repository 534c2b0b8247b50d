"""`stoker.install()` in other processes: pickled loaders, and clean interpreters with loaders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import stoker

pytest.importorskip("torch")

ASKING = """
import sys
import torch
import torch.utils.data as data


class Asking(data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        ours = sys.modules.get("stoker._core.worker_info")
        return torch.tensor(int(ours is not None and (ours.current.info or ours.current.rng) is not None))


def engines(loader):
    return sorted({int(made_by) for batch in loader for made_by in batch})
"""


def said(folder: Path, script: str, **environment: str) -> str:
    """Returns the output of a script beside a module `asking`, in a clean interpreter."""
    (folder / "asking.py").write_text(ASKING)
    program = folder / "program.py"
    program.write_text(textwrap.dedent(script))
    run = subprocess.run(
        [sys.executable, "-W", "error", program],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


def in_child(folder: Path, script: str) -> str:
    """Returns the output of a script whose environment is that of `install(children=True)`."""
    with stoker.install(images=False, children=True):
        return said(folder, script)


def test_environment_is_set_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_INSTALL", raising=False)
    for before in (None, "/some/folder"):
        if before is None:
            monkeypatch.delenv("PYTHONPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONPATH", before)
        with stoker.install(images=False):
            assert "STOKER_INSTALL" not in os.environ and os.environ.get("PYTHONPATH") == before
        with stoker.install(images=False, children=True):
            site, *rest = os.environ["PYTHONPATH"].split(os.pathsep)
            assert (Path(site) / "sitecustomize.py").exists() and rest == ([before] if before else [])
            assert os.environ["STOKER_INSTALL"] == '{"images": false, "order": "torch", "num_workers": null}'
        assert "STOKER_INSTALL" not in os.environ and os.environ.get("PYTHONPATH") == before


def test_path_that_changed_meanwhile_loses_our_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/one")
    with stoker.install(images=False, children=True):
        os.environ["PYTHONPATH"] += os.pathsep + "/two"
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["/one", "/two"])


@pytest.mark.slow  # each imports torch in a new interpreter
class TestCleanInterpreters:
    def test_first_loader_installs(self, tmp_path: Path) -> None:
        script = """
            import sys
            from asking import Asking, data, engines
            print("stoker.loader" in sys.modules, engines(data.DataLoader(Asking(), 4)), end=" ")
            print(engines(data.DataLoader(Asking(), 4, num_workers=1)), hasattr(data.DataLoader, "state_dict"))
        """
        assert in_child(tmp_path, script) == "False [1] [1] True"
        assert said(tmp_path, script) == "False [0] [0] False"

    def test_program_that_imports_stoker_first_installs(self, tmp_path: Path) -> None:
        script = """
            import stoker
            stoker.DataLoader
            from asking import Asking, data, engines
            print(engines(data.DataLoader(Asking(), 4)), engines(stoker.DataLoader(Asking(), 4)))
        """
        assert in_child(tmp_path, script) == "[1] [1]"

    def test_program_without_torch_is_left_alone(self, tmp_path: Path) -> None:
        script = """
            import sys
            print([name for name in ("torch", "stoker", "numpy") if name in sys.modules])
        """
        assert in_child(tmp_path, script) == "[]"

    def test_hidden_sitecustomize_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "sitecustomize.py").write_text("import sys\nsys.marked = __name__\n")
        monkeypatch.setenv("PYTHONPATH", str(other))
        script = "import sys; print(sys.marked, sys.modules['sitecustomize'].__file__)"
        assert in_child(tmp_path, script) == f"sitecustomize {other}/sitecustomize.py"

    def test_children_of_spawn_install(self, tmp_path: Path) -> None:
        script = """
            import torch.multiprocessing as mp
            from asking import Asking, data, engines

            def child(rank):
                print(engines(data.DataLoader(Asking(), 4, num_workers=1)), flush=True)

            if __name__ == "__main__":
                mp.spawn(child, nprocs=1)
        """
        assert in_child(tmp_path, script) == "[1]"
        assert said(tmp_path, script) == "[0]"

    def test_pickled_loader_installs_where_it_is_unpickled(self, tmp_path: Path) -> None:
        script = """
            import multiprocessing
            import stoker
            from asking import Asking, data, engines

            def child(loader):
                print(type(loader) is data.DataLoader, engines(loader), engines(data.DataLoader(Asking(), 4)))

            if __name__ == "__main__":
                with stoker.install(images=False):
                    loader = data.DataLoader(Asking(), 4, num_workers=1)
                    assert engines(loader) == [1]
                    child_process = multiprocessing.get_context("spawn").Process(target=child, args=(loader,))
                    child_process.start()
                    child_process.join()
        """
        assert said(tmp_path, script) == "True [1] [1]"

    def test_child_that_undoes_stays_undone(self, tmp_path: Path) -> None:
        script = """
            import pickle
            import stoker
            from asking import Asking, data, engines
            with stoker.install(images=False):
                sent = pickle.dumps(data.DataLoader(Asking(), 4))
            print(engines(pickle.loads(sent)), hasattr(data.DataLoader, "state_dict"))
        """
        assert said(tmp_path, script) == "[0] False"

    def test_patch_in_the_child_is_a_warning(self, tmp_path: Path) -> None:
        script = """
            import warnings
            from asking import Asking, data, engines
            before = data.DataLoader._get_iterator
            data.DataLoader._get_iterator = lambda self: before(self)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                print(engines(data.DataLoader(Asking(), 4)), str(found[0].message)[:34])
        """
        assert in_child(tmp_path, script) == "[0] stoker is not installed in this ch"
