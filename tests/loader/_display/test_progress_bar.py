"""`progress()` draws the epoch's place, from where it resumes, and closes its bar however the loop ends."""

from __future__ import annotations

import threading

import pytest

from stoker import DataLoader
from stoker.loader._display import progress_bar


class Closings:
    """Counts the bars of a kind that are open, and keeps what they are shown."""

    def __init__(self, monkeypatch, kind):
        self.open, self.starts, self.shown = 0, [], []
        bars = self

        class Watched(kind):
            def __init__(self, name, total, at):
                super().__init__(name, total, at)
                bars.open += 1
                bars.starts.append((at, total))

            def show(self, batches, text):
                super().show(batches, text)
                bars.shown.append((batches, text))

            def close(self):
                super().close()
                bars.open -= 1

        monkeypatch.setattr(progress_bar, "_kind", lambda: Watched)


@pytest.fixture
def bars(monkeypatch):
    return Closings(monkeypatch, progress_bar.RichBar)


def loader_of(samples=40):
    return DataLoader(list(range(samples)), batch_size=4, seed=1)


def test_bar_shows_batches_and_rates_on_stderr(bars, capsys):
    threads = threading.active_count()
    batches = []
    for batch in loader_of().progress("train"):
        batches.append(batch.tolist())
        assert threading.active_count() == threads
    assert batches == [batch.tolist() for batch in loader_of()]
    out, err = capsys.readouterr()
    assert out == "" and "train" in err and "10/10" in err
    assert bars.shown[-1][0] == 10 and "samples/s" in bars.shown[-1][1] and "waited" in bars.shown[-1][1]
    assert bars.starts == [(0, 10)] and bars.open == 0


def test_bar_on_a_narrow_terminal_keeps_the_counts(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    list(loader_of().progress("validation"))
    err = capsys.readouterr().err
    assert "10/10" in err and "% waited" in err and "validation" not in err


def test_break_and_exceptions_close_the_bar(bars):
    for _ in loader_of().progress():
        assert bars.open == 1
        break
    assert bars.open == 0
    with pytest.raises(KeyError):
        for _ in loader_of().progress():
            raise KeyError
    assert bars.open == 0
    assert [batches for batches, _ in bars.shown] == [1, 1]


def test_bar_of_a_resumed_loader_starts_at_its_place(bars):
    first = loader_of()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    resumed = loader_of()
    resumed.load_state_dict(first.state_dict())
    assert len(list(resumed.progress())) == 7
    assert bars.starts == [(3, 10)] and bars.shown[-1][0] == 10


def test_loader_prints_nothing_when_not_asked(capsys):
    list(loader_of())
    assert capsys.readouterr() == ("", "")
