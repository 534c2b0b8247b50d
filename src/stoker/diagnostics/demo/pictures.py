"""Pictures for the demo: class folders of JPEGs that are as large, and as costly to decode, as photographs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import MissingExtraError

SIZE = 500, 375
"""Width and height, as of most photographs of ImageNet."""

CLASSES = "circles", "stripes", "squares", "plain"
_TEXTURES = 8
_QUALITY = 88


def make_pictures(folder: Path, count: int, on_progress: Callable[[int, int], object]) -> int:
    """Writes pictures into class folders; those that exist are kept. Repeats: picture `n` is always the same.

    Args:
        folder: is made if it does not exist.
        count: of pictures.
        on_progress: is called with the number of pictures that are there, and of all.

    Returns:
        The bytes of all.

    Raises:
        MissingExtraError: Pillow is not installed.
        OSError: a file cannot be written.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "the demo needs Pillow, which is not installed: pip install 'stoker[images]'"
        ) from error
    textures: dict[int, Any] = {}
    written = 0
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        path = folder / name / f"{number:06d}.jpg"
        if not path.exists():
            seed = number // len(CLASSES) % _TEXTURES
            if seed not in textures:
                textures[seed] = _texture(seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            Image.fromarray(_picture(textures[seed], name, number)).save(partial, "JPEG", quality=_QUALITY)
            partial.replace(path)
        written += path.stat().st_size
        on_progress(number + 1, count)
    return written


def _texture(seed: int) -> Any:
    """Returns noise of twice the size whose spectrum falls with the frequency, as a photograph's: float32, 0 to 1."""
    rng = np.random.default_rng(seed)
    width, height = 2 * SIZE[0], 2 * SIZE[1]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0
    layers = []
    for _ in range(3):
        waves = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**1.2
        layer = np.fft.irfft2(waves, (height, width))
        layers.append((layer - layer.min()) / np.ptp(layer))
    return np.stack(layers, -1).astype(np.float32)


def _picture(texture: Any, name: str, number: int) -> Any:
    """Returns a part of the texture with the figure of its class, (height, width, 3), uint8."""
    rng = np.random.default_rng([7, number])
    width, height = SIZE
    left, top = int(rng.integers(width)), int(rng.integers(height))
    pixels = 255 * texture[top : top + height, left : left + width]
    across, down = np.arange(width)[None], np.arange(height)[:, None]
    x, y, radius = rng.integers(100, width - 100), rng.integers(80, height - 80), rng.integers(40, 80)
    shape = {
        "circles": (across - x) ** 2 + (down - y) ** 2 < radius**2,
        "stripes": (across + down) // (radius // 3) % 4 == 0,
        "squares": (abs(across - x) < radius) & (abs(down - y) < radius),
        "plain": np.zeros((height, width), np.bool_),
    }[name]
    pixels = np.where(shape[..., None], 0.5 * pixels + rng.integers(0, 128, 3), pixels)
    return (pixels + rng.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8)
