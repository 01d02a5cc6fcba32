"""Reads Visual Genome (Krishna et al. 2017): region descriptions as pairs, and boxes with texts.

A folder mixes versions of the files (1.2 for regions, attributes and questions, 1.4 for objects).
An image with a COCO id is not COCO's file, and often has another size: it keeps its own image_id,
and an alias joins the two.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import (
    Claims,
    came_earlier,
    coco_id,
    note_repairs,
    validate_text,
    whole_number,
)
from vlmill.pipelines.manifest.entries import (
    IMAGE_STAGE,
    DataSet,
    Entry,
    Expected,
    ListedImage,
    Reading,
    Rows,
    kept_images,
)
from vlmill.pipelines.manifest.layouts.boxes import (
    Box,
    Frame,
    clip_box,
    edges,
    read_frame,
    size_notes,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.files.kept_values import ValueStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import EXPRESSIONS, PAIRS

REGIONS, REGIONS_V1 = "region_descriptions.json", "region_descriptions_v1.json"
IMAGES = "image_data.json"
FOLDERS = ("VG_100K", "VG_100K_2")
IMAGE_KEYS = frozenset(("image_id", "id", "url", "width", "height", "coco_id", "flickr_id"))
ELEMENT_KEYS = frozenset(("id", "image_id", "regions"))
REGION_KEYS = frozenset(("region_id", "id", "image_id", "phrase", "x", "y", "width", "height"))
NUM_REGIONS, NUM_IMAGES = 5_408_689, 108_077
PAGE = "visualgenome.org"


def read_images(source: Source, images: ValueStore[ListedImage]) -> Iterator[Entry]:
    """Adds ``image_data.json`` to ``images`` by number, with all names; yields invalid ones."""
    for index, image in enumerate(JsonLists(source=source, known={"": IMAGE_KEYS}).elements()):
        image_id = image.get("image_id", image.get("id")) if isinstance(image, dict) else None
        number, drop = whole_number(image_id), None
        if number is None:
            drop = Drop(Reason.BAD_ROW, "an image without image_id")
        elif (earlier := images.get(number)) is not None:
            drop = came_earlier(f"image {number}", same=earlier == _image(number, image))
        if drop is not None or number is None:
            assert drop is not None
            yield Entry(key=f"{source.name}:{index}", group="", rows=drop)
        else:
            images.put(number, _image(number, image))


def _image(number: int, image: Mapping[str, Any]) -> ListedImage:
    url = image["url"] if isinstance(image.get("url"), str) else ""
    url_path = "/".join(url.split("?")[0].split("/")[-2:])
    paths = dict.fromkeys([url_path, *(f"{folder}/{number}.jpg" for folder in FOLDERS)])
    coco, photo = coco_id(image.get("coco_id")), whole_number(image.get("flickr_id"))
    return ListedImage(
        image_id=f"vg/{number}",
        paths=tuple(path for path in paths if path),
        url=url or None,
        aliases=(*((coco,) if coco else ()), *((f"flickr/{photo}",) if photo else ())),
        width=whole_number(image.get("width")),
        height=whole_number(image.get("height")),
    )


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--boxes", action="store_true", help="also write the regions as `expressions`: box and text"
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    images, regions = folder.require(IMAGES), folder.require(REGIONS, REGIONS_V1)
    return Reading(
        sources=(images, regions),
        entries=lambda: _entries(folder, images, regions, boxes=args.boxes),
        expected={
            regions.name: Expected(rows=NUM_REGIONS, source=f"{PAGE}, version 1.2"),
            IMAGE_STAGE: Expected(rows=NUM_IMAGES, source=PAGE),
        },
        image_folders=FOLDERS,
        tables=(PAIRS, EXPRESSIONS) if args.boxes else (PAIRS,),
    )


def _entries(
    folder: Folder, image_source: Source, regions: Source, *, boxes: bool
) -> Iterator[Entry]:
    images, claims = kept_images(), Claims()
    yield from read_images(image_source, images)
    with_files = boxes and folder.has_images(FOLDERS)
    for number, element in enumerate(
        JsonLists(source=regions, known={"": ELEMENT_KEYS}).elements()
    ):
        key = f"{regions.name}:{number}"
        region_list = element.get("regions") if isinstance(element, dict) else None
        if not isinstance(element, dict) or not isinstance(region_list, list):
            drop = Drop(Reason.BAD_ROW, "an element without its list of regions")
            yield Entry(key=key, group=f"{regions.name} ?", rows=drop)
            continue
        image = images.get(_find_image_number(element, region_list))
        frame = _frame(folder, image, with_files=with_files) if boxes else None
        entry_images = (image,) if image is not None else ()
        texts = [_text(region, regions) for region in region_list]
        placed: list[Box | Drop | None] = [None] * len(region_list)
        if boxes:
            placed = [_placed(region, frame) for region in region_list]
            texts = [
                box if isinstance(text, str) and isinstance(box, Drop) else text
                for text, box in zip(texts, placed, strict=True)
            ]
        lowest_ids = _lowest_ids(region_list, texts)
        for index, (region, text, box) in enumerate(zip(region_list, texts, placed, strict=True)):
            rows = _rows(region, text, image, box, lowest_ids, claims)
            notes: tuple[str, ...] = ()
            if boxes and index == 0:
                notes = size_notes(frame, (_edges(element) for element in region_list))
            if (boxes or not str(text).isascii()) and not isinstance(rows, Drop):
                notes += _notes(rows, region)
            yield Entry(
                key=f"{key}.{index}",
                group=regions.name,
                rows=rows,
                images=entry_images,
                notes=notes,
            )


def _find_image_number(element: Mapping[str, Any], regions: list[Any]) -> int:
    """Returns the image's number: the element's ``id``, or the image id of its regions."""
    values = [element.get("id"), element.get("image_id")]
    values += [region.get("image_id") for region in regions[:1] if isinstance(region, dict)]
    return next((n for value in values if (n := whole_number(value)) is not None), -1)


def _frame(folder: Folder, image: ListedImage | None, *, with_files: bool) -> Frame | None:
    if image is None:
        return None
    if with_files:
        return read_frame(folder, image)
    return Frame(image.width, image.height) if image.width and image.height else None


def _text(region: object, source: Source) -> str | Drop:
    """Returns a region's phrase, cleaned; unread keys are recorded."""
    if isinstance(region, dict):
        source.remarks.check(region, REGION_KEYS)
        if whole_number(region.get("region_id")) is not None:
            return validate_text(region.get("phrase"))
    return Drop(Reason.BAD_ROW, "a region without region_id")


def _lowest_ids(regions: list[Any], texts: list[str | Drop]) -> dict[str, int]:
    """Returns the lowest region_id of each text of an image; its row is kept."""
    lowest: dict[str, int] = {}
    for region, text in zip(regions, texts, strict=True):
        if isinstance(text, str):
            number = region["region_id"]
            if lowest.setdefault(text, number) > number:
                lowest[text] = number
    return lowest


def _rows(
    region: Any,
    text: str | Drop,
    image: ListedImage | None,
    box: Box | Drop | None,
    lowest_ids: Mapping[str, int],
    claims: Claims,
) -> Rows | Drop:
    if isinstance(text, str) and image is None:
        return Drop(Reason.BAD_ROW, f"its image is not in {IMAGES}")
    if isinstance(text, Drop) or image is None:
        assert isinstance(text, Drop)
        return text
    number = region["region_id"]
    drop = claims.claim(number, f"{image.image_id}\0{text}")
    if drop is not None:
        return drop
    pair = _pair(number, text, image)
    same = lowest_ids[text] != number
    if box is None and same:
        return Drop(Reason.DUPLICATE, f"the text of region {lowest_ids[text]} of the same image")
    if box is None:
        return ((PAIRS, pair),)
    assert not isinstance(box, Drop)
    expression = {
        "expression_id": f"vg/{number}",
        "image_id": image.image_id,
        "text": text,
        "box": list(box),
        "source": "vg",
    }
    # The same words with another box are a separate expression, but not a second pair.
    return ((EXPRESSIONS, expression),) if same else ((PAIRS, pair), (EXPRESSIONS, expression))


def _placed(region: object, frame: Frame | None) -> Box | Drop:
    """Returns a region's box inside the upright image."""
    box = _edges(region)
    inside = box if isinstance(box, Drop) else clip_box(box, frame)
    return inside if isinstance(inside, Drop) else inside[0]


def _edges(region: object) -> Box | Drop:
    if not isinstance(region, dict):
        return Drop(Reason.BAD_ROW, "no region")
    return edges([region.get(name) for name in ("x", "y", "width", "height")])


def _pair(number: int, text: str, image: ListedImage) -> dict[str, Any]:
    return {
        "pair_id": f"vg/{number}",
        "image_id": image.image_id,
        "text": text,
        "language": "en",
        "source": "vg",
        "split": "train",
        "text_source": "human",
        "image_url": image.url,
    }


def _notes(rows: Rows, region: Mapping[str, Any]) -> tuple[str, ...]:
    notes = note_repairs(rows[0][1]["text"], region["phrase"])
    for table, row in rows:
        if table is EXPRESSIONS:
            published = _edges(region)
            is_unchanged = not isinstance(published, Drop) and list(published) == row["box"]
            notes += () if is_unchanged else ("box_changed",)
    return notes


VISUAL_GENOME = DataSet(
    about="""\
Visual Genome (Krishna et al. 2017) as pairs: region_descriptions.json, image_data.json, VG_100K/
and VG_100K_2/ (images.zip, images2.zip), from visualgenome.org (CC BY 4.0). A pair is a region's
phrase with its full image; equal phrases of an image are one pair, with the lowest
region_id. --boxes adds `expressions`, each phrase with its box, cut to the image. image_id is
vg/<number>; `aliases` has the coco/... and flickr/... names of shared images: see
--exclude-split.""",
    tables=(PAIRS, EXPRESSIONS),
    open=_open,
    add_arguments=_add_arguments,
    options=("boxes",),
    papers=(
        ("Krishna et al. 2017", "108,077 images, 5.4M region descriptions"),
        ("ViLT, VLMo", "the regions of all images, COCO's val and test images included"),
    ),
)
