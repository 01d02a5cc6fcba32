"""Images of coloured shapes with their boxes: something that a small detector can learn."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import BOXES, IMAGES

CLASSES = ("square", "disc", "triangle")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 70, 220),
    "yellow": (230, 210, 40),
}
ATTRIBUTES = tuple(COLOURS)
WIDTH, HEIGHT = 120, 90


def write_shapes(folder: Path, count: int, *, held_out: int = 0, seed: int = 0) -> Path:
    """Tables of images and boxes; the last ``held_out`` images are of the split ``val``."""
    rng = np.random.default_rng(seed)
    images, boxes = [], []
    for number in range(count + held_out):
        image_id = f"shapes/{number:05d}"
        image, row = drawn(rng)
        content = io.BytesIO()
        image.save(content, "PNG")
        images.append({"image_id": image_id, "bytes": content.getvalue()})
        split = "train" if number < count else "val"
        boxes.append({"image_id": image_id, "split": split, "source": "shapes", **row})
    folder.mkdir(parents=True, exist_ok=True)
    shards = [write_shard(folder, IMAGES, images), write_shard(folder, BOXES, boxes)]
    write_manifest(folder, shards, job="shapes", settings={})
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    (folder / "attributes.json").write_text(json.dumps(ATTRIBUTES))
    return folder


def drawn(rng: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
    """An image of one to three shapes on grey noise, and what is in it."""
    noise = rng.integers(90, 150, (HEIGHT // 6, WIDTH // 6, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    row: dict[str, Any] = {"width": WIDTH, "height": HEIGHT}
    row |= {"boxes": [], "class_ids": [], "attribute_ids": []}
    cells = rng.permutation(3)[: rng.integers(1, 4)].tolist()
    for cell in cells:
        side = int(rng.integers(22, 36))
        x, y = int(cell * 40 + rng.integers(0, 40 - side)), int(rng.integers(0, HEIGHT - side))
        kind, colour = int(rng.integers(3)), int(rng.integers(4))
        corners = (x, y, x + side - 1, y + side - 1)
        fill = COLOURS[ATTRIBUTES[colour]]
        if kind == 0:
            pen.rectangle(corners, fill=fill)
        elif kind == 1:
            pen.ellipse(corners, fill=fill)
        else:
            pen.polygon(
                [(x, y + side - 1), (x + side - 1, y + side - 1), (x + side // 2, y)], fill=fill
            )
        row["boxes"].append([x, y, x + side, y + side])
        row["class_ids"].append(kind)
        row["attribute_ids"].append([colour])
    return image, row
