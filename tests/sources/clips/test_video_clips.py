from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from stoker.errors import ClipLengthError, FileChangedError, LabelCountError, MediaFileError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.clips.video_clips import VideoClips
from stoker.testing.datasets import DatasetSuite
from tests.sources.clips.media_files import decoded, write_audio, write_video

av = pytest.importorskip("av")


class TestVideoClips(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        (tmp_path / "films").mkdir()
        files = [write_video(tmp_path / "films" / f"{name}.mp4", frames=50) for name in "ab"]
        return lambda: VideoClips(files, [3, 1], frames=4, seconds=0.5, size=(24, 32))

    def delete(self, dataset: VideoClips) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 frames, 2 seconds."""
    return write_video(tmp_path_factory.mktemp("film") / "a.mp4")


@pytest.fixture(scope="module")
def pictures(film: Path) -> Any:
    return decoded(film)[1]


def test_frames_are_spread_evenly_over_the_file(film: Path, pictures: Any) -> None:
    dataset = VideoClips(film, ["cat"], frames=10)
    assert len(dataset) == 1 and dataset.clip_counts == [1]
    sample = dataset[0]
    assert list(sample) == ["video", "times", "path", "label"] and sample["label"] == "cat"
    assert sample["video"].dtype == np.uint8 and sample["video"].shape == (10, 48, 64, 3)
    assert np.allclose(sample["times"], np.arange(2, 50, 5) / 25)
    assert (sample["video"] == pictures[2::5]).all()
    assert dataset.describe(0) == f"sample 0: {film}"


def test_all_clips_of_a_file(film: Path, pictures: Any) -> None:
    dataset = VideoClips(film, frames=5, seconds=0.4)
    assert len(dataset) == 5
    for index in (3, 0, 4, 1, 2):
        sample = dataset[index]
        assert (sample["video"] == pictures[10 * index + 1 : 10 * index + 10 : 2]).all()
    assert dataset.describe(-1) == f"sample 4: seconds 1.6 to 2 of {film}"
    overlapping = VideoClips(film, frames=10, seconds=0.4, hop=0.2)
    assert len(overlapping) == 9
    assert (overlapping[1]["video"] == pictures[5:15]).all()


def test_random_clips_repeat_with_the_seed(film: Path, pictures: Any) -> None:
    dataset = VideoClips([film] * 4, frames=5, seconds=0.2, random=True)

    def clips(seed: int, **options: Any) -> list[list[Any]]:
        with DataLoader(dataset, batch_size=None, seed=seed, output="numpy", **options) as loader:
            return [list(loader) for _ in range(2)]

    found = clips(1)
    starts = [[round(float(sample["times"][0]) * 25) for sample in epoch] for epoch in found]
    assert starts[0] != starts[1] and len({*starts[0], *starts[1]}) > 4
    for epoch, begins in zip(found, starts, strict=True):
        for sample, begin in zip(epoch, begins, strict=True):
            assert (sample["video"] == pictures[begin : begin + 5]).all() and begin <= 45
    again = clips(1, num_workers=2)
    assert [[round(float(sample["times"][0]) * 25) for sample in epoch] for epoch in again] == starts
    assert dataset.describe(1) == f"sample 1: 0.2 seconds from a random place of {film}"


def test_random_frames_of_each_part(film: Path, pictures: Any) -> None:
    dataset = VideoClips(film, frames=5, random=True)
    seen = set()
    for _ in range(10):
        sample = dataset[0]
        rows = np.round(sample["times"] * 25).astype(int)
        assert (rows // 10 == range(5)).all() and (sample["video"] == pictures[rows]).all()
        seen.add(tuple(rows))
    assert len(seen) > 5


def test_size_scales_frames(film: Path) -> None:
    sample = VideoClips(film, frames=3, size=(24, 40))[0]["video"]
    assert sample.shape == (3, 24, 40, 3)


def test_pictures_are_turned_as_the_file_says(film: Path, pictures: Any, tmp_path: Path) -> None:
    data = film.read_bytes()
    place = data.index(b"tkhd") + 44  # the matrix of the track: a quarter turn clockwise
    turned = tmp_path / "turned.mp4"
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    turned.write_bytes(data[:place] + matrix + data[place + 36 :])
    expected = np.rot90(pictures[25], -1)
    assert (VideoClips(turned, frames=1)[0]["video"][0] == expected).all()
    assert VideoClips(turned, frames=1, size=(40, 24))[0]["video"].shape == (1, 40, 24, 3)


def test_short_files_are_refused_or_padded(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", frames=5)
    pictures = decoded(path)[1]
    assert (VideoClips(path, frames=10)[0]["video"] == pictures.repeat(2, axis=0)).all()
    for options in ({}, {"random": True}):
        with pytest.raises(
            ClipLengthError, match=r"a\.mp4 is shorter than a clip: it has 0\.2 seconds, and seconds=1\."
        ):
            VideoClips(path, frames=5, seconds=1, **options)[0]
        padded = VideoClips(path, frames=10, seconds=0.4, short="pad", **options)
        assert len(padded) == 1
        sample = padded[0]
        assert (sample["video"] == pictures[[0, 1, 2, 3, 4, 4, 4, 4, 4, 4]]).all()
        assert np.allclose(sample["times"] * 25, [0, 1, 2, 3, 4, 4, 4, 4, 4, 4])
    assert len(VideoClips(path, frames=1, seconds=0.12)) == 1
    assert len(VideoClips(path, frames=1, seconds=0.12, short="pad")) == 2


def test_no_thread_stays_in_a_process_that_reads(film: Path) -> None:
    threads = os.listdir("/proc/self/task")
    dataset = VideoClips(film, frames=4, seconds=0.5, size=(24, 32))
    assert [dataset[index]["video"].shape for index in range(len(dataset))] == [(4, 24, 32, 3)] * 4
    assert os.listdir("/proc/self/task") == threads


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_workers_read_after_the_trainer_has_read(birth: str, film: Path, pictures: Any) -> None:
    dataset = VideoClips([film] * 3, frames=5, seconds=0.4)
    assert dataset[2]["video"].shape == (5, 48, 64, 3)
    sampler = RowGroupSampler(dataset.clip_counts, 1)
    options = {"num_workers": 2, "multiprocessing_context": birth, "output": "numpy"}
    with DataLoader(dataset, batch_size=3, sampler=sampler, seed=1, **options) as loader:
        batches = list(loader)
    assert sum(len(batch["video"]) for batch in batches) == 15
    for batch in batches:
        assert batch["video"].dtype == np.uint8
        for video, times in zip(batch["video"], batch["times"], strict=True):
            assert (video == pictures[np.round(times * 25).astype(int)]).all()


def test_a_process_holds_few_files_open(tmp_path: Path) -> None:
    files = [write_video(tmp_path / f"{number}.mp4", frames=3) for number in range(7)]
    dataset = VideoClips(files, frames=1)
    for index in [*range(7), 0]:
        dataset[index]
    assert list(dataset._open.get()) == [str(files[number]) for number in (4, 5, 6, 0)]
    assert len(cloudpickle.dumps(dataset)) < 5000


def test_bad_file_is_a_sample_that_may_be_left_out(film: Path, tmp_path: Path) -> None:
    bad = tmp_path / "b.mp4"
    bad.write_text("this is no video")
    dataset = VideoClips([film, bad, film], frames=2, seconds=1)
    assert dataset.clip_counts == [2, 1, 2]
    loader = DataLoader(dataset, batch_size=None, num_workers=2, on_error="skip")
    with loader, pytest.warns(StokerWarning, match=r"b\.mp4.* failed, and was left out: MediaFileError"):
        assert [sample["path"] for sample in loader] == [str(film)] * 4
    with DataLoader(dataset, batch_size=1, num_workers=1) as loader, pytest.raises(MediaFileError, match=r"b\.mp4"):
        list(loader)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        for options in ({}, {"seconds": 0.5}):
            with pytest.raises(MediaFileError, match=message):
                VideoClips(path, frames=2, **options)[0]

    (tmp_path / "empty.mp4").touch()
    refused(tmp_path / "empty.mp4", r"empty\.mp4 is empty")
    (tmp_path / "text.mkv").write_text("no file of this kind\n" * 50)
    refused(tmp_path / "text.mkv", r"text\.mkv cannot be opened: .*Is it a video")
    pytest.importorskip("soundfile")
    refused(write_audio(tmp_path / "sound.wav"), r"sound\.wav .* holds no video .*: its streams are of audio")
    for name, message in [
        ("cut.mp4", r"cut\.mp4 cannot be opened"),
        ("cut.mkv", r"cut\.mkv is truncated: it has [\d,]+ bytes, and its header promises [\d,]+"),
    ]:
        path = write_video(tmp_path / name, frames=30)
        os.truncate(path, path.stat().st_size // 2)
        refused(path, message)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.mp4"):
        VideoClips(tmp_path / "nothing.mp4", frames=1)


def test_playlist_that_poses_as_a_video_opens_no_url(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(MediaFileError, match=r"a\.mp4 cannot be opened"):
        VideoClips(path, frames=1)[0]


def test_damaged_frames_are_errors_that_name_their_second(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", frames=50, between_keys=10)
    expected = decoded(path)[1]
    data = bytearray(path.read_bytes())
    begin, end = data.index(b"mdat"), data.index(b"moov")
    data[(begin + end) // 2 : (begin + end) // 2 + 300] = b"\xff" * 300
    path.write_bytes(data)
    dataset = VideoClips(path, frames=1, seconds=0.04)
    damaged = []
    for index in range(50):
        try:
            assert (dataset[index]["video"][0] == expected[index]).all(), index
        except MediaFileError as error:
            damaged.append(index)
            assert f"second {index / 25:.3f}" in str(error)
    assert 0 < len(damaged) < 25


def test_file_that_was_changed_is_refused_or_read_anew(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", frames=20)
    clips, whole = VideoClips(path, frames=2, seconds=0.2), VideoClips(path, frames=20)
    assert clips[3]["video"].shape == whole[0]["video"][:2].shape
    write_video(path, frames=10)
    with pytest.raises(FileChangedError, match=r"a\.mp4 was changed since the dataset was made"):
        clips[0]
    assert (whole[0]["video"] == decoded(path)[1].repeat(2, axis=0)).all()


def test_bad_arguments_are_refused(film: Path) -> None:
    for options, error, message in [
        ({"frames": 0}, ValueError, "frames is 0"),
        ({"frames": 1.5}, TypeError, r"frames is 1\.5"),
        ({"frames": 1, "size": 224}, TypeError, r"size is 224, expected \(height, width\)"),
        ({"frames": 1, "size": (0, 3)}, ValueError, "height is 0"),
        ({"frames": 1, "hop": 1}, ValueError, "hop is given"),
        ({"frames": 1, "labels": [1, 2]}, LabelCountError, "1 files and 2 labels"),
        ({"frames": 1, "transform": 1}, TypeError, "transform is a int"),
    ]:
        with pytest.raises(error, match=message):
            VideoClips(film, **options)  # type: ignore[arg-type]


def test_missing_library_names_the_extra(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"install the extra stoker\[video\]"):
        VideoClips(film, frames=1)
