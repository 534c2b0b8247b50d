"""How fast are clips of video files decoded, beside what one would write with PyAV or decord?

Files of H.264 with B-frames, 640 x 360, 10 seconds at 30 frames a second, a key frame every 2 seconds or, as x264 does
by itself, every 8.3. A clip is 16 frames, scaled to 112 x 112 in uint8, spread over 2 seconds: from a random place of
each file, or all consecutive clips of a file, shuffled file by file. Two workers, batches of 8; counted is the second
epoch, when workers live and indexes are made. In one process without a loader, the time of the CPU is counted, which
other programs on the machine do not change much.

The rivals run under torch's loader. "PyAV" opens the file, seeks to the begin of the clip, decodes to its end and
scales the frames that it keeps, as the recipes do, with one thread; what it gives of a file whose clip begins between
key frames is exact too. "decord" is `VideoReader(...).get_batch` of the package decord2, with one thread; it decodes at
the size of the file's index, which it makes anew each time that it opens a file. "TorchCodec" is `VideoDecoder(...)
.get_frames_at` with its `Resize`, exact seeking and one thread; it also indexes the file each time that it is opened.
It loads beside torch's builds for CUDA only.
"""

from __future__ import annotations

import argparse
import random
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
from method import Case, Figures, Goal

RATE, CPU = "clips/s", "CPU ms/clip"
FRAMES, SECONDS, SIDE, FPS, LENGTH = 16, 2, 112, 30, 10
HEIGHT, WIDTH = 360, 640


def cases(options: argparse.Namespace) -> list[Case]:
    files = 5 if options.quick else 24
    found = []
    for keys in (60,) if options.quick else (60, 250):
        how = {"data": str(options.data), "files": files, "keys": keys, "is_random": True, "alone": True}
        runs = {rival: {"rival": rival, **how} for rival in ("stoker", "PyAV", "decord", "TorchCodec")}
        name = f"one process, random clips, key frames every {keys / FPS:.2g} s"
        found.append(Case(name, runs, [Goal(CPU, against="PyAV", at_most=1.1)]))
    for name, keys, is_random in [
        ("random clips, key frames every 2 s", 60, True),
        ("random clips, key frames every 8.3 s", 250, True),
        ("all clips, file by file, key frames every 2 s", 60, False),
    ]:
        how = {"data": str(options.data), "files": files, "keys": keys, "is_random": is_random}
        names = ("stoker", "torch, PyAV", "torch, decord", "torch, TorchCodec")
        runs = {rival: {"rival": rival, **how} for rival in names}
        found.append(Case(name, runs, [Goal(RATE, against="torch, PyAV", at_least=1)]))
    return found


def measure(rival: str, data: str, files: int, keys: int, is_random: bool, alone: bool = False) -> Figures:
    try:
        import av  # noqa: F401

        if rival.endswith("decord"):
            import decord  # noqa: F401
        if rival.endswith("TorchCodec"):
            import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError):  # TorchCodec's where its libraries do not load
        return {CPU if alone else RATE: rivals.NOT_INSTALLED}
    paths = [str(written(Path(data), number, keys)) for number in range(files)]
    if alone:
        return {CPU: cpu_of(rival, paths)}
    loader, clips = loader_of(rival, paths, is_random)
    for _ in loader:
        pass
    began, found = time.perf_counter(), 0
    for batch in loader:
        video = batch["video"] if isinstance(batch, dict) else batch
        assert tuple(video.shape[1:]) == (FRAMES, SIDE, SIDE, 3), video.shape
        found += len(video)
    assert found == clips, (found, clips)
    return {RATE: found / (time.perf_counter() - began)}


def cpu_of(rival: str, paths: list[str]) -> float:
    """Returns milliseconds of the CPU for a random clip, each of another file than the one before."""
    if rival == "stoker":
        import stoker

        dataset: Any = stoker.VideoClips(paths, frames=FRAMES, seconds=SECONDS, random=True, size=(SIDE, SIDE))
    else:
        dataset = Recipe(RECIPES[rival], paths, 0)
    random.seed(0)
    np.random.seed(0)
    for index in range(len(paths)):
        dataset[index]
    clips = max(60, 2 * len(paths))  # so many that the places, which each rival draws, are alike
    began = time.process_time()
    for number in range(clips):
        dataset[number % len(paths)]
    return (time.process_time() - began) / clips * 1000


def loader_of(rival: str, paths: list[str], is_random: bool) -> tuple[Any, int]:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "persistent_workers": True}
    each = LENGTH // SECONDS
    if rival == "stoker":
        import stoker

        dataset = stoker.VideoClips(paths, frames=FRAMES, seconds=SECONDS, random=is_random, size=(SIDE, SIDE))
        order = {"shuffle": True} if is_random else {"sampler": stoker.RowGroupSampler(dataset.clip_counts, 1)}
        return stoker.DataLoader(dataset, **order, **options), len(dataset)
    import torch.utils.data

    read = RECIPES[rival.removeprefix("torch, ")]
    if is_random:
        return torch.utils.data.DataLoader(Recipe(read, paths, 0), shuffle=True, **options), len(paths)
    random.seed(0)
    order = [
        file * each + clip
        for file in random.sample(range(len(paths)), len(paths))
        for clip in random.sample(range(each), each)
    ]
    return torch.utils.data.DataLoader(Recipe(read, paths, each), sampler=order, **options), len(order)


class Recipe:
    """Clips as one writes them by hand: `each` of a file, or, if it is 0, a random one."""

    def __init__(self, read: Any, paths: list[str], each: int) -> None:
        self.read, self.paths, self.each = read, paths, each

    def __len__(self) -> int:
        return len(self.paths) * max(1, self.each)

    def __getitem__(self, index: int) -> Any:
        if self.each:
            return self.read(self.paths[index // self.each], index % self.each * SECONDS * FPS)
        return self.read(self.paths[index], random.randrange((LENGTH - SECONDS) * FPS))


def by_pyav(path: str, first: int) -> Any:
    import av

    wanted = {first + int((place + 0.5) * SECONDS * FPS / FRAMES) for place in range(FRAMES)}
    clip = []
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(int(first / FPS / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            number = round(frame.pts * stream.time_base * FPS)
            if number in wanted:
                clip.append(frame.to_ndarray(format="rgb24", width=SIDE, height=SIDE, threads=1))
                if len(clip) == FRAMES:
                    break
    return np.stack(clip)


def by_decord(path: str, first: int) -> Any:
    import decord

    reader = decord.VideoReader(path, width=SIDE, height=SIDE, num_threads=1)
    return reader.get_batch([first + int((place + 0.5) * SECONDS * FPS / FRAMES) for place in range(FRAMES)]).asnumpy()


def by_torchcodec(path: str, first: int) -> Any:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, transforms=[Resize((SIDE, SIDE))])
    numbers = [first + int((place + 0.5) * SECONDS * FPS / FRAMES) for place in range(FRAMES)]
    return decoder.get_frames_at(numbers).data.numpy()


RECIPES = {"PyAV": by_pyav, "decord": by_decord, "TorchCodec": by_torchcodec}


def written(folder: Path, number: int, keys: int) -> Path:
    """Returns the path of a file, which is made once."""
    import av

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{keys}-{number}.mp4"
    if path.exists():
        return path
    noise = np.random.default_rng(number).integers(0, 256, (HEIGHT // 8, WIDTH // 4, 3), np.uint8)
    still = noise.repeat(8, axis=0).repeat(8, axis=1)
    partial = folder / f"partial-{keys}-{number}.mp4"
    with av.open(str(partial), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"bf": "3", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = WIDTH, HEIGHT, "yuv420p", keys
        for place in range(LENGTH * FPS):
            pixels = np.ascontiguousarray(still[:, place * 2 : place * 2 + WIDTH])
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = place, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    partial.rename(path)
    return path


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/video"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
