"""The contract of what a source, a tool, an integration or a test suite may use of the loader, beside `stoker` itself.

    from stoker.extend import Observer, ShardProgress, State, observe, share_of

Streams that are resumed and divided, datasets that gather, states of several ranks, an observer of all loaders, and
the times of batches. Stoker's own sources and tools use the same names, and nothing else that is private. Importing
this module loads neither torch nor a module of the loader: each name is loaded when it is first used. The names are
those of `extend.pyi` beside this file.
"""

from stoker._core import first_use

_HOMES = first_use.homes_of("extend.pyi")
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    return first_use.loaded(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
