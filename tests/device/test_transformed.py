"""`batch_transform=` with `device=`: the same values as without, in an order that loses no byte."""

from __future__ import annotations

import ctypes
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader
from stoker.device import accelerator
from stoker.device.copies import CopyCounts
from stoker.device.fields import FieldPlacement
from stoker.device.stage import DeviceStage
from tests.device.test_transfer import KINDS, ROWS, WIDTH, Loop, Table
from tests.loader._job import test_batch_transform as without

torch = pytest.importorskip("torch")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device whose memory is the host's, and which does all at once: what transforms compute on it is right."""
    device = accelerator.InOrderDevice(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
    monkeypatch.setattr(accelerator, "numbered", lambda device: device)
    return device


def with_draws(batch: Any) -> Any:
    return without.with_draws([np.asarray(part) for part in batch])


def with_global_generators(batch: Any) -> Any:
    assert torch.rand(1).device.type == "cpu"
    return [float(torch.rand(())), *without.with_global_generators(batch)]


def batches(dataset: Any = None, **options: Any) -> list[Any]:
    known = {"batch_size": 5, "shuffle": True, "seed": 3, "batch_transform": with_draws}
    return list(DataLoader(without.Numbers() if dataset is None else dataset, **(known | options)))


def moved(dataset: Any = None, **options: Any) -> list[Any]:
    return batches(dataset, **{"device": "cuda", **options})


@pytest.mark.parametrize("backend", without.BACKENDS)
@pytest.mark.parametrize("dataset", [without.Numbers(), without.Gathered()], ids=["samples", "gathered"])
def test_values_are_those_of_workers(at_once: Any, backend: str, dataset: Any) -> None:
    assert without.same(moved(dataset, **without.BACKENDS[backend]), batches())


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_global_generators_draw_the_same(at_once: Any, backend: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate()
    transform = {"batch_transform": with_global_generators}
    assert without.same(moved(**transform, **without.BACKENDS[backend]), batches(**transform))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


@pytest.mark.parametrize("seeding", ["auto", "sample", "worker"])
def test_seeding_of_samples_does_not_matter(at_once: Any, seeding: Any) -> None:
    assert without.same(moved(seeding=seeding, num_workers=1), batches())


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_another_number_of_ranks_draws_the_same(at_once: Any, backend: str) -> None:
    alone = without.by_sample(batches())
    options = {"distributed": "exact", "num_replicas": 2, **without.BACKENDS[backend]}
    ranks = [without.by_sample(moved(rank=rank, **options)) for rank in range(2)]
    assert ranks[0] | ranks[1] == alone


@pytest.mark.parametrize("backend", ["serial", "fork", "threads"])
def test_resumed_epoch_draws_the_same(at_once: Any, backend: str) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "batch_transform": with_draws}
    first = DataLoader(without.Numbers(), device="cuda", **options, **without.BACKENDS[backend])
    iterator = iter(first)
    early = [next(iterator) for _ in range(2)]
    second = DataLoader(without.Numbers(), device="cuda", num_workers=1, **options)
    second.load_state_dict(first.state_dict())
    assert without.same(early + list(second), batches())
    iterator.close()


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_left_out_samples_shift_no_draw(at_once: Any, backend: str) -> None:
    with pytest.warns(stoker.StokerWarning, match="left out"):
        fewer = without.by_sample(
            moved(without.Numbers(bad=(4, 17)), on_error="skip", max_error_rate=None, **without.BACKENDS[backend])
        )
    whole = without.by_sample(batches())
    assert fewer == {label: row for label, row in whole.items() if label not in (4, 17)}


@pytest.mark.parametrize("backend", ["serial", "fork", "threads"])
def test_streams_draw_for_each_position(at_once: Any, backend: str, recwarn: Any) -> None:
    options = {"shuffle": None, "shard": "auto"}
    there = moved(without.Counted(), **options, **without.BACKENDS[backend])
    assert without.by_sample(there) == without.by_sample(batches(without.Counted(), **options))


def test_batches_in_parts_are_transformed(at_once: Any) -> None:
    """Workers share each batch, since none of them needs it whole."""
    loader = DataLoader(without.Numbers(), 5, num_workers=2, batch_transform=with_draws, device="cuda")
    assert "made by all workers together" in loader.describe()
    assert (
        "made by all workers together"
        not in DataLoader(loader.dataset, 5, num_workers=2, batch_transform=id).describe()
    )


def test_description_names_the_transform(at_once: Any) -> None:
    text = DataLoader(without.Numbers(), 5, num_workers=2, batch_transform=_plus_1000, device="cuda").describe()
    assert text.count("_plus_1000") == 1 and "behind each of which batch_transform=_plus_1000 runs" in text
    text = DataLoader(without.Numbers(), 5, num_workers=2, batch_transform=_plus_1000, device="cpu").describe()
    assert "then batch_transform=_plus_1000, in the worker" in text and "batches stay on the host" in text


def test_loader_moves_its_transform(at_once: Any) -> None:
    """Persistent workers are born with the transform, or without it: it is applied once."""
    transform = {"batch_transform": _plus_1000}
    loader = DataLoader(without.Numbers(10), 5, num_workers=2, persistent_workers=True, **transform)
    for device in (None, "cuda", "cuda", "cpu"):
        loader.to(device)
        assert [labels.tolist() for _, labels in loader] == [[*range(1000, 1005)], [*range(1005, 1010)]]
    loader.close()


def _plus_1000(batch: Any) -> Any:
    return batch[0], batch[1] + 1000


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_error_names_transform_and_batch(at_once: Any, backend: str) -> None:
    iterator = iter(
        DataLoader(without.Numbers(), 5, batch_transform=without.fails_at_9, device="cuda", **without.BACKENDS[backend])
    )
    got: list[Any] = []
    for _ in range(5):
        try:
            got.append(next(iterator)[1].tolist())
        except ValueError as error:
            got.append("\n".join(error.__notes__))
    assert [got[place] for place in (0, 2, 3, 4)] == [
        list(range(5)),
        *([*range(first, min(first + 5, 22))] for first in (10, 15, 20)),
    ]
    assert "raised by batch_transform=fails_at_9 for batch 1 of epoch 0" in got[1]
    assert "To run it in the workers, on the CPU, call it in collate_fn=." in got[1]
    iterator.close()


# The orders of the device


class Queued:
    """A transform whose work the device does late: it adds 1000 to the first field, in memory of its own."""

    def __init__(self, device: Any, wrap: Any = lambda made, batch: (made, batch[1])) -> None:
        self.device, self.wrap, self.calls = device, wrap, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        images, device = batch[0], self.device
        assert device.current() is device.side
        scratch, made = device.empty_like(images), device.empty_like(images)
        size, begin, middle, to = images.nbytes, images.data_ptr(), scratch.data_ptr(), made.data_ptr()
        device.compute(lambda: _write(middle, np.frombuffer(device.seen(begin, size), np.float32) + 1000))
        device.compute(lambda: _write(to, np.frombuffer(device.seen(middle, size), np.float32)))
        return self.wrap(made, batch)


def _write(address: int, values: Any) -> None:
    ctypes.memmove(address, values.ctypes.data, values.nbytes)


class Raised(Loop):
    """A loop over batches with 1000 added to the images."""

    def check(self, numbers: Any) -> None:
        self.device.finish()
        wanted = [list(range(ROWS * number, ROWS * number + ROWS)) for number in numbers]
        assert [[value - 1000 for value in images] for images, _ in self.seen] == wanted
        assert [labels for _, labels in self.seen] == wanted


def queued(device: Any, batches: int = 8, transform: Any = None, **options: Any) -> DataLoader[Any]:
    transform = Queued(device) if transform is None else transform
    return DataLoader(Table(batches), ROWS, device="cuda", batch_transform=transform, **options)


@pytest.mark.parametrize("kind", KINDS, ids=["in process", "threads", "processes"])
@pytest.mark.parametrize("seed", range(4))
def test_program_reads_what_the_transform_made(late: Any, kind: dict[str, Any], seed: int) -> None:
    loop = Raised(late(seed))
    for batch in queued(loop.device, 16, **kind):
        loop.step(batch)
        del batch
    loop.check(range(16))


def test_device_that_is_full_in_the_transform(late: Any) -> None:
    """The batch is not lost, and the transform gets it as it was."""
    device, calls = late(), []

    def full_once(batch: Any) -> Any:
        batch[1].add_(100)  # on the host
        calls.append(batch[1].tolist())
        if len(calls) in (2, 3):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 is full.")
        return batch

    iterator = iter(DataLoader(Table(4), ROWS, device={0: "cuda"}, batch_transform=full_once))
    labels = [next(iterator)[1].tolist()]
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            next(iterator)
        assert "The batch is not lost" in "".join(caught.value.__notes__)
    labels += [batch[1].tolist() for batch in iterator]
    device.finish()
    assert labels == [list(range(100 + ROWS * number, 100 + ROWS * number + ROWS)) for number in range(4)]


def test_full_device_ahead_means_fewer_ahead(late: Any) -> None:
    device = late()
    transform = Queued(device)
    fails = iter([False, True])

    def full_ahead(batch: Any) -> Any:
        if next(fails, False):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 is full.")
        return transform(batch)

    told: list[str] = []
    stage = DeviceStage(
        FieldPlacement("cuda"), 2, told.append, CopyCounts(), transform=lambda batch, devices: full_ahead(batch)
    )
    made = [(torch.full((4, 4), float(number)), torch.arange(4)) for number in range(2)]
    for number in range(2):
        stage.begin()
        stage.copy_ahead(number, {}, lambda number=number: (made[number], None))
    assert len(told) == 1 and not stage.has_room()
    for number in range(2):
        images, _ = stage.take(number, {}, pytest.fail)
        device.finish()
        assert (images == 1000 + number).all()
        stage.delivered(number)
    stage.close()


def test_dropped_batch_is_written_by_nobody(late: Any) -> None:
    """The memory of a batch that is dropped while it is transformed goes to the program when that is over."""
    device = late()
    transform = Queued(device)
    stage = DeviceStage(
        FieldPlacement("cuda"), 1, pytest.fail, CopyCounts(), transform=lambda batch, devices: transform(batch)
    )
    stage.begin()
    stage.copy_ahead(0, {}, lambda: ((torch.zeros(4, 4), torch.arange(4)), None))
    stage.drop(0)
    mine = device.empty_like(torch.empty(4, 4))
    at = mine.data_ptr()
    device.compute(lambda: _write(at, np.full(16, -5, np.float32)))
    while device.default.step():
        pass
    device.finish()
    assert (mine == -5).all()
    stage.close()


@pytest.mark.parametrize("seed", range(4))
def test_copy_of_an_object_frees_memory(late: Any, seed: int) -> None:
    """What it used on the program's stream, and freed, is not written before that stream has come so far."""
    device = late(seed)

    class Copied:
        def __init__(self, images: Any) -> None:
            self.images = images

        def __deepcopy__(self, memo: Any) -> str:
            scratch = device.empty_like(self.images)
            at, values = scratch.data_ptr(), np.full(ROWS * WIDTH, -1, np.float32)
            device.compute(lambda: _write(at, values))
            return "a copy"

    loop = Raised(device)
    transform = Queued(device, lambda made, batch: (Copied(made), made, batch[1]))
    for _, *batch in queued(device, 8, transform):
        loop.step(batch)
        del batch
    loop.check(range(8))


WRAPS: dict[str, Any] = {
    "a view": lambda made, batch: (made[:, :WIDTH], batch[1]),
    "twice": lambda made, batch: (made, batch[1], made),
    "in a dictionary": lambda made, batch: {"images": [made], "labels": batch[1]},
    "in an object": lambda made, batch: SimpleNamespace(images=made, labels=batch[1], text="a"),
    "a class of tensors": lambda made, batch: (made.as_subclass(_Named), batch[1]),
    "in place of the old memory": lambda made, batch: (batch[0].set_(made), batch[1]),
}


class _Named(torch.Tensor):
    pass


@pytest.mark.parametrize("wrap", WRAPS)
def test_results_of_every_form_are_the_programs(late: Any, wrap: str) -> None:
    device = late(2)
    where = None if wrap in ("in an object", "a class of tensors") else device.default  # these are copied by themselves
    for batch in queued(device, 8, Queued(device, WRAPS[wrap]), num_workers=1):
        if wrap == "in an object":
            found = batch.images
        else:
            found = batch["images"][0] if wrap == "in a dictionary" else batch[0]
        assert device.stream_of(found) is where, "memory of the stream of copies"
        del batch, found
        device.run(3)
    device.finish()


KINDS_OF_TENSORS: dict[str, Any] = {
    "sparse": lambda pixels: pixels.to_sparse(),
    "csr": lambda pixels: pixels.to_sparse_csr(),
    "jagged": lambda pixels: torch.nested.nested_tensor([pixels[0], pixels[1][:2]], layout=torch.jagged),
    "mkldnn": lambda pixels: pixels.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")  # torch's, of beta states
@pytest.mark.parametrize("kind", KINDS_OF_TENSORS)
@pytest.mark.parametrize("is_input", [True, False], ids=["unchanged", "made"])
def test_tensors_that_are_not_dense(at_once: Any, kind: str, is_input: bool) -> None:
    make = KINDS_OF_TENSORS[kind]
    rows = [torch.arange(3.0) + number for number in range(8)]

    def collate(rows: Any) -> Any:
        return make(torch.stack(rows)) if is_input else torch.stack(rows)

    same = {"batch_size": 4, "collate_fn": collate, "batch_transform": (lambda batch: batch) if is_input else make}
    for ours, wanted in zip(DataLoader(rows, device="cuda", **same), DataLoader(rows, **same), strict=True):
        assert ours.layout == wanted.layout
        if kind == "jagged":
            assert all(map(torch.equal, ours.unbind(), wanted.unbind()))
        else:
            assert torch.equal(ours.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("texts", [0, 12_000], ids=["lists", "texts"])
def test_tensors_behind_many_objects_are_copied(late: Any, texts: int) -> None:
    device = late(2)
    parts: list[Any] = [str(number) for number in range(texts)] or [[number] for number in range(12_000)]
    transform = Queued(device, lambda made, batch: SimpleNamespace(parts=parts, images=[made]))
    for batch in queued(device, 4, transform, num_workers=1):
        assert device.stream_of(batch.images[0]) is not device.side
        del batch
        device.run(3)
    device.finish()


def test_parts_without_tensors_are_not_copied() -> None:
    from stoker.device.transformed import holds_memory

    device: Any = accelerator.InOrderDevice(torch.device("cpu"))
    texts = SimpleNamespace(texts=[str(number) for number in range(20_000)])
    assert not any(holds_memory(value, device) for value in (texts, ctypes, pytest.fail, "a", 1, None))
    assert holds_memory(SimpleNamespace(inside=[{"a": torch.ones(1)}]), device)


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_modes_of_the_program_change_nothing(at_once: Any, device: Any, backend: str) -> None:
    """Gradients and autocast are off, with and without a device; a transform may turn them on."""
    layer = torch.nn.Linear(3, 3)

    def transform(rows: Any) -> Any:
        with torch.enable_grad():
            root = rows.detach().clone().requires_grad_()
            slope = torch.autograd.grad((root**2).sum(), root)[0]
        return rows @ rows.T, layer(rows), slope, torch.tensor([torch.is_grad_enabled()])

    rows = [torch.arange(3.0) + number / 7 for number in range(8)]
    options: Any = {"batch_transform": transform, "device": device, **without.BACKENDS[backend]}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products, out, slopes, is_grad = next(iter(DataLoader(rows, 4, **options)))
    batch = torch.stack(rows[:4])
    assert torch.equal(products, batch @ batch.T) and torch.equal(slopes, 2 * batch)
    assert torch.equal(out, layer(batch).detach()) and not out.requires_grad and not is_grad.any()


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_report_has_the_error_of_a_transform(at_once: Any, backend: str) -> None:
    reports = []
    for device in (None, "cuda"):
        options: Any = {"batch_transform": without.fails_at_9, "device": device, **without.BACKENDS[backend]}
        loader = DataLoader(without.Numbers(), 5, **options)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="no nine"):
            next(iterator)
        reports.append(loader.report().as_dict()["epoch"])
        iterator.close()
    ours, wanted = ({name: report[name] for name in ("delivered", "raised", "batches")} for report in reports)
    assert ours == wanted
    first, other = (report["faults"]["ValueError"] for report in reports)
    assert first["count"] == other["count"] == 1
    for name in ("kind", "outcome", "position", "batch", "epoch"):
        assert first["first"][name] == other["first"][name]
    assert "batch_transform=fails_at_9 for batch 1" in first["first"]["exception"]
