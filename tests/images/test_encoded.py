"""`decode_device=`: images that a device decodes have the boxes, shape and order of those that a worker decodes."""

from __future__ import annotations

import importlib.metadata
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")
import torch
from PIL import Image

from stoker import DataLoader, ImageFiles, ImageFolder, images
from stoker import device as operations
from stoker.errors import BatchError, DeviceError, ImageArgumentError, ImageError, MissingExtraError, StokerWarning
from stoker.images import encoded, kernel
from tests.device.conftest import late
from tests.images import pictures

__all__ = ["late"]
pytestmark = pytest.mark.skipif(kernel.bound() is None, reason="headers are read by the compiled part")
TRANSFORM = images.Compose([images.RandomResizedCrop(32), images.RandomHorizontalFlip()])
ODD = {
    "grey.jpg": pictures.encoded(pictures.photo(90, 70, 1), mode="L"),
    "cmyk.jpg": pictures.encoded(pictures.photo(90, 70, 2), mode="CMYK"),
    "rgb.jpg": pictures.encoded(pictures.photo(90, 70, 3), keep_rgb=True, subsampling=0),
    "drawing.png": pictures.encoded(pictures.photo(90, 70, 4), "PNG"),
}


@pytest.fixture(autouse=True)
def with_torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says a version: TorchCodec's packages for Linux need a torch with CUDA, so another decoder takes its place."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.17.0")


def turned(seed: int) -> bytes:
    """A JPEG that says that it is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return pictures.encoded(pictures.photo(120, 80, seed), exif=exif)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {f"{number:02}.jpg": pictures.jpeg("4:2:0", 60 + 5 * number, 90 - number, number) for number in range(14)}
    files |= {**ODD, "turned.jpg": turned(1), "last.jpg": pictures.jpeg("progressive", 77, 55)}
    for name, data in files.items():
        path = tmp_path / ("a" if len(data) % 2 else "b") / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    for name in "ab":
        (tmp_path / name / "more.jpg").write_bytes(pictures.jpeg("4:4:4", 64, 64))
    return tmp_path


def by_pillow(files: Any, device: Any) -> list[torch.Tensor]:
    """Decodes whole files, as TorchCodec's decoder does: EXIF's orientation is applied, and damage is an error."""
    return [torch.from_numpy(images.decode(file.numpy(), exif=True)).permute(2, 0, 1) for file in files]


def epoch(folder: Path, decode_device: Any, transform: Any = TRANSFORM, **options: Any) -> list[Any]:
    dataset = ImageFolder(folder, transform, decode_device=decode_device)
    loader = DataLoader(dataset, 4, shuffle=True, seed=3, **options)
    return list(loader)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_pixels_decoded_by_cpu_are_those_of_workers(folder: Path, workers: dict[str, Any]) -> None:
    here = epoch(folder, None)
    there = epoch(folder, "cuda", **workers)
    assert len(here) == len(there)
    for (pixels, labels), (files, found) in zip(here, there, strict=True):
        assert isinstance(files, encoded.EncodedImages) and len(files) == len(labels)
        assert torch.equal(files.to("cpu"), pixels) and torch.equal(found, labels)
        assert files.data.nbytes < sum(len(path.read_bytes()) for path in folder.rglob("*.*"))


@pytest.mark.parametrize(
    "transform",
    [
        TRANSFORM,
        images.Compose([images.Resize(40), images.CenterCrop(32)]),
        images.Compose([images.Resize((50, 40), "bicubic"), images.Compose([images.RandomCrop(32)])]),
        images.Compose([images.RandomHorizontalFlip(), images.CenterCrop((40, 30))]),
    ],
)
def test_batches_on_a_device(folder: Path, late: Any, transform: Any) -> None:
    """Of a device that works late: the boxes are the same, and values differ by the rounding of the resize."""
    device = late(1)
    device.decoder = by_pillow
    loader = DataLoader(
        ImageFolder(folder, transform, decode_device="cuda"), 4, shuffle=True, seed=3, device="cuda", num_workers=2
    )
    seen = []
    for pixels, labels in loader:
        device.finish()
        seen.append((pixels.clone(), labels.clone()))
    for (pixels, labels), (want, wanted) in zip(seen, epoch(folder, None, transform), strict=True):
        assert pixels.dtype == torch.uint8 and pixels.shape == want.shape and torch.equal(labels, wanted)
        assert (pixels.int() - want.int()).abs().max() <= 3 and (pixels.float() - want.float()).abs().mean() < 0.4
    copies = loader.report().copies
    assert copies["decoded"] == 22 and copies["decoded_by_cpu"] == 4
    assert copies["bytes"] < 200_000 and not copies["seconds"]  # of the bus: files and labels, and no rate of pixels
    assert "22 images were decoded there, but for 4" in str(loader.report())


@pytest.mark.parametrize("form", ["paths", "contents"])
def test_listed_files_are_decoded_on_a_device(folder: Path, late: Any, form: str) -> None:
    device = late(1)
    device.decoder = by_pillow
    paths = sorted(folder.rglob("*.*"))
    files: Any = paths if form == "paths" else [path.read_bytes() for path in paths]
    dataset = ImageFiles(files, transform=TRANSFORM, decode_device="cuda")
    wanted = list(DataLoader(ImageFiles(files, transform=TRANSFORM), 4, seed=3, shuffle=True))
    seen = []
    for pixels in DataLoader(pickle.loads(pickle.dumps(dataset)), 4, seed=3, shuffle=True, device="cuda"):
        device.finish()
        seen.append(pixels.clone())
    for pixels, want in zip(seen, wanted, strict=True):
        assert pixels.shape == want.shape and (pixels.int() - want.int()).abs().max() <= 3
    with pytest.raises(ImageArgumentError, match="leave loader= out"):
        ImageFiles(files, loader=len, decode_device="cuda")


def test_planted_mistake_is_found(folder: Path, late: Any) -> None:
    device = late(1, "no wait")
    device.decoder = by_pillow
    dataset = ImageFolder(folder, TRANSFORM, decode_device="cuda")
    wanted = [pixels for pixels, _ in epoch(folder, None)]
    wrong = 0
    for seed in range(6):
        device.random.seed(seed)
        seen: list[Any] = []
        for (pixels, _), want in zip(DataLoader(dataset, 4, shuffle=True, seed=3, device="cuda"), wanted, strict=True):
            address, size = pixels.data_ptr(), pixels.nbytes

            def read(address: int = address, size: int = size, want: Any = want, seen: Any = seen) -> None:
                found = np.frombuffer(device.seen(address, size), np.uint8).reshape(want.shape)
                seen.append(int(np.abs(found.astype(int) - want.numpy()).max()))

            device.compute(read)
            del pixels
        device.finish_anyhow()
        wrong += max(seen) > 3
    assert wrong


def test_file_that_the_decoder_refuses() -> None:
    files = [pictures.jpeg("4:2:0", 50, 40, seed) for seed in range(3)]
    batch = encoded.collated([encoded.encoded(file, images.Resize((20, 20))) for file in files])
    calls = []

    def refusing(given: Any, device: Any) -> Any:
        calls.append(len(given))
        if any(torch.equal(file, torch.from_numpy(batch._of(1))) for file in given):
            raise RuntimeError("nvjpeg decode failed: 3")
        return by_pillow(given, device)

    pixels = batch.decoded_on("cpu", refusing)
    assert calls == [3, 1, 1, 1] and batch.by_cpu == {1}
    assert torch.equal(pixels, batch.decoded_on("cpu", by_pillow))


def refuses(files: Any, device: Any) -> Any:
    raise RuntimeError("nvjpeg decode failed: 3")


@pytest.mark.parametrize("number", [1, 3])
def test_batch_that_is_refused_whole(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The CPU decodes it, with one warning; what the CPU refuses too is an error that names the image."""
    monkeypatch.setattr(encoded, "_TOLD", set())
    files = [pictures.jpeg("4:2:0", 50, 40, seed) for seed in range(number)]
    batch = encoded.collated([encoded.encoded(file, images.Resize((20, 20))) for file in files])
    with pytest.warns(StokerWarning, match=rf"none of a batch's {number} JPEG files .* failed: 3") as told:
        pixels = [batch.decoded_on("cpu", refuses) for _ in range(2)]
    assert len(told) == 1 and batch.by_cpu == set(range(number))
    assert torch.equal(pixels[0], batch.decoded_on("cpu", by_pillow)) and torch.equal(*pixels)
    batch.data[batch.ends[0] - 600 : batch.ends[0]] = 0xFF
    with pytest.raises(ImageError) as caught:
        batch.decoded_on("cpu", refuses)
    assert f"image 0 of a batch of {number}" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (RuntimeError("torchcodec was not compiled with nvJPEG support"), MissingExtraError, r"stoker\[decode\]"),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError, "illegal memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), torch.OutOfMemoryError, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "out of memory"),
    ],
)
def test_decoder_that_fails(error: Exception, raised: type[Exception], said: str) -> None:
    batch = encoded.collated([encoded.encoded(pictures.jpeg("4:2:0", 50, 40, seed), None) for seed in range(2)])

    def failing(files: Any, device: Any) -> Any:
        raise error

    with pytest.raises(raised, match=said):
        batch.decoded_on("cpu", failing)


def test_large_pictures_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "PIXELS_AT_ONCE", 2 * 50 * 40)
    batch = encoded.collated(
        [encoded.encoded(pictures.jpeg("4:2:0", 50, 40, seed), images.Resize((20, 20))) for seed in range(5)]
    )
    calls = []

    def decoder(files: Any, device: Any) -> Any:
        calls.append(len(files))
        return by_pillow(files, device)

    pixels = batch.decoded_on("cpu", decoder)
    bad = [batch._of(place).tobytes() for place in (0, 1)]  # a part that is refused whole

    def refusing(files: Any, device: Any) -> Any:
        return (
            refuses(files, device) if any(file.numpy().tobytes() in bad for file in files) else by_pillow(files, device)
        )

    assert torch.equal(batch.decoded_on("cpu", refusing), pixels) and batch.by_cpu == {0, 1}
    assert calls == [2, 2, 1] and (pixels.int() - batch.to("cpu").int()).abs().max() <= 2


def test_what_a_gpu_decodes() -> None:
    for name, data in pictures.some_jpegs():
        file = encoded.for_device(data) if encoded.PendingImage.of(data).noted() else None
        if file is not None:
            assert np.array_equal(images.decode(file), images.decode(data)), name
    for kind in ("4:4:4", "4:2:2", "4:2:0", "progressive", "restart rows"):
        assert encoded.for_device(pictures.jpeg(kind, 60, 50)) is not None, kind
    assert all(encoded.for_device(data) is None for name, data in ODD.items() if name.endswith("jpg"))
    assert b"Exif" not in (encoded.for_device(turned(1)) or b"Exif")


def test_damaged_file_is_an_error_of_its_sample(folder: Path) -> None:
    path = folder / "a" / "broken.jpg"
    path.write_bytes(pictures.jpeg("4:2:0", 80, 80)[:900])
    dataset = ImageFolder(folder, TRANSFORM, decode_device="cuda")
    loader = DataLoader(dataset, 4, on_error="skip")
    with pytest.warns(StokerWarning, match=r"broken\.jpg is truncated or damaged"):
        assert sum(len(files) for files, _ in loader) == len(dataset) - 1
    assert loader.report().epoch.quarantined == 1


def test_sizes_that_differ_are_an_error() -> None:
    batch = [encoded.encoded(pictures.jpeg("4:2:0", width, 40), None) for width in (30, 40)]
    with pytest.raises(BatchError, match="40 x 30, 40 x 40"):
        encoded.collated(batch)


def test_arguments_that_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(transform: Any = TRANSFORM, **options: Any) -> ImageFolder:
        return ImageFolder(folder, transform, **{"decode_device": "cuda", **options})

    assert made(decode_device="cpu").decode_device is None
    for other in ("cuda:1", "mps", 3):
        with pytest.raises(ImageArgumentError, match="without a number"):
            made(decode_device=other)
    with pytest.raises(ImageArgumentError, match="leave loader= out"):
        made(loader=lambda path: path)
    with pytest.raises(ImageArgumentError, match=r"ToTensor.*batch_transform"):
        made(images.Compose([images.Resize(8), images.ToTensor()]))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.16.1")
    with pytest.raises(MissingExtraError, match=r"0\.16\.1 is installed"):
        made()

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"stoker\[decode\]"):
        made()
    monkeypatch.setattr(encoded, "bound", lambda: None)
    with pytest.raises(MissingExtraError, match="compiled part"):
        made()


def test_batch_without_a_device_says_what_to_do(folder: Path) -> None:
    files, _ = epoch(folder, "cuda")[0]
    with pytest.raises(AttributeError, match=r"DataLoader\(device='cuda'\)"):
        files.float()
    again = pickle.loads(pickle.dumps(files))
    assert torch.equal(again.to("cpu"), files.to("cpu"))
    with pytest.raises(DeviceError, match="goes to meta"):
        files.to("meta")


def test_torchcodec_decodes_the_same_picture() -> None:
    """With TorchCodec's own decoder, on the CPU: the machinery is the GPU's, but for nvJPEG."""
    decoders = pytest.importorskip("torchcodec.decoders", exc_type=(ImportError, OSError))  # type: ignore[arg-type]
    files = [*(pictures.jpeg(kind, 90, 70, 1) for kind in ("4:4:4", "4:2:0", "progressive")), turned(2)]
    batch = encoded.collated([encoded.encoded(file, images.Resize((40, 50))) for file in files])
    pixels = batch.decoded_on("cpu", lambda given, _: decoders.decode_jpeg(list(given), mode="RGB"))
    assert not batch.by_cpu and (pixels.int() - batch.to("cpu").int()).abs().max() <= 3


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_without_a_batch_are_decoded(folder: Path, late: Any, workers: int) -> None:
    device = late(1)
    device.decoded = lambda image: image.decoded_on("cpu")
    loader = DataLoader(
        ImageFolder(folder, TRANSFORM, decode_device="cuda"), None, seed=3, device="cuda", num_workers=workers
    )
    wanted = list(DataLoader(ImageFolder(folder, TRANSFORM), None, seed=3))
    seen = []
    for pixels, _ in loader:
        device.finish()
        seen.append(pixels.clone())
    assert all(map(torch.equal, seen, [torch.as_tensor(pixels) for pixels, _ in wanted])) and len(seen) == len(wanted)
    assert loader.report().copies["decoded"] == len(seen)


def test_operation_without_a_device_says_what_to_do(folder: Path) -> None:
    dataset = ImageFolder(folder, TRANSFORM, decode_device="cuda")
    with pytest.raises(ImageArgumentError, match=r"left encoded: pass DataLoader\(device='cuda'\)"):
        next(iter(DataLoader(dataset, 2, batch_transform=operations.RandomHorizontalFlip())))
