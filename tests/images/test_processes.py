"""Threads decode at the same time, forked processes decode, and nothing stays."""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from stoker import images
from stoker.images import kernel
from tests.images.pictures import Case, encoded, jpeg, photo

THREADS = 8
PICTURES = {kind: jpeg(kind, 170, 131) for kind in ("4:2:0", "progressive", "grey")}


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wrong_results(seed: int) -> list[str]:
    """Decodes a hundred crops: those that differ from Pillow's."""
    rng, wrong = random.Random(seed), []
    for _ in range(100):
        kind = rng.choice(list(PICTURES))
        case = Case(rng, (170, 131))
        found = images.decode(PICTURES[kind], **case.arguments())
        with Image.open(io.BytesIO(PICTURES[kind])) as image:
            if not np.array_equal(found, case.by_pillow(image)):
                wrong.append(f"{kind}, {case}")
    return wrong


def test_threads_decode_at_the_same_time(either_way: str) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        assert [wrong for found in threads.map(wrong_results, range(THREADS)) for wrong in found] == []


def test_decode_lets_other_threads_run(compiled: kernel.Kernel) -> None:
    """This thread counts while another one is in a single call: with the lock held it could not."""
    data = encoded(photo(500, 375).resize((4000, 3000), Image.Resampling.BILINEAR))
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        images.decode(data, size=(2000, 1500))
        done.set()

    thread = threading.Thread(target=work)
    counted = 0
    thread.start()
    begun.wait(30)
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 1000


def test_threads_share_one_lazy_image(compiled: kernel.Kernel) -> None:
    with Image.open(io.BytesIO(PICTURES["4:2:0"])) as image:
        expected = image.convert("RGB").resize((50, 60), Image.Resampling.BICUBIC).tobytes()
    for _ in range(20):
        lazy = images.open(PICTURES["4:2:0"]).convert("RGB").resize((50, 60), Image.Resampling.BICUBIC)
        start = threading.Barrier(THREADS)

        def read(lazy: Image.Image = lazy, start: threading.Barrier = start) -> bytes:
            start.wait()
            return lazy.tobytes()

        with ThreadPoolExecutor(THREADS) as threads:
            results = [threads.submit(read) for _ in range(THREADS)]
        assert {result.result() == expected for result in results} == {True}


def in_a_fork(work: Callable[[], bool]) -> int:
    """The exit code of a forked process: 0 if `work` gives True."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_decode(either_way: str) -> None:
    lazy = images.open(PICTURES["4:2:0"])
    lazy.load()
    expected = images.decode(PICTURES["4:2:0"])
    with images.register():
        assert in_a_fork(lambda: wrong_results(3) == []) == 0
        assert in_a_fork(lambda: np.array_equal(np.asarray(lazy), expected)) == 0
        assert in_a_fork(lambda: np.array_equal(Image.open(io.BytesIO(PICTURES["4:2:0"])), expected)) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_a_thread_registers(compiled: kernel.Kernel) -> None:
    from stoker.images import plugin

    with plugin._lock:
        assert in_a_fork(lambda: images.register().undo() is None) == 0


def test_threads_free_their_memory(compiled: kernel.Kernel) -> None:
    data = jpeg("4:4:4", 1500, 1200)

    def work() -> None:
        images.decode(data, size=(700, 900))

    def rounds(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return resident()

    before = rounds(3)
    assert rounds(30) - before < 10 << 20  # one thread takes 4 MB between the passes


def test_lazy_images_of_refused_files_free_their_memory(compiled: kernel.Kernel) -> None:
    data = jpeg("4:2:0", 1500, 1200)[:-2]

    def rounds(count: int) -> int:
        for _ in range(count):
            with pytest.raises(OSError):
                images.open(data).load()
            with pytest.raises(OSError):
                images.decode(data, (0, 0, 99, 99))
        return resident()

    before = rounds(3)
    assert rounds(20) - before < 20 << 20


def test_large_pictures_need_no_whole_image(compiled: kernel.Kernel) -> None:
    """Of 12 megapixels, which are 36 MB, a crop of a quarter is resized within some MB."""
    data = encoded(photo(500, 375).resize((4000, 3000), Image.Resampling.BILINEAR))
    out = np.empty((224, 224, 3), np.uint8)
    images.decode(data, (0, 0, 99, 99), (224, 224), out=out)
    before = resident()
    for left in (0, 900, 2000):
        images.decode(data, (left, 700, left + 2000, 2200), (224, 224), out=out)
    assert resident() - before < 12 << 20
