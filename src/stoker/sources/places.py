"""Places of data: paths, lists of paths, glob and brace patterns, and URLs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.sources.hub_store import PinnedRepositories
from stoker.sources.object_store import ObjectStorage
from stoker.sources.urls import GLOB, STORES, hub_place, is_on_hub, is_remote, parsed, scheme_of, shown

Place = str | os.PathLike[str]

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_NAMED = 6
"""Names of a folder that a message has."""
_MOST = 10_000_000
"""Places of one pattern. A larger number is a mistyped range, which would fill the memory."""


def places_of(
    places: Place | Iterable[Place],
    what: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    may_be_folders: bool = False,
) -> list[str]:
    """Returns the files that `places` names, in its order; those of a glob pattern are sorted.

    Args:
        places: a path, a glob pattern (`*`, `?`, `[...]`), a brace pattern (`{000..127}`, `{train,val}`), a URL
            (`file`, `s3`, `gs`, `az`, `http`, `https`, `hf`), or an iterable of these. A local name that exists is
            taken as it is, whatever characters it has. Stores are listed for glob patterns; web servers cannot be. In a
            URL of `hf` the commit that its revision has now takes the revision's place.
        what: the word for the files in messages, in the plural.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        may_be_folders: whether a place may be a folder.

    Raises:
        FileNotFoundError: a local path, or a pattern, leads to no file. All are checked at once. A URL without a
            pattern is not checked.
        ValueError: there are none, a place is a folder that may not be one, or a URL of a scheme that cannot be read.
        OSError: a store cannot be listed.
    """
    pairs = _found(places, what, storage_options, may_be_folders=may_be_folders)
    return [place for place, _ in pairs]


def places_and_folders(
    places: Place | Iterable[Place], what: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Returns the files that `places` names and, for each, the names of the folders below the fixed part.

    The fixed part ends before the first folder with a special character. A path or URL without a pattern is fixed as a
    whole if it is given alone; of one in a list, all folders count.

    Raises: as `places_of`.
    """
    pairs = _found(places, what, storage_options)
    return [place for place, _ in pairs], [_names(place)[_depth(fixed) : -1] for place, fixed in pairs]


def _names(place: str) -> list[str]:
    """Returns the names of the folders above a file, and its own."""
    if not is_remote(place):
        return place.split("/")
    return (hub_place(place).path if is_on_hub(place) else parsed(place).key).split("/")


def _depth(fixed: str) -> int:
    """Returns the number of folders in the beginning of a place."""
    try:
        return len(_names(fixed if is_remote(fixed) else _local(fixed))) - 1
    except ValueError:  # it ends before the bucket's name does
        return 0


def _found(
    places: Place | Iterable[Place],
    what: str,
    storage_options: Mapping[str, Any] | None,
    *,
    may_be_folders: bool = False,
) -> list[tuple[str, str]]:
    """Returns the files that `places` names, and the fixed beginning of the text that names each."""
    is_one = isinstance(places, (str, os.PathLike))
    texts = [os.fspath(place) for place in ([places] if isinstance(places, (str, os.PathLike)) else places)]
    storage: ObjectStorage | None = None
    hub: PinnedRepositories | None = None
    pairs: list[tuple[str, str]] = []
    missing: list[str] = []
    for text in texts:
        expanded = [text] if os.path.exists(text) else expand_braces(text)
        fixed = _fixed(text, expanded)
        fixed = "" if fixed == text and not is_one else fixed
        for place in expanded:
            if is_remote(place):
                if is_on_hub(place):
                    hub = hub or PinnedRepositories(storage_options)
                    place = hub.pinned(place)
                path, pattern = shown(place), _pattern(place)
                if pattern is None:
                    matches = [place]
                elif hub is not None and is_on_hub(place):
                    matches = _listed(hub.storage, *pattern)
                else:
                    storage = storage or ObjectStorage(storage_options)
                    matches = _listed(storage, *pattern)
            else:
                path = _local(place)
                matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
            pairs += [(match, fixed) for match in matches]
            missing += [] if matches else [path]
    if missing:
        raise FileNotFoundError(_not_found(missing, what))
    if not pairs:
        raise ValueError(f"no {what} were given: an empty list")
    for path, _ in pairs:
        if os.path.isdir(path) and not may_be_folders:
            raise ValueError(f"{path} is a folder, not one of the {what}: name its files, for instance {path}/*")
        if is_remote(path) and path.endswith("/"):
            raise ValueError(
                f"{shown(path)} is a folder, not one of the {what}: name its files, for instance {shown(path)}*"
            )
    return pairs


def _fixed(text: str, expanded: list[str]) -> str:
    """Returns a text up to its first brace or glob pattern."""
    same = zip(text, expanded[0], strict=False)
    fixed = text[: next((at for at, (one, other) in enumerate(same) if one != other), len(text))]
    if os.path.exists(text) or STORES.get(scheme_of(text)) == "http":
        return fixed
    return fixed[: next((at for at, character in enumerate(fixed) if character in GLOB), len(fixed))]


def _pattern(place: str) -> tuple[str, str] | None:
    """Returns the bucket and the glob pattern in it, of a URL; None if it has no pattern."""
    if STORES[scheme_of(place)] == "http":
        if "*" not in urlsplit(place).path:
            return None
        raise ValueError(
            f"{shown(place)} is a pattern, and web servers cannot be listed: name the files, or give a brace pattern "
            "({000..127})"
        )
    if is_on_hub(place):
        parts = hub_place(place)
        return None if GLOB.isdisjoint(parts.path) else (parts.root, parts.path)
    slash = place.find("/", len(scheme_of(place)) + 3) + 1
    bucket, pattern = (place[:slash], place[slash:]) if slash else (place + "/", "")
    return None if GLOB.isdisjoint(pattern) else (bucket, pattern)


def _listed(storage: ObjectStorage, bucket: str, pattern: str) -> list[str]:
    """Returns the URLs of the objects in a bucket that a glob pattern stands for."""
    special = next(at for at, character in enumerate(pattern) if character in GLOB)
    matches = _regex(pattern).fullmatch
    listed = bucket + pattern[:special]
    try:
        names = storage.names(listed)
    except OSError as error:
        said = str(error).replace(shown(listed), shown(bucket) + pattern, 1)
        raise (error if said == str(error) else type(error)(said)) from None
    return [bucket + name for name in names if matches(name)]


def _not_found(places: list[str], what: str) -> str:
    """Returns which of the given places lead to no file, and what lies beside the first."""
    first = places[0]
    is_pattern = not GLOB.isdisjoint(first)
    text = f"no file matches {first}" if is_pattern else f"there is no file {first}"
    if len(places) > 1:
        others = ", ".join(places[1:3]) + (", …" if len(places) > 3 else "")
        text += f", and none for {len(places) - 1:,} other of the given {what}: {others}"
    if is_remote(first):
        return text
    folder = first
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return text
    held = ", ".join(names[:_NAMED]) + (f", … ({len(names):,} names)" if len(names) > _NAMED else "") or "nothing"
    return f"{text} (looked in {os.path.abspath(folder)}, which holds {held})"


def _regex(pattern: str) -> re.Pattern[str]:
    """Returns the expression of a glob pattern: `*` and `?` stand for no slash, `**/` for any folders."""
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\])", pattern):
        if part in ("**/", "**"):
            parts.append("(?:.*/)?" if part == "**/" else ".*")
        elif part in ("*", "?"):
            parts.append("[^/]*" if part == "*" else "[^/]")
        elif part.startswith("[") and part.endswith("]"):
            inner = part[1:-1].replace("\\", "\\\\")
            parts.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts), re.DOTALL)


def expand_braces(text: str) -> list[str]:
    """Returns the texts that a brace pattern stands for, as a shell gives them: `{a,b}`, `{0..3}`, `{08..10..2}`.

    Braces can be nested. A range with a leading zero is padded to its width. Braces that hold neither a comma nor a
    range are kept as they are.
    """
    expanded = _expanded(text)
    if len(expanded) > _MOST:
        raise ValueError(f"{shown(text)!r} stands for more than {_MOST:,} places")
    return expanded


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
    """Returns the path of a place on this machine."""
    if not scheme_of(place):
        return place
    url = urlsplit(place)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return unquote(url.path)
    raise ValueError(
        f"{shown(place)} is a URL of scheme {url.scheme!r}; local paths and URLs of file, {', '.join(STORES)} can be "
        "read. Copy the files to a local folder or mount them."
    )
