"""The unpickler of what workers on other machines send: it knows containers, numbers, texts, arrays, tensors, Stoker's
records, and the classes that the user names or that the first local batch contains. It keeps out mistakes and plain
attacks. It is no sandbox: a pickle may write attributes of known classes, and so make them do other things.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import pickle
import sys
from collections.abc import Iterable
from typing import cast

from stoker._engine.backend import Failure, UnitReport
from stoker._engine.transport import leaves
from stoker._engine.transport.leaves import Loads
from stoker._engine.transport.owned import Array
from stoker.errors import CannotSendError

_NUMPY = ("numpy._core.", "numpy.core.")
_KNOWN = {
    "builtins": "Ellipsis NotImplemented bool bytearray bytes complex dict float frozenset int list object range set "
    "slice str tuple",
    "array": "_array_reconstructor array",
    "collections": "ChainMap Counter OrderedDict UserDict UserList defaultdict deque",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "numpy": "dtype ndarray recarray record matrix",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray _mareconstruct",
    "numpy.rec": "recarray record",
    "pathlib": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
    "pathlib._local": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
    "random": "Random",
    "stoker._engine.transport.leaves": "_leaf _untyped_storage",
    "torch": "Size Tensor device",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch._utils": "_rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter _rebuild_qtensor "
    "_rebuild_sparse_tensor _rebuild_tensor _rebuild_tensor_v2",
    "torch.nn.parameter": "Parameter",
    "torch.nn.utils.rnn": "PackedSequence",
    "torch.serialization": "_get_layout",
    "types": "SimpleNamespace",
    "uuid": "UUID",
    "zoneinfo": "ZoneInfo",
    **{f"{core}multiarray": "_reconstruct scalar" for core in _NUMPY},
    "numpy._core._internal": "_convert_to_stringdtype_kwargs",
    **{f"{core}numeric": "_frombuffer" for core in _NUMPY},
}
_POWERFUL = {"builtins", "functools", "importlib", "nt", "operator", "os", "posix", "shutil", "subprocess", "sys"}
"""Modules of functions that nobody should name."""

_ALWAYS = frozenset((module, name) for module, names in _KNOWN.items() for name in names.split())


class KnownClasses:
    """The classes that this process takes from workers on other machines.

    Args:
        named: further classes, as "module:Class".
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._known = {*_ALWAYS, *(cast("tuple[str, str]", tuple(text.split(":"))) for text in named)}
        self._has_learned = False

    def loads(self, data: bytes | bytearray | memoryview) -> object:
        """Returns the unpickled object.

        Raises:
            CannotSendError: it contains a class, or calls a function, that is not known.
        """
        return self._load(io.BytesIO(data))

    def reader(self, is_remote: bool) -> Loads:
        """Returns what reads the pickles of a batch. The classes of the first local batch are known from then on."""
        if is_remote:
            return self.loads
        has_learned, self._has_learned = self._has_learned, True
        return pickle.loads if has_learned else self._learn

    def _learn(self, data: bytes | bytearray) -> object:
        return _Learner(io.BytesIO(data), self._known).load()

    def failure(self, data: bytes) -> Failure:
        """Returns a failure. Its exception has its own class if that is known or loaded here, else the text alone."""
        failure = self.loads(data)
        if not isinstance(failure, Failure):
            raise CannotSendError(f"a worker on another machine sent a {type(failure).__name__} in place of an error")
        kind, instance = self._of_error(failure.kind), self._of_error(failure.instance)
        read: dict[str, object] = {
            "kind": kind if isinstance(kind, type) and issubclass(kind, BaseException) else None,
            "instance": instance if isinstance(instance, BaseException) else None,
        }
        vars(failure).update(read)  # not by assignment: the class may have been written to
        return failure

    def checked(self, report: UnitReport) -> UnitReport:
        """Returns a report whose states of streams are pickled here, because they are read again by plain pickle.

        Raises:
            CannotSendError: one contains a class that is not known.
        """
        return report._replace(stream_state=self._again(report.stream_state), since=self._again(report.since))

    def _again(self, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        file, written = io.BytesIO(data), b""
        while file.tell() < len(data):
            written += pickle.dumps(self._load(file), 5)
        return written

    def _load(self, file: io.BytesIO) -> object:
        begin = file.tell()
        try:
            return _Unpickler(file, self._known).load()
        except CannotSendError as error:
            file.seek(begin)
            raise _refusal(file, self._known, str(error)) from None

    def _of_error(self, data: object) -> object:
        try:
            return _ErrorUnpickler(io.BytesIO(data), self._known).load() if isinstance(data, bytes) else None
        except Exception:  # the user's class may raise anything
            return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: set[tuple[str, str]]) -> None:
        super().__init__(file)
        self._known = known

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in self._known:
            return super().find_class(module, name)
        if (replacement := _REPLACED.get((module, name))) is not None:
            return replacement
        if (found := self._found(module, name)) is None:
            raise CannotSendError(f"{module}:{name}")
        return found

    def _found(self, module: str, name: str) -> object:
        """Returns a plain record of Stoker, or a constant or type of NumPy and torch; None for all others."""
        if "." in name or module.endswith("__main__"):
            return None
        if module.partition(".")[0] == "stoker":
            found = super().find_class(module, name)
            is_record = isinstance(found, type) and (
                issubclass(found, (tuple, enum.Enum, BaseException)) or _is_plain(found)
            )
            return found if is_record and found.__module__ == module else None
        if module == "builtins":
            found = super().find_class(module, name)
            return found if isinstance(found, type) and issubclass(found, BaseException) else None
        if module in ("numpy", "numpy.dtypes", "torch", "torch.storage"):
            found = super().find_class(module, name)
            return found if _is_type_of_numbers(found) else None
        return None


class _Learner(_Unpickler):
    """Takes all classes and functions, and adds the classes: not those by which a pickle builds any code."""

    def find_class(self, module: str, name: str) -> object:
        found = pickle.Unpickler.find_class(self, module, name)
        if isinstance(found, type) and module.partition(".")[0] not in ("builtins", "types", "cloudpickle"):
            self._known.add((module, name))
        return found


class _Lister(_Unpickler):
    """Puts nothing in the place of what is not known, to list all of it."""

    def __init__(self, file: io.BytesIO, known: set[tuple[str, str]]) -> None:
        super().__init__(file, known)
        self.unknown: dict[str, None] = {}

    def find_class(self, module: str, name: str) -> object:
        try:
            return super().find_class(module, name)
        except CannotSendError as error:
            self.unknown[str(error)] = None
            return _Nothing


class _Nothing:
    def __init__(self, *_: object, **__: object) -> None: ...

    __call__ = __setitem__ = __setstate__ = add = append = extend = __init__

    def __hash__(self) -> int:
        return 0


def _refusal(file: io.BytesIO, known: set[tuple[str, str]], first: str) -> CannotSendError:
    """Returns the error for a pickle with what is not known, `first` before all."""
    lister = _Lister(file, known)
    with contextlib.suppress(Exception):
        lister.load()
    unknown = lister.unknown or {first: None}
    names = ", ".join(unknown).replace(":", ".")
    if "cloudpickle." in names or "<locals>" in names:
        return CannotSendError(
            "a worker on another machine sent the code of a class or function, which is not read. Move what is made "
            f"within a function to the top of a module, and name it: remote=stoker.Ray(..., classes=[...]). ({names})"
        )
    if any(name.partition(":")[0] in _POWERFUL for name in unknown):
        return CannotSendError(
            f"a worker on another machine sent {names}, by which a pickle may do anything where it is read. It is not "
            "read: return plain values, arrays and tensors in batches and in states of streams, not functions, methods "
            "and what is found by its name."
        )
    listed = ", ".join(f'"{name}"' for name in unknown)
    return CannotSendError(
        f"a worker on another machine sent {names}, which this process reads only if it is named, because a class may "
        f"run code when it is read. If your batches, or states of streams, contain it: "
        f"remote=stoker.Ray(..., classes=[{listed}])"
    )


class _ErrorUnpickler(_Unpickler):
    """Takes exceptions too, of the modules that are loaded here: an import would run code."""

    def _found(self, module: str, name: str) -> object:
        found: object = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        return super()._found(module, name)


def _is_plain(kind: type) -> bool:
    """Whether a class of Stoker is a record that does nothing when it is made."""
    return dataclasses.is_dataclass(kind) and not hasattr(kind, "__post_init__") and not hasattr(kind, "__enter__")


def _is_type_of_numbers(found: object) -> bool:
    import numpy as np

    if isinstance(found, type) and issubclass(found, (np.generic, np.dtype)):
        return True
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(found, type):
        return issubclass(found, (torch.storage.TypedStorage, torch.storage.UntypedStorage))
    return isinstance(found, (torch.dtype, torch.layout, torch.memory_format, torch.qscheme))


def _attribute(owner: object, name: str) -> object:
    """Stands for `getattr`, by which time zones are rebuilt."""
    import zoneinfo

    if owner is zoneinfo.ZoneInfo and name == "_unpickle":
        return zoneinfo.ZoneInfo._unpickle  # type: ignore[attr-defined]
    raise CannotSendError("builtins:getattr")


def _small_tensor(array: Array, dtype: str | None = None, *others: object) -> object:
    import torch

    if dtype is not None and not isinstance(getattr(torch, dtype), torch.dtype):
        raise pickle.UnpicklingError(f"torch.{dtype} is no dtype")
    return leaves._small_tensor(array, dtype, *others)  # type: ignore[arg-type]


def _storage(data: bytes) -> object:
    """Returns a storage, read without any class of the user: torch's own reader would call all that it finds."""
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


_REPLACED = {
    ("builtins", "getattr"): _attribute,
    ("stoker._engine.transport.leaves", "_small_tensor"): _small_tensor,
    ("torch.storage", "_load_from_bytes"): _storage,
}
"""Functions of restricted meaning, in the place of those that a pickle names."""
