from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from stoker import DataLoader, Dataset, IterableDataset, SkipSample
from stoker.datasets import retry
from stoker.datasets.base import is_stream
from stoker.datasets.combining import absolute
from stoker.datasets.map import MapDataset
from stoker.datasets.rate_limit import RateLimitDataset
from stoker.datasets.retry import RetryDataset
from stoker.datasets.shuffle_buffer import ShuffleDataset
from stoker.datasets.stack import TensorDataset
from stoker.datasets.stream import State, Stream, StreamIterator
from stoker.errors import ImageError, StreamLostError
from stoker.testing.datasets import DatasetSuite
from stoker.testing.gather import GatherSuite
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of this process, none of which takes time."""
    found: list[float] = []
    monkeypatch.setattr(retry, "sleep", found.append)
    return found


class Flaky(Dataset[int]):
    """Numbers, each of which fails at its first attempts."""

    def __init__(self, length: int, failures: int = 2, error: type[Exception] = ConnectionResetError) -> None:
        self.length = length
        self.failures = failures
        self.error = error
        self.asked: dict[int, int] = {}

    def __len__(self) -> int:
        return self.length

    def fail(self, index: int) -> None:
        self.asked[index] = self.asked.get(index, 0) + 1
        if self.asked[index] <= self.failures:
            raise self.error(f"sample {index}, attempt {self.asked[index]}")

    def __getitem__(self, index: int) -> int:
        self.fail(index)
        return 10 * index


class FlakyStream(Stream[int]):
    """A stream with a state, whose every third sample fails twice before it is given."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.failures: dict[int, int] = {}
        self.opened: list[int] = []

    def _begin(self, state: State | None) -> StreamIterator[int]:
        self.opened.append(0 if state is None else state["at"])
        return FlakyIterator(self, self.opened[-1])


class FlakyIterator(StreamIterator[int]):
    def __init__(self, stream: FlakyStream, at: int) -> None:
        self._stream = stream
        self._at = at

    def __next__(self) -> int:
        if self._at >= self._stream.length:
            raise StopIteration
        number, self._at = self._at, self._at + 1
        failed = self._stream.failures.setdefault(number, 0)
        if number % 3 == 0 and failed < 2:
            self._stream.failures[number] += 1
            raise ConnectionResetError(f"sample {number}")
        return number

    def state_dict(self) -> State:
        return {"at": self._at}


class FlakyGenerator(IterableDataset[int]):
    """A generator, which ends when it raises: it fails at sample 3 the first time, and later at its beginning."""

    def __init__(self, failures: tuple[int, ...] = (3, 0, 1)) -> None:
        self.failures = iter(failures)

    def __iter__(self) -> Iterator[int]:
        fails = next(self.failures, None)
        for number in range(6):
            if number == fails:
                raise ConnectionResetError(f"sample {number}")
            yield number


@pytest.mark.parametrize(
    "make", [*(lambda kind=kind: RetryDataset(kind(6)) for kind in SOURCES.values())], ids=[*SOURCES]
)
class TestRetryStreams(StreamSuite):
    pass


class FlakyRows(Dataset[bytes]):
    """Rows of 4 bytes of a file, each of which fails at its first read."""

    stoker_protocol = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.failed: set[int] = set()

    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> bytes:
        if index not in self.failed:
            self.failed.add(index)
            raise ConnectionResetError("cut")
        with open(self.path, "rb") as file:
            file.seek(4 * absolute(index, len(self)))
            return file.read(4)

    def describe(self, index: int) -> str:
        return f"row {index} of {self.path}"


class TestRetryDatasets(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        path = tmp_path / "rows"
        path.write_bytes(np.arange(14, dtype="<u4").tobytes())
        return lambda: RetryDataset(RateLimitDataset(FlakyRows(str(path)), 1e9), wait=0)

    def delete(self, dataset: Any) -> str:
        path: str = dataset.dataset.dataset.path
        os.unlink(path)
        return path


@pytest.mark.parametrize("dataset", [RetryDataset(TensorDataset(np.arange(12.0).reshape(4, 3), np.arange(4)))])
class TestRetryGathers(GatherSuite):
    pass


def test_samples_come_after_attempts_that_fail(waits: list[float]) -> None:
    source = Flaky(3)
    dataset: Any = RetryDataset(source)
    assert (len(dataset), [dataset[index] for index in range(3)]) == (3, [0, 10, 20])
    assert source.asked == {0: 3, 1: 3, 2: 3}
    assert len(waits) == 6


def test_waits_double_with_jitter_up_to_a_bound(waits: list[float]) -> None:
    dataset: Any = RetryDataset(Flaky(1, failures=99), attempts=6, wait=1, longest_wait=5)
    with pytest.raises(ConnectionResetError, match="attempt 6"):
        dataset[0]
    assert len(waits) == 5
    assert all(longest / 2 <= wait <= longest for wait, longest in zip(waits, [1, 2, 4, 5, 5], strict=True))
    with pytest.raises(ConnectionResetError):
        dataset[0]
    assert waits[:5] != waits[5:]


def test_the_sum_of_waits_is_bounded(waits: list[float]) -> None:
    dataset: Any = RetryDataset(Flaky(1, failures=999), attempts=500, wait=8, total_wait=60)
    with pytest.raises(ConnectionResetError):
        dataset[0]
    assert 30 < sum(waits) <= 60


def test_the_last_error_is_raised_with_a_note(waits: list[float]) -> None:
    dataset: Any = RetryDataset(Flaky(2, failures=9), attempts=3, wait=0)
    with pytest.raises(ConnectionResetError, match="sample 1, attempt 3") as caught:
        dataset[1]
    assert caught.value.__notes__ == ["RetryDataset: attempt 3 of 3, after 0 s of waiting"]
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "error", [FileNotFoundError, PermissionError, ImageError, ValueError, SkipSample, StopIteration]
)
def test_errors_that_last_are_raised_at_once(error: type[Exception], waits: list[float]) -> None:
    dataset: Any = RetryDataset(Flaky(1, error=error))
    with pytest.raises(error) as caught:
        dataset[0]
    assert waits == [] and not hasattr(caught.value, "__notes__")


def test_classes_of_errors_are_chosen(waits: list[float]) -> None:
    assert RetryDataset(Flaky(1, error=ValueError), retry_on=ValueError)[0] == 0
    assert RetryDataset(Flaky(1, error=KeyError), retry_on=(OSError, Exception))[0] == 0
    assert RetryDataset(Flaky(1, error=FileNotFoundError), never=())[0] == 0
    with pytest.raises(TimeoutError):
        RetryDataset(Flaky(1, error=TimeoutError), never=TimeoutError)[0]
    with pytest.raises(ConnectionError):
        RetryDataset(Flaky(1, error=ConnectionError), attempts=1)[0]
    assert len(waits) == 6


def test_skipped_samples_are_not_tried_again(waits: list[float]) -> None:
    with pytest.raises(SkipSample):
        RetryDataset(Flaky(1, error=SkipSample), retry_on=Exception)[0]
    assert waits == []


def test_batches_are_fetched_again_as_a_whole(waits: list[float]) -> None:
    class Batched(Flaky):
        def __getitems__(self, indices: list[int]) -> list[int]:
            self.fail(-1)
            return [10 * index for index in indices]

    dataset: Any = RetryDataset(Batched(9))
    assert dataset.__getitems__([3, 1]) == [30, 10]
    assert len(waits) == 2
    assert not hasattr(RetryDataset(Flaky(3)), "__getitems__")


def test_gathering_is_tried_again(waits: list[float]) -> None:
    class Gathering(Flaky):
        stoker_protocol = True

        def gather_layout(self) -> Any:
            return np.empty(0, np.int64)

        def gather(self, indices: Any, out: Any) -> None:
            self.fail(-1)
            out[...] = 10 * indices

    dataset: Any = RetryDataset(Gathering(9, failures=1))
    out = np.zeros(2, np.int64)
    dataset.gather(np.array([4, 2]), out)
    assert out.tolist() == [40, 20] and len(waits) == 1
    assert RetryDataset(Flaky(3)).gather_layout() is None


def test_descriptions_and_epochs_are_passed_on() -> None:
    class Described(Numbers):
        def describe(self, index: int) -> str:
            return f"number {index}"

    source = Described(3)
    dataset: Any = RetryDataset(source)
    dataset.set_epoch(4)
    assert source.epoch == 4
    assert dataset.describe(2) == "number 2"
    assert RetryDataset([1]).describe(0) is None


def test_streams_go_on_behind_what_failed(waits: list[float]) -> None:
    source = FlakyStream(8)
    dataset: Any = RetryDataset(source)
    assert list(dataset) == list(range(8))
    assert source.opened == [0, 0, 0, 3, 3, 6, 6]
    assert len(waits) == 6


def test_a_generator_is_read_again_from_its_start(waits: list[float]) -> None:
    assert list(RetryDataset(FlakyGenerator())) == list(range(6))  # type: ignore[call-overload]
    assert len(waits) == 3


def test_a_stream_that_cannot_be_opened_is_opened_again(waits: list[float]) -> None:
    class Refusing(FlakyStream):
        def _begin(self, state: State | None) -> StreamIterator[int]:
            if len(self.opened) < 2:
                self.opened.append(-1)
                raise ConnectionRefusedError("no")
            return super()._begin(state)

    dataset: Any = RetryDataset(Refusing(3))
    assert list(dataset) == [0, 1, 2]
    assert len(waits) == 4


def test_a_stream_raises_the_last_error_and_goes_on(waits: list[float]) -> None:
    class Broken(FlakyStream):
        def _begin(self, state: State | None) -> StreamIterator[int]:
            self.failures = {0: 9, 3: -99}
            return super()._begin(state)

    samples = iter(RetryDataset(Broken(5), attempts=5))  # type: ignore[call-overload]
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ConnectionResetError, match="sample 3") as caught:
        next(samples)
    assert "attempt 5 of 5" in caught.value.__notes__[0]
    assert list(samples) == [4]


def test_the_state_is_the_sources_own(waits: list[float]) -> None:
    dataset: Any = RetryDataset(FlakyStream(8))
    samples = iter(dataset)
    assert [next(samples) for _ in range(4)] == [0, 1, 2, 3]
    assert dataset.state_dict() == {"at": 4}
    resumed: Any = RetryDataset(FlakyStream(8))
    resumed.load_state_dict(dataset.state_dict())
    assert list(resumed) == [4, 5, 6, 7]


def test_shards_keep_the_arguments(waits: list[float]) -> None:
    dataset: Any = RetryDataset(Numbers(7, num_shards=3), 9, 1, never=KeyError, longest_wait=2, total_wait=3)
    assert (dataset.attempts, dataset.wait, dataset.retry_on) == (9, 1, (OSError,))
    assert (dataset.never, dataset.longest_wait, dataset.total_wait) == ((KeyError,), 2, 3)
    assert dataset.num_shards == 3
    shard = dataset.shard(num_shards=3, index=1)
    assert (list(shard), shard._policy) == ([1, 4], dataset._policy)


@pytest.mark.parametrize("source", [[1, 2], Numbers(1, 3)], ids=["index", "stream"])
def test_copies_and_pickles_stay_what_they_are(source: Any) -> None:
    dataset: Any = RetryDataset(source)
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(cloudpickle.dumps(dataset))):
        assert type(twin) is type(dataset)
        assert len(twin) == 2
        assert (list(twin) if is_stream(twin) else [twin[0], twin[1]]) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attempts": 0}, ValueError, "attempts is 0"),
        ({"attempts": 1.5}, TypeError, "attempts is 1.5"),
        ({"wait": -1}, ValueError, "wait is -1"),
        ({"wait": float("nan")}, ValueError, "wait is nan"),
        ({"total_wait": "1 s"}, TypeError, "total_wait is '1 s'"),
        ({"retry_on": "OSError"}, TypeError, "retry_on holds 'OSError'"),
        ({"retry_on": (OSError, KeyboardInterrupt)}, TypeError, "KeyboardInterrupt"),
        ({"never": [OSError]}, TypeError, "never holds"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RetryDataset([1], **arguments)
    with pytest.raises(TypeError, match="which is not a dataset"):
        RetryDataset(iter([1]))


class Sharded(IterableDataset[int]):
    """Shards itself by the number of its worker, and fails once in each."""

    def __init__(self) -> None:
        self.has_failed = False

    def __iter__(self) -> Iterator[int]:
        from stoker import get_worker_info

        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 30, step):
            if number >= 10 and not self.has_failed:
                self.has_failed = True
                raise ConnectionResetError
            yield number


@pytest.mark.filterwarnings("ignore:The loader guesses that Sharded")
@pytest.mark.parametrize("birth", ["fork", "spawn"])
@pytest.mark.parametrize("declared", [True, None])
def test_a_stream_that_shards_itself_is_read_again(birth: str, declared: bool | None) -> None:
    source = Sharded()
    source.shards_itself = declared  # type: ignore[attr-defined]
    dataset = MapDataset(RetryDataset(source, wait=0), int)
    with DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context=birth, output="numpy") as loader:
        assert sorted(itertools.chain(*(batch.tolist() for batch in loader))) == list(range(30))


@pytest.mark.filterwarnings("ignore:.*share its samples out")
def test_a_shuffled_stream_loses_nothing() -> None:
    dataset = ShuffleDataset(RetryDataset(FlakyStream(30), wait=0), 8)
    with DataLoader(dataset, batch_size=4, num_workers=2, seed=1, output="numpy") as loader:
        assert sorted(itertools.chain(*(batch.tolist() for batch in loader))) == list(range(30))


@pytest.mark.filterwarnings("ignore:.*share its samples out")
def test_resumed_in_the_middle_it_goes_on() -> None:
    def loader() -> Any:
        return DataLoader(RetryDataset(FlakyStream(30), wait=0), batch_size=4, num_workers=2, seed=1, output="numpy")

    with loader() as whole, loader() as first, loader() as second:
        expected = [batch.tolist() for batch in whole]
        batches = iter(first)
        found = [next(batches).tolist() for _ in range(3)]
        second.load_state_dict(first.state_dict())
        assert found + [batch.tolist() for batch in second] == expected


def test_a_sample_that_fails_for_good_goes_to_on_error() -> None:
    dataset = RetryDataset(Flaky(12, failures=1), attempts=2, wait=0)
    with DataLoader(dataset, batch_size=4, num_workers=2, output="numpy") as loader:
        assert list(itertools.chain(*(batch.tolist() for batch in loader))) == list(range(0, 120, 10))
    with (
        pytest.warns(Warning),
        DataLoader(
            RetryDataset(Flaky(12, failures=9), wait=0),
            batch_size=4,
            output="numpy",
            on_error="skip",
            max_errors=None,
            max_error_rate=None,
        ) as loader,
    ):
        assert list(loader) == []


@pytest.mark.filterwarnings("ignore:sample 3 of the stream")
def test_a_dead_generator_is_no_quiet_end(waits: list[float]) -> None:
    dataset = RetryDataset(FlakyGenerator((3, 3, 3, 3, 3)), attempts=2)
    with DataLoader(dataset, batch_size=1, on_error="skip", output="numpy") as loader, pytest.raises(StreamLostError):
        list(loader)
