"""The small files that pinned datasets read. They are kept beside the pickles: another library writes other bytes."""

from __future__ import annotations

import base64
import io
import json
import os
import sqlite3
import zlib
from pathlib import Path

import numpy as np

import stoker
from tests.sources.clips.media_files import write_audio, write_video
from tests.sources.mds.shards import RAW
from tests.sources.test_megatron import written
from tests.sources.tfrecord.records import WRITTEN_BY_TFRECORD

TIME = 1_700_000_000
"""When all of them were changed last: datasets compare it."""


def write_samples(folder: Path) -> None:
    """Writes a file or two of each kind."""
    import h5py
    import lmdb
    import pyarrow
    import pyarrow.parquet

    np.save(folder / "rows.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    (folder / "rows.csv").write_text("name,value\n" + "".join(f"row {n},{n}\n" for n in range(6)))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"value": n}) + "\n" for n in range(6)))
    (folder / "rows.txt").write_text("".join(f"line {n}\n" for n in range(6)))
    (folder / "rows.tfrecord").write_bytes(WRITTEN_BY_TFRECORD)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["values"] = np.arange(12, dtype=np.float32).reshape(6, 2)
    with (
        lmdb.open(str(folder / "rows.lmdb"), subdir=False, map_size=1 << 16) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(6):
            transaction.put(b"%06d" % number, b"value %d" % number)
    (folder / "rows.lmdb-lock").unlink()
    for part in range(2):
        table = pyarrow.table({"value": list(range(3 * part, 3 * part + 3))})
        pyarrow.parquet.write_table(table, folder / f"rows-{part}.parquet", row_group_size=2)
        with stoker.TarWriter(folder / f"rows-{part}.tar") as writer:
            for number in range(3 * part, 3 * part + 3):
                writer.write({"__key__": f"{number:06d}", "cls": number, "json": {"value": number}})
    connection = sqlite3.connect(folder / "rows.sqlite")
    connection.execute("create table rows (id integer primary key, value real)")
    connection.executemany("insert into rows values (?, ?)", [(n, n / 2) for n in range(6)])
    connection.commit()
    connection.close()
    (folder / "mds").mkdir()
    for name, data in RAW.items():
        (folder / "mds" / name).write_bytes(data)
    (folder / "quarantine.jsonl").write_text(json.dumps({"index": 3, "kind": "exception", "outcome": "skipped"}) + "\n")
    written(folder)
    write_audio(folder / "sound.wav", seconds=0.05, channels=1)
    write_video(folder / "film.mp4", frames=12)
    for name, shade in (("cat", 40), ("dog", 90)):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(2):
            (folder / "photos" / name / f"{number}.png").write_bytes(picture("PNG", shade + number))
    (folder / "photo.jpg").write_bytes(picture("JPEG", 70))
    for path in folder.rglob("*"):
        os.utime(path, (TIME, TIME))
    stoker.index_shards([str(path) for path in folder.glob("*.tar")], overwrite=True)


def picture(format: str, shade: int) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 2 * shade, 3)).save(data, format)
    return data.getvalue()


def pack_files(folder: Path) -> dict[str, str]:
    """The files of a folder, as JSON can hold them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): pack(path.read_bytes()) for path in files}


def unpack_files(files: dict[str, str], folder: Path) -> None:
    """Writes files that were packed, as old as they were."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(unpack(text))
        os.utime(path, (TIME, TIME))


def pack(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))
