"""How long until 10 million lines can be read by index, and how fast are lines, JSON and CSV read beside bare loops?

One process, page cache warm. Ready: from the path to the first sample at random, of a text of lines of 20 to 50 bytes;
"again" has the index of an earlier run. Rivals are an index made by a Python loop, all lines in a list, `linecache`,
and Hugging Face `datasets` (which converts the file to Arrow; without its cache). By index: samples in random order;
bare is `seek`, `readline` and the parser. In sequence: all rows of a file; bare is a loop over the open file with the
parser.
"""

from __future__ import annotations

import argparse
import csv
import json
import linecache
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
from method import Case, Figures, Goal

RATE, READY, MEMORY = "samples/s", "seconds until the first sample", "MB of the process, grown by"
KINDS = ("lines", "JSON Lines", "CSV")
SUFFIXES = {"lines": "txt", "JSON Lines": "jsonl", "CSV": "csv"}
TYPES = {"id": int, "score": float}


def cases(options: argparse.Namespace) -> list[Case]:
    lines, rows = (200_000, 20_000) if options.quick else (10_000_000, 500_000)
    how = {"data": str(options.data), "seconds": 0.3 if options.quick else 2.0}
    names = ("stoker", "stoker again", "loop of tell", "list of lines", "linecache", "datasets")
    runs = {rival: {"rival": rival, "what": "ready", "kind": "lines", "count": lines, **how} for rival in names}
    goals = [
        Goal(READY, at_most=10.0),
        Goal(READY, against="loop of tell", at_most=1),
        Goal(MEMORY, against="list of lines", at_most=1),
    ]
    found = [Case(f"{lines:,} lines, ready", runs, goals)]
    for kind in KINDS:
        several = ("stoker", "bare", "pandas") if kind == "CSV" else ("stoker", "bare")
        runs = {rival: {"rival": rival, "what": "index", "kind": kind, "count": rows, **how} for rival in several}
        found.append(Case(f"{kind} by index", runs, [Goal(RATE, against="bare", at_least=1)]))
        runs = {
            rival: {"rival": rival, "what": "stream", "kind": kind, "count": rows, **how}
            for rival in ("stoker", "bare")
        }
        found.append(Case(f"{kind} in sequence", runs, [Goal(RATE, against="bare", at_least=1 / 2)]))
    return found


def measure(rival: str, what: str, kind: str, count: int, data: str, seconds: float) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    path = written(folder / f"{count}.{SUFFIXES[kind]}", kind, count)
    path.read_bytes()  # into the page cache
    warm = written(folder / f"2.{SUFFIXES[kind]}", kind, 2)
    assert len(list(in_sequence("stoker", kind, warm))) == 2  # imports
    try:
        if what == "ready":
            return ready(rival, path, count, folder)
        if what == "index":
            return by_index(rival, kind, path, count, seconds)
    except ImportError:
        return dict.fromkeys((RATE, READY, MEMORY), rivals.NOT_INSTALLED)
    done, began = 0, time.perf_counter()
    for _ in in_sequence(rival, kind, path):
        done += 1
    assert done == count
    return {RATE: done / (time.perf_counter() - began)}


def written(path: Path, kind: str, count: int) -> Path:
    """Returns the file of `count` records, which is made once."""
    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8", newline="") as file:
        if kind == "CSV":
            file.write("id,name,score\n")
        for begin in range(0, count, 10_000):
            numbers = range(begin, min(begin + 10_000, count))
            if kind == "lines":
                file.writelines(f"line {number} of a text {'and on ' * (number % 5)}\n" for number in numbers)
            elif kind == "CSV":
                file.writelines(f'{number},"name {number}, of a row",{number / 3}\n' for number in numbers)
            else:
                file.writelines(
                    json.dumps({"id": number, "name": f"name {number}, of a row", "score": number / 3}) + "\n"
                    for number in numbers
                )
    partial.rename(path)
    return path


def ready(rival: str, path: Path, count: int, folder: Path) -> Figures:
    """Returns the time until the sample at a random place is there, and what the process has grown by."""
    import stoker

    index = Path(f"{path}.lines.index")
    if rival == "stoker":
        index.unlink(missing_ok=True)
    elif rival == "stoker again":
        stoker.TextLineDataset(path)
    cache = folder / "datasets"
    if rival == "datasets":
        import datasets

        datasets.disable_progress_bars()
        shutil.rmtree(cache, ignore_errors=True)
    stoker.TextLineDataset(folder / "2.txt")[1]  # imports
    place, before, began = count * 2 // 3, method.memory_of_all(), time.perf_counter()
    kept: Any
    if rival.startswith("stoker"):
        kept = stoker.TextLineDataset(path)
        line = kept[place]
    elif rival == "loop of tell":
        offsets, position = [0], 0
        with open(path, "rb") as file:
            for raw in file:
                position += len(raw)
                offsets.append(position)
            file.seek(offsets[place])
            line = file.readline().decode().rstrip("\n")
        kept = offsets
    elif rival == "list of lines":
        with open(path, encoding="utf-8") as text:
            kept = text.readlines()
        line = kept[place].rstrip("\n")
    elif rival == "linecache":
        line = linecache.getline(str(path), place + 1).rstrip("\n")
        kept = linecache.cache
    else:
        kept = datasets.load_dataset("text", data_files=str(path), split="train", cache_dir=str(cache))
        line = kept[place]["text"]
    took = time.perf_counter() - began
    grown = method.memory_of_all() - before
    assert line.startswith(f"line {place} "), line
    assert kept is not None
    return {READY: took, MEMORY: grown / 1e6}


def by_index(rival: str, kind: str, path: Path, count: int, seconds: float) -> Figures:
    read, order = reader(rival, kind, path), np.random.default_rng(0).permutation(count).tolist()
    read(0)
    done, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for place in order[done % count : done % count + 100]:
            read(place)
        done += 100
    return {RATE: done / took}


def reader(rival: str, kind: str, path: Path) -> Callable[[int], Any]:
    """Returns a function that gives the sample at an index."""
    import stoker

    if rival == "stoker":
        if kind == "CSV":
            return stoker.CSVDataset(path, types=TYPES).__getitem__
        return (stoker.TextLineDataset if kind == "lines" else stoker.JSONLinesDataset)(path).__getitem__
    if rival == "pandas":
        import pandas

        table = pandas.read_csv(path)
        return lambda place: table.iloc[place].to_dict()
    parse = parser(kind)
    file = open(path, "rb")  # noqa: SIM115  # closed with the process
    if kind == "CSV":
        file.readline()
    offsets = [file.tell()]
    for raw in file:
        offsets.append(offsets[-1] + len(raw))

    def read(place: int) -> Any:
        file.seek(offsets[place])
        return parse(file.readline())

    return read


def parser(kind: str) -> Callable[[bytes], Any]:
    """Returns the function that a bare loop applies to a line."""
    if kind == "lines":
        return lambda raw: raw.decode().rstrip("\n")
    if kind == "JSON Lines":
        return json.loads

    def row(raw: bytes) -> dict[str, Any]:
        number, name, score = next(csv.reader([raw.decode()]))
        return {"id": int(number), "name": name, "score": float(score)}

    return row


def in_sequence(rival: str, kind: str, path: Path) -> Iterator[Any]:
    """Yields all samples of a file."""
    import stoker

    if rival == "stoker":
        if kind == "CSV":
            yield from stoker.CSVStream(path, types=TYPES)
        else:
            yield from (stoker.TextLineStream if kind == "lines" else stoker.JSONLinesStream)(path)
    elif kind == "CSV":
        with open(path, newline="", encoding="utf-8") as text:
            for sample in csv.DictReader(text):
                yield {"id": int(sample["id"]), "name": sample["name"], "score": float(sample["score"])}
    else:
        with open(path, encoding="utf-8") as text:
            for line in text:
                yield line.rstrip("\n") if kind == "lines" else json.loads(line)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/lines"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
