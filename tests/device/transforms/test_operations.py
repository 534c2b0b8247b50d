"""Operations on batches: their fields, layouts, draws and errors, and the loaders that apply them."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._random.batch_draws import of_batch

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from stoker import device  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

RANDOM: dict[str, Any] = {
    "flip": device.RandomHorizontalFlip(),
    "crop": device.RandomResizedCrop(16),
    "grid": device.RandomResizedCrop(16, antialias=False),
    "erase": device.RandomErasing(0.9, value=7),
    "jitter": device.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "all": device.Compose(
        [
            device.RandomResizedCrop((12, 20)),
            device.RandomHorizontalFlip(),
            device.ColorJitter(0.2, 0.2),
            device.Normalize(MEAN, STD),
            device.RandomErasing(value="random"),
        ]
    ),
}


def pictures(count: int = 8) -> Any:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, 30, 40, 3), np.uint8))


class Pictures(stoker.Dataset[Any]):
    def __init__(self) -> None:
        self.pixels = pictures(22)

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return self.pixels[index], index % 5


def epoch(transform: Any, **options: Any) -> list[Any]:
    loader = stoker.DataLoader(Pictures(), batch_size=6, shuffle=True, seed=1, batch_transform=transform, **options)
    return [*loader]


@pytest.mark.parametrize("name", RANDOM)
def test_images_draw_for_themselves_from_their_positions(name: str) -> None:
    images = pictures()
    with of_batch(3, range(8)):
        whole = RANDOM[name](images)
    with of_batch(3, range(4, 8)):
        part = RANDOM[name](images[4:])
    assert torch.equal(whole[4:], part)
    with of_batch(4, range(8)):
        assert not torch.equal(RANDOM[name](images), whole)


@pytest.mark.parametrize("name", RANDOM)
def test_both_layouts_give_the_same_pixels(name: str) -> None:
    images = pictures()
    before = images.clone()
    with of_batch(3, range(8)):
        last = RANDOM[name](images)
    with of_batch(3, range(8)):
        first = RANDOM[name](images.permute(0, 3, 1, 2).contiguous())
    last = last if name == "all" else last.permute(0, 3, 1, 2)
    assert last.dtype == first.dtype
    np.testing.assert_allclose(last, first, atol=0 if name in ("flip", "crop", "erase") else 1)
    assert torch.equal(images, before)


def test_about_half_of_the_images_are_mirrored() -> None:
    images = pictures(200)
    with of_batch(3, range(200)):
        flipped = device.RandomHorizontalFlip()(images)
    mirrored = [torch.equal(after, before.flip(1)) for after, before in zip(flipped, images, strict=True)]
    same = [torch.equal(after, before) for after, before in zip(flipped, images, strict=True)]
    assert all(one != other for one, other in zip(mirrored, same, strict=True)) and 70 < sum(mirrored) < 130


@pytest.mark.parametrize("value", [0, (1, 2, 3)])
def test_a_box_is_erased(value: Any) -> None:
    images = pictures() // 2 + 100
    with of_batch(3, range(8)):
        erased = device.RandomErasing(1.0, value=value)(images)
    for after, before in zip(erased, images, strict=True):
        rows, columns = np.nonzero((after != before).any(-1).numpy())
        box = after[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert len(rows) == box.shape[0] * box.shape[1] and 0.01 < len(rows) / 1200 < 0.36
        assert (box == torch.tensor(value, dtype=torch.uint8)).all()


BACKENDS: dict[str, dict[str, Any]] = {
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_are_equal_bit_for_bit_on_each_backend(backend: str) -> None:
    transform = device.Compose([RANDOM["all"], device.CutMix(num_classes=5), device.MixUp(alpha=0.2)])
    for ours, serial in zip(epoch(transform, **BACKENDS[backend]), epoch(transform), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, serial, strict=True))
        assert ours[0].shape[1:] == (3, 12, 20) and ours[1].shape[1:] == (5,)
        np.testing.assert_allclose(ours[1].sum(1), 1, atol=1e-6)


Pair = namedtuple("Pair", "image target")


@pytest.mark.parametrize("kind", ["list", "tuple", "namedtuple", "dict", "field", "nested"])
def test_the_images_are_found_and_the_rest_stays(kind: str) -> None:
    images, labels = pictures(), torch.arange(8)
    batch: Any = {
        "list": [images, labels],
        "tuple": (images, labels),
        "namedtuple": Pair(images, labels),
        "dict": {"pixel_values": images, "label": labels},
        "field": {"photo": images, "label": labels},
        "nested": [images, {"label": labels}],
    }[kind]
    flip = device.RandomHorizontalFlip(1.0, field="photo" if kind == "field" else None)
    flipped = flip(batch)
    assert type(flipped) is type(batch) and len(flipped) == 2
    first, second = flipped.values() if isinstance(flipped, dict) else flipped
    assert torch.equal(first, images.flip(2))
    assert (second["label"] if kind == "nested" else second) is labels


@pytest.mark.parametrize(
    ("batch", "field", "message"),
    [
        ({"a": 1, "b": 2}, None, r"the keys \['a', 'b'\].*field="),
        ({"a": 1}, "c", r"field='c'.*\['a'\]"),
        ([np.zeros((2, 3, 8, 8))], None, "ndarray of shape .2, 3, 8, 8.*output='torch'"),
        ([torch.zeros(3, 8, 8)], None, "4 dimensions"),
        ([torch.zeros(2, 3, 8, 8, dtype=torch.int64)], None, "uint8 or floats"),
    ],
)
def test_a_batch_without_images_is_refused(batch: Any, field: Any, message: str) -> None:
    with pytest.raises(stoker.errors.ImageArgumentError, match=message):
        device.RandomHorizontalFlip(field=field)(batch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: device.RandomHorizontalFlip(1.5), "p=1.5"),
        (lambda: device.RandomResizedCrop((1, 2, 3)), "size="),
        (lambda: device.RandomResizedCrop(8, scale=(1, 0.5)), "scale="),
        (lambda: device.RandomResizedCrop(8, interpolation="bicubic", antialias=False), "bicubic"),
        (lambda: device.RandomErasing(value="noise"), "'random'"),
        (lambda: device.ColorJitter(-1), "brightness=-1"),
        (lambda: device.ColorJitter(hue=0.7), "hue="),
        (lambda: device.Normalize((0.5,), (0.0,)), "has a 0"),
        (lambda: device.Normalize((0.5,), (1.0,), dtype="int8"), "dtype="),
        (lambda: device.Compose([3]), "cannot be called"),
        (lambda: device.CutMix(alpha=0), "alpha=0"),
        (lambda: device.MixUp(labels_getter="own"), "labels_getter="),
        (lambda: device.TestTimeViews([]), "views="),
    ],
)
def test_arguments_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(stoker.errors.ImageArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        ([pictures(2), torch.arange(2)], {}, "num_classes="),
        ([pictures(2), torch.arange(3)], {"num_classes": 5}, r"\(2,\).*the batch has \(3,\)"),
        ({"image": pictures(2), "target": torch.arange(2)}, {"num_classes": 5}, r"no labels among .*'target'"),
        ([pictures(2), torch.zeros(2, 4)], {"num_classes": 5}, "num_classes=5, and labels have 4"),
        (pictures(2), {"num_classes": 5}, "NoneType"),
    ],
)
def test_labels_that_do_not_fit_are_refused(batch: Any, options: Any, message: str) -> None:
    with pytest.raises(stoker.errors.ImageArgumentError, match=message):
        device.CutMix(**options)(batch)


def test_labels_come_from_a_function_or_the_usual_key() -> None:
    images, labels = pictures(4), torch.arange(4)
    for batch, getter in (({"image": images, "Labels": labels}, "default"), ((images, (labels, 3)), lambda b: b[1][0])):
        with of_batch(3, range(4)):
            mixed = device.MixUp(num_classes=4, labels_getter=getter)(batch)
        found = mixed["Labels"] if isinstance(mixed, dict) else mixed[1][0]
        assert found.shape == (4, 4) and not torch.equal(found.argmax(1), torch.zeros(4))


def test_a_batch_of_one_image_is_mixed_with_itself() -> None:
    images = pictures(1)
    mixed, labels = device.MixUp(num_classes=3)([images, torch.tensor([2])])
    assert torch.equal(mixed, images) and torch.allclose(labels, torch.tensor([[0.0, 0.0, 1.0]]))


def test_views_are_adjacent_and_averaged() -> None:
    images = pictures(4).permute(0, 3, 1, 2).float()
    views = device.TestTimeViews([None, device.RandomHorizontalFlip(1.0), lambda some: some * 2])
    made, labels = views([images, torch.arange(4)])
    assert made.shape == (12, 3, 30, 40) and len(views) == 3 and labels.tolist() == [0, 1, 2, 3]
    assert torch.equal(made[3], images[1]) and torch.equal(made[4], images[1].flip(-1))
    averaged = stoker.average_views(made.mean((2, 3)), len(views))
    assert torch.allclose(averaged, images.mean((2, 3)) * 4 / 3)
    with pytest.raises(stoker.errors.ImageArgumentError, match="different shapes"):
        device.TestTimeViews([None, lambda some: some[..., :-1]])(images)


def test_an_error_names_its_step() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        device.Compose([device.RandomHorizontalFlip(), lambda batch: 1 / 0])(pictures())
    assert caught.value.__notes__ == ["raised by step 1 of the Compose, <lambda>"]


def test_operations_are_pickled_with_their_arguments() -> None:
    again = pickle.loads(pickle.dumps(RANDOM["all"]))
    assert repr(again) == repr(RANDOM["all"]) and "size=(12, 20)" in repr(again)


def test_torchvision_gets_one_draw_for_the_batch() -> None:
    def noise(images: Any) -> Any:
        return images + torch.rand(1)

    images, state = torch.zeros(4, 3, 8, 8), torch.get_rng_state()
    adapter = device.TorchVision(noise)
    with of_batch(3, range(4)):
        one = adapter(images)
    with of_batch(3, range(4)):
        assert torch.equal(adapter(images), one)
    with of_batch(3, range(4, 8)):
        assert not torch.equal(adapter(images), one)
    assert torch.equal(torch.get_rng_state(), state) and len(one.unique()) == 1


def test_torchs_generator_is_refused_to_threads() -> None:
    adapter = device.TorchVision(torch.flip)
    with pytest.raises(stoker.StokerError, match="all threads share"):
        epoch(adapter, num_workers=1, worker_method="thread")


class Shift:
    """An augmentation with Kornia's interface: parameters for each image, and some for the batch."""

    def forward_parameters(self, shape: Any) -> dict[str, Any]:
        return {"shift": torch.rand(shape[0]), "order": torch.randperm(4), "forward_input_shape": torch.tensor(shape)}

    def __call__(self, images: Any, params: Any) -> Any:
        assert params["forward_input_shape"].tolist() == [*images.shape] and len(params["order"]) == 4
        return images + params["shift"][:, None, None, None]


def test_kornias_parameters_are_drawn_for_each_image() -> None:
    images, state = torch.zeros(6, 3, 8, 8), torch.get_rng_state()
    adapter = device.Kornia(Shift())
    with of_batch(3, range(6)):
        whole = adapter(images)
    with of_batch(3, range(2, 6)):
        assert torch.equal(adapter(images[2:]), whole[2:])
    assert len(whole.unique()) == 6 and torch.equal(torch.get_rng_state(), state)
    with pytest.raises(TypeError, match="forward_parameters"):
        device.Kornia(torch.nn.Identity())


def test_kornia_itself_repeats_for_each_image() -> None:
    augmentation = pytest.importorskip("kornia.augmentation")
    images = pictures(6)
    for made in (
        augmentation.RandomAffine(20.0, p=0.7),
        augmentation.RandomErasing(p=0.6),
        augmentation.AugmentationSequential(augmentation.RandomHorizontalFlip(), augmentation.RandomCrop((16, 16))),
    ):
        adapter = device.Kornia(made)
        with of_batch(3, range(6)):
            whole = adapter(images)
        with of_batch(3, range(2, 6)):
            torch.testing.assert_close(adapter(images[2:]), whole[2:])
        with of_batch(4, range(6)):
            assert not torch.equal(adapter(images), whole)


class _Copies(TorchDispatchMode):
    """Notes copies from the host to another device that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []
        self.sent = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if isinstance(made, torch.Tensor) and made.device.type != "cpu" and source is not None and source.is_cpu:
            self.sent += 1
            if not (kwargs or {}).get("non_blocking"):
                self.waiting.append(str(function))
        return made


@pytest.mark.parametrize("name", RANDOM)
def test_operations_wait_for_no_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run behind the step that is computed, so a copy that waits would make `next()` wait for it."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    images = torch.empty(8, 3, 30, 40, dtype=torch.float32, device="meta")
    with _Copies() as copies:
        RANDOM[name](images)
    assert copies.sent and not copies.waiting
