"""What is known of a bad sample when it is decided upon: what its dataset says, and what a callable is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import ErrorPolicyError, SkipSample, StokerWarning
from tests.faults.runs import BACKENDS, BAD, N, Samples, fates, loader, raises, story

pytestmark = pytest.mark.filterwarnings("ignore::stoker.StokerWarning")

EVERYWHERE = [None, "two workers", "three threads", "clean workers"]


def settings_of(backend: str | None) -> dict[str, Any]:
    return BACKENDS[backend] if backend else {}


class Described(Samples):
    def describe(self, index: int) -> str:
        if index == 30:
            raise LookupError("no such file")
        return f"photos/{index:04}.jpg"


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_what_the_dataset_says_about_a_sample(backend: str | None, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    events: list[Any] = []
    made = loader(
        Described(BAD),
        on_error="skip",
        quarantine=file,
        on_event=events.append,
        **settings_of(backend),
    )
    with pytest.warns(StokerWarning, match=r"sample 2 \(photos/0002.jpg\) of batch 0 failed"):
        story(made)
    said = {record.index: record.description for record in stoker.quarantine(file)}
    assert said[7] == "photos/0007.jpg" and said[30] == "(describe() raised LookupError: no such file)"
    assert [event.details["description"] for event in events if event.details["index"] == 9] == ["photos/0009.jpg"]
    assert "sample 2 (photos/0002.jpg)" in str(made.report())


@pytest.mark.parametrize("backend", EVERYWHERE[1:])
def test_what_the_dataset_says_about_a_sample_that_is_raised(backend: str) -> None:
    iterator = iter(loader(Described({2: raises(OSError)}), **settings_of(backend)))
    with pytest.raises(OSError, match=r"worker (process|thread) \d+, at sample 2 \(photos/0002.jpg\)"):
        next(iterator)


class Records:
    """A policy that looks at what it is given, and writes it down."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, record: Any) -> str:
        assert "Traceback" in record.traceback and type(record.exception).__name__ in record.traceback
        fields = (record.kind, record.index, record.position, record.epoch, record.batch, record.description)
        with self._path.open("a") as file:
            file.write(f"{fields!r} {record.exception}\n")
        return "skip"


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_what_a_callable_is_told(backend: str | None, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    made = loader(
        Described({9: raises(OSError), 12: raises(SkipSample)}),
        on_error=Records(path),
        **settings_of(backend),
    )
    story(made)
    story(made)
    assert path.read_text().splitlines() == [
        f"('exception', 9, 9, {epoch}, 2, 'photos/0009.jpg') image file is truncated (9)" for epoch in (0, 1)
    ]


def nonsense(record: Any) -> Any:
    return "ignore"


def fails(record: Any) -> Any:
    raise RuntimeError("no policy today")


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            nonsense,
            r"must return \"raise\", \"skip\" or \"replace\", but returned 'ignore' for sample 9, which had failed",
        ),
        (
            fails,
            r"on_error raised RuntimeError: no policy today, when it was asked about sample 9, which had failed with",
        ),
    ],
    ids=["nonsense", "raises"],
)
def test_a_callable_that_decides_nothing(policy: Any, message: str, backend: str | None) -> None:
    made = loader(Samples({9: raises(OSError)}), on_error=policy, **settings_of(backend))
    iterator = iter(made)
    batches = [next(iterator), next(iterator)]
    with pytest.raises(ErrorPolicyError, match=message) as caught:
        next(iterator)
    assert "image file is truncated (9)" in str(caught.value)
    batches += iterator
    assert len(batches) == N // 4 - 1 and fates(made)["raised"] == 4
