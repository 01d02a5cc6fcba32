"""Generates images like photographs, so that no data is copied to the machine."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

# Width and height, as often as photographs of web pages have them.
SIZES = (
    *((640, 480),) * 6,
    *((480, 640),) * 2,
    *((640, 427),) * 2,
    (640, 640),
    (500, 375),
)
SHAPES = 40
OCTAVES = 6


def photo(seed: int, size: tuple[int, int]) -> bytes:
    """Draws a JPEG with detail at every scale and edges of things, about as large as a
    photograph's.
    """
    rng = np.random.default_rng(seed)
    image = Image.fromarray(clouds(rng, size))
    draw = ImageDraw.Draw(image)
    for _ in range(SHAPES):
        corner = rng.integers(0, size)
        extent = rng.integers(10, max(size) // 3, 2)
        shade = tuple(int(value) for value in rng.integers(0, 256, 3))
        box = [*map(int, corner), *map(int, corner + extent)]
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(box, fill=shade)
    grain = rng.normal(0, 6, (size[1], size[0], 3))
    pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def clouds(rng: np.random.Generator, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Draws noise of falling strength at rising resolution."""
    total = np.zeros((size[1], size[0], 3))
    for octave in range(1, OCTAVES + 1):
        coarse = rng.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8)
        fine = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        total += np.asarray(fine) * 0.6**octave
    spread = (total - total.min()) / (total.max() - total.min())
    pixels: npt.NDArray[np.uint8] = (255 * spread).astype(np.uint8)
    return pixels


def write_photos(folder: Path, count: int, *, different: int) -> Sequence[Path]:
    """Writes ``count`` files; more than ``different`` repeat the first ones under other names."""
    folder.mkdir()
    files = [photo(seed, SIZES[seed % len(SIZES)]) for seed in range(min(count, different))]
    paths = [folder / f"{number:06}.jpg" for number in range(count)]
    for path, data in zip(paths, files, strict=False):
        path.write_bytes(data)
    for number in range(len(files), count):
        paths[number].hardlink_to(paths[number % len(files)])
    return paths
