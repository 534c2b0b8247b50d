"""The command line itself: version, help, a broken pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stoker
import stoker.diagnostics.cli


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    assert stoker.diagnostics.cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"stoker {stoker.__version__}\n"
    assert stoker.diagnostics.cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "run" in shown and "--install-completion" in shown


def test_module_runs_the_command_line() -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    run = subprocess.run([sys.executable, "-m", "stoker", "--version"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"stoker {stoker.__version__}\n")


def test_importing_the_command_line_loads_no_torch() -> None:
    program = "import sys, stoker.diagnostics.cli\nsys.exit('torch' in sys.modules or 'typer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_commands_start_without_torch() -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    program = "import sys, stoker.diagnostics.cli.app\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_interrupt_during_imports_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupts:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "stoker.diagnostics.cli.app":
                raise KeyboardInterrupt

    imports = Interrupts()
    app = sys.modules.pop("stoker.diagnostics.cli.app", None)
    sys.meta_path.insert(0, imports)  # type: ignore[arg-type]
    try:
        assert stoker.diagnostics.cli.main(["--version"]) == 130
    finally:
        sys.meta_path.remove(imports)  # type: ignore[arg-type]
        if app is not None:
            sys.modules["stoker.diagnostics.cli.app"] = app
    assert capsys.readouterr() == ("", "stoker: interrupted.\n")
