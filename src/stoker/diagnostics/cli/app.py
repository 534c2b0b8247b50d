"""The commands under one name, and their errors as sentences."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stoker import __version__
from stoker.diagnostics.cli.commands import batch, check, compare, demo, doctor, index, pack, peek, tune
from stoker.diagnostics.cli.commands import profile as profile_
from stoker.diagnostics.cli.commands import run as run_
from stoker.diagnostics.cli.output import CommandError
from stoker.errors import StokerError

app = typer.Typer(
    name="stoker",
    help="Measures the data loaders of PyTorch programs: the slow part, its cause, and the change to make.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("run", context_settings={"allow_interspersed_args": False})(run_.run)
app.command("compare", context_settings={"allow_interspersed_args": False})(compare.compare)
app.command("tune", context_settings={"allow_interspersed_args": False})(tune.tune)
app.command("bench")(tune.bench)
app.command("doctor")(doctor.doctor)
app.command("check")(check.check)
app.command("batch")(batch.batch)
app.command("pack")(pack.pack)
app.command("index")(index.index)
app.command("peek")(peek.peek)
app.command("profile", context_settings={"allow_interspersed_args": False})(profile_.profile)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"stoker {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measures the data loaders of PyTorch programs: the slow part, its cause, and the change to make."""


def run(arguments: list[str]) -> int:
    """Runs the command that the arguments name; returns its exit code. An error is one sentence on standard error."""
    command: Any = typer.main.get_command(app)
    try:
        words = run_.options_before_target(run_.ended_after_module(arguments))
        code = command.main(args=words, prog_name="stoker", standalone_mode=False)
    except typer.Abort:
        return _say("interrupted.", 130)
    except BrokenPipeError:  # `stoker ... | head`
        sys.stderr.close()
        return 141
    except (CommandError, StokerError) as error:
        return _say(str(error), 1)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _say(_of_usage(error), getattr(error, "exit_code", 2))
    return int(code or 0)


def _of_usage(error: Any) -> str:
    """Returns the sentence of an error in the usage of a command, with the way to its help."""
    said = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "stoker"
    if not said:
        return f"an argument is missing. See {path} --help"
    return f"{said[0].lower()}{said[1:].rstrip('.')}. See {path} --help"


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"stoker: {text}\n")
    return code
