"""Draws boxes with labels on an image; no label covers another."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

# Paul Tol's "bright" scheme, which the colour-blind can distinguish.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
LABEL_PX = 13
Corners = tuple[float, float, float, float]


def draw_boxes(
    image: Image.Image,
    boxes: Sequence[tuple[Corners, str]],
    *,
    size: tuple[int, int],
    max_side_px: int,
) -> Image.Image:
    """Returns the image, shrunk to ``max_side_px``, with boxes and their labels ("" for none).

    Corners are x1, y1, x2, y2 in pixels of an image of ``size``; this image may be a scaled copy.
    """
    factor = min(1.0, max_side_px / max(image.size))
    shrunk = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    canvas = image.resize(shrunk, Image.Resampling.LANCZOS)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=LABEL_PX)
    labels: list[tuple[Corners, tuple[float, float], str, str]] = []
    for rank, (corners, label) in enumerate(boxes):
        colour = COLOURS[rank % len(COLOURS)]
        x1, x2 = (v * canvas.width / size[0] for v in corners[::2])
        y1, y2 = (v * canvas.height / size[1] for v in corners[1::2])
        pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=2)
        if label:
            text = pen.textbbox((x1 + 2, y1 + 2), label, font=font)
            plate = (text[0] - 2, text[1] - 2, text[2] + 2, text[3] + 2)
            label_box = find_free_box(plate, [earlier[0] for earlier in labels], canvas.size)
            text_corner = (x1 + 2 + label_box[0] - plate[0], y1 + 2 + label_box[1] - plate[1])
            labels.append((label_box, text_corner, label, colour))
    for (
        label_box,
        corner,
        label,
        colour,
    ) in labels:  # over all boxes, or their lines would cross them
        pen.rectangle(label_box, fill=colour)
        pen.text(corner, label, fill="white", font=font)
    return canvas


def find_free_box(plate: Corners, occupied: Sequence[Corners], size: tuple[int, int]) -> Corners:
    """Returns a label's box inside the image, moved down until it covers no earlier one.

    Without such a position, it is not moved.
    """
    x1, y1, x2, y2 = plate
    left = max(0.0, min(x1, size[0] - (x2 - x1)))
    top = start = max(0.0, min(y1, size[1] - (y2 - y1)))
    while top + y2 - y1 <= size[1]:
        box = (left, top, left + x2 - x1, top + y2 - y1)
        covered = [t[3] for t in occupied if meet(t, box)]
        if not covered:
            return box
        top = max(covered) + 1
    return (left, start, left + x2 - x1, start + y2 - y1)


def meet(a: Corners, b: Corners) -> bool:
    """Returns whether two rectangles share a point."""
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]
