"""Draws a photograph with the regions that benchmarks/real_pairs.py gives it: photograph.jpg.

    PYTHONPATH=benchmarks python docs/images/draw_photograph.py

The photograph is scikit-image's "chelsea" (Stefan van der Walt, CC0). Needs the packages of
`real.networks`.
"""

from pathlib import Path

import skimage.data
from PIL import Image
from real.regions import fixed_boxes, image_regions

from vlmill.runtime.console.drawing import draw_boxes

SOURCE = Path(skimage.data.__file__).parent / "chelsea.png"
OUTPUT = Path(__file__).parent / "photograph.jpg"
FIXED = ("full image", *("quadrant",) * 4, "centre")
SIDE, GAP = 384, 12


def draw(path: Path) -> Image.Image:
    """Returns the photograph, and the same with its fixed boxes and the detector's."""
    image = Image.open(path).convert("RGB")
    regions = image_regions(path.name, path)
    count = len(regions.boxes) - 16  # the grid's cells come last
    labels = [*FIXED, *(f"SSD {n}" for n in range(1, count - len(fixed_boxes()) + 1))]
    boxes = [tuple(map(float, box)) for box in regions.boxes[:count]]
    marked = draw_boxes(
        image,
        list(zip(boxes, labels, strict=True)),  # type: ignore[arg-type]
        size=image.size,
        max_side_px=SIDE,
    )
    canvas = Image.new("RGB", (2 * marked.width + GAP, marked.height), "white")
    canvas.paste(image.resize(marked.size, Image.Resampling.LANCZOS), (0, 0))
    canvas.paste(marked, (marked.width + GAP, 0))
    return canvas


if __name__ == "__main__":
    draw(SOURCE).save(OUTPUT, quality=85, optimize=True)
