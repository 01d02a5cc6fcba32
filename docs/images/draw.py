"""Draws what README.md opens with, from the generated world and from a funnel of ``make demo``.

    PYTHONPATH=benchmarks python docs/images/draw.py demo/pairs/funnel.json

Writes example.png (a generated image with its regions and its caption) and funnel.svg beside this
file.
"""

import json
import sys
from html import escape
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from worlds import Detector, World, make_scenes
from worlds.images import draw
from worlds.writing import rng_of_scene

from vlmill.runtime.console.drawing import draw_boxes

HERE = Path(__file__).parent
NUMBER, SIDE, GAP, MARGIN = 28, 384, 12, 32
BAR, ROW, LEFT, WIDTH = 22, 34, 110, 400


def draw_example(number: int) -> Image.Image:
    """A scene as it is drawn, the same with its regions, and its caption below."""
    world = World(side=SIDE)
    scene = make_scenes(world, "test", number + 1)[number]
    rng = rng_of_scene(world, "test", number)
    pixels, boxes = draw(world, scene, rng)
    regions = Detector(extra_boxes=0).detect(world, scene, pixels, boxes, "picture", rng)
    assert regions.class_ids is not None and regions.class_scores is not None
    labels = [
        f"{world.kinds[kind]} {score:.2f}"
        for kind, score in zip(regions.class_ids, regions.class_scores, strict=True)
    ]
    plain = Image.fromarray(pixels)
    corners = [tuple(map(float, box)) for box in regions.boxes]
    marked = draw_boxes(
        plain,
        list(zip(corners, labels, strict=True)),  # type: ignore[arg-type]
        size=plain.size,
        max_side_px=SIDE,
    )
    top = max(0, round(min(box[1] for box in corners)) - MARGIN)
    height = min(SIDE, round(max(box[3] for box in corners)) + MARGIN) - top
    canvas = Image.new("RGB", (2 * SIDE + GAP, height + 30), "white")
    for image, x in ((plain, 0), (marked, SIDE + GAP)):
        canvas.paste(image.crop((0, top, SIDE, top + height)), (x, 0))
    font = ImageFont.load_default(size=15)
    ImageDraw.Draw(canvas).text((4, height + 7), f"“{scene.caption}”", fill="black", font=font)
    return canvas


def funnel(stages: list[dict[str, object]]) -> str:
    """Bars of what each stage takes and lets through, with its largest reasons to drop; stages that
    dropped nothing are left out.
    """
    stages = [stage for stage in stages if stage["rejects"]]
    most = max(int(str(stage["in"])) for stage in stages)
    height = ROW * len(stages) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        f'<rect width="900" height="{height}" fill="#fff"/>',
    ]
    for number, stage in enumerate(stages):
        taken, left = int(str(stage["in"])), int(str(stage["out"]))
        rejects: dict[str, int] = dict(stage["rejects"])  # type: ignore[call-overload]
        y = 10 + number * ROW
        for count, colour in ((taken, "#f3c9a5"), (left, "#4477aa")):
            wide = max(2, round(WIDTH * count / most))
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{BAR}" fill="{colour}"/>'
            )
        said = ", ".join(
            f"{name.replace('_', ' ')} {count}"
            for name, count in sorted(rejects.items(), key=lambda one: -one[1])[:2]
        )
        text = escape(str(stage["stage"]).replace("_", " "))
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end" fill="#111">{text}</text>',
            f'<text x="{LEFT + round(WIDTH * taken / most) + 10}" y="{y + 16}" fill="#444">'
            f"{taken} → {left}{escape(f'   ({said})' if said else '')}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Draws both."""
    draw_example(NUMBER).quantize(128).save(HERE / "example.png", optimize=True)
    stages = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (HERE / "funnel.svg").write_text(funnel(stages), encoding="utf-8")


if __name__ == "__main__":
    main()
