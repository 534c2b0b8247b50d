"""`stoker.install()`: Stoker's engine under every `torch.utils.data.DataLoader` of a running program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stoker import errors
from stoker._core.worker_info import get_worker_info
from stoker.integrations._install.apply import apply, unapply
from stoker.integrations._install.behind import behind
from stoker.integrations._install.current import CURRENT, LOCK, Order, Settings
from stoker.integrations.first_loader import ChildEnvironment
from stoker.loader.dataloader import DataLoader

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Installation:
    """The result of `stoker.install()`: undoes it, by `undo()` or at the end of a `with` block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._entered = 0
        self._environment: ChildEnvironment | None = None

    def undo(self) -> None:
        """Gives torch's class back what it had. Idempotent; any thread may call it.

        Iterators in use go on to their end on Stoker's engine. Loaders, also those made meanwhile, go on on torch's at
        their next `iter()`. Persistent workers end. Environment variables for children are restored. Attributes that
        other code has replaced meanwhile stay replaced.
        """
        global _installed
        with LOCK:
            if _installed is not self:
                return
            _installed = None
            unapply()
            if self._environment is not None:
                self._environment.restore()

    def __enter__(self) -> Self:
        """Returns the installation; the end of the outermost `with` block undoes it."""
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if not self._entered:
            self.undo()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings._asdict().items())
        return f"<stoker.install({settings}){'' if _installed is self else ', undone'}>"


_installed: Installation | None = None


def install(
    images: bool = True,
    children: bool = False,
    order: Literal["torch", "stoker"] = "torch",
    num_workers: Literal["auto"] | None = None,
) -> Installation:
    """Puts Stoker's engine under every `torch.utils.data.DataLoader` of this process, and returns what undoes it.

    Torch's class stays, with its constructor, attributes, checks and samplers; only its iterators become Stoker's. So
    loaders made before, subclasses, default arguments and partials have them too, and `install()` may be called before
    or after any import. The batches hold the same samples in the same order as torch's, and the global generator is
    left as torch leaves it. Random numbers that samples draw in workers are Stoker's: seeded for each sample, so that
    they do not depend on the number of workers. Loaders get `state_dict()` and `load_state_dict()`, exact in the middle
    of an epoch.

    What Stoker refuses stays torch's, with one `StokerWarning` that names it. A stream is read as torch reads it, not
    shared out; one warning reports workers that all read the same.

    Args:
        images: whether processes that make samples read JPEG files by Stoker's reader, with the same pixels as
            Pillow's: as soon as they load Pillow.
        children: whether clean interpreters that this process starts (torchrun, `mp.spawn`) install as well, at their
            first loader. Sets `STOKER_INSTALL` and `PYTHONPATH`. Forked children, workers, and processes that unpickle
            a loader need no environment.
        order: "stoker" gives `shuffle=True` Stoker's permutation: constant time, and a state of 0.3 kB instead of 7.
        num_workers: "auto" finds the number of workers for each loader while the program runs, as
            `DataLoader(num_workers="auto")` does, between 1 and what CPUs and memory allow. Batches, their order and
            the global generator stay. No longer torch's are numbers that samples draw by their worker's seed
            (`get_worker_info().seed`), and its `id` and `num_workers`: they depend on the number. A loader
            keeps its number if it is 0, or if its batches or its memory depend on it: a stream, a `worker_init_fn`,
            threads, clean interpreters, and with order="torch" a sampler that may draw random numbers as it goes
            (a class of the program's; `RandomSampler` with a generator). The attribute of torch's loader stays as it
            was passed; `loader_of(loader).num_workers` is the number.

    Returns:
        An object with `undo()`, which is a context manager. A second call with the same arguments returns the same
        object.

    Raises:
        MissingExtraError: torch is not installed.
        FrameworkVersionError: torch, or a framework that is loaded, is too old.
        InstallError: called in a worker; called again with other arguments; or a script has replaced
            `DataLoader._get_iterator` already.

    Imports torch. Any thread may call it, also while epochs run: iterators in use go on on the engine that made them.
    """
    global _installed
    if order not in ("torch", "stoker"):
        raise ValueError(f"order should be 'torch' or 'stoker', but got order={order!r}")
    if num_workers not in (None, "auto"):
        raise ValueError(
            f"num_workers should be 'auto', or None to keep each loader's own, but got num_workers={num_workers!r}"
        )
    settings = Settings(bool(images), bool(children), order, num_workers)
    if (info := get_worker_info()) is not None:
        raise errors.InstallError(
            f"stoker.install() was called in worker {info.id} of a loader, where it would change nothing for the "
            "loader that reads this dataset. Call it once, in the main script, before the loop over batches."
        )
    with LOCK:
        if _installed is not None:
            if settings != _installed._settings:
                raise errors.InstallError(f"{_installed!r} is in force, and another was asked for: undo() it first.")
            return _installed
        if CURRENT.settings is None:
            apply(settings)
        CURRENT.settings = settings  # a loader that was unpickled may have installed others
        made = Installation(settings)
        if children:
            made._environment = ChildEnvironment(settings)
        _installed = made
        return made


def loader_of(loader: Any) -> DataLoader[Any] | None:
    """Returns the Stoker loader behind a torch loader, for its `describe()` and `report()`.

    Args:
        loader: a `torch.utils.data.DataLoader`; one of Stoker's is returned as it is.

    Returns:
        None if the loader runs on torch's engine: without an installation, or because Stoker refuses its arguments.
        The loader is made anew when an attribute of torch's changes. Starts no worker.

    Raises:
        TypeError: it is no loader.
    """
    if isinstance(loader, DataLoader):
        return loader
    import torch.utils.data

    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"loader_of needs a torch.utils.data.DataLoader, but got {type(loader).__name__}")
    return behind(loader)


__all__ = ["Installation", "Order", "install", "loader_of"]
