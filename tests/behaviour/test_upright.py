"""An image is the same however it lies in its file: mined, extracted, trained on, evaluated.

And a box that is given with the file lands on the same thing.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.turned_images import STORED, Array, box_around, encoded, stored_box

from vlmill.extract.cli import command as extract_rois
from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import decode
from vlmill.pipelines.manifest.reading.images import image_row
from vlmill.pipelines.web.pages.images import Examiner, ImageFacts, examine_image, open_examiner
from vlmill.runtime.console.report import thumbnail_uri
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.ids import compute_image_id
from vlmill.train.loading.images.boxed import boxed_image
from vlmill.train.loading.images.crop import decode as decoded
from vlmill.train.loading.images.crop import evaluation_image, training_images
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import SampledRegions, StoredFeatures
from vlmill.train.settings.parts import Feeding

HEIGHT, WIDTH = 64, 96
BLOCK = 16  # flat blocks of the size of JPEG's
ORIENTATIONS = list(STORED)
CROPPED = Feeding(kind="pixels", image_size=40, crop=(0.6, 0.8), augment=False)
BOXED = Feeding(kind="picture-regions", short_side=HEIGHT, long_side=WIDTH)


def blocks() -> Array:
    colours = np.random.default_rng(0).integers(20, 200, (4, 6, 3), dtype=np.uint8)
    colours[1, 2:5] = 255
    return colours.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)


UPRIGHT = blocks()
THING = (UPRIGHT == 255).all(axis=2)
THING_BOX = [32, 16, 80, 32]


def cropped(data: bytes) -> Array:
    """What VLMo is fed."""
    return training_images(data, "a", Uniforms(5), CROPPED)[0]


def boxed(data: bytes, boxes: Array) -> dict[str, Array]:
    """What VL-BERT is fed end to end, at the size that the image has."""
    row = RegionRow(image_id="a", width=WIDTH, height=HEIGHT, boxes=boxes)
    count = len(boxes)
    regions = SampledRegions(
        row=row,
        features=StoredFeatures(num_regions=count, location=None),
        boxes=boxes,
        masks=MaskedRegions.none(count),
        num_shown=count,
    )
    return boxed_image(decoded(data, "picture"), regions, BOXED)


def test_the_stored_images_differ() -> None:
    assert box_around(THING) == THING_BOX
    assert len({STORED[o](UPRIGHT).tobytes() for o in ORIENTATIONS}) == len(ORIENTATIONS)
    assert len({tuple(stored_box(THING, o)) for o in ORIENTATIONS}) == len(ORIENTATIONS)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_same_pixels_wherever_they_are_read(orientation: int, kind: str) -> None:
    lying, plain = encoded(UPRIGHT, orientation, kind), encoded(UPRIGHT, None, kind)
    same = np.testing.assert_array_equal
    if kind == "JPEG":  # which rounds the pixels as they are stored
        same = partial(np.testing.assert_allclose, atol=3)
    same(decode(lying, InputLimits())[..., ::-1], UPRIGHT)
    same(cropped(lying).astype(int), cropped(plain).astype(int))
    same(evaluation_image(lying, "a", 40).astype(int), evaluation_image(plain, "a", 40))
    made = boxed(lying, np.array([THING_BOX], dtype=np.float32))
    same(made["picture"].transpose(1, 2, 0)[..., ::-1], UPRIGHT)
    x1, y1, x2, y2 = made["boxes"][1].astype(int)
    same(made["picture"][:, y1:y2, x1:x2], 255)


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    with open_examiner(min_side_px=8, max_pixels=10**6) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_mining_measures_the_upright_image(
    orientation: int, kind: str, examiner: Examiner, tmp_path: Path
) -> None:
    data = encoded(UPRIGHT, orientation, kind)
    assert examine_image(data, min_side_px=8, max_pixels=10**6) == ImageFacts(
        image_id=compute_image_id(data), width=WIDTH, height=HEIGHT, format=kind.lower()
    )
    (tmp_path / "a").write_bytes(data)
    row = image_row(tmp_path, "a", examiner)
    assert isinstance(row, dict) and row["bytes"] == data
    assert (row["width"], row["height"]) == (WIDTH, HEIGHT)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_reports_show_it_upright(orientation: int) -> None:
    assert thumbnail_uri(encoded(UPRIGHT, orientation)) == thumbnail_uri(encoded(UPRIGHT, None))


def test_a_given_box_lands_on_the_same_thing(tmp_path: Path) -> None:
    """Rows of the eight are one row; their boxes fit the pixels that training reads."""
    images, boxes = tmp_path / "pictures", tmp_path / "boxes.jsonl"
    images.mkdir()
    lines = []
    for orientation in ORIENTATIONS:
        (images / f"{orientation}.png").write_bytes(encoded(UPRIGHT, orientation))
        height, width = STORED[orientation](THING).shape
        given = [stored_box(THING, orientation), [0, 0, width, height]]
        lines.append(json.dumps({"image_id": str(orientation), "boxes": given}))
    boxes.write_text("\n".join(lines))
    flags = ["--arch", "tiny", "--short-side", "64", "--long-side", "96", "--dtype", "float32"]
    arguments = [str(images), "--ids", "name", "--boxes", str(boxes), *flags]
    assert extract_rois(["run", *arguments, "--output", str(tmp_path / "out")]) == 0
    regions = RegionReader(tmp_path / "out")
    first = regions["1"]
    for orientation in ORIENTATIONS:
        row = regions[str(orientation)]
        assert (row.width, row.height) == (WIDTH, HEIGHT)
        assert row.boxes.tolist() == [THING_BOX, [0, 0, WIDTH, HEIGHT]]
        assert row.features is not None
        np.testing.assert_array_equal(row.features, first.features)
        made = boxed((images / f"{orientation}.png").read_bytes(), row.boxes)
        x1, y1, x2, y2 = made["boxes"][1].astype(int)
        assert (made["picture"][:, y1:y2, x1:x2] == 255).all()
