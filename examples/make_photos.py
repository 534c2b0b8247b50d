"""Makes a data set of real photographs: crops of those that scikit-image, scikit-learn and matplotlib ship.

    python examples/make_photos.py --data data/photos --images 4000

    data/photos/
        samples.sqlite          samples(sample_id, file_path, label_id, split_tag, is_verified)
        astronaut/00000.jpg     one folder for each photograph that was cropped: the classes
        brick/00001.jpg         ...

Every image is another crop, scale, mirroring and brightness of its photograph, always the same for the same number of
images. About one file in a hundred is truncated on purpose; the table says which, as a real one would: not verified.

The folder appears when it is complete. What a stopped run has made is kept, and the next one goes on from there.
"""

import ctrl_c  # first, so that Ctrl-C is answered while the rest is imported

# isort: split

import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from cpus import cpus
from PIL import Image, ImageEnhance, ImageOps
from rich.progress import track

PACKAGES = {
    "skimage": "data/astronaut.png data/brick.png data/camera.png data/chelsea.png data/coffee.png data/coins.png "
    "data/grass.png data/gravel.png data/hubble_deep_field.jpg data/moon.png data/motorcycle_left.png data/retina.jpg "
    "data/rocket.jpg",
    "sklearn": "datasets/images/china.jpg datasets/images/flower.jpg",
    "matplotlib": "mpl-data/sample_data/grace_hopper.jpg",
}
TABLE = """
    CREATE TABLE samples (
        sample_id INTEGER PRIMARY KEY,
        file_path TEXT NOT NULL UNIQUE,
        label_id INTEGER NOT NULL,
        split_tag TEXT NOT NULL CHECK (split_tag IN ('train', 'val')),
        is_verified INTEGER NOT NULL CHECK (is_verified IN (0, 1))
    )
"""
WIDTH, HEIGHT = 500, 375
VAL_SHARE, TRUNCATED_SHARE = 0.15, 0.01
SEED = 20_240


class Sample(NamedTuple):
    """One image, and the row of the table that describes it."""

    sample_id: int
    file_path: str
    label_id: int
    split_tag: str
    is_verified: bool


def find_photographs() -> list[Path]:
    """Returns the files of the photographs, sorted by name, without importing the packages that carry them."""
    photographs = []
    for package, names in PACKAGES.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"The photographs come with {package}, which is missing: pip install -e '.[demo]'.")
        photographs += [Path(spec.origin).parent / name for name in names.split()]
    if missing := [str(path) for path in photographs if not path.is_file()]:
        raise SystemExit(f"These photographs are missing from their packages: {', '.join(missing)}.")
    return sorted(photographs, key=lambda path: path.stem)


def plan(photographs: list[Path], images: int) -> list[Sample]:
    """Returns the rows of the table: a function of the photographs' names and of the number of images alone."""
    chance = random.Random(SEED)
    val = set(chance.sample(range(images), max(1, round(images * VAL_SHARE))))
    truncated = set(chance.sample(range(images), max(1, round(images * TRUNCATED_SHARE))))
    samples = []
    for number in range(images):
        label = number % len(photographs)
        path = f"{photographs[label].stem}/{number:05d}.jpg"
        samples.append(Sample(number, path, label, "val" if number in val else "train", number not in truncated))
    return samples


@cache
def read_photograph(path: Path) -> Image.Image:
    """Returns the whole photograph, decoded once in each process."""
    with Image.open(path) as image:
        return image.convert("RGB")


def make_image(photograph: Image.Image, sample: Sample) -> bytes:
    """Returns a JPEG: some part of the photograph, which depends on the sample's number alone."""
    chance = random.Random(SEED + 1 + sample.sample_id)
    width, height = (round(side * chance.uniform(0.92, 1.08)) for side in (WIDTH, HEIGHT))
    largest = min(photograph.width / width, photograph.height / height)
    scale = largest * chance.uniform(0.55, 1.0)
    left = chance.uniform(0, photograph.width - width * scale)
    top = chance.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    image = photograph.resize((width, height), Image.Resampling.BICUBIC, box)
    if chance.random() < 0.5:
        image = ImageOps.mirror(image)
    image = ImageEnhance.Brightness(image).enhance(chance.uniform(0.7, 1.3))
    file = BytesIO()
    image.save(file, "JPEG", quality=chance.randint(80, 92))
    jpeg = file.getvalue()
    return jpeg if sample.is_verified else jpeg[: int(len(jpeg) * chance.uniform(0.2, 0.7))]


def write_image(folder: Path, photographs: list[Path], sample: Sample) -> None:
    """Writes one file, whole or not at all; one that is there already is kept."""
    path = folder / sample.file_path
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_bytes(make_image(read_photograph(photographs[sample.label_id]), sample))
        part.replace(path)


def write_table(path: Path, samples: Iterable[Sample]) -> None:
    path.unlink(missing_ok=True)  # a run that was stopped right here is no loss
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute(TABLE)
        database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)


def read_table(path: Path) -> list[Sample]:
    with closing(sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT * FROM samples ORDER BY sample_id")
        return [Sample(*row[:4], bool(row[4])) for row in rows]


def make(data: Path, images: int) -> list[Sample]:
    """Makes the data set, unless it is there, and returns its table."""
    photographs = find_photographs()
    samples = plan(photographs, images)
    if data.exists():
        table = data / "samples.sqlite"
        if not table.is_file() or read_table(table) != samples:
            raise SystemExit(f"{data} exists and is not this data set: remove it, or name another folder by --data.")
        print(f"{data} is there already.")
        return samples

    folder = unfinished(data, images)
    for photograph in photographs:
        (folder / photograph.stem).mkdir(parents=True, exist_ok=True)
    print(f"{data}: making {images:,} photographs with {cpus()} processes")
    with ProcessPoolExecutor(cpus()) as pool:
        made = pool.map(partial(write_image, folder, photographs), samples, chunksize=4)
        for _ in track(made, "", images, transient=True, disable=not sys.stdout.isatty()):
            pass
    write_table(folder / "samples.sqlite", samples)
    folder.rename(data)
    return samples


def unfinished(data: Path, images: int) -> Path:
    return data.with_name(f".{data.name}.{images}.unfinished")


def how_far(data: Path, images: int) -> str:
    folder = data if data.exists() else unfinished(data, images)
    made = sum(1 for _ in folder.glob("*/*.jpg"))
    return f"after {made:,} of {images:,} photographs. They are kept: the same command goes on from there"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="The folder to make.")] = Path("data/photos"),
    images: Annotated[int, typer.Option(min=20, help="How many images.")] = 4000,
) -> None:
    """Makes a data set of real photographs."""
    with ctrl_c.answered(lambda: how_far(data, images)):
        samples = make(data, images)
        size = sum((data / sample.file_path).stat().st_size for sample in samples)
        splits = Counter(sample.split_tag for sample in samples)
        classes = len({sample.label_id for sample in samples})
        broken = sum(not sample.is_verified for sample in samples)
        print(
            f"{data}: {images:,} photographs in {classes} classes, {size / 1e6:,.0f} MB; {splits['train']:,} to train, "
            f"{splits['val']:,} to validate, {broken} of them truncated and not verified"
        )


if __name__ == "__main__":
    app()
