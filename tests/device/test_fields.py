"""`device=` by field: what goes where, and what is refused."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker import DataLoader
from stoker.device import fields
from stoker.device.fields import FieldPlacement
from stoker.errors import DeviceError

torch = pytest.importorskip("torch")
Pair = namedtuple("Pair", "image label")
TENSOR = torch.zeros(1)


@dataclass(frozen=True)
class Sample:
    image: Any
    label: Any = 5
    notes: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("device", "path", "wanted"),
    [
        ("cuda:1", "a.b", "cuda:1"),
        (torch.device("cuda"), "", "cuda"),
        ({"a": "cuda"}, "a", "cuda"),
        ({"a": "cuda"}, "a.b.0", "cuda"),
        ({"a": "cuda"}, "ab", None),
        ({"a": "cuda", "a.b": "cpu"}, "a.b", None),
        ({"a": "cuda", "a.b": None}, "a.b", None),
        ({0: "cuda:1", ...: "cuda:2"}, "0", "cuda:1"),
        ({0: "cuda:1", ...: "cuda:2"}, "1.x", "cuda:2"),
        ({"image.jpg": "cuda"}, "image.jpg", "cuda"),
        (lambda path, tensor: "cuda:3" if path == "x" else None, "x", "cuda:3"),
        (lambda path, tensor: "cpu", "x", None),
    ],
)
def test_places(device: Any, path: str, wanted: str | None) -> None:
    found = FieldPlacement(device).of(path, TENSOR)
    assert (None if found is None else str(found)) == wanted


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        (True, TypeError, "device should be a device"),
        (1.5, TypeError, "device should be a device"),
        ("gpu", ValueError, "device='gpu' is no device that this torch knows"),
        ({"a": "gpu"}, ValueError, "device='gpu' is no device"),
        ("meta", ValueError, "holds no data"),
        ({1.5: "cuda"}, TypeError, "takes keys of the batch"),
        ({...: "cuda", "a": "cpu"}, ValueError, "put it last"),
    ],
)
def test_what_is_no_device_is_refused(device: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoader([1, 2], device=device)
    with pytest.raises(error, match=message):
        DataLoader([1, 2]).to(device)


def test_arguments_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match=r"output='numpy'.*jax.device_put"):
        DataLoader([1, 2], device="cuda", output="numpy")
    with pytest.raises(ValueError, match="pass device= too"):
        DataLoader([1, 2], device_buffers=2)
    with pytest.raises(ValueError, match="prefetch_to_device should be"):
        DataLoader([1, 2], device="cuda", prefetch_to_device=-1)


def test_containers_keep_their_types() -> None:
    batch = {"a": [1, (2, Pair(3, "x"))], "b": Sample(4), "c": UserDict(d=5)}
    seen: list[str] = []

    def leaf(path: str, value: Any) -> Any:
        if not isinstance(value, int):
            return fields.INSIDE
        seen.append(path)
        return -value

    changed = fields.mapped(batch, leaf, dataclasses_too=True)
    assert changed == {"a": [-1, (-2, Pair(-3, "x"))], "b": Sample(-4, -5), "c": UserDict(d=-5)}
    assert seen == ["a.0", "a.1.0", "a.1.1.image", "b.image", "b.label", "c.d"]
    assert batch["b"] == Sample(4)
    assert fields.mapped(batch, leaf)["b"] is batch["b"]  # as torch pins


class Rows:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.full((4,), float(index)), "label": index, "name": "x", "target": (index, 2.0)}


def test_named_fields_move(late: Any) -> None:
    device = late()
    loader = DataLoader(Rows(), 4, device={"image": "cuda", "target.1": "cuda"})
    (first, _) = loader
    device.finish()
    assert len(device.copied) == 4 and first["image"][3, 0] == 3 and first["name"] == ["x"] * 4
    assert first["target"][0].tolist() == [0, 1, 2, 3]


def test_field_that_the_batch_lacks(late: Any) -> None:
    late()
    iterator = iter(DataLoader(Rows(), 4, device={"images": "cuda", ...: "cpu"}))
    for _ in range(2):  # the batch is not lost, and no later one is given in its place
        with pytest.raises(DeviceError, match="names 'images', which the batch lacks: its fields are image, label"):
            next(iterator)
    with pytest.raises(DeviceError, match="none, it is one tensor"):
        next(iter(DataLoader([1, 2], device={"x": "cuda"})))


@pytest.mark.parametrize("kind", [{}, {"num_workers": 1}], ids=["in process", "processes"])
@pytest.mark.parametrize("device", [{"images": "cpu"}, {"images": None, ...: "cpu"}], ids=["cpu", "none"])
def test_field_of_the_host_that_the_batch_lacks(kind: Any, device: Any) -> None:
    loader = DataLoader(Rows(), 4, device=device, **kind)
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(DeviceError, match="names 'images', which the batch lacks: its fields are image, label"):
            next(iterator)
    del iterator
    loader.to({"image": "cpu"})
    batch, _ = loader
    assert batch["image"][3, 0] == 3 and loader.report().copies == {}
    assert "batches stay on the host" in loader.describe()
    loader.to(None)
    assert "device" not in [line.split()[0] for line in loader.describe().splitlines()]


def test_loader_moves(late: Any) -> None:
    device = late()
    loader = DataLoader(Rows(), 4, num_workers=1, persistent_workers=True)
    list(loader)
    assert not device.copied
    assert loader.to("cuda") is loader and loader.device == "cuda"  # type: ignore[attr-defined]
    list(loader)
    device.finish()
    copied = len(device.copied)
    assert copied
    list(loader.to("cpu"))
    assert len(device.copied) == copied
    loader.close()


def test_device_of_a_subclass_is_its_own() -> None:
    class Own(DataLoader[Any]):
        device = "mine"

    assert Own([1]).to("cpu").device == "mine"


def test_pinned_host_fields_beside_moved_ones(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.device import pinning

    late()
    pinned: list[Any] = []
    monkeypatch.setattr(pinning, "can_pin", lambda *_: True)
    monkeypatch.setattr(pinning, "pin", lambda value: pinned.append(value) or value)
    next(iter(DataLoader(Rows(), 4, device={"image": "cuda"}, pin_memory=True)))
    assert [value.dtype for value in pinned] == [torch.int64, torch.int64, torch.float64]


def test_tensors_that_are_no_plain_memory_move_themselves(late: Any) -> None:
    """Sparse ones, and those that lie on a device already, as a dataset may return them."""
    device = late()
    sparse = torch.eye(4).to_sparse()
    loader = DataLoader([sparse] * 4, 2, device="cpu", collate_fn=lambda samples: (torch.stack(samples), samples[0]))
    (first, _) = loader
    assert first[0].is_sparse
    moved: list[Any] = []

    class There(torch.Tensor):
        is_cpu = False  # type: ignore[assignment]

        def to(self, *arguments: Any, **options: Any) -> Any:
            moved.append((arguments, options))
            return self

    there = torch.ones(3).as_subclass(There)
    (batch, _) = DataLoader([there, there], 1, device="cuda", collate_fn=lambda samples: samples[0])
    assert batch is there and moved == [((device.device,), {"non_blocking": False})] * 2
    device.finish()


def test_tensor_that_requires_a_gradient(late: Any) -> None:
    """It arrives as `to()` of torch would give it: no parameter, and it requires a gradient."""
    device = late()
    collate = lambda rows: {"learned": torch.nn.Parameter(torch.stack(rows)), "fixed": torch.stack(rows)}  # noqa: E731
    (batch,) = DataLoader([torch.ones(4), torch.ones(4)], 2, collate_fn=collate, device="cuda")
    device.finish()
    assert device.holds(batch["learned"]) and type(batch["learned"]) is torch.Tensor
    assert batch["learned"].requires_grad and batch["learned"].is_leaf and not batch["fixed"].requires_grad
    assert torch.equal(batch["learned"].detach(), torch.ones(2, 4))


def test_function_that_returns_no_device_is_named() -> None:
    with pytest.raises(TypeError, match=r"got 3\.5") as caught:
        next(iter(DataLoader([{"a": torch.ones(2)}] * 4, 2, device=lambda path, tensor: 3.5)))
    where, when = caught.value.__notes__
    assert where == "returned by the function of device= for the field 'a'"
    assert when == "Raised in this process, when batch 0 was opened"  # by no worker
