"""Clips of audio and video files that lie in object stores."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, MediaFileError, ObjectStoreError
from stoker.loader.dataloader import DataLoader
from stoker.sources.clips.audio_clips import AudioClips
from stoker.sources.clips.video_clips import VideoClips
from stoker.testing.datasets import DatasetSuite
from tests.sources.clips.media_files import decoded, tone, write_audio, write_video
from tests.sources.object_servers import Bucket, Faults

pytest.importorskip("av")
pytest.importorskip("soundfile")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["audio", "video"], scope="class")
class TestRemoteClips(DatasetSuite):
    bucket: Bucket

    @pytest.fixture
    def make(self, bucket: Bucket, kind: str, tmp_path: Path) -> Any:
        self.bucket = bucket
        if kind == "audio":
            sounds = [bucket.upload(write_audio(tmp_path / f"{name}.flac")) for name in "ab"]
            return lambda: AudioClips(sounds, [3, 1], seconds=0.5)
        films = [bucket.upload(write_video(tmp_path / f"{name}.mp4")) for name in "ab"]
        return lambda: VideoClips(films, [3, 1], frames=4, seconds=0.5)

    def delete(self, dataset: Any) -> str:
        return _delete(self.bucket, dataset)


def _delete(bucket: Bucket, dataset: Any) -> str:
    for url in dataset.files:
        bucket.delete(url.rpartition("/")[2])
    return bucket.url()


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_sounds_are_those_of_the_local_files(suffix: str, bucket: Bucket, tmp_path: Path) -> None:
    paths = [write_audio(tmp_path / f"{name}.{suffix}") for name in "ab"]
    for path in paths:
        bucket.upload(path)
    pattern = bucket.url(f"*.{suffix}")
    for options in ({}, {"seconds": 0.5}, {"seconds": 0.5, "random": True}):
        local, remote = AudioClips(paths, [3, 1], **options), AudioClips(pattern, [3, 1], **options)  # type: ignore[arg-type]
        assert len(remote) == len(local) and remote.clip_counts == local.clip_counts
        loaded = [
            list(DataLoader(dataset, batch_size=None, shuffle=True, seed=1, num_workers=workers, output="numpy"))
            for dataset, workers in ((local, 0), (remote, 2))
        ]
        for ours, expected in zip(loaded[1], loaded[0], strict=True):
            assert ours.pop("path") == bucket.url(os.path.basename(expected.pop("path")))
            assert (ours.pop("audio") == expected.pop("audio")).all() and ours == expected


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi"])
def test_frames_are_those_of_the_local_files(name: str, bucket: Bucket, tmp_path: Path, own_cache: Path) -> None:
    path = write_video(tmp_path / name, codec="mpeg4" if name == "a.avi" else "libx264")
    pictures = decoded(path)[1]
    dataset = VideoClips(bucket.upload(path), frames=5, seconds=0.4)
    assert len(dataset) == 5 and dataset.describe(3) == f"sample 3: seconds 1.2 to 1.6 of {bucket.url(name)}"
    with DataLoader(dataset, batch_size=None, shuffle=True, seed=1, num_workers=2, output="numpy") as loader:
        starts = []
        for sample in loader:
            rows = np.round(sample["times"] * 25).astype(int)
            assert (sample["video"] == pictures[rows]).all() and sample["path"] == bucket.url(name)
            starts.append(int(rows[0]))
    assert sorted(starts) == [1, 11, 21, 31, 41]
    (index,) = own_cache.rglob("*.frames.index")
    assert index.name.startswith(f"{name}.") and os.listdir(tmp_path) == [name]


def test_index_is_made_once(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = bucket.upload(write_video(tmp_path / "a.mp4"))
    for _ in range(2):
        dataset = VideoClips(url, frames=5, storage_options=faults.options)
        dataset[0], dataset[0]
        requests, _ = faults.requests(), faults.plan()
        assert len(requests) <= 5, requests
    size = (tmp_path / "a.mp4").stat().st_size
    assert size < 64 << 10 and len([request for request in requests if request[0] == "GET"]) == 1


def test_whole_sound_takes_one_request(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = bucket.upload(write_audio(tmp_path / "a.wav", seconds=60))
    dataset = AudioClips(url, storage_options=faults.options)
    faults.plan()
    assert (tone(60) == dataset[0]["audio"].T).all()
    assert [request[0] for request in faults.requests()].count("GET") <= 2


def test_clip_of_a_long_sound_reads_a_part(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = bucket.upload(write_audio(tmp_path / "a.wav", seconds=600))
    dataset = AudioClips(url, seconds=1, hop=300, storage_options=faults.options)
    faults.plan()
    assert (tone(600)[300 * 8000 : 301 * 8000] == dataset[1]["audio"].T).all()
    ranges = [request[2].removeprefix("bytes=").split("-") for request in faults.requests() if request[0] == "GET"]
    assert sum(int(end) - int(begin) for begin, end in ranges) < 1 << 20 < (tmp_path / "a.wav").stat().st_size


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_store_that_fails_is_an_error_of_the_sample(
    kind: str, bucket: Bucket, faults: Faults, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset: Any
    if kind == "audio":
        url = bucket.upload(write_audio(tmp_path / "a.wav", seconds=60))
        dataset = AudioClips(url, seconds=1, storage_options=faults.options)
    else:
        url = bucket.upload(write_video(tmp_path / "a.mp4", size=(240, 320), options={"qp": "1"}))
        dataset = VideoClips(url, frames=1, seconds=0.2, storage_options=faults.options)
        assert (tmp_path / "a.mp4").stat().st_size > 1 << 19
    expected = [dataset[index] for index in range(len(dataset))]
    for where in range(1, 3):  # while it is opened, and in the midst of the data
        again = type(dataset)(url, **({"seconds": 1} if kind == "audio" else {"frames": 1, "seconds": 0.2}),
                              storage_options=faults.options)  # fmt: skip
        faults.plan(*[""] * where, *["500"] * 20)
        with pytest.raises(ObjectStoreError, match=bucket.url("a")):
            for index in (0, len(again) - 1):
                again[index]
        faults.plan()
        found = again[len(again) - 1]
        assert all(np.array_equal(found[name], expected[-1][name]) for name in expected[-1])
    assert capfd.readouterr() == ("", "")


def test_store_that_fails_while_clips_are_counted_is_an_error(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = bucket.upload(write_audio(tmp_path / "a.wav", seconds=3))
    for where in (0, 1):
        faults.plan(*[""] * where, *["500"] * 20)
        with pytest.raises(ObjectStoreError, match=url):
            AudioClips(url, seconds=1, storage_options=faults.options)


def test_file_that_changes_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    sounds = AudioClips(bucket.upload(write_audio(tmp_path / "a.wav")), seconds=1)
    films = VideoClips(bucket.upload(write_video(tmp_path / "a.mp4")), frames=1, seconds=0.4)
    bucket.upload(write_audio(tmp_path / "a.wav", seconds=4))
    bucket.upload(write_video(tmp_path / "a.mp4", frames=60))
    for dataset in (sounds, films):
        with pytest.raises(FileChangedError, match="was changed since"):
            dataset[0]


def test_what_is_no_media_file_is_an_error_of_the_sample(bucket: Bucket, tmp_path: Path) -> None:
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{write_video(tmp_path / 'a.ts')}\n#EXT-X-ENDLIST\n"
    contents = {"empty.mp4": b"", "text.mp4": b"no video" * 100, "playlist.m3u8": playlist.encode()}
    urls = [bucket.put(name, data) for name, data in contents.items()]
    films = VideoClips([*urls, bucket.url("missing.mp4")], frames=1, seconds=1)
    sounds = AudioClips(urls[:2])
    assert films.clip_counts == [1, 1, 1, 1]
    for dataset, index in ((films, 0), (films, 1), (films, 2), (sounds, 0), (sounds, 1)):
        with pytest.raises(MediaFileError, match=urls[index]):
            dataset[index]
    with pytest.raises(FileNotFoundError, match=r"missing\.mp4"):
        films[3]


def test_cache_keeps_files(bucket: Bucket, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    sounds = AudioClips(bucket.upload(write_audio(tmp_path / "a.wav")), seconds=1, **cache)
    films = VideoClips(bucket.upload(write_video(tmp_path / "a.mp4")), frames=1, seconds=1, **cache)
    expected = [sounds[0]["audio"], films[0]["video"]]
    for dataset in (sounds, films):
        _delete(bucket, dataset)
    assert all(map(np.array_equal, [sounds[0]["audio"], films[0]["video"]], expected))


def test_secrets_of_a_url_are_not_shown(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(write_audio(tmp_path / "a.wav"))
    dataset = AudioClips(bucket.http("a.wav") + "?X-Signature=secret", seconds=1)
    texts = io.StringIO()
    print(dataset.files, dataset.describe(0), dataset[0], repr(dataset), file=texts)
    assert "secret" not in texts.getvalue() and "a.wav" in texts.getvalue()
