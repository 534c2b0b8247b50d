"""`batch_transform=` with `device=`: operations, adapters, and batches of every form."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, device
from stoker.device import accelerator
from tests.device.late_device import LateDevice
from tests.device.test_transformed import at_once as at_once
from tests.device.transforms.test_operations import Shift

torch = pytest.importorskip("torch")
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}


class Pictures:
    """Images with labels, in one of two forms."""

    def __init__(self, form: str = "tuple") -> None:
        self.form = form
        self.pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 20, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        image = torch.from_numpy(self.pixels[index])
        if self.form == "tuple":
            return image, index % 10
        return {"pixel_values": image, "labels": index % 10, "name": f"n{index}"}


def noise(images: Any) -> Any:
    return images + torch.rand(1).to(images.device)


OPERATIONS: dict[str, Any] = {
    "all": device.Compose(
        [
            device.RandomResizedCrop(16),
            device.RandomHorizontalFlip(),
            device.ColorJitter(0.4, 0.4, 0.4, 0.1),
            device.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), dtype="bfloat16"),
            device.RandomErasing(0.5),
            device.CutMix(num_classes=10),
        ]
    ),
    "MixUp": device.MixUp(num_classes=10),
    "views": device.TestTimeViews([None, device.RandomHorizontalFlip(p=1.0), device.RandomResizedCrop(20)]),
    "Kornia": device.Kornia(Shift()),
    "torchvision": device.TorchVision(noise),
}


def epoch(form: str, operation: str, **options: Any) -> list[Any]:
    loader = DataLoader(Pictures(form), 7, shuffle=True, seed=2, batch_transform=OPERATIONS[operation], **options)
    return [batch.values() if isinstance(batch, dict) else batch for batch in loader]


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        for lefts, rights in zip(one, other, strict=True)
        for left, right in zip(lefts, rights, strict=True)
    )


@pytest.mark.parametrize("form", ["tuple", "dictionary"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_give_what_workers_give(at_once: Any, operation: str, form: str) -> None:
    wanted = epoch(form, operation, **FORKED)
    assert equal(epoch(form, operation, device="cuda", **FORKED), wanted)
    assert equal(epoch(form, operation, device="cuda"), wanted)
    assert equal(epoch(form, operation, device="cpu", **FORKED), wanted)


def test_some_fields_move(at_once: Any) -> None:
    wanted = epoch("dictionary", "all", **FORKED)
    assert equal(epoch("dictionary", "all", device={"pixel_values": "cuda", "labels": "cpu"}, **FORKED), wanted)


def test_threads_of_the_loader_do_not_share_the_generator(at_once: Any) -> None:
    """The transform runs in the thread of the loop."""
    wanted = epoch("tuple", "torchvision", **FORKED)
    assert equal(epoch("tuple", "torchvision", device="cuda", num_workers=2, worker_method="thread"), wanted)


def test_padded_batches_are_transformed(at_once: Any) -> None:
    texts = [{"ids": list(range(length)), "label": length} for length in (3, 7, 5, 12)]
    loader = DataLoader(
        texts,
        2,
        pad_to={"ids": (8, 16)},
        batch_transform=lambda batch: {**batch, "mask": batch["ids"] > 0},
        device="cuda",
    )
    assert [(tuple(batch["mask"].shape), batch["mask"].sum().item()) for batch in loader] == [
        ((2, 8), 8),
        ((2, 16), 15),
    ]


class Own:
    """A batch of a user's class, which moves itself and keeps its tensors to itself."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def to(self, device: Any, non_blocking: bool = False) -> Own:
        return Own(self.x.to("cpu"))


def _own(samples: Any) -> Own:
    return Own(torch.tensor([label for _, label in samples]))


def _in_place(batch: Own) -> Own:
    batch.x = batch.x + int(1000 * float(stoker.batch_draws(len(batch.x)).uniform()[0]))
    return batch


@pytest.mark.parametrize("kind", [{}, FORKED], ids=["in process", "processes"])
def test_batch_of_a_users_class(late: Any, kind: Any) -> None:
    late()
    options = {"collate_fn": _own, "batch_transform": _in_place, "seed": 1, **kind}
    wanted = [batch.x.tolist() for batch in DataLoader(Pictures(), 6, **options)]
    assert [batch.x.tolist() for batch in DataLoader(Pictures(), 6, device="cuda", **options)] == wanted


def test_object_that_holds_memory_of_the_device_is_copied(late: Any) -> None:
    """Tensors within it are the program's, wherever they are."""
    one = late()
    held: list[Any] = []

    def transform(batch: Any) -> Any:
        held.append(one.empty_like(batch[0]))
        return types.SimpleNamespace(parts=[{"x": held[-1]}], text="t"), types.SimpleNamespace(text="u")

    (first, second), *_ = DataLoader(Pictures(), 6, device="cuda", batch_transform=transform)
    assert first.parts[0]["x"] is not held[0] and first.text == "t" and second.text == "u"
    one.finish()


def _draws_on_the_device(batch: Any) -> Any:
    (generator,) = accelerator.accelerator_of(torch.device("cuda", 0)).generators()
    return torch.rand(3, generator=generator)


def test_generator_of_the_device_is_seeded_and_given_back(late: Any) -> None:
    one = late()
    before = one.generator.get_state()
    drawn = [
        [
            batch.tolist()
            for batch in DataLoader(Pictures(), 6, seed=seed, device="cuda", batch_transform=_draws_on_the_device)
        ]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2] and len({tuple(batch) for batch in drawn[0]}) == 4
    assert torch.equal(one.generator.get_state(), before)


def test_autocast_of_the_loop_changes_no_number(at_once: Any) -> None:
    def product(batch: Any) -> Any:
        return batch[0].flatten(1).float() @ torch.ones(1200, 2)

    loader = DataLoader(Pictures(), 6, device="cuda", batch_transform=product)
    with torch.autocast("cpu"), torch.inference_mode():
        (first, *_) = loader
        assert torch.is_autocast_enabled("cpu")
    assert first.dtype == torch.float32 and not first.is_inference()


def test_batch_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transform has both parts, on the program's own streams."""
    both = [LateDevice(1), LateDevice(2)]
    monkeypatch.setattr(accelerator, "accelerator_of", lambda device: both[device.index])
    calls: list[Any] = []

    def transform(batch: Any) -> Any:
        calls.append([one.holds(part) for one, part in zip(both, batch, strict=True)])
        assert all(one.current() is one.default for one in both)
        return batch

    for images, labels in DataLoader(
        Pictures(), 6, device={0: "cuda:0", 1: "cuda:1"}, device_buffers=1, batch_transform=transform
    ):
        for one in both:
            one.finish()
        assert both[0].holds(images) and both[1].holds(labels) and labels.max() < 10
    assert calls == [[True, True]] * 4
    del images, labels
    for one in both:
        one.finish()


def test_fixed_buffers_have_the_result(late: Any) -> None:
    one = late()
    places = set()
    for images, _ in DataLoader(Pictures(), 6, device="cuda", device_buffers=2, batch_transform=lambda batch: batch):
        one.finish()
        places.add(images.data_ptr())
    assert len(places) == 2
