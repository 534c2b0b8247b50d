from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import ClipLengthError, FileChangedError, LabelCountError, MediaFileError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.clips.audio_clips import AudioClips
from stoker.testing.datasets import DatasetSuite
from tests.sources.clips.media_files import RATE, tone, write_audio

soundfile = pytest.importorskip("soundfile")


def files_in(folder: Path, *names: str, seconds: float = 3) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [write_audio(folder / name, seconds) for name in names]


class TestAudioClips(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        files = files_in(tmp_path / "sounds", "a.wav", "b.flac", "c.ogg", "d.mp3")
        return lambda: AudioClips(files, [3, 1, 4, 1], seconds=0.8)

    def delete(self, dataset: AudioClips) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


def test_whole_files_are_samples(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", 0.5)
    write_audio(tmp_path / "b.flac", 0.25)
    dataset = AudioClips(tmp_path / "*", np.array([7, 8]))
    assert len(dataset) == 2 and dataset.clip_counts == [1, 1]
    sample = dataset[0]
    assert list(sample) == ["audio", "sample_rate", "start", "path", "label"]
    assert sample["audio"].dtype == np.float32 and sample["audio"].flags.c_contiguous
    assert (sample["audio"] == tone(0.5).T).all()
    assert (sample["sample_rate"], sample["start"], sample["path"]) == (RATE, 0.0, f"{tmp_path}/a.wav")
    assert sample["label"] == 7
    assert np.abs(dataset[-1]["audio"] - tone(0.25).T).max() < 1e-6
    assert dataset.describe(1) == f"sample 1: {tmp_path}/b.flac"


@pytest.mark.parametrize(("name", "within"), [("a.wav", 0), ("a.flac", 0), ("a.ogg", 0), ("a.mp3", 1e-6)])
def test_clips_are_cut_from_the_whole_file(name: str, within: float, tmp_path: Path) -> None:
    path = write_audio(tmp_path / name, 3.05)
    whole, _ = soundfile.read(path, dtype="float32", always_2d=True)
    dataset = AudioClips(path, seconds=0.5, hop=0.2)
    assert len(dataset) == 13
    for index in (12, 0, 5, 1):
        sample, start = dataset[index], round(index * 0.2 * RATE)
        assert sample["start"] == start / RATE and sample["audio"].shape == (2, RATE // 2)
        assert np.abs(sample["audio"] - whole[start : start + RATE // 2].T).max() <= within
    assert dataset.describe(5) == f"sample 5: seconds 1 to 1.5 of {path}"


def test_random_clips_repeat_with_the_seed(tmp_path: Path) -> None:
    files = files_in(tmp_path, "a.wav", "b.wav", "c.wav")
    dataset = AudioClips(files, seconds=0.5, random=True)
    assert len(dataset) == 3

    def starts(seed: int, **options: Any) -> list[list[float]]:
        with DataLoader(dataset, batch_size=None, seed=seed, **options) as loader:
            return [[float(sample["start"]) for sample in loader] for _ in range(2)]

    first, second = starts(1)
    assert first != second and len({*first, *second}) == 6
    assert all(0 <= start <= 2.5 for start in first + second)
    assert starts(1, num_workers=2) == [first, second] != starts(2)
    assert (dataset[0]["audio"] != dataset[0]["audio"]).any()
    assert dataset.describe(2) == f"sample 2: 0.5 seconds from a random place of {files[2]}"
    exact = AudioClips(files, seconds=3, random=True)
    assert exact[1]["start"] == 0


def test_mono_is_the_mean_of_the_channels(tmp_path: Path) -> None:
    dataset = AudioClips(write_audio(tmp_path / "a.wav"), seconds=1, mono=True)
    sample = dataset[1]
    assert sample["audio"].shape == (1, RATE) and sample["audio"].dtype == np.float32
    assert np.allclose(sample["audio"][0], tone(3).mean(axis=1)[RATE : 2 * RATE])


def test_short_files_are_refused_or_padded(tmp_path: Path) -> None:
    files = [write_audio(tmp_path / "a.wav", 2.5), write_audio(tmp_path / "b.wav", 0.5)]
    dataset = AudioClips(files, seconds=1)
    assert dataset.clip_counts == [2, 1]
    with pytest.raises(ClipLengthError, match=r"b\.wav is shorter than a clip: it has 0\.5 seconds, and seconds=1\."):
        dataset[2]
    with pytest.raises(ClipLengthError, match=r"b\.wav"):
        AudioClips(files, seconds=1, random=True)[1]
    padded = AudioClips(files, seconds=1, short="pad")
    assert padded.clip_counts == [3, 1]
    assert [padded[index]["length"] for index in range(4)] == [RATE, RATE, RATE // 2, RATE // 2]
    sample = padded[3]["audio"]
    assert (sample[:, : RATE // 2] == tone(0.5).T).all() and not sample[:, RATE // 2 :].any()
    assert AudioClips(files, seconds=1, short="pad", random=True)[1]["start"] == 0


def test_bad_file_is_a_sample_that_may_be_left_out(tmp_path: Path) -> None:
    good = files_in(tmp_path, "a.wav", "c.wav")
    bad = tmp_path / "b.wav"
    bad.write_text("this is no audio file")
    dataset = AudioClips([good[0], bad, good[1]], seconds=1)
    assert dataset.clip_counts == [3, 1, 3]
    loader = DataLoader(dataset, batch_size=None, num_workers=2, on_error="skip")
    with loader, pytest.warns(StokerWarning, match=r"b\.wav.* failed, and was left out: MediaFileError"):
        found = [(sample["path"], float(sample["start"])) for sample in loader]
    assert sorted(found) == [(str(path), float(start)) for path in good for start in range(3)]
    with DataLoader(dataset, batch_size=1, num_workers=1) as loader, pytest.raises(MediaFileError, match=r"b\.wav"):
        list(loader)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        for options in ({}, {"seconds": 2.9}, {"seconds": 2.9, "random": True}):
            dataset = AudioClips(path, **options)
            with pytest.raises(MediaFileError, match=message):
                for _ in range(20):
                    dataset[0]

    (tmp_path / "empty.wav").touch()
    refused(tmp_path / "empty.wav", r"empty\.wav is empty")
    (tmp_path / "text.flac").write_text("no file of this kind")
    refused(tmp_path / "text.flac", r"text\.flac \(20 bytes\) cannot be read: .* libsndfile reads .*FLAC")
    soundfile.write(tmp_path / "none.wav", np.zeros((0, 1)), RATE)
    refused(tmp_path / "none.wav", r"none\.wav holds no frame of audio")
    for name, message in [
        ("cut.wav", r"cut\.wav is truncated: it has [\d,]+ bytes, and its header promises [\d,]+"),
        ("cut.flac", r"cut\.flac"),
    ]:
        path = write_audio(tmp_path / name)
        os.truncate(path, path.stat().st_size // 2)
        refused(path, message)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.wav"):
        AudioClips(tmp_path / "nothing.wav")


def test_truncated_mp3_ends_before_its_header_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_audio(tmp_path / "a.mp3", 20)
    dataset = AudioClips(path, seconds=2)
    whole = AudioClips(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(FileChangedError):
        dataset[0]
    with pytest.raises(MediaFileError, match=r"a\.mp3 ends after [\d,]+ frames, and its header promises 160,000"):
        whole[0]
    capfd.readouterr()  # the library warns on its own


def test_wav_from_a_pipe_is_whole(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    data = bytearray(path.read_bytes())
    data[4:8] = b"\xff" * 4
    path.write_bytes(data)
    assert AudioClips(path)[0]["audio"].shape == (2, 3 * RATE)


@pytest.mark.parametrize("name", ["a.wav", "a.aiff"])
def test_size_that_is_too_large_does_no_harm(name: str, tmp_path: Path) -> None:
    path = write_audio(tmp_path / name)
    data, order = bytearray(path.read_bytes()), "little" if name == "a.wav" else "big"
    expected = AudioClips(path)[0]["audio"]
    data[4:8] = (len(data) + 5_000).to_bytes(4, order)  # type: ignore[arg-type]
    path.write_bytes(data)
    assert np.array_equal(AudioClips(path)[0]["audio"], expected) and expected.shape == (2, 3 * RATE)
    os.truncate(path, len(data) - 2)
    with pytest.raises(MediaFileError, match=rf"{name} is truncated: it has [\d,]+ bytes, and its header promises"):
        AudioClips(path)[0]


def test_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    dataset = AudioClips(path, seconds=1)
    write_audio(path, 2)
    with pytest.raises(FileChangedError, match=r"a\.wav was changed since the dataset was made: it has [\d,]+ bytes"):
        dataset[0]
    assert AudioClips(path)[0]["audio"].shape[1] == 2 * RATE


def test_labels_and_transform(tmp_path: Path) -> None:
    files = files_in(tmp_path, "a.wav", "b.wav")
    dataset = AudioClips(
        files, iter(["dog", "cat"]), seconds=1, transform=lambda sample: (sample["label"], sample["start"])
    )
    assert [dataset[index] for index in (0, 2, 3)] == [("dog", 0), ("dog", 2), ("cat", 0)]
    with pytest.raises(LabelCountError, match="2 files and 1 labels"):
        AudioClips(files, [1])
    with pytest.raises(TypeError, match="transform is a int"):
        AudioClips(files, transform=3)  # type: ignore[arg-type]


def test_batches_and_order_file_by_file(tmp_path: Path) -> None:
    files = files_in(tmp_path, "a.wav", "b.wav", "c.wav")
    dataset = AudioClips(files, [0, 1, 2], seconds=0.5)
    sampler = RowGroupSampler(dataset.clip_counts, 1)
    with DataLoader(dataset, batch_size=6, sampler=sampler, seed=1, num_workers=2, output="numpy") as loader:
        batches = list(loader)
    assert [batch["audio"].shape for batch in batches] == [(6, 2, RATE // 2)] * 3
    assert sorted(set(batch["label"].tolist()).pop() for batch in batches) == [0, 1, 2]


def test_many_labels_are_kept_in_arrays(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", 0.1)
    dataset = AudioClips([path] * 1000, list(range(1000)))
    assert len(pickle.dumps(dataset)) < 1000 * (len(str(path)) + 30)
    assert dataset[998]["label"] == 998


def test_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_audio(tmp_path / "a.wav")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"install the extra stoker\[audio\]"):
        AudioClips(path)
