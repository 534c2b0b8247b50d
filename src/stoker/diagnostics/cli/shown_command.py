"""A command line as reports show it, without passwords, tokens and the like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from stoker.sources.urls import without_secrets

MASK = "***"

_SECRET = re.compile(r"token$|keys?$|passw|passphrase|pwd$|secret|credential|auth$|authorization|bearer")
"""The part of a name, in lower case, after which its value is a secret. `--tokenizer` and `--max-tokens` are none."""

_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_NAMED = re.compile(r"([-+~]*[\w.\-/@]+)(=|:\s+)(.*)", re.DOTALL)
_LOGIN = re.compile(r"[^\s/:@=,]+:[^\s/@]+@(?=[\w.\[-])")


def shown_command(words: Sequence[str]) -> str:
    """Returns a command as one line for a shell, in which values that look secret are replaced by `***`.

    These are the values of arguments whose names look secret (`--token X`, `--api-key=X`, `db.password=X`), and what
    URLs may hold: user, password, query and fragment.
    """
    return shlex.join(_shown(words))


def _shown(words: Sequence[str]) -> Iterator[str]:
    follows = False  # the value of an option that looks secret
    for word in words:
        if follows and not word.startswith("-"):
            follows = False
            yield MASK
            continue
        follows = word.startswith("-") and "=" not in word and _is_secret(word)
        yield _word(word)


def _word(word: str) -> str:
    if (named := _NAMED.fullmatch(word)) is not None and "://" not in named[1]:
        name, between, value = named.groups()
        return f"{name}{between}{MASK if value and _is_secret(name) else _word(value)}"
    try:
        word = without_secrets(word)
    except ValueError:  # of a URL that cannot be parsed
        return MASK
    return _LOGIN.sub(f"{MASK}@", word)


def _is_secret(name: str) -> bool:
    return any(_SECRET.search(part.lower()) for part in _PARTS.split(name))
