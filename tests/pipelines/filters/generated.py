"""Labelled images that are made up: photographs against charts, and skin against the rest."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Pixels = npt.NDArray[np.uint8]


def photograph(rng: np.random.Generator, width: int = 96, height: int = 72) -> Pixels:
    """Soft shapes of many colours, with grain, as a lens gives them."""
    coarse = rng.integers(0, 255, (6, 8, 3)).astype(np.uint8)
    soft = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, rng.uniform(2, 9), (height, width, 3))
    return np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8)


def chart(rng: np.random.Generator, width: int = 96, height: int = 72) -> Pixels:
    """Bars, axes and a few letters on a plain ground."""
    ground = tuple(rng.choice([255, 255, 240, 20], 1).repeat(3).tolist())
    image = Image.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(image)
    for number in range(int(rng.integers(2, 8))):
        left, top = 10 + 10 * number, int(rng.integers(8, height - 12))
        draw.rectangle((left, top, left + 7, height - 10), fill=tuple(rng.integers(0, 255, 3)))
    ink = (0, 0, 0) if ground[0] > 100 else (255, 255, 255)
    draw.line((8, 4, 8, height - 10, width - 4, height - 10), fill=ink)
    draw.text((int(rng.integers(10, 30)), 1), "Total, in %", fill=ink)
    return np.asarray(image)


def skin(rng: np.random.Generator, width: int = 96, height: int = 72) -> Pixels:
    """A photograph whose middle is an ellipse of a colour of skin, light to dark."""
    image = Image.fromarray(photograph(rng, width, height))
    tone = np.array([224, 172, 140]) * rng.uniform(0.5, 1.05)
    left, top = rng.integers(0, width // 5), rng.integers(0, height // 5)
    box = (left, top, width - rng.integers(1, width // 5), height - rng.integers(1, height // 5))
    ImageDraw.Draw(image).ellipse(tuple(map(int, box)), fill=tuple(tone.astype(int).tolist()))
    grain = rng.normal(0, 5, (height, width, 3))
    return np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)


def dressed(rng: np.random.Generator) -> Pixels:
    """A photograph or a chart: what a model of safety lets pass."""
    return photograph(rng) if rng.random() < 0.7 else chart(rng)


def encoded(pixels: Pixels, file_format: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, file_format)
    return out.getvalue()
