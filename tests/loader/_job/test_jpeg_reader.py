"""Worker processes read JPEGs by Stoker's reader once they load Pillow; the training process and other openers stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

import stoker
from stoker.images import kernel
from tests.images.pictures import jpeg

if kernel.bound() is None:
    pytest.skip(kernel.backend(), allow_module_level=True)

KINDS = ("4:2:0", "progressive", "grey", "4:4:4")


class Photos(stoker.Dataset[Any]):
    """Pixels of a crop, and the module of the opener that read them."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number}.jpg" for number in range(len(KINDS))]
        for path, kind in zip(self.paths, KINDS, strict=True):
            path.write_bytes(jpeg(kind, 120, 90))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], str]:
        with Image.open(self.paths[index]) as image:
            crop = image.convert("RGB").crop((11, 7, 100, 80)).resize((40, 30), Image.Resampling.BILINEAR)
        return np.array(crop), Image.OPEN["JPEG"][0].__module__


class Nested(Photos):
    """The same by a loader within the worker."""

    def __getitem__(self, index: int) -> Any:
        inner = Photos.__getitem__
        loader = stoker.DataLoader(Inner([inner(self, index)]), batch_size=None, num_workers=0, output="numpy")
        return next(iter(loader))


class Inner(stoker.Dataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def epoch(dataset: Any, **arguments: Any) -> tuple[Any, set[str]]:
    batches = list(stoker.DataLoader(dataset, batch_size=2, output="numpy", **arguments))
    return np.concatenate([pixels for pixels, _ in batches]), {name for _, names in batches for name in names}


OURS, PILLOWS = {"stoker.images.plugin"}, {"PIL.JpegImagePlugin"}


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_decode_the_crop_to_pillows_pixels(context: str, tmp_path: Path) -> None:
    photos = Photos(tmp_path)
    expected, readers = epoch(photos)
    assert readers == PILLOWS
    pixels, readers = epoch(photos, num_workers=2, multiprocessing_context=context)
    assert readers == OURS and np.array_equal(pixels, expected)
    assert Image.OPEN["JPEG"][0].__module__ in PILLOWS  # in this process


def test_threads_and_this_process_keep_pillows_reader(tmp_path: Path) -> None:
    photos = Photos(tmp_path)
    assert epoch(photos, num_workers=2, worker_method="thread")[1] == PILLOWS
    loader = stoker.DataLoader(photos, batch_size=2, output="numpy")
    list(loader)
    cure = "call stoker.images.register() once, before the loop"
    assert cure in loader.describe() and cure in str(loader.report())
    with stoker.images.register():
        assert cure not in loader.describe() and loader.report().images is None
        assert epoch(photos)[1] == OURS


def test_environment_leaves_the_reader_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_IMAGES", "0")
    loader = stoker.DataLoader(Photos(tmp_path), batch_size=2, num_workers=1, output="numpy")
    assert {name for _, names in loader for name in names} == PILLOWS
    assert loader.describe().count("because of STOKER_IMAGES=0") == 1
    assert "because of STOKER_IMAGES=0" in str(loader.report())


def opened_by_the_program(file: Any, name: Any) -> Any:
    from PIL import JpegImagePlugin

    return JpegImagePlugin.jpeg_factory(file, name)


def test_an_opener_of_the_program_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Image.OPEN, "JPEG", (opened_by_the_program, Image.OPEN["JPEG"][1]))
    loader = stoker.DataLoader(Photos(tmp_path), batch_size=2, num_workers=1, output="numpy")
    assert {name for _, names in loader for name in names} == {__name__}
    assert loader.report().images is None


def test_workers_within_workers(tmp_path: Path) -> None:
    photos = Nested(tmp_path)
    pixels, readers = epoch(photos, num_workers=1)
    assert readers == OURS and np.array_equal(pixels, epoch(Photos(tmp_path))[0])


PROGRAM = """
import sys
import stoker

class Data(stoker.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        loaded = [name for name in sys.modules if name == "PIL" or name.startswith("stoker.images")]
        if {late}:
            import io
            from PIL import Image, PngImagePlugin
            Image.init()
            file = io.BytesIO()
            Image.new("RGB", (8, 8)).save(file, "JPEG")
            loaded = [type(Image.open(file)).__module__]
        return " ".join(loaded) or "none"

if __name__ == "__main__":
    loader = stoker.DataLoader(Data(), batch_size=2, num_workers=1, output="numpy", multiprocessing_context={context!r})
    print(*next(iter(loader)), "PIL" in sys.modules, "stoker.images" in sys.modules)
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.parametrize("late", [False, True])
def test_pillow_is_waited_for(late: bool, context: str, tmp_path: Path) -> None:
    """Nothing of images is loaded before a sample loads Pillow, and nothing in the training process."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(late=late, context=context))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == (["stoker.images.plugin"] if late else ["none"]) * 2 + ["False", "False"]


THREADS = """
import importlib, io, sys, threading
import stoker
from stoker.loader._job import jpeg_reader

assert "PIL.JpegImagePlugin" not in sys.modules
jpeg_reader.register()
data, opened, together = open(sys.argv[1], "rb").read(), [], threading.Barrier(8)

def open_one(number):
    together.wait()
    if number % 3 == 0:
        importlib.import_module("stoker.images.pillow")
    if number % 3 == 1:
        stoker.images.register
    from PIL import Image
    with Image.open(io.BytesIO(data)) as image:
        opened.append(image.size)

threads = [threading.Thread(target=open_one, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
from PIL import Image
print(len(opened), type(Image.open(sys.argv[1])).__name__)
jpeg_reader.unregister()
print(Image.OPEN["JPEG"][0].__module__)
"""


def test_threads_that_import_pillow_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg("4:2:0", 64, 48))
    done = subprocess.run([sys.executable, "-c", THREADS, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["8", "LazyJpegFile", "PIL.JpegImagePlugin"], "")
