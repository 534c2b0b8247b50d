"""Pickles of an object of each public class, as an earlier Stoker wrote them: they load, and the objects work.

`python -m tests.pinned.test_pickles` adds to `pickles.json` what it lacks: names and objects of new classes, as far as
this environment can make them. It leaves the others as they are, because the modules that they name are those of their
time: `stoker._core.moved` has the names of today.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._core import moved
from tests.pinned import objects, sample_files
from tests.pinned.behaviour import behaviour_of
from tests.pinned.public_names import is_here, public_names, resolve

FILE = Path(__file__).with_name("pickles.json")
PICKLES: dict[str, dict[str, str]] = json.loads(FILE.read_text())
LENGTH = 100
PLACE = "@" * LENGTH
"""Stands in the pickles for the folder of the files, whose name has as many letters: pickles count them."""
PACKAGES = {
    **{"integrations.accelerate": "accelerate", "integrations.lightning": "lightning"},
    **{"integrations.transformers": "transformers", "integrations.titan": "torchtitan"},
    **{"HDF5Dataset": "h5py", "LMDBDataset": "lmdb", "KafkaStream": "confluent_kafka", "AudioClips": "soundfile"},
    **{"VideoClips": "av", "Parquet": "pyarrow", "Image": "PIL", "images.": "PIL", "install": "torch"},
    **{"SQLDataset, of SQLAlchemy": "sqlalchemy", "TFRecord": "google_crc32c", "TarStream, ": "obstore"},
    **{"TextLineStream, of the hub": "obstore", "Installation": "torch"},
    **{"WeightedRandomSampler": "torch"},  # whose tensor is in the pickle
}
"""Packages that may not be installed, by the begin of the names that need them."""


def folder_in(parent: Path) -> Path:
    room = LENGTH - len(str(parent)) - 1
    if room < 1:
        pytest.skip(f"the folder of temporary files has a name of more than {LENGTH - 2} letters")
    folder = parent / ("x" * room)
    folder.mkdir()
    return folder


def around(name: str) -> AbstractContextManager[Any]:
    """Pickles of torch's loaders are ours while Stoker is installed."""
    return stoker.install(images=False) if name == "install" else nullcontext()


def need(name: str) -> None:
    """Skips a test of what needs a package that is not here."""
    for begin, package in PACKAGES.items():
        if name.startswith(begin):
            pytest.importorskip(package, exc_type=ImportError)


def attributes(thing: Any) -> list[str]:
    slots = (name for kind in type(thing).__mro__ for name in vars(kind).get("__slots__", ()) if hasattr(thing, name))
    return sorted({*getattr(thing, "__dict__", ()), *slots})


def modules_in(pickled: bytes) -> Iterator[str]:
    """The modules of Stoker that a pickle names."""
    texts = (argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str))
    yield from (text.partition(" ")[0] for text in texts if text.startswith("stoker."))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_in(tmp_path_factory.mktemp("pickles"))
    sample_files.unpack_files(PICKLES["files"], folder)
    return folder


@pytest.mark.parametrize("name", PICKLES["names"])
def test_reference_gives_what_has_the_public_name(name: str) -> None:
    need(name.removeprefix("stoker."))
    assert pickle.loads(PICKLES["names"][name].encode()) is resolve(name)


@pytest.mark.filterwarnings("ignore::stoker.errors.StokerWarning")
@pytest.mark.parametrize("name", PICKLES["objects"])
def test_object_is_and_does_what_one_of_today_does(name: str, folder: Path) -> None:
    need(name)
    with around(name):
        new = pickle.loads(pickle.dumps(objects.makers(folder)[name]()))
        old = pickle.loads(sample_files.unpack(PICKLES["objects"][name]).replace(PLACE.encode(), bytes(folder)))
        assert type(old) is type(new)
        assert attributes(old) == attributes(new)
        if name not in objects.out_of_reach(folder):
            assert behaviour_of(old) == behaviour_of(new)


def test_each_public_name_is_kept_and_an_object_or_a_reason() -> None:
    names = public_names()
    assert sorted(set(names) - PICKLES["names"].keys()) == [], "python -m tests.pinned.test_pickles adds them"
    classes = {name for name in names if is_here(name) and isinstance(resolve(name), type)}
    framework = {name for name in names if not is_here(name) and name.rpartition(".")[2][0].isupper()}
    kept = {f"stoker.{name.partition(',')[0]}" for name in PICKLES["objects"]}
    assert sorted((classes | framework) - kept - objects.NONE_KEPT.keys()) == []
    assert sorted(kept & objects.NONE_KEPT.keys()) == []


def test_modules_that_pickles_name_are_there_or_moved() -> None:
    named = {module for text in PICKLES["names"].values() for module in modules_in(text.encode())}
    for text in PICKLES["objects"].values():
        named |= set(modules_in(sample_files.unpack(text)))
    source = Path(stoker.__file__).parents[1]
    for module in sorted(named):
        path = source.joinpath(*(moved.name_today(module) or module).split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), f"{module} has no entry in stoker._core.moved"


def write() -> None:
    names, kept = PICKLES.get("names", {}), PICKLES.get("objects", {})
    for name in public_names():
        if name not in names:
            module, _, attribute = name.rpartition(".")
            names[name] = f"c{module}\n{attribute}\n."
            if is_here(name):
                names[name] = pickle.dumps(resolve(name), 0).decode()
    with tempfile.TemporaryDirectory() as parent:
        folder = folder_in(Path(parent))
        sample_files.write_samples(folder)
        sample_files.unpack_files(PICKLES.get("files", {}), folder)
        files = sample_files.pack_files(folder)
        for name, make in objects.makers(folder).items():
            if name in kept:
                continue
            try:
                with around(name):
                    data = pickle.dumps(make())
            except ImportError as error:
                print(f"{name}: {error}", file=sys.stderr)
            else:
                kept[name] = sample_files.pack(data.replace(bytes(folder), PLACE.encode()))
    content = {"names": names, "objects": kept, "files": files}
    FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write()
