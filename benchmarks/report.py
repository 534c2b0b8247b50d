"""Writes the tables of each result beside it, `docs/performance.md` with its plot, and the figures of the README.

python benchmarks/report.py            # writes them from `benchmarks/results/*.json`
python benchmarks/report.py --check    # says whether they are what the results give, and fails if not
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plot
import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PLOT = PAGE.with_suffix(".svg")
README = ROOT / "README.md"
ORDER = (
    *(
        "transport",
        "overhead",
        "installed",
        "workloads",
        "trainers",
        "start",
        "memory",
        "columns",
        "small_shm",
        "small_memory",
        "by_turns",
        "images",
    ),
    *("jpeg", "photographs", "training_on_gpu", "image_folder"),
    *("rows", "tokens", "dicts", "ragged", "streams", "where", "auto"),
    *("formats", "tar", "parquet", "stores", "arrays", "lines", "sql", "object_storage", "shuffled_epochs"),
    *("latency", "first_batch"),
    *("order", "resume", "order_cost"),
    *("chaos", "recovery", "supervision", "supervisor"),
)
Chosen = tuple[str, str, str, str | None]
"""Script, case, figure, and the rival that it is compared with."""

SUMMARY: list[Chosen] = [
    ("transport", "batches of 38 MB, read", "batches/s", "torch"),
    ("transport", "in process: batches of 128 kB", "batches/s", "torch"),
    ("start", "first batch, forked, a small dataset", "seconds to the first batch", "torch, fork"),
    ("memory", "5 million tuples, 4 workers, as columns", "GB, all processes", "the list alone"),
    ("small_shm", "/dev/shm of 64 MB, batches of 38 MB", "share of the epoch that was delivered", None),
    ("small_memory", "memory cgroup of 512 MB, batches of 80 MB, all kept", "kills", None),
    ("by_turns", "photographs, with the training step, by turns", "images/s, ratio", None),
    ("jpeg", "loader: random crop, resized, uint8", "images/s", "torch, Pillow"),
    ("photographs", "photographs, Stoker's transforms", "images/s", "torch, Pillow"),
    ("photographs", "photographs, Stoker's transforms", "images/s", "tf.data"),
    ("training_on_gpu", "ResNet-50 on one GPU, 8 workers", "images/s", "torch"),
    ("tokens", "tokens", "batches/s", "torch"),
    ("dicts", "dicts, 2 workers", "batches/s", "torch"),
    ("first_batch", "one batch of 1,024 photographs", "seconds to the first batch", "torch"),
    ("order", "10^10 samples, all of them", "ms to the first batch", None),
    ("chaos", "an epoch among faults", "good samples lost", None),
]
"""The rows of the table at the head of the page, won and lost."""

MEANING: dict[str, list[tuple[Chosen, str]]] = {
    "Where Stoker is ahead": [
        (
            ("transport", "batches of 38 MB, read", "batches/s", "torch"),
            "**Batches from workers.** Two workers on two cores deliver batches of 38 MB, from tensors in memory, "
            "{ratio:.1f} times as fast as torch's, because they write a batch once, where the trainer reads it.",
        ),
        (
            ("transport", "batches of 128 kB, read", "batches/s", "torch"),
            "**Small batches from workers.** Of 128 kB they deliver {ratio:.1f} times as many as torch's: there the "
            "messages between processes cost more than the copy.",
        ),
        (
            ("jpeg", "loader: random crop, resized, uint8", "images/s", "torch, Pillow"),
            "**Photographs.** With torchvision's `ImageFolder` and transforms, two workers on two cores load "
            "{ratio:.1f} times as many images as torch's loader, because only the crop is decoded.",
        ),
        (
            ("photographs", "photographs, Stoker's transforms", "images/s", "torch, Pillow"),
            "**The same with Stoker's transforms.** {ratio:.1f} times as many as torch's loader with torchvision's.",
        ),
        (
            ("training_on_gpu", "ResNet-50 on one GPU, 8 workers", "images/s", "torch"),
            "**A GPU.** ResNet-50 on one H200 with 8 workers on 16 cores trains on {ratio:.1f} times as many images "
            "with Stoker's transforms and uint8, on {installed:.2f} times as many under `stoker.install()`, in the one "
            "round that was run.",
        ),
        (
            ("tokens", "tokens", "batches/s", "torch"),
            "**Rows of arrays.** Without workers, shuffled windows of tokens arrive {ratio:.1f} times as fast as from "
            "torch's loader: a batch is gathered by one call, not sample by sample.",
        ),
        (
            ("memory", "5 million tuples, 4 workers, as columns", "GB, all processes", "the list alone"),
            "**Memory.** Five million tuples as columns, with four workers, take {ratio:.2f} of what the list alone "
            "takes.",
        ),
        (
            ("small_shm", "/dev/shm of 64 MB, batches of 38 MB", "share of the epoch that was delivered", None),
            "**Small containers.** With 64 MB of `/dev/shm` and batches of 38 MB, {ours:.0%} of the epoch is "
            "delivered, by torch's loader {theirs:.0%}.",
        ),
        (
            ("chaos", "an epoch among faults", "good samples lost", None),
            "**Faults.** {ours:.0f} good samples are lost in an epoch in which workers are killed and samples fail.",
        ),
    ],
    "Where it is level": [
        (
            ("training_on_gpu", "ResNet-50 on one GPU, 16 workers", "images/s", "torch"),
            "**The same GPU with 16 workers.** {ratio:.2f} times as many images with Stoker's transforms and uint8, "
            "{installed:.2f} under `stoker.install()`: torch's loader keeps the GPU nearly busy.",
        ),
        (
            ("by_turns", "photographs, with the training step, by turns", "images/s, ratio", None),
            "**Photographs that Pillow decodes whole.** The decoder takes nearly all of the time: Stoker has "
            "{ours:.2f} of the rate of torch's loader, by turns on the same machine.",
        ),
        (
            (
                "start",
                "first batch, clean, a small dataset of tensors",
                "seconds to the first batch",
                "torch, forkserver",
            ),
            "**A clean start, where samples are tensors.** The first batch of two workers takes {ratio:.2f} of the "
            "time under torch's forkserver (the goal was 0.5): both import torch.",
        ),
    ],
    "Where it loses": [
        (
            ("transport", "in process: batches of 128 kB", "batches/s", "torch"),
            "**Small batches without workers.** With `num_workers=0` and batches of 128 kB it has {ratio:.2f} of "
            "torch's rate: the plan and the account of each batch are Python.",
        ),
        (
            ("streams", "integers, in process", "CPU-ms per batch", "torch"),
            "**Streams of cheap samples without workers.** An integer takes {ratio:.1f} times torch's processor time. "
            "With two workers it takes less than torch's ([tables](../benchmarks/results/streams.md)).",
        ),
        (
            ("transport", "batches of 128 kB, read", "batches/s", "bare threads"),
            "**The limit of the machine.** Two bare threads that copy are far ahead of any loader with processes: of "
            "batches of 128 kB, Stoker delivers {ratio:.2f} of what they do.",
        ),
        (
            ("tar", "members of 10 kB, in sequence", "MB/s", "SPDL"),
            "**Small tar members in sequence.** Members of 10 kB are read at {ratio:.2f} of SPDL's rate: each has a "
            "key, and a state to resume from.",
        ),
        (
            ("lines", "lines in sequence", "samples/s", "bare"),
            "**Lines in sequence.** {ratio:.2f} of a bare loop over the file: a call for each line notes its byte.",
        ),
        (
            ("arrays", "npy", "batches/s", "bare"),
            "**Rows of `.npy` files.** Shuffled rows arrive at {ratio:.2f} of the rate of a bare gather with NumPy.",
        ),
        (
            ("trainers", "a plain loop, a small network", "MB, all processes", "torch"),
            "**Memory under a framework's trainer.** A plain loop with a small network takes {ratio:.2f} times the "
            "memory under `stoker.install()`.",
        ),
        (
            ("images", "photographs, no step", "images/s", "nodes, threads"),
            "**Photographs beside threads.** With Pillow and two workers, {ratio:.2f} of the rate of torchdata's nodes "
            "with threads, within the spread of the rounds.",
        ),
        (
            ("dicts", "dicts, 2 workers", "batches/s", "torch"),
            "**Samples that Python makes one by one.** With two workers, dicts of twelve fields arrive {ratio:.1f} "
            "times as fast as from torch's loader, which misses the goal of 5: most of the time goes into the samples.",
        ),
    ],
}
"""What the figures mean, by heading: a figure, and the sentence that it stands in."""

FRONT: list[tuple[Chosen, str]] = [
    (
        ("jpeg", "loader: random crop, resized, uint8", "images/s", "torch, Pillow"),
        "**JPEG files.** A script with torchvision's `ImageFolder`, a random crop and samples of uint8 loads "
        "{ratio:.1f} times as many images, by `stoker.install()` or by the import, on two cores without a training "
        "step: only the crop is decoded, with Pillow's pixels ([images](docs/guides/images.md)).",
    ),
    (
        ("jpeg", "loader: random crop, resized, normalised", "images/s", "torch, Pillow"),
        "**The same, normalised to float32.** {ratio:.1f} times: `ToTensor` and `Normalize` take what they took.",
    ),
    (
        ("training_on_gpu", "ResNet-50 on one GPU, 8 workers", "images/s", "torch"),
        "**A GPU.** ResNet-50 on one H200, with 8 workers on 16 cores, trains on {ratio:.1f} times as many photographs "
        "with Stoker's transforms and uint8 (torch's loader has torchvision's and float32), and on {installed:.2f} "
        "times as many by `install()` alone (one round).",
    ),
    (
        ("training_on_gpu", "ResNet-50 on one GPU, 16 workers", "images/s", "torch"),
        "**The same with 16 workers.** {ratio:.2f} times with Stoker's transforms, {installed:.2f} by `install()` "
        "alone: there torch's loader keeps the GPU nearly busy ([is the GPU busy?](docs/guides/gpus.md)).",
    ),
    (
        ("transport", "batches of 38 MB, read", "batches/s", "torch"),
        "**Large batches.** Tensors in memory, batches of 38 MB, two workers on two cores, no training step: "
        "{ratio:.1f} times as many batches, because a worker writes them once ([how](docs/guides/memory.md)).",
    ),
]
"""What the README says: a figure, and the sentence that it stands in."""

BLOCK = re.compile(r"(?<=<!-- measured figures: begin -->\n).*?(?=<!-- measured figures: end -->)", re.DOTALL)
INTRODUCTION = """# Performance

The scripts in `benchmarks/` measured every figure on this page, each beside its rivals and limits in the same run. This
page is generated from their results; [the tables](#all-tables) lie beside them, with the method, the spread and the
environment of each. The scripts were run on several days, on machines whose memory differs in speed by a factor of two:
compare within a table. To measure on your machine:

```bash
make bench          # everything; rewrites this page and the tables
make bench-quick    # smaller and shorter, shown on the terminal only
```

Figures are medians. A ratio compares two measurements of the same round, so the median of the ratios can differ from
the ratio of the medians. A goal was set before measuring. "Within the spread" is a goal that some rounds met and
others did not. "Bare" is the same work in a loop of threads or processes without a loader.
"""
PICTURE = """## In one picture

![Stoker and the others, in each case that has a goal](performance.svg)
"""
TABLES = "../benchmarks/results/{}.md"
"""Where the page links to."""


def main() -> None:
    results = read()
    wanted = {RESULTS / f"{result['name']}.md": tables(result) for result in results}
    wanted |= {PAGE: page(results), README: BLOCK.sub(lambda _: readme(results), README.read_text())}
    if sys.argv[1:] == ["--check"]:
        stale = [path.name for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
        if not PLOT.is_file() or plot.shows(results) not in PLOT.read_text():
            stale.append(PLOT.name)
        sys.exit(f"{' and '.join(stale)}: not what the results give; run benchmarks/report.py" if stale else 0)
    for path, text in {**wanted, PLOT: plot.drawn(results)}.items():
        path.write_text(text)


def read() -> list[dict[str, Any]]:
    """The results that there are, in the order of the page; those that it leaves out come last."""
    files = {file.stem: file for file in sorted(RESULTS.glob("*.json"))}
    names = [name for name in (*ORDER, *sorted(files.keys() - {*ORDER})) if name in files]
    return [json.loads(files[name].read_text()) for name in names]


def page(results: list[dict[str, Any]]) -> str:
    """The page: the most telling figures, what they mean, and where all tables are."""
    parts = [INTRODUCTION, summary(results)]
    for heading, points in MEANING.items():
        parts.append(f"## {heading}\n")
        parts += [f"- {_filled(text, *_found(results, chosen))}" for chosen, text in points]
        parts.append("")
    return "\n".join([*parts, PICTURE, index(results)])


def tables(result: dict[str, Any]) -> str:
    """All that a script measured: what was asked, how it was measured, and a table for each case."""
    question, _, method = result["question"].strip().partition("\n\n")
    parts = [f"# {' '.join(question.split())}\n", method + "\n"]
    for case in result["cases"]:
        parts += [f"**{_sentence(case['name'])}**\n", table.markdown(table.rows_of(case)) + "\n"]
        if "measured" in case:
            then = _circumstances({**result, **case["measured"]}).rstrip()
            parts.append(f"(This case was measured another time: {then})\n")
    return "\n".join([*parts, _circumstances(result)])


def index(results: list[dict[str, Any]]) -> str:
    """A row for each script: its question, which leads to its tables, and how many of its goals are met."""
    rows = [["question", "goals met", "missed"]]
    for result in results:
        question = " ".join(result["question"].strip().partition("\n\n")[0].split())
        met = [goal["met"] for _, goal in _goals(result)]
        counts = [str(met.count(one)) if met.count(one) else "" for one in (True, False)]
        rows.append([f"[{question}]({TABLES.format(result['name'])})", *counts])
    return f"## All tables\n\n{table.markdown(rows)}\n"


def _circumstances(result: dict[str, Any]) -> str:
    there = {name: value for name, value in result["environment"].items() if "average" not in name}
    before, after = (result["environment"][f"load average {when}"] for when in ("before", "after"))
    return (
        f"`benchmarks/{result['name']}.py`, {result['rounds']} round(s) in {result['seconds']} s"
        f"{', quick' if result['quick'] else ''}: {', '.join(f'{name} {value}' for name, value in there.items())}; "
        f"load average {before} before, {after} after.\n"
    )


def readme(results: list[dict[str, Any]]) -> str:
    """What Stoker does for its users: points, each with its figure and its condition.

    Raises:
        SystemExit: `FRONT` names a goal that a result does not have.
    """
    return "".join(f"- {_filled(text, *_found(results, chosen))}\n" for chosen, text in FRONT)


def _filled(text: str, case: dict[str, Any], goal: dict[str, Any]) -> str:
    first, *others = case["rivals"]
    other = goal["against"] or next(iter(others), None)
    by_rival, ratios = case["figures"][goal["figure"]], case["ratios"].get(goal["figure"], {})
    medians = {"ours": by_rival[first], "theirs": by_rival.get(other), "ratio": ratios.get(other)}
    values = {name: spread["median"] for name, spread in medians.items() if spread is not None}
    if installed := by_rival.get("install()"):  # beside Stoker's own transforms
        values["installed"] = installed["median"] / values["theirs"]
    filled = text.format(**values)
    return textwrap.fill(filled, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def summary(results: list[dict[str, Any]]) -> str:
    """How many goals are met, and a table of the figures that say most.

    Raises:
        SystemExit: `SUMMARY` names a goal that a result does not have.
    """
    rows = [["", "cores", "Stoker", "compared with", "ratio", "goal"]]
    for chosen in SUMMARY:
        name, *cells = _row(*_found(results, chosen))
        rows.append([f"[{name}]({TABLES.format(chosen[0])})", _cores(results, chosen), *cells])
    goals = [(case, goal) for result in results for case, goal in _goals(result) if goal["met"] is not None]
    met = sum(goal["met"] for _, goal in goals)
    level = sum(table.is_level(goal, case) for case, goal in goals)
    computers = dict.fromkeys(
        there["environment"]["CPUs"].replace(" x ", " cores of ", 1)
        for result in results
        for there in (result, *(case["measured"] for case in result["cases"] if "measured" in case))
    )
    return (
        f"Measured on {', '.join(computers)}. {met} of {len(goals)} goals are met, {level} of the {len(goals)} within "
        f"the spread of the rounds; the others are missed [by this much]({TABLES.format('12-missed-goals')}), "
        "[for these reasons](design/12-missed-goals.md).\n\n"
        f"{table.markdown(rows)}\n"
    )


def _found(results: list[dict[str, Any]], chosen: Chosen) -> tuple[dict[str, Any], dict[str, Any]]:
    script, *what = chosen
    for result in results:
        for case, goal in _goals(result) if result["name"] == script else ():
            if [case["name"], goal["figure"], goal["against"]] == what:
                return case, goal
    raise SystemExit(f"{script}: no goal {what}, which report.py names")


def _cores(results: list[dict[str, Any]], chosen: Chosen) -> str:
    """The cores of the machine that measured a case."""
    result = next(result for result in results if result["name"] == chosen[0])
    case, _ = _found(results, chosen)
    environment = case.get("measured", result)["environment"]
    return str(environment["CPUs"].partition(" ")[0])


def _goals(result: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The goals of a script's cases."""
    for case in result["cases"]:
        yield from ((case, goal) for goal in case["goals"])


def _row(case: dict[str, Any], goal: dict[str, Any]) -> list[str]:
    first, *others = case["rivals"]
    other = goal["against"] or next(iter(others), None)
    by_rival, ratios = case["figures"][goal["figure"]], case["ratios"][goal["figure"]]
    theirs = _median(by_rival.get(other))
    whom = f"{other}: {theirs}" if theirs else ""
    shown = [_median(by_rival[first]), whom, _median(ratios.get(other))]
    return [f"{_sentence(case['name'])}: {goal['figure']}", *shown, table.goal_text(goal, case, 1)]


def _median(spread: dict[str, Any] | None) -> str:
    return "" if spread is None else table.spread({**spread, "all": [spread["median"]]})


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    main()
