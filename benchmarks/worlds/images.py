"""Draws scenes as pixels, and finds the boxes around what was drawn.

H height, W width. Boxes are float32 (x1, y1, x2, y2) in pixels, x2 and y2 exclusive.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from worlds.scenes import COLOURS, Placed, Scene, World

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Boxes = NDArray[np.float32]
COLOUR_JITTER = 14  # of each channel, either way: no red is quite another's red
_PERIOD = 6.0  # pixels from stripe to stripe at a side of 128


def shape_mask(shape: str, place: Placed, side: int) -> Mask:
    """Returns the pixels [H, W] that a shape covers; its own holes are not covered."""
    y, x = np.mgrid[0:side, 0:side] + 0.5
    dx, dy = (x - place.x) / place.radius, (y - place.y) / place.radius
    cos, sin = np.cos(place.angle), np.sin(place.angle)
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    square, across = np.maximum(np.abs(u), np.abs(v)), np.minimum(np.abs(u), np.abs(v))
    round_ = u * u + v * v
    masks: dict[str, Mask] = {
        "circle": round_ <= 0.92,
        "square": square <= 0.76,
        "triangle": (v <= 0.7) & (v >= 2.0 * np.abs(u) - 0.9),
        "cross": (across <= 0.27) & (square <= 0.9),
        "ring": (round_ <= 0.92) & (round_ >= 0.3),
        "diamond": np.abs(u) + np.abs(v) <= 0.95,
    }
    return masks[shape]


def _texture(texture: str, side: int, angle: float) -> NDArray[np.float64]:
    """Says how bright [H, W] a texture makes its thing, 0.45 to 1."""
    period = _PERIOD * side / 128
    y, x = np.mgrid[0:side, 0:side] / period * 2 * np.pi
    along = np.cos(angle) * x + np.sin(angle) * y
    if texture == "plain":
        return np.ones((side, side))
    if texture == "striped":
        return np.where(np.sin(along) > 0, 1.0, 0.45)
    across = np.cos(angle) * y - np.sin(angle) * x
    return np.where(np.sin(along) + np.sin(across) > 0.9, 0.45, 1.0)


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    """Returns the tightest box around a mask that covers at least one pixel."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def draw(world: World, scene: Scene, rng: np.random.Generator) -> tuple[Pixels, Boxes]:
    """Draws the image [H, W, 3] and a box for each thing, in the scene's order.

    Larger things are drawn first: what is inside another stays visible. A thing's colour and the
    background vary from image to image.
    """
    side = world.side
    corner, slope = rng.uniform(195, 245, size=3), rng.uniform(-25, 25, size=(2, 3))
    y, x = np.mgrid[0:side, 0:side][..., None] / side
    canvas = np.clip(corner + x * slope[0] + y * slope[1], 170, 255)
    boxes = np.zeros((len(scene.things), 4), np.float32)
    for number in sorted(range(len(scene.things)), key=lambda n: -scene.places[n].radius):
        thing, place = scene.things[number], scene.places[number]
        colour = np.array(COLOURS[thing.colour]) + rng.uniform(-1, 1, size=3) * COLOUR_JITTER
        shade = _texture(thing.texture, side, rng.uniform(0, np.pi))
        mask = shape_mask(thing.shape, place, side)
        canvas[mask] = colour * shade[mask][:, None]
        boxes[number] = box_of(mask)
    return np.clip(canvas, 0, 255).round().astype(np.uint8), boxes


def png_of(pixels: Pixels) -> bytes:
    """Encodes the image losslessly: what a model sees is what the features were computed from."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=6)
    return out.getvalue()
