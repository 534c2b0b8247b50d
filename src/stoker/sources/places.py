"""Places of data: paths, lists of paths, glob and brace patterns, and URLs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit, urlunsplit

Place = str | os.PathLike[str]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MOST = 10_000_000
"""Places of one pattern. A larger number is a mistyped range, which would fill the memory."""


def places_of(given: Place | Iterable[Place], what: str, may_be_folders: bool = False) -> list[str]:
    """Returns the files that `given` names, in its order; those of a glob pattern are sorted.

    Args:
        given: a path, a glob pattern (`*`, `?`, `[...]`), a brace pattern (`{000..127}`, `{train,val}`), a `file://`
            URL, or an iterable of these. A name that exists is taken as it is, whatever characters it has.
        what: the word for the files in messages, in the plural.
        may_be_folders: whether a place may be a folder.

    Raises:
        FileNotFoundError: a path or pattern leads to no file. All are checked at once.
        ValueError: there are none, a place is a folder that may not be one, or a URL of a scheme other than `file`.
    """
    given = [given] if isinstance(given, (str, os.PathLike)) else given
    texts = [os.fspath(place) for place in given]
    found: list[str] = []
    missing: list[str] = []
    for text in texts:
        for place in [text] if os.path.exists(text) else expand_braces(text):
            path = _local(place)
            matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
            found += matches
            missing += [] if matches else [path]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of the given {what} lead to no file: {missing[:3]}")
    if not found:
        raise ValueError(f"no {what} were given: an empty list")
    for path in found:
        if os.path.isdir(path) and not may_be_folders:
            raise ValueError(f"{path} is a folder, not one of the {what}: name its files, for instance {path}/*")
    return found


def expand_braces(text: str) -> list[str]:
    """Returns the texts that a brace pattern stands for, as a shell gives them: `{a,b}`, `{0..3}`, `{08..10..2}`.

    Braces can be nested. A range with a leading zero is padded to its width. Braces that hold neither a comma nor a
    range are kept as they are.

    Raises:
        ValueError: the pattern stands for more than 10 million texts.
    """
    found = _expanded(text)
    if len(found) > _MOST:
        raise ValueError(f"{shown(text)!r} stands for more than {_MOST:,} places")
    return found


def _expanded(text: str) -> list[str]:
    for begin, end in _pairs(text):
        choices = _choices(text[begin + 1 : end])
        if choices is not None:
            after = _expanded(text[end + 1 :])
            if len(choices) * len(after) > _MOST:
                raise ValueError(f"{shown(text)!r} stands for more than {_MOST:,} places")
            return [text[:begin] + choice + rest for choice in choices for rest in after]
    return [text]


def _pairs(text: str) -> list[tuple[int, int]]:
    """Returns the places of outermost pairs of braces, from left to right."""
    pairs: list[tuple[int, int]] = []
    depth = begin = 0
    for place, character in enumerate(text):
        if character == "{":
            begin = place if depth == 0 else begin
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if depth == 0:
                pairs.append((begin, place))
    return pairs


def _choices(inner: str) -> list[str] | None:
    if match := _RANGE.fullmatch(inner):
        first, last, step = match.groups()
        start, stop = int(first), int(last)
        stride = abs(int(step or 1)) or 1
        if abs(stop - start) // stride >= _MOST:
            raise ValueError(f"{{{inner}}} stands for more than {_MOST:,} places")
        padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-").startswith("0") for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        up = range(start, stop + 1, stride) if start <= stop else range(start, stop - 1, -stride)
        return [f"{number:0{width}d}" for number in up]
    parts, depth = [""], 0
    for character in inner:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return None if len(parts) == 1 else [choice for part in parts for choice in _expanded(part)]


def _local(place: str) -> str:
    """Returns the path of a place on this machine.

    Raises:
        ValueError: a URL of another scheme.
    """
    if not _SCHEME.match(place):
        return place
    url = urlsplit(place)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return unquote(url.path)
    raise ValueError(
        f"{shown(place)} is a URL of scheme {url.scheme!r}; only local paths and file:// URLs can be read. Copy the "
        "files to a local folder or mount them."
    )


def shown(place: str) -> str:
    """Returns a place for messages: of a URL, without user, password, query and fragment, which may be secrets."""
    if not _SCHEME.match(place):
        return place
    url = urlsplit(place)
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
