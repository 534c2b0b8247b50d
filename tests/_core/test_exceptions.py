"""What is told of exceptions of the user's."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._core import exceptions
from stoker._core.exceptions import format_exception, safe_str, shortened, summary_of


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit("says nothing")


class Mute(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("tells nothing")


class Badly(SyntaxError):
    """A parser's own error, whose column is no number."""

    def __init__(self) -> None:
        super().__init__("bad tag", ("page.html", 3, "col 7", "{% x"))


@pytest.mark.parametrize(
    ("error", "text", "summary"),
    [
        (ValueError("no"), "no", "ValueError: no"),
        (Exits(), "(Exits.__str__() raised SystemExit)", "Exits: <exception str() failed>"),
        (Mute(3), "3", "Mute: 3"),
        (Badly(), "bad tag (page.html, line 3)", "Badly: bad tag (page.html, line 3)"),
    ],
    ids=["Plain", "Exits", "Mute", "Badly"],
)
def test_an_exception_that_cannot_be_asked_tells_what_it_can(error: Exception, text: str, summary: str) -> None:
    try:
        raise error
    except Exception as caught:
        assert caught is error
    story = format_exception(error)
    assert safe_str(error) == text
    assert summary_of(error).endswith(summary)
    assert story.startswith("Traceback (most recent call last):\n") and story.endswith("\n")
    assert "raise error" in story and type(error).__name__ in story


@pytest.mark.parametrize("ask", [safe_str, summary_of, format_exception])
def test_ctrl_c_is_heard(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    for name in ("format_exception", "format_exception_only"):
        monkeypatch.setattr(traceback, name, lambda *about: str(about[-1]))
    with pytest.raises(KeyboardInterrupt):
        ask(Interrupted())


@given(st.integers(0, 3 * exceptions.LONGEST))
def test_a_long_text_keeps_its_ends(length: int) -> None:
    text = ("begin" + "." * length + "end")[: max(length, 8)]
    short = shortened(text)
    if length <= exceptions.LONGEST:
        assert short == text
    else:
        assert len(short) < exceptions.LONGEST + 100
        assert short[:100] == text[:100] and short[-100:] == text[-100:]
        left_out = int(short.split("… ")[1].split()[0].replace(",", ""))
        assert left_out == length - exceptions.LONGEST
