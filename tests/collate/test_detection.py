from __future__ import annotations

import dataclasses
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import stoker
from stoker.collate import DetectionCollator, Padded, TensorLeaf
from stoker.errors import BatchError, MissingFieldError


class Pair(NamedTuple):
    image: Any
    target: Any


@dataclasses.dataclass
class Item:
    image: Any
    boxes: Any


def sample(number: int, height: int = 4, width: int = 5) -> tuple[Any, dict[str, Any]]:
    boxes = np.full((number, 4), number, np.float32)
    return np.full((3, height, width), number + 1, np.uint8), {"boxes": boxes, "id": number}


def collate(*args: Any, **options: Any) -> Any:
    return DetectionCollator(*args, output="numpy", **options)


def test_images_are_stacked_and_targets_listed() -> None:
    images, targets = collate()([sample(0), sample(2)])
    assert images.shape == (2, 3, 4, 5) and images.dtype == np.uint8
    assert [target["boxes"].shape for target in targets] == [(0, 4), (2, 4)]
    assert [target["id"] for target in targets] == [0, 2]


def test_padding_is_at_the_right_and_the_bottom() -> None:
    (images, mask), targets = collate("pad", padding_value=7, multiple_of=4)([sample(1, 2, 6), sample(2, 5, 3)])
    assert images.shape == (2, 3, 8, 8) and mask.shape == (2, 8, 8)
    for image, real, (height, width) in zip(images, mask, [(2, 6), (5, 3)], strict=True):
        assert real[:height, :width].all() and real.sum() == height * width
        assert (image[:, ~real] == 7).all() and len(np.unique(image[:, real])) == 1
    assert len(targets) == 2


def test_mask_lies_beside_the_image_in_mappings() -> None:
    samples = [{"image": np.ones((2, size)), "boxes": np.ones((size, 4)), "name": str(size)} for size in (1, 3)]
    batch = collate("pad", dims=(0, 1))(samples)
    assert list(batch) == ["image", "boxes", "name", "image_mask"]
    assert batch["image"].shape == batch["image_mask"].shape == (2, 2, 3)
    assert [boxes.shape for boxes in batch["boxes"]] == [(1, 4), (3, 4)] and batch["name"] == ["1", "3"]
    assert list(collate("pad", dims=(0, 1), mask=None)(samples)) == ["image", "boxes", "name"]


def test_other_structures_keep_their_type() -> None:
    image, target = sample(1)
    assert type(collate()([Pair(image, target)])) is Pair
    item = collate("pad")([Item(image, target["boxes"])])
    assert type(item) is Item and type(item.image) is Padded and type(item.boxes) is list
    images, _, numbers = collate()([(image, target, 3)])
    assert images.shape == (1, 3, 4, 5) and numbers == [3]
    _, listed = collate(image=1)([(target, image)])
    assert listed.shape == (1, 3, 4, 5)


def test_listed_images_keep_their_sizes() -> None:
    images, targets = collate("list")([sample(1, 2, 6), sample(2, 5, 3)])
    assert [image.shape for image in images] == [(3, 2, 6), (3, 5, 3)] and len(targets) == 2


@pytest.mark.parametrize(
    ("images", "sizes", "message"),
    [
        ("stack", [(3, 2, 2), (3, 2, 4)], r'sample\[0\]: .*\(3, 2, 2\) in sample 0 and .*DetectionCollator\("pad"\)'),
        ("pad", [(3, 2, 2), (1, 2, 2)], r"sample\[0\]: .*\(1, 2, 2\) in sample 1.*number of channels"),
        ("pad", [(2, 2), (2, 3)], r"sample\[0\]: .*samples* 0 and \(2, 3\) in sample 1"),
    ],
)
def test_images_that_do_not_fit_are_named(images: Any, sizes: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        collate(images)([(np.ones(size), {}) for size in sizes])


def test_fields_and_arguments_are_checked() -> None:
    with pytest.raises(MissingFieldError, match="has no field 'image'"):
        collate()([{"picture": np.ones((3, 2, 2))}])
    with pytest.raises(BatchError, match="found <class 'NoneType'>"):
        collate()([None, None])
    with pytest.raises(ValueError, match="images should be"):
        DetectionCollator("padded")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple_of"):
        DetectionCollator("pad", multiple_of=0)


def test_outputs_differ_in_their_leaves_alone() -> None:
    torch = pytest.importorskip("torch")
    images, targets = DetectionCollator()([sample(1)])
    assert isinstance(images, torch.Tensor) and isinstance(targets[0]["boxes"], torch.Tensor)
    tensors = [(torch.ones(3, 2, 2), {"boxes": torch.ones(1, 4)})]
    images, targets = collate()(tensors)
    assert type(images) is np.ndarray and type(targets[0]["boxes"]) is np.ndarray


def test_workers_without_torch_defer_targets_too(torch_not_loaded: None) -> None:
    images, targets = DetectionCollator("pad", output="deferred")([sample(1)])
    assert {*map(type, (*images, targets[0]["boxes"]))} == {TensorLeaf}


def test_images_are_written_into_the_memory_of_the_batch(slot: Any) -> None:
    samples = [sample(1), sample(2)]
    assert slot.holds(collate()(samples)[0])
    assert all(slot.holds(leaf) for leaf in collate("pad")(samples)[0])


class Photos(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("photo 5 is damaged")
        image, target = sample(index % 4, 4 + index % 3)
        return image, target | {"id": index}


@pytest.mark.filterwarnings("ignore:sample 5 of batch")
@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_detection_batches_travel_between_processes(birth: str) -> None:
    with stoker.DataLoader(
        Photos(),
        batch_size=4,
        shuffle=True,
        seed=0,
        num_workers=2,
        multiprocessing_context=birth,
        collate_fn=DetectionCollator("pad"),
        output="numpy",
        on_error="skip",
    ) as loader:
        for _ in range(2):
            seen = []
            for (images, mask), targets in loader:
                for image, real, target in zip(images, mask, targets, strict=True):
                    assert real[:, 0].sum() == 4 + target["id"] % 3 and (image[:, real] == target["id"] % 4 + 1).all()
                    assert (target["boxes"] == target["id"] % 4).all()
                    seen.append(target["id"])
            assert sorted(seen) == [number for number in range(12) if number != 5]


def test_detection_collators_can_be_pickled() -> None:
    given = DetectionCollator("pad", multiple_of=32)
    assert pickle.loads(pickle.dumps(given)) == given
