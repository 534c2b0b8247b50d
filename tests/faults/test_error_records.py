"""What is known of a bad sample when it is decided upon: what its dataset says, and what a callable is told."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import SkipSample, StokerWarning
from stoker.errors import ErrorPolicyError
from tests.faults.runs import BACKENDS, BAD, CALM, N, Samples, fates, faults_in, indices, loader, plain, raises, story

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

EVERYWHERE = [None, "two workers", "three threads", "clean workers"]


def settings_of(backend: str | None) -> dict[str, Any]:
    return BACKENDS[backend] if backend else {}


class Described(Samples):
    stoker_protocol = True

    def describe(self, index: int) -> str:
        if index == 30:
            raise LookupError("no such file")
        return f"photos/{index:04}.jpg"


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_record_has_the_datasets_description_of_a_sample(backend: str | None, tmp_path: Path) -> None:
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
def test_raised_error_has_the_datasets_description(backend: str) -> None:
    iterator = iter(loader(Described({2: raises(OSError)}), **settings_of(backend)))
    with pytest.raises(OSError, match=r"worker (process|thread) \d+, at sample 2 \(photos/0002.jpg\)"):
        next(iterator)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_record_describes_a_sample_of_a_subset(backend: str | None, tmp_path: Path) -> None:
    """Of what `random_split` gives, and of what a quarantine file leaves."""
    file = tmp_path / "bad.jsonl"
    (tmp_path / "before").write_text('{"index": 0, "kind": "exception"}\n')
    left = stoker.quarantine(tmp_path / "before").without(Described(BAD))
    (part,) = stoker.random_split(left, [N - 1], np.random.default_rng(0))
    story(loader(part, on_error="skip", quarantine=file, **settings_of(backend)))
    said = {record.description for record in stoker.quarantine(file)}
    assert said == {f"photos/{index:04}.jpg" for index in set(BAD) - {30}} | {
        "(describe() raised LookupError: no such file)"
    }


class Unnamed(stoker.IterableDataset[Any]):
    """A stream whose samples have no index to describe."""

    stoker_protocol = True

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        raise OSError("gone")

    def describe(self, index: Any) -> str:
        return ["photos/0000.jpg"][index]


def test_sample_without_an_index_has_no_description() -> None:
    made = loader(Unnamed(), batch_size=None)
    with pytest.raises(OSError, match="gone"):
        next(iter(made))
    (like,) = made.report().epoch.faults.values()
    assert like.first.description is None


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
def test_callable_policy_gets_the_fault_record(backend: str | None, tmp_path: Path) -> None:
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


def leaves(record: Any) -> Any:
    sys.exit("enough")


def several(record: Any) -> Any:
    return np.array(["skip", "raise"])


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
        (leaves, "on_error raised SystemExit: enough, when it was asked about sample 9"),
        (several, r"but returned array\(\['skip', 'raise'\]"),
    ],
    ids=["nonsense", "raises", "leaves", "an array"],
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


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_callable_is_not_asked_about_what_it_did_itself(backend: str | None, tmp_path: Path) -> None:
    """And the books have the sample's own error."""
    asked, file = tmp_path / "asked", tmp_path / "bad"

    def policy(record: Any) -> Any:
        with asked.open("a") as lines:
            lines.write(f"{type(record.exception).__name__}\n")
        return None if isinstance(record.exception, OSError) else "skip"

    made = loader(Samples({9: raises(OSError)}), on_error=policy, quarantine=file, **settings_of(backend))
    assert indices(story(made))[2] is ErrorPolicyError
    assert asked.read_text().split() == ["OSError"]
    (line,) = faults_in(file)
    assert (line["index"], line["outcome"]) == (9, "raised") and line["exception"].startswith("OSError: image")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_exception_that_cannot_be_printed_is_one_like_others(policy: str, backend: str | None) -> None:
    def mute(index: Any) -> None:
        raise Mute

    made = loader(Samples({9: mute}), on_error=policy, **settings_of(backend))
    batches = indices(story(made))
    assert batches[:2] + batches[3:] == CALM[:2] + CALM[3:] and set(batches[2]) == {8, 10, 11}
    (like,) = made.report().epoch.faults.values()
    assert like.first.exception == "Mute: (Mute.__str__() raised RuntimeError)"


class Badly(SyntaxError):
    """A parser's own error, whose column is no number."""

    def __init__(self) -> None:
        super().__init__("bad tag", ("page.html", 3, "col 7", "{% x"))


class Leaves(Exception):
    def __str__(self) -> str:
        sys.exit("says nothing")

    __reduce__ = __str__  # type: ignore[assignment]


class Hides(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("tells nothing")


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_exception_with_broken_methods_is_recorded(backend: str | None) -> None:
    def fail(index: int) -> None:
        raise {9: Badly, 17: Leaves, 25: Hides}[index]

    made = loader(Samples(dict.fromkeys((9, 17, 25), fail)), on_error="skip", **settings_of(backend))
    assert indices(story(made)) == [[index for index in batch if index not in (9, 17, 25)] for batch in CALM]
    assert set(made.report().epoch.faults) == {"Badly", "Leaves", "Hides"}
    assert "death" not in made.report().events


def test_long_texts_keep_their_beginning_and_end(tmp_path: Path) -> None:
    """A loader keeps many of them, for as long as it lives."""
    made = loader(Samples({9: raises(OSError, "x" * 1_000_000)}), on_error="skip", quarantine=tmp_path / "bad")
    list(made)
    (like,) = made.report().epoch.faults.values()
    (record,) = stoker.quarantine(tmp_path / "bad").records
    for text in (like.first.exception, like.first.traceback, record.exception, record.traceback):
        assert len(text) < 100_000 and text.rstrip().endswith("(9)") and "characters are left out" in text
    assert record.exception is not None and record.exception.startswith("OSError: xxx")
    assert sum(len(event.message) for event in made.report().events["error"]) < 200_000


class Undescribable(Samples):
    """What describes a sample does this instead."""

    stoker_protocol = True

    def __init__(self, does: Any) -> None:
        super().__init__({9: raises(OSError)})
        self._does = does

    def describe(self, index: int) -> str:
        self._does()
        return "never"


class Few:
    """Hears of events, and ends a run that has too many."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.messages: list[str] = []

    def __call__(self, event: Any) -> None:
        assert len(self.kinds) < 20, "there is no end to it"
        self.kinds.append(event.kind)
        self.messages.append(event.message)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_description_that_raises_systemexit_ends_no_worker(backend: str | None) -> None:
    made = loader(Undescribable(sys.exit), on_error="skip", **settings_of(backend))
    assert indices(story(made))[2] == [8, 10, 11]
    assert "(describe() raised SystemExit: )" in str(made.report())


DEADLY = {"dies": lambda: os._exit(3), "hangs": lambda: select.select([], [], [])}


def settings_for(way: str) -> dict[str, Any]:
    return {"stall_warning": 0.3, "stall_action": "restart"} if way == "hangs" else {}


@pytest.mark.parametrize("way", DEADLY)
@pytest.mark.parametrize("backend", ["two workers", "clean workers"])
def test_a_description_that_kills_is_done_without(backend: str, way: str) -> None:
    heard = Few()
    settings = {**settings_for(way), **settings_of(backend), "on_event": heard}
    made = loader(Undescribable(DEADLY[way]), on_error="skip", **settings)
    assert indices(story(made))[2] == [8, 10, 11]
    assert heard.kinds.count("poison_sample") == 1 and heard.kinds.count("death") == 1
    assert all("batch 2, in the dataset's describe()" in message for message in heard.messages[:2])


@pytest.mark.parametrize("backend", ["two workers", "clean workers"])
def test_a_description_that_kills_hides_no_error(backend: str) -> None:
    """With `on_error="raise"`, where samples are not looked at one by one."""
    heard = Few()
    made = loader(Undescribable(DEADLY["dies"]), on_event=heard, **settings_of(backend))
    assert indices(story(made))[2] is OSError and sorted(set(heard.kinds)) == ["death", "poison_sample"]


@pytest.mark.parametrize("way", DEADLY)
@pytest.mark.parametrize("backend", ["two workers", "clean workers"])
def test_a_callable_that_kills_has_decided_nothing(backend: str, way: str) -> None:
    heard = Few()

    def policy(record: Any) -> Any:
        DEADLY[way]()

    settings = {**settings_for(way), **settings_of(backend), "on_event": heard}
    iterator = iter(loader(Samples({9: raises(OSError)}), on_error=policy, **settings))
    assert [plain(next(iterator))[0] for _ in range(2)] == CALM[:2]
    kind = {"dies": "WorkerDiedError", "hangs": "StalledError"}[way]
    with pytest.raises(ErrorPolicyError, match=f"on_error raised {kind}: .* in on_error"):
        next(iterator)
    assert [plain(batch)[0] for batch in iterator] == CALM[3:]
    assert heard.kinds.count("poison_sample") == 1


def test_deaths_in_a_callable_are_restarts() -> None:
    made = loader(
        Samples({9: raises(OSError)}),
        on_error=lambda record: os._exit(3),
        max_restarts=0,
        **settings_of("two workers"),
    )
    with pytest.raises(stoker.WorkerDiedError, match="while it made batch 2, in on_error"):
        list(made)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_random_numbers_of_a_callable_policy_are_the_samples(backend: str | None, tmp_path: Path) -> None:
    """The numbers depend neither on the process nor the batch, also at the first draw of all."""

    def drawn(name: str, **settings: Any) -> list[str]:
        dataset = Quiet({22: raises(OSError)})
        list(loader(dataset, on_error=Lot(tmp_path / name), collate_fn=list, shuffle=True, **settings))
        return (tmp_path / name).read_text().splitlines()

    alone = drawn("alone", batch_size=1)
    assert len(alone) == 1 and drawn("among others", batch_size=N, **settings_of(backend)) == alone


class Quiet(Samples):
    """Draws nothing itself."""

    def __getitem__(self, index: Any) -> Any:
        if index in self.faults:
            self.faults[index](index)
        return int(index)


class Lot:
    """Draws, writes down what, and skips."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, record: Any) -> str:
        rng = stoker.sample_rng()
        with self._path.open("a") as file:
            file.write(f"{rng.random_generator.random()}\n")
        return "skip"
