"""Test suite for datasets that read files or stores: the same samples in every process, thread and loader.

A test module subclasses the suite; the fixture or parameter `make` returns a new dataset of the same samples:

    class TestMyArchive(DatasetSuite):
        @pytest.fixture
        def make(self, tmp_path):
            write_archive(tmp_path / "a.bin")
            return lambda: MyArchive(tmp_path / "a.bin")

        def delete(self, dataset):
            os.unlink(dataset.path)
            return dataset.path

The dataset has 2 to 1,000 samples, by index or as a stream; of a stream, the suite leaves out what needs indices, and
`stoker.testing.streams.StreamSuite` tests the rest of its promises. The suite needs only pytest's collection. With
torch installed it reads the dataset with torch's own loader too.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from stoker._core.protocol import offered
from stoker.datasets.base import is_stream
from stoker.errors import StokerError
from stoker.loader.dataloader import DataLoader
from stoker.testing.streams import comparable, through_json

Make = Callable[[], Any]

_MOST = 1000
_WORKERS = 2


class DatasetSuite:
    """Tests of one dataset, of which `make` returns a new instance."""

    births: ClassVar[tuple[str, ...]] = ("fork", "spawn")
    """Start methods of workers."""
    negative: ClassVar[bool] = True
    """Whether `dataset[-1]` is its last sample."""
    pickle_bytes: ClassVar[int] = 10_000
    """Bytes of a pickled dataset, at most: a copy of the data or of a handle would be larger."""

    def delete(self, dataset: Any) -> str | None:
        """Deletes the data of a dataset, and returns a text that errors of later accesses must contain: the name of the
        missing file, or of its folder. None, as here, if the data cannot be deleted.
        """
        return None

    # by index

    def test_length_is_the_number_of_samples(self, make: Make) -> None:
        samples = samples_of(make())
        assert 2 <= len(samples) <= _MOST, f"the suite needs 2 to {_MOST} samples, this dataset has {len(samples)}"

    def test_negative_indices_count_from_the_end(self, make: Make) -> None:
        dataset = make()
        if not is_stream(dataset) and self.negative:
            last = [comparable(dataset[index]) for index in (-1, -len(dataset))]
            assert last == [comparable(dataset[len(dataset) - 1]), comparable(dataset[0])]

    def test_indices_out_of_range_are_index_errors(self, make: Make) -> None:
        dataset = make()
        if not is_stream(dataset):
            for index in (len(dataset), len(dataset) + 10**6, -len(dataset) - 1):
                try:
                    dataset[index]
                except IndexError:
                    continue
                raise AssertionError(f"index {index} was accepted by a dataset of {len(dataset)} samples")

    def test_indices_come_in_any_order_and_repeat(self, make: Make) -> None:
        dataset = make()
        if not is_stream(dataset):
            expected = samples_of(make())
            for index in [*reversed(range(len(expected))), 0, 0, len(expected) - 1, 0]:
                assert comparable(dataset[index]) == expected[index], f"sample {index}"

    def test_numpy_integers_are_indices(self, make: Make) -> None:
        dataset = make()
        if not is_stream(dataset):
            assert comparable(dataset[np.int64(1)]) == comparable(dataset[1])

    def test_batched_reads_equal_single_reads(self, make: Make) -> None:
        dataset = make()
        if not is_stream(dataset) and hasattr(dataset, "__getitems__"):
            expected = samples_of(make())
            last = len(expected) - 1
            batches = [[0], [last, 0, last], list(range(len(expected))), list(reversed(range(len(expected))))]
            for indices in [*batches, *([[-1, 0]] if self.negative else [])]:
                found = [comparable(sample) for sample in dataset.__getitems__(indices)]
                assert found == [expected[index] for index in indices], f"__getitems__({indices})"

    def test_describe_names_a_sample(self, make: Make) -> None:
        dataset = make()
        describe = offered(dataset, "describe")
        if not is_stream(dataset) and describe is not None:
            message = [describe(0), describe(len(dataset) - 1)]
            assert all(isinstance(text, str) for text in message) and message[0] != message[1]

    # in other processes and threads

    def test_pickles_before_and_after_it_was_read(self, make: Make) -> None:
        dataset = make()
        before = cloudpickle.dumps(dataset)
        expected = samples_of(dataset)
        after = cloudpickle.dumps(dataset)
        assert max(len(before), len(after)) <= self.pickle_bytes, f"{len(before)} and {len(after)} bytes"
        for data in (before, after):
            assert samples_of(pickle.loads(data)) == expected

    def test_forked_child_reads_what_its_parent_reads(self, make: Make) -> None:
        dataset = make()
        expected = samples_of(make())
        if is_stream(dataset):
            next(iter(dataset))
        else:
            dataset[0]  # a handle is open now
        assert _digest_in_child(dataset) == _digest(expected), "the child found other samples"
        assert samples_of(dataset) == expected, "the parent finds other samples after its child has read"

    def test_threads_read_alike(self, make: Make) -> None:
        dataset = make()
        if is_stream(dataset):
            return
        expected, found = samples_of(make()), {}

        def read(number: int) -> None:
            found[number] = samples_of(dataset)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.get(number) == expected for number in range(4)] == [True] * 4

    def test_workers_of_each_birth_give_all_samples(self, make: Make) -> None:
        expected = _sorted(samples_of(make()))
        for birth in self.births:
            with _loader(make(), 4, num_workers=_WORKERS, multiprocessing_context=birth) as loader:
                assert _sorted(_delivered(loader)) == expected, f"workers by {birth}"

    def test_two_loaders_read_at_once(self, make: Make) -> None:
        dataset = make()
        expected = _sorted(samples_of(make()))
        with _loader(dataset, 2, num_workers=1) as one, _loader(dataset, 2, num_workers=1) as other:
            found: tuple[list[Any], list[Any]] = [], []
            for pair in zip(one, other, strict=True):
                for batch, samples in zip(pair, found, strict=True):
                    samples += map(comparable, batch)
        assert [_sorted(samples) for samples in found] == [expected, expected]

    def test_torchs_loader_reads_it(self, make: Make) -> None:
        if importlib.util.find_spec("torch") is None:
            return
        torchs_loader = importlib.import_module("torch.utils.data").DataLoader
        expected = _sorted(samples_of(make()))
        for workers in (0, _WORKERS):
            loader = torchs_loader(make(), batch_size=4, num_workers=workers, collate_fn=list)
            assert _sorted(_delivered(loader)) == expected, f"torch's loader with {workers} workers"

    # in time

    def test_loader_resumes_at_every_step(self, make: Make) -> None:
        whole = _delivered(_seeded(make()), keep_batches=True)
        for step in range(len(whole) + 1):
            loader = _seeded(make())
            batches = iter(loader)
            for _ in range(step):
                next(batches)
            resumed = _seeded(make())
            resumed.load_state_dict(through_json(loader.state_dict()))
            if step < len(whole):  # at the end, the next epoch follows
                assert _delivered(resumed, keep_batches=True) == whole[step:], f"resumed after {step} batches"

    def test_nothing_stays_open(self, make: Make) -> None:
        samples_of(make())  # what a library opens once
        gc.collect()
        before = _descriptors()
        dataset = make()
        samples_of(dataset)
        del dataset
        gc.collect()
        assert _descriptors() == before

    def test_deleted_data_is_an_error_that_names_it(self, make: Make) -> None:
        dataset = make()
        copy = cloudpickle.dumps(dataset)
        expected = samples_of(make())
        _first(dataset)
        name = self.delete(dataset)
        if name is None:
            return
        try:  # what is open may still be read
            assert samples_of(dataset) == expected
        except (OSError, StokerError) as error:
            assert name in str(error), error
        for read in (_first, _first_of_a_loader):
            try:
                read(pickle.loads(copy))
            except (OSError, StokerError) as error:
                assert name in str(error), error
                continue
            raise AssertionError("a dataset whose data was deleted gives samples")


def samples_of(dataset: Any) -> list[Any]:
    """Returns all samples, in order, in a form that compares by `==`."""
    if is_stream(dataset):
        return [comparable(sample) for sample in dataset]
    return [comparable(dataset[index]) for index in range(len(dataset))]


def _first(dataset: Any) -> None:
    if is_stream(dataset):
        next(iter(dataset))
    else:
        dataset[0]


def _first_of_a_loader(dataset: Any) -> None:
    with _loader(dataset, 1, num_workers=1) as loader:
        next(iter(loader))


def _seeded(dataset: Any) -> Any:
    return _loader(dataset, 3, shuffle=None if is_stream(dataset) else True, seed=7)


def _loader(dataset: Any, batch_size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=batch_size, collate_fn=list, **options)


def _delivered(loader: Any, keep_batches: bool = False) -> list[Any]:
    batches = [[comparable(sample) for sample in batch] for batch in loader]
    return batches if keep_batches else [sample for batch in batches for sample in batch]


def _sorted(samples: list[Any]) -> list[Any]:
    return sorted(samples, key=repr)


def _digest(samples: list[Any]) -> bytes:
    return hashlib.blake2b(repr(samples).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _digest_in_child(dataset: Any) -> bytes:
    """Returns the digest of the samples that a forked child of this process reads."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, _digest(samples_of(dataset)))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return os.read(reader, 100)
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def _descriptors() -> list[str]:
    folder = "/proc/self/fd"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
