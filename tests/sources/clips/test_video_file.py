from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import MediaFileError
from stoker.sources.clips import frame_times as indexing
from stoker.sources.clips.frame_times import frame_times
from stoker.sources.clips.video_clips import VideoFile
from tests.sources.clips.media_files import decoded, local, pack_b_frames, write_video

av = pytest.importorskip("av")

FILMS: dict[str, dict[str, Any]] = {
    "b-frames.mp4": {"options": {"bf": "3", "b-pyramid": "normal"}},
    "far-keys.mp4": {"between_keys": 250, "options": {"bf": "3"}, "frames": 300},
    "open-groups.mp4": {"options": {"bf": "3", "x264-params": "open-gop=1:keyint=12:scenecut=0"}},
    "refreshed-bit-by-bit.mp4": {"options": {"x264-params": "intra-refresh=1:keyint=15:scenecut=0"}},
    "keys-only.mp4": {"between_keys": 1},
    "b-frames.mkv": {"options": {"bf": "3"}},
    "b-frames.ts": {"options": {"bf": "3"}},
    "a.avi": {"codec": "mpeg4"},
    "b-frames.avi": {"options": {"bf": "3"}},
    "open-groups.avi": {"options": {"bf": "3", "x264-params": "open-gop=1:keyint=12:scenecut=0"}},
    "reordered.avi": {"codec": "mpeg4", "options": {"bf": "2"}},
    "packed.avi": {"codec": "mpeg4", "options": {"bf": "1"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}},
}


@pytest.mark.parametrize("name", FILMS)
def test_a_frame_is_the_same_by_seeking_and_in_sequence(name: str, tmp_path: Path) -> None:
    codec = FILMS[name].get("codec", "libx264")
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg does not write {codec}")
    path = write_video(tmp_path / name, **FILMS[name])
    if name == "packed.avi":
        pack_b_frames(path)
    times, pictures = decoded(path)
    video = VideoFile(local(path))
    assert video.times.frames.tolist() == sorted(times)
    assert (times == sorted(times)) == (name not in ("b-frames.avi", "open-groups.avi", "packed.avi"))
    for row in np.random.default_rng(0).integers(0, len(times), 25).tolist():
        assert (video.read([row], None)[0] == pictures[row]).all(), f"frame {row}"
    assert (VideoFile(local(path)).read([len(times) - 1], None)[0] == pictures[-1]).all()
    rows = sorted(np.random.default_rng(1).integers(0, len(times), 12).tolist())
    assert (video.read([*rows, rows[-1]], None)[:-1] == pictures[rows]).all()
    assert (video.read(range(len(times)), None) == pictures).all()
    video.close()


def test_a_clip_is_decoded_from_its_key_frame_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", frames=60, between_keys=20, options={"x264-params": "scenecut=0"})
    video = VideoFile(local(path))
    seeks: list[int] = []
    monkeypatch.setattr(
        VideoFile, "_seek", lambda self, key, seek=VideoFile._seek: (seeks.append(key), seek(self, key))
    )
    video.read([22, 25, 39], None)
    video.read([39], None)
    assert seeks == [1]
    video.read([41, 50], None)
    assert seeks == [1, 2]
    video.read([21], None)
    assert seeks == [1, 2, 1]


def test_index_is_kept_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", frames=30)
    made = frame_times(local(path))
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "a.mp4.frames.index"]
    assert (made.total / made.rate, len(made.frames)) == (1.2, 30)
    monkeypatch.setattr(indexing, "_scanned", None)
    again = frame_times(local(path))
    for one, other in zip(made, again, strict=True):
        assert np.array_equal(one, other)


def test_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", frames=30)
    frame_times(local(path))
    write_video(path, frames=10)
    assert len(frame_times(local(path)).frames) == 10
    (tmp_path / "a.mp4.frames.index").write_bytes(b"damaged")
    assert len(frame_times(local(path)).frames) == 10


def test_index_lives_in_memory_in_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", frames=10)

    def refuse(*arguments: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert VideoFile(local(path)).read([3], None).shape == (1, 48, 64, 3)
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_index_of_an_unwritable_folder_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = "a" * 240 + ".mp4"  # the index would have a name of more than 255 bytes
    path = write_video(tmp_path / name, frames=10)
    kept = tmp_path / "b.mp4.frames.index"
    kept.mkdir()  # nothing can be written there either
    made = [frame_times(local(path)), frame_times(local(write_video(tmp_path / "b.mp4", frames=20)))]
    assert [len(each.frames) for each in made] == [10, 20]
    assert len(list((tmp_path / "cache" / "stoker" / "indexes").iterdir())) == 1


@pytest.mark.parametrize(
    ("shift", "options"), [(5, {"bf": "0"}), (8, {"bf": "2"}), (17, {"bf": "2"}), (24, {"bf": "0"})]
)
def test_frames_of_an_edit_list_are_those_of_decoding_in_order(
    shift: int, options: dict[str, str], tmp_path: Path
) -> None:
    whole = write_video(tmp_path / "a.mp4", options={**options, "x264-params": "scenecut=0:keyint=12:min-keyint=12"})
    path = tmp_path / "cut.mp4"  # as by `ffmpeg -ss`: decoded from a key frame on that is not shown
    with (
        av.open(str(whole)) as source,
        av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                moved = int(shift / 25 / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - moved, packet.dts - moved, stream
                target.mux(packet)
    times, pictures = decoded(path)
    video = VideoFile(local(path))
    assert video.times.frames.tolist() == times and len(times) < 50
    for row in np.random.default_rng(0).permutation(len(times)).tolist():
        assert (video.read([row], None)[0] == pictures[row]).all(), f"frame {row}"


def test_times_begin_with_the_first_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", frames=25)  # whose clock begins elsewhere
    times = frame_times(local(path))
    assert times.frames[0] > 0 and times.total / times.rate == pytest.approx(1)


def test_frames_before_the_first_key_frame_are_left_out(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", options={"bf": "3", "x264-params": "open-gop=1:keyint=12:scenecut=0"})
    data = path.read_bytes()
    path.write_bytes(data[len(data) * 2 // 5 // 188 * 188 :])
    times, pictures = decoded(path)
    video = VideoFile(local(path))
    assert video.times.frames.tolist() == times and 5 < len(times) < 40
    assert (video.read(range(len(times)), None) == pictures).all()


def test_frames_of_one_time_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.avi", options={"bf": "3"})
    monkeypatch.setattr(indexing, "_decoded_times", lambda file: [1, 2, 2, 3])
    with pytest.raises(MediaFileError, match=r"a\.avi holds frames that .* `ffmpeg -i in\.avi -c:v libx264"):
        frame_times(local(path))


def test_frames_without_times_are_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.h264", frames=10)
    with pytest.raises(MediaFileError, match=r"a\.h264 holds a video whose frames have no times \(raw H\.264 video\)"):
        frame_times(local(path))


def test_truncated_mp4_with_its_header_in_front(tmp_path: Path) -> None:
    whole, cut = write_video(tmp_path / "a.mp4"), tmp_path / "b.mp4"
    with av.open(str(whole)) as source, av.open(str(cut), "w", options={"movflags": "faststart"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    os.truncate(cut, cut.stat().st_size * 2 // 3)
    with pytest.raises(MediaFileError, match=r"b\.mp4 is truncated: it has \d+ of the 50 frames"):
        frame_times(local(cut))
    assert not (tmp_path / "b.mp4.frames.index").exists()


def test_title_that_is_no_utf_8(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    titled = tmp_path / "titled.mp4"
    with av.open(str(path)) as read, av.open(str(titled), "w") as written:
        written.metadata["title"] = "stray-bytes"
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                written.mux(packet)
    content = titled.read_bytes()
    assert content.count(b"stray-bytes") == 1
    titled.write_bytes(content.replace(b"stray-bytes", b"stray\xff\xfe\xe9tes"))
    assert VideoFile(local(titled)).times.frames.tolist() == VideoFile(local(path)).times.frames.tolist()
