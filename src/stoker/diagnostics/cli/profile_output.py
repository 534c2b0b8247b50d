"""A profile as text of the command line, with what is to be said of the program that it is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from stoker.diagnostics.cli.output import print_table, seconds

if TYPE_CHECKING:
    from stoker.diagnostics.profile.loader_profile import LoaderProfile
    from stoker.diagnostics.script_profile.script_profiling import ScriptProfile

SHOWN = 4
"""Other loaders that are named."""


def show(console: Console, profile: LoaderProfile, said: Sequence[str] = ()) -> None:
    """Prints a profile.

    Args:
        console: for it.
        profile: of a loader.
        said: of the program, below the verdict.
    """
    from stoker.diagnostics.profile.profile_tables import heading, tables

    console.print(heading(profile))
    console.print()
    console.print(str(profile.verdict))
    for text in said:
        console.print()
        console.print(text)
    for title, rows in tables(profile):
        console.print()
        console.print(title)
        print_table(console, rows)


def remarks(found: ScriptProfile, interrupted: bool, failed: bool) -> list[str]:
    """Returns what is to be said of the program and of the measurement, in sentences.

    Args:
        found: the profile.
        interrupted: whether Ctrl-C ended it.
        failed: whether the program failed.
    """
    name = found.site if found.rank is None else f"{found.site} of rank {found.rank}"
    if found.refused is None:
        place = "" if found.is_own else ", which was put in the place of torch's"
        said = [f"The loop at {name}, measured on Stoker's engine{place}."]
    else:
        said = [
            f"The loop at {name}, measured on torch's engine, which tells no stages and samples. Stoker's engine was "
            f"not used: {found.refused}."
        ]
    if interrupted:
        said.append("Interrupted: this was measured until then.")
    elif found.ended_by is not None:
        said.append(
            f"The program was ended because {found.ended_by} had given {found.wanted} batches. --loader {found.site} "
            "measures more of this one."
        )
    elif not found.is_over and not failed:
        said.append(
            f"The program ended before its loader had given {found.wanted} batches: --batches "
            f"{max(1, found.profile.batches)} is enough for steps on a held batch."
        )
    if found.inferred is not None:
        said.append(f"The gain at most is inferred from the waits, and not measured: {found.inferred}.")
    if found.others:
        named = [f"{site} ({seconds(waited)})" for site, waited in found.others[:SHOWN]]
        more = f", and {len(found.others) - SHOWN} more" if len(found.others) > SHOWN else ""
        said.append(
            f"The program waited less for its other loaders up to there: {', '.join(named)}{more}. "
            f"--loader {found.others[0][0]} profiles another one."
        )
    return said
