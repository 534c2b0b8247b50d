"""tf.data on photographs and on tensors in memory, in an environment of its own: as its guide recommends.

It decodes only the part of a photograph that is wanted, and resizes without the filter that Pillow applies where it
makes images smaller: less work than the other loaders do with Pillow, which is why it is shown beside them. Tensors in
memory are a constant of its graph, and batched by threads of its own: no Python is asked for a sample.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BEFORE = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def batches(data: Path, batch: int, workers: int, side: int) -> Any:
    """Images of shape (batch, side, side, 3) as bytes, and their classes, without end."""
    os.environ.update(BEFORE)
    import tensorflow as tf

    paths, labels = photographs(data)

    def sample(path: Any, label: Any) -> Any:
        encoded = tf.io.read_file(path)
        height, width = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], tf.float32))
        most = tf.minimum(height, width) * tf.random.uniform((), 0.4, 1.0)
        part = most * tf.random.uniform((2,), 0.8, 1.0)
        corner = tf.random.uniform((2,)) * (tf.stack([height, width]) - part)
        window = tf.cast(tf.concat([corner, part], 0), tf.int32)
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (side, side)))
        return tf.cast(image, tf.uint8), label

    made = tf.data.Dataset.from_tensor_slices((paths, labels))
    made = made.shuffle(len(paths)).repeat().map(sample, num_parallel_calls=tf.data.AUTOTUNE)
    made = made.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    return made.with_options(options).as_numpy_iterator()


def crops(
    files: list[tuple[str, int]],
    batch: int,
    workers: int,
    side: int,
    draws: tuple[tuple[float, float], tuple[float, float]],
    antialias: bool,
) -> Any:
    """Random parts (shares of the area, ratios of the sides) of photographs, (batch, side, side, 3) as bytes, and their
    classes, without end. The decoder leaves out what is not in the part.
    """
    os.environ.update(BEFORE)
    import tensorflow as tf

    areas, ratios = draws
    paths, labels = map(list, zip(*files, strict=True))

    def sample(path: Any, label: Any) -> Any:
        encoded = tf.io.read_file(path)
        sides = tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], tf.float32)
        area, ratio = sides[0] * sides[1] * tf.random.uniform((), *areas), tf.random.uniform((), *ratios)
        part = tf.minimum(sides, tf.sqrt(tf.stack([area / ratio, area * ratio])))
        corner = tf.random.uniform((2,)) * (sides - part)
        window = tf.cast(tf.concat([corner, part], 0), tf.int32)
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (side, side), antialias=antialias))
        return tf.cast(image, tf.uint8), label

    made = tf.data.Dataset.from_tensor_slices((paths, labels))
    made = made.shuffle(len(paths)).repeat().map(sample, num_parallel_calls=tf.data.AUTOTUNE)
    made = made.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    return made.with_options(options).as_numpy_iterator()


def tensors(samples: Any, batch: int, workers: int) -> Any:
    """Batches of rows of an array, without end."""
    os.environ.update(BEFORE)
    import tensorflow as tf

    made = tf.data.Dataset.from_tensor_slices(samples).repeat()
    made = made.batch(batch, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    return made.with_options(options).as_numpy_iterator()


def photographs(data: Path) -> tuple[list[str], list[int]]:
    """Paths and classes, from the table that the example reads too."""
    with contextlib.closing(sqlite3.connect(data / "samples.sqlite")) as database:
        rows = database.execute(
            "SELECT file_path, label_id FROM samples WHERE split_tag = 'train' AND is_verified ORDER BY sample_id"
        ).fetchall()
    return [str(data / path) for path, _ in rows], [label for _, label in rows]


_WORKER = """
import sys, tensorflow as tf
service = tf.data.experimental.service
service.WorkerServer(service.WorkerConfig(dispatcher_address=sys.argv[1])).join()
"""


@contextlib.contextmanager
def service(jpeg: bytes, batch: int, workers: int) -> Iterator[Callable[[], Iterator[Any]]]:
    """Gives a function for batches of one photograph, decoded and made smaller by workers of tf.data service."""
    os.environ.update(BEFORE)
    import tensorflow as tf

    def sample(encoded: Any) -> Any:
        return tf.cast(tf.image.resize(tf.io.decode_jpeg(encoded, channels=3), (400, 500)), tf.uint8)

    def batches() -> Iterator[Any]:
        files = tf.data.Dataset.from_tensors(jpeg).repeat()  # decoded once if it were a constant of the graph
        made = files.map(sample, num_parallel_calls=tf.data.AUTOTUNE).batch(batch)
        dynamic = tf.data.experimental.service.ShardingPolicy.DYNAMIC
        made = made.apply(tf.data.experimental.service.distribute(dynamic, dispatcher.target))
        return iter(made.prefetch(tf.data.AUTOTUNE))

    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    processes = [subprocess.Popen([sys.executable, "-c", _WORKER, address]) for _ in range(workers)]
    try:
        yield batches
    finally:
        for process in processes:
            process.kill()
            process.wait()
