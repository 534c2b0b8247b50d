"""Audio and video files for the tests, written by the libraries' own encoders."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from stoker.sources.clips.clip_file import ClipFile
from stoker.sources.storage import LocalStorage

RATE = 8000


def local(path: Path) -> ClipFile:
    return ClipFile(str(path), str(path), LocalStorage())


def tone(seconds: float, channels: int = 2) -> Any:
    """A sound in which each frame has another value: float32 (frames, channels)."""
    frames = np.arange(round(seconds * RATE))
    return np.stack([(frames * (channel + 3) % 4001 - 2000) / 4001 for channel in range(channels)], 1).astype("f4")


def write_audio(path: Path, seconds: float = 3, channels: int = 2) -> Path:
    import soundfile

    subtype = {".wav": "FLOAT", ".flac": "PCM_24"}.get(path.suffix)
    soundfile.write(path, tone(seconds, channels), RATE, subtype=subtype)
    return path


def write_video(
    path: Path,
    frames: int = 50,
    codec: str = "libx264",
    between_keys: int = 12,
    options: dict[str, str] | None = None,
    size: tuple[int, int] = (48, 64),
    rate: int = 25,
) -> Path:
    import av

    height, width = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", between_keys
        stream.codec_context.thread_count = 1
        y, x = np.mgrid[:height, :width]
        for number in range(frames):
            pixels = np.stack([x * 2 + number * 3, y * 2 + number * 5, x + y + number * 7], -1) % 256
            pixels[8:30, number % 30 : number % 30 + 20] = number * 37 % 256
            frame = av.VideoFrame.from_ndarray(pixels.astype(np.uint8), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def decoded(path: Path) -> tuple[list[int], Any]:
    """The times of all frames and their pixels, decoded from the begin to the end."""
    import av

    times, pictures = [], []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            times.append(frame.pts)
            pictures.append(frame.to_ndarray(format="rgb24", threads=1))
    return times, np.stack(pictures)


def pack_b_frames(path: Path) -> None:
    """Rewrites an AVI file of MPEG-4 as DivX does: a B-frame in the packet before it, an empty frame in its place."""
    import av

    frame, user_data = b"\0\0\1\xb6", b"\0\0\1\xb2DivX503b1393p\0"
    empty = frame + bytes([0b01010000, 0b01001111])
    whole = path.rename(path.with_suffix(".whole.avi"))
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [bytes(packet) for packet in source.demux(video=0) if packet.size]
        kinds = [data[data.find(frame) + 4] >> 6 for data in packets]  # 0: I, 1: P, 2: B
        for number, data in enumerate(packets):
            if kinds[number] == 2:
                data = empty
            elif kinds[number + 1 : number + 2] == [2]:
                data += packets[number + 1]
            if kinds[number] == 0:
                data = data.replace(frame, user_data + frame, 1)
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), kinds[number] == 0
            packet.pts = packet.dts = number
            target.mux(packet)
    whole.unlink()
