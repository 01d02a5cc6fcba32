"""Fits the realism model that vlmill ships, and measures it on unseen sources.

    python benchmarks/realism.py --sources DIR --output pipelines/filters/realism.model

DIR has a folder for each source of SOURCES: the images of a Debian package (``apt-get download``,
``dpkg-deb -x``) or of a public repository. Photographs for fitting are in the public domain or CC0;
other sources only measure. The images stay in DIR; the model has thresholds of image statistics.
"""

import argparse
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from vlmill.pipelines.filters import statistics
from vlmill.pipelines.filters.fitting import auc, grow
from vlmill.pipelines.filters.image import REALISM, compute_features
from vlmill.pipelines.filters.model_file import Model, write_model
from vlmill.pipelines.filters.statistics import small_copy
from vlmill.pipelines.filters.trees import Trees
from vlmill.schemas.images.decode import Bounds, load, open_image
from vlmill.schemas.rejects import Rejected

SEED = 1
MOST_IMAGES = 500  # per source
MIN_SIDE = 200  # pixels; the job's images are larger than 300
VIEWS = 8  # of each photograph: crops of several sizes, which are different images
THRESHOLD = 0.2  # keeps every whole photograph of the sources that only measure
BOUNDS = Bounds(max_pixels=200_000_000, max_bytes=None)
PHOTO, CLIPART, CHART, SCREENSHOT = "photograph", "clip art", "chart", "screenshot"
Features = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Describes a folder of images of one kind; ``fits`` is false for a source that only measures.

    ``part`` names a part of a folder that several sources share.
    """

    folder: str
    kind: str
    terms: str
    part: str = ""
    pattern: str = "**/*"
    exclude: tuple[str, ...] = ()
    fits: bool = True

    @property
    def name(self) -> str:
        """Returns the source's name in the report."""
        return f"{self.folder} {self.part}".strip()


SOURCES = (
    Source(folder="PDImages", kind=PHOTO, terms="public domain (github.com/PDDatabase/PDImages)"),
    Source(folder="budgie-backgrounds", kind=PHOTO, terms="CC0-1.0 (github.com/BuddiesOfBudgie)"),
    Source(
        folder="bakerydemo",
        kind=PHOTO,
        terms="public domain (github.com/wagtail/bakerydemo, readme)",
        exclude=("Capture", "muddy_waters", "lightnin"),
    ),
    Source(
        folder="scikit-image",
        kind=PHOTO,
        terms="public domain or CC0 (the package's data/README.txt)",
        pattern="*.*",
    ),
    Source(
        folder="mate-backgrounds", kind=PHOTO, terms="GPL-2+", pattern="**/nature/*.jpg", fits=False
    ),
    Source(folder="lomiri-wallpapers-16.04", kind=PHOTO, terms="CC-BY, CC-BY-SA", fits=False),
    Source(folder="lomiri-wallpapers-20.04", kind=PHOTO, terms="CC-BY-SA-3.0", fits=False),
    Source(folder="cc_images", kind=PHOTO, terms="various CC-BY", fits=False),
    Source(folder="coco", kind=PHOTO, terms="COCO, Flickr's terms", fits=False),
    Source(
        folder="openclipart-png",
        part="animals to household",
        kind=CLIPART,
        terms="public domain",
        pattern="**/png/[a-h]*/**/*.png",
    ),
    Source(
        folder="openclipart-png",
        part="office to unsorted",
        kind=CLIPART,
        terms="public domain",
        pattern="**/png/[o-z]*/**/*.png",
        fits=False,
    ),
    Source(folder="python-sklearn-doc", kind=CHART, terms="BSD-3-Clause", pattern="**/*.png"),
    Source(
        folder="debian-handbook",
        kind=SCREENSHOT,
        terms="CC-BY-SA-3.0, GPL-2+",
        pattern="**/en-US/images/*.png",
    ),
    Source(folder="kicad-doc-en", kind=SCREENSHOT, terms="GPL-3+, CC-BY-3.0"),
    Source(folder="python-scipy-doc", kind=CHART, terms="BSD-3-Clause", fits=False),
    Source(folder="python-pandas-doc", kind=CHART, terms="BSD-3-Clause", fits=False),
    Source(  # its other folders show effects on photographs
        folder="gimp-help-en",
        part="dialogs and menus",
        kind=SCREENSHOT,
        terms="GFDL-1.2+",
        pattern="**/images/[dmp]*/**/*.png",
        fits=False,
    ),
    Source(folder="python-wxmplot-doc", kind=SCREENSHOT, terms="MIT", fits=False),
)


def read_images(folder: Path, source: Source) -> Iterator[tuple[str, Image.Image]]:
    """Yields (path, RGB image) of a source: a seeded sample of its images of enough pixels."""
    paths = [
        path
        for path in sorted((folder / source.folder).glob(source.pattern))
        if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".gif")
        and not path.is_symlink()
        and not any(word in path.name for word in source.exclude)
    ]
    random.Random(SEED).shuffle(paths)
    number = 0
    for path in paths:
        try:
            with open_image(path.read_bytes(), BOUNDS) as image:
                if min(image.size) < MIN_SIDE:
                    continue
                load(image, BOUNDS)
                rgb = flatten(image)
        except Rejected:
            continue
        yield str(path.relative_to(folder)), rgb
        number += 1
        if number == MOST_IMAGES:
            return


def flatten(image: Image.Image) -> Image.Image:
    """Returns an RGB image; transparent pixels become white, as on a page."""
    if image.mode in ("RGBA", "LA", "P"):
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def views(image: Image.Image, rng: random.Random) -> Iterator[Image.Image]:
    """Yields the photograph and crops of it, as web pages have them.

    Some are grey, have a border, or are cut out on white as shops show goods.
    """
    image = image.copy()
    image.thumbnail((2400, 2400))
    for number in range(VIEWS):
        share = 1.0 if number == 0 else rng.uniform(0.35, 0.9)
        width, height = (max(64, int(side * share)) for side in image.size)
        if rng.random() < 0.3:
            width = height = min(width, height)
        left, top = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
        view = image.crop((left, top, left + width, top + height))
        view.thumbnail((rng.randint(320, 1200),) * 2)
        chance = rng.random()
        if number and chance < 0.12:
            view = view.convert("L").convert("RGB")
        elif number and chance < 0.3:
            view = cut_out(view, rng)
        elif number and chance < 0.36:
            view = with_border(view, rng)
        yield compressed(view, rng)


def cut_out(image: Image.Image, rng: random.Random) -> Image.Image:
    """Returns the middle of an image on a plain light background, in a smooth random outline."""
    width, height = image.size
    mask = Image.new("L", image.size)
    points = []
    for number in range(12):
        angle = 2 * np.pi * number / 12
        radius = rng.uniform(0.28, 0.46)
        points.append(
            (width * (0.5 + radius * np.cos(angle)), height * (0.5 + radius * np.sin(angle)))
        )
    ImageDraw.Draw(mask).polygon(points, fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(2))
    level = rng.choice((255, 255, 250, 235))
    return Image.composite(image, Image.new("RGB", image.size, (level,) * 3), mask)


def with_border(image: Image.Image, rng: random.Random) -> Image.Image:
    """Returns an image with a white or black border."""
    edge = rng.randint(4, 24)
    framed = Image.new(
        "RGB", (image.width + 2 * edge, image.height + 2 * edge), rng.choice(("white", "black"))
    )
    framed.paste(image, (edge, edge))
    return framed


def compressed(image: Image.Image, rng: random.Random) -> Image.Image:
    """Returns an image after JPEG compression of a random quality."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=rng.randint(45, 95))
    return Image.open(buffer).convert("RGB")


def measure(folder: Path, source: Source) -> tuple[Features, list[str]]:
    """Returns the features of a source's images, float32 [N, F], and their paths.

    Each photograph for fitting gives VIEWS rows; half of the other images are compressed.
    """
    rng = random.Random(f"{SEED} {source.name}")
    rows, names = [], []
    for name, image in read_images(folder, source):
        if source.kind == PHOTO and source.fits:
            variants = list(views(image, rng))
        else:
            again = source.fits and rng.random() < 0.5
            variants = [compressed(image, rng) if again else image]
        for variant in variants:
            rows.append(compute_features(small_copy(variant, statistics.SIDE), None))
            names.append(name)
    if not rows:
        raise SystemExit(f"{folder / source.folder}: no image of {MIN_SIDE} pixels; see --help")
    return np.stack(rows), names


def fit(parts: dict[str, Features], sources: list[Source]) -> Trees:
    """Fits trees on sources; photographs and others weigh the same by repeating the fewer rows."""
    photographs = np.concatenate([parts[s.name] for s in sources if s.kind == PHOTO])
    others = np.concatenate([parts[s.name] for s in sources if s.kind != PHOTO])
    features = np.concatenate([photographs, others])
    labels = np.arange(len(features)) < len(photographs)
    return grow(features, labels, seed=SEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file for the model")
    parser.add_argument(
        "--worst", type=int, default=0, help="number of worst images to print for each source"
    )
    args = parser.parse_args()
    parts: dict[str, Features] = {}
    names: dict[str, list[str]] = {}
    for source in SOURCES:
        parts[source.name], names[source.name] = measure(args.sources, source)
    fitting = [source for source in SOURCES if source.fits]
    trees = fit(parts, fitting)
    seen = {s.name: trees.probabilities(parts[s.name]) for s in SOURCES if not s.fits}
    # A source of the fit is judged by trees that were fitted without it.
    for source in fitting:
        rest = [other for other in fitting if other is not source]
        seen[source.name] = fit(parts, rest).probabilities(parts[source.name])
    report(seen, names, args.worst)
    photographs = np.concatenate([seen[s.name] for s in SOURCES if s.kind == PHOTO and not s.fits])
    others = np.concatenate([seen[s.name] for s in SOURCES if s.kind != PHOTO and not s.fits])
    print(f"sources that only measure: AUC {total_auc(photographs, others):.4f}")
    if args.output is not None:
        about = {
            "fitted_by": "benchmarks/realism.py",
            "sources": {s.name: s.terms for s in fitting},
            "images": {s.name: len(set(names[s.name])) for s in fitting},
        }
        model = Model(
            kind=REALISM, features=statistics.NAMES, threshold=THRESHOLD, trees=trees, about=about
        )
        write_model(args.output, model)
        print(f"{args.output}: {args.output.stat().st_size} bytes")


def total_auc(photographs: Features, others: Features) -> float:
    """Returns the AUC of photographs against other images."""
    labels = np.arange(len(photographs) + len(others)) < len(photographs)
    return auc(labels, np.concatenate([photographs, others]))


def report(seen: dict[str, Features], names: dict[str, list[str]], worst: int) -> None:
    """Prints a row for each source: the AUC against all held-out images of the other class."""
    print("source | kind | used | images | AUC | below 0.2 | below 0.5")
    for source in SOURCES:
        values = seen[source.name]
        same = source.kind == PHOTO
        opposite = np.concatenate(
            [seen[s.name] for s in SOURCES if (s.kind == PHOTO) != same and not s.fits]
        )
        area = total_auc(values, opposite) if same else total_auc(opposite, values)
        used = "fit, judged without it" if source.fits else "measured only"
        print(
            f"{source.name} | {source.kind} | {used} | {len(set(names[source.name]))} | {area:.4f} "
            f"| {np.mean(values < 0.2):.3f} | {np.mean(values < 0.5):.3f}"
        )
        order = np.argsort(values if same else -values)[:worst]
        for number in order:
            print(f"    {values[number]:.3f} {names[source.name][number]}")


if __name__ == "__main__":
    main()
