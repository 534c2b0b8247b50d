"""The report of `stoker profile`: one HTML file that needs no network, with the verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.page.html_file import write_page

if TYPE_CHECKING:
    from stoker._engine.timings import StackCount
    from stoker.diagnostics.profile.loader_profile import LoaderProfile

MOST_TEXT = 500_000
"""Characters of the stacks in a page."""

OTHERS = "(rarer stacks)"
"""The name of the stacks that are left out."""


def write_profile(profile: LoaderProfile, path: str, title: str, said: Sequence[str] = ()) -> None:
    """Writes the report of a profile, some 100 to 600 kB.

    Args:
        profile: of a loader.
        path: of the HTML file.
        title: the profiled program or loader.
        said: sentences about the program and the measurement.

    Raises:
        OSError: the file cannot be written.
    """
    write_page(path, "profile", "stoker profile", "Profile", title, profile_data(profile, said))


def profile_data(profile: LoaderProfile, said: Sequence[str] = ()) -> Mapping[str, Any]:
    """Returns the contents of the page, as plain JSON values."""
    from stoker.diagnostics.profile.profile_tables import heading

    return {"heading": heading(profile), "said": list(said), **profile.as_dict(), "stacks": cut(profile.stacks)}


def cut(stacks: Sequence[StackCount]) -> list[tuple[str, int]]:
    """Returns the most frequent stacks, up to `MOST_TEXT` characters, and the number of the others as one."""
    shown: list[tuple[str, int]] = []
    left = MOST_TEXT
    for place, (stack, count) in enumerate(stacks):
        left -= len(stack)
        if left < 0:
            shown.append((OTHERS, sum(one.times for one in stacks[place:])))
            break
        shown.append((stack, count))
    return shown
