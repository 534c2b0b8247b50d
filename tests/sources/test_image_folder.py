from __future__ import annotations

import os
import pickle
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, ImageFolder, StokerWarning, Subset
from stoker.errors import (
    EmptyFolderError,
    FolderError,
    MissingFolderError,
    NotAFolderError,
    UnreadableFolderError,
)

IMAGES = 28


def as_array(image: Any) -> Any:
    return np.asarray(image)


def value(image: Any) -> int:
    """The value of a uniform image, through JPEG as well."""
    return round(float(np.asarray(image).mean()))


def only_png(path: str) -> bool:
    return path.endswith(".PNG")


def test_samples_are_those_of_torchvision(photos: Path, torchvision: Any) -> None:
    ours, theirs = ImageFolder(photos), torchvision.datasets.ImageFolder(photos)
    assert ours.samples == theirs.samples and list(ours.samples) == theirs.samples
    assert ours.imgs == theirs.imgs and ours.targets == theirs.targets
    assert ours.classes == theirs.classes and ours.class_to_idx == theirs.class_to_idx
    assert ours.extensions == theirs.extensions and len(ours) == len(theirs) == IMAGES
    for index in (0, 5, -1, np.int64(9)):
        assert ours[index][1] == theirs[index][1]
        assert ours[index][0].mode == theirs[index][0].mode == "RGB"
        assert np.array_equal(as_array(ours[index][0]), as_array(theirs[index][0]))


@pytest.mark.parametrize("spelled", ["text/", "text", "path", "relative", "home"])
def test_paths_begin_with_the_root_as_given(
    photos: Path, torchvision: Any, spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    monkeypatch.setenv("HOME", str(photos.parent))
    root = {"text/": f"{photos}/", "text": str(photos), "path": photos, "relative": photos.name}.get(
        spelled, f"~/{photos.name}"
    )
    ours, theirs = ImageFolder(root), torchvision.datasets.ImageFolder(root)
    assert ours.samples == theirs.samples
    assert ours.root == theirs.root


def test_arguments_mean_what_torchvisions_do(photos: Path, torchvision: Any) -> None:
    arguments: dict[str, Any] = {
        "transform": value,
        "target_transform": lambda target: -target,
        "loader": lambda path: [len(path)],
        "is_valid_file": only_png,
    }
    ours = ImageFolder(photos, **arguments)
    theirs = torchvision.datasets.ImageFolder(photos, **arguments)
    assert [ours[index] for index in range(len(ours))] == [theirs[index] for index in range(len(theirs))]
    assert len(ours) == 4 and ours.extensions is theirs.extensions is None


def test_a_subclass_may_choose_classes(photos: Path, torchvision: Any) -> None:
    def chosen(self: Any, directory: Any) -> Any:
        return ["cat x", "ant"], {"cat x": 7, "ant": 3, "gone": 1}

    ours = type("Ours", (ImageFolder,), {"find_classes": chosen})(photos, allow_empty=True)
    theirs = type("Theirs", (torchvision.datasets.ImageFolder,), {"find_classes": chosen})(photos, allow_empty=True)
    assert ours.samples == theirs.samples and Counter(ours.targets) == {3: 7, 7: 7}
    assert len(ImageFolder(photos)) == IMAGES


def test_attributes_look_like_lists(photos: Path) -> None:
    dataset = ImageFolder(photos)
    samples = list(dataset.samples)
    assert dataset.samples[3:9] == samples[3:9] and dataset.samples[::-5] == samples[::-5]
    assert dataset.samples[-1] == samples[-1] and samples[4] in dataset.samples
    assert dataset.samples.index(samples[4]) == 4
    assert ("gone.jpg", 0) not in dataset.samples
    assert dataset.targets[::7] == [0, 1, 2, 3] and dataset.targets.count(2) == 7
    assert dataset.imgs is dataset.samples
    assert type(dataset.targets[0]) is int and type(dataset.samples[0]) is tuple
    assert np.asarray(dataset.targets).dtype == np.int64
    assert np.asarray(dataset.targets[::7]).tolist() == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="28 is out of range for 28 rows"):
        dataset.samples[28]


def test_samples_that_are_set_are_read(photos: Path) -> None:
    dataset = ImageFolder(photos, transform=value)
    dataset.samples = [pair for pair in dataset.samples if pair[1] == 2][:2]
    assert len(dataset) == 2 and dataset[1][1] == 2
    assert dataset.describe(1) == dataset.samples[1][0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("method", ["process", "thread"])
def test_workers_read_the_same_samples(photos: Path, start: str, method: str) -> None:
    if method == "thread" and start == "spawn":
        pytest.skip("threads are not born")
    dataset = ImageFolder(photos, transform=value)
    alone = [(list(values), list(targets)) for values, targets in DataLoader(dataset, 5, shuffle=True, seed=3)]
    options: dict[str, Any] = {"num_workers": 2, "worker_method": method}
    if method == "process":
        options["multiprocessing_context"] = start
    with DataLoader(dataset, 5, shuffle=True, seed=3, **options) as loader:
        assert [(list(values), list(targets)) for values, targets in loader] == alone


def test_two_loaders_read_at_once(photos: Path) -> None:
    dataset = ImageFolder(photos, transform=value)
    loaders = [DataLoader(dataset, 4, num_workers=1, seed=seed, shuffle=True) for seed in (1, 2)]
    seen: list[list[int]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for each, (_, targets) in zip(seen, batches, strict=True):
            each += targets.tolist()
    assert seen[0] != seen[1] and sorted(seen[0]) == sorted(seen[1]) == list(dataset.targets)


def test_a_pickle_is_small_and_equal(photos: Path) -> None:
    dataset = ImageFolder(photos, transform=value)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.samples == dataset.samples and again[5] == dataset[5] and again.imgs is again.samples
    buffers: list[Any] = []
    pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) >= 3  # names, their starts and labels: not a copy for each worker
    part = pickle.loads(pickle.dumps(dataset.samples[10:13]))
    assert part == dataset.samples[10:13]
    assert len(pickle.dumps(dataset.samples[10:13])) < len(pickle.dumps(dataset.samples))


def test_random_numbers_are_left_alone(photos: Path) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    ImageFolder(photos)[3]
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])


def test_files_are_closed(photos: Path) -> None:
    dataset = ImageFolder(photos)
    before = set(os.listdir("/proc/self/fd"))
    images = [dataset[index][0] for index in range(10)]
    assert set(os.listdir("/proc/self/fd")) == before
    assert [image.mode for image in images] == ["RGB"] * 10


def test_names_that_are_no_utf8_come_back(tmp_path: Path, torchvision: Any) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    for name in (b"\xff\xfe.jpg", "ä\n.jpg".encode(), b"a.jpg"):
        with open(folder + b"/" + name, "wb"):
            pass
    assert ImageFolder(tmp_path).samples == torchvision.datasets.ImageFolder(tmp_path).samples


def test_links_are_followed(photos: Path, tmp_path: Path, torchvision: Any) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(photos / "ant")
    (tmp_path / "real" / "more").symlink_to(photos / "bee")
    (tmp_path / "real" / "one.jpg").symlink_to(photos / "beside.jpg")
    (tmp_path / "real" / "dead.jpg").symlink_to(tmp_path / "nothing")
    (tmp_path / "real" / "itself.jpg").symlink_to(tmp_path / "real" / "itself.jpg")
    dataset = ImageFolder(tmp_path)
    assert dataset.samples == torchvision.datasets.ImageFolder(tmp_path).samples
    dead = next(index for index, (path, _) in enumerate(dataset.samples) if "dead" in path)
    with pytest.raises(FileNotFoundError):
        dataset[dead]


# Bad input


def test_a_root_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingFolderError, match=r"no such folder.*gone") as caught:
        ImageFolder(tmp_path / "gone")
    assert isinstance(caught.value, FileNotFoundError) and caught.value.filename == str(tmp_path / "gone")


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAFolderError, match=r"this is a file.*file") as caught:
        ImageFolder(tmp_path / "file")
    assert isinstance(caught.value, NotADirectoryError)


def test_a_root_without_class_folders(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(EmptyFolderError, match=r"no class folder.*ImageFiles"):
        ImageFolder(tmp_path)


def test_classes_without_images(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"class {number:02d}").mkdir()
    (tmp_path / "class 00" / "a.gif").touch()
    with pytest.raises(EmptyFolderError, match=r"\.jpg.*class 00, .*class 09 and 2 more.*allow_empty") as caught:
        ImageFolder(tmp_path)
    assert isinstance(caught.value, FileNotFoundError) and str(tmp_path) in str(caught.value)
    with pytest.raises(EmptyFolderError, match="that is_valid_file accepts"):
        ImageFolder(tmp_path, is_valid_file=only_png)
    assert len(ImageFolder(tmp_path, allow_empty=True)) == 0
    assert len(ImageFolder(tmp_path, allow_empty=True).classes) == 12


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "shut").mkdir()
    (tmp_path / "open" / "a.jpg").touch()
    monkeypatch.chdir(tmp_path)  # what lies above may be closed to the other user
    tmp_path.chmod(0o755)
    (tmp_path / "shut").chmod(0)
    root = os.geteuid() == 0  # who may read everything
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(UnreadableFolderError, match=r"may not list it.*shut") as caught:
            ImageFolder(".", cache=False)
    finally:
        if root:
            os.seteuid(0)
        (tmp_path / "shut").chmod(stat.S_IRWXU)
    assert isinstance(caught.value, PermissionError) and isinstance(caught.value, FileNotFoundError)


def test_a_link_to_a_folder_above(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    with pytest.raises(FolderError, match=r"link to .*a, which holds it.*up") as caught:
        ImageFolder(tmp_path)
    assert isinstance(caught.value, FolderError)


def test_errors_keep_their_parts_in_a_pickle(tmp_path: Path) -> None:
    with pytest.raises(MissingFolderError) as caught:
        ImageFolder(tmp_path / "gone")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.filename, again.errno) == (str(caught.value), caught.value.filename, caught.value.errno)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_vanishes_is_named(
    photos: Path, tmp_path: Path, workers: int, write: Callable[[Path, int], None]
) -> None:
    root = Path(shutil.copytree(photos, tmp_path / "copy"))
    dataset = ImageFolder(root, transform=value)
    gone = Path(dataset.samples[4][0])
    gone.unlink()
    (root / "bee" / "deep" / "a.jpg").write_text("text named .jpg")
    with DataLoader(dataset, 4, num_workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(FileNotFoundError) as caught:
            next(batches)
        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])  # a worker's are in its message
        assert str(gone) in said and "raised by sample 4" in said and "make the dataset again" in said
        del batches
    records = []

    def skip(record: Any) -> str:
        records.append(record)
        return "skip"

    with (
        pytest.warns(StokerWarning),
        DataLoader(dataset, 4, num_workers=workers, on_error=skip, max_error_rate=None) as loader,
    ):
        assert sum(len(values) for values, _ in loader) == IMAGES - 2
        assert loader.report().as_dict()["epoch"]["quarantined"] == 2
    if workers == 0:
        assert [record.index for record in records] == [4, 18]
        assert str(gone) in str(records[0].description)


def test_text_named_as_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_text("text")
    with pytest.raises(OSError, match=r"x\.jpg") as caught:
        ImageFolder(tmp_path)[0]
    assert caught.value.__notes__ == [f"raised by sample 0: {tmp_path / 'a' / 'x.jpg'}"]


def test_a_sampler_takes_the_targets(photos: Path) -> None:
    from stoker import StratifiedBatchSampler

    dataset = ImageFolder(photos, transform=value)
    batches = list(StratifiedBatchSampler(dataset.targets, 4))
    assert sorted(index for batch in batches for index in batch) == list(range(IMAGES))
    loader = DataLoader(Subset(dataset, [3, 3, -1]), 3)
    assert next(iter(loader))[1].tolist() == [0, 0, 3]


def test_stokers_transforms_decode_the_file_themselves(photos: Path) -> None:
    """The loader is left out, so that no more than the crop is decoded; pixels are the same."""
    from PIL import Image

    from stoker.images import Compose, Resize

    whole = ImageFolder(photos)
    direct = ImageFolder(photos, transform=Compose([Resize((4, 5))]))
    through = ImageFolder(photos, transform=Compose([Resize((4, 5))]), loader=Image.open)
    for index in range(0, len(whole), 3):
        image, target = direct[index]
        expected = np.asarray(whole[index][0].resize((5, 4), Image.Resampling.BILINEAR))
        assert np.array_equal(image, expected) and target == whole[index][1]
        assert np.array_equal(through[index][0], expected)
    direct.loader = lambda path: Image.new("RGB", (9, 9), "red")
    assert np.array_equal(direct[0][0], np.full((4, 5, 3), (255, 0, 0), np.uint8))
