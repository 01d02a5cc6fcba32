"""Reads MS-COCO captions: the official files of a year, and Karpathy's splits of 2014.

Both years have the same images and captions, split differently, so one year is read. Chen et al.
2015; Karpathy and Fei-Fei 2015.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import (
    Claims,
    came_earlier,
    coco_id,
    flickr_id,
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
)
from vlmill.pipelines.manifest.layouts.examples import expect_rows
from vlmill.pipelines.manifest.layouts.karpathy import SplitFile, karpathy_reading
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.files.kept_values import ValueStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

YEARS = {"2014": ("train2014", "val2014"), "2017": ("train2017", "val2017")}
CAPTIONS = {"train2014": 414_113, "val2014": 202_654, "train2017": 591_753, "val2017": 25_014}
IMAGES = {"train2014": 82_783, "val2014": 40_504, "train2017": 118_287, "val2017": 5_000}
PAGE = "cocodataset.org"
KARPATHY = "dataset_coco.json"
KNOWN = {
    "": frozenset(("info", "images", "licenses", "annotations", "type")),
    "images": frozenset(
        (
            *("id", "file_name", "height", "width", "license"),
            *("coco_url", "flickr_url", "date_captured"),
        )
    ),
    "annotations": frozenset(("id", "image_id", "caption")),
    "licenses": frozenset(("id", "name", "url")),
}


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--year", choices=sorted(YEARS), help="year of the files (default: the one in DIR)"
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    there = {
        year: {s: f for s in splits if (f := folder.find(f"annotations/captions_{s}.json"))}
        for year, splits in YEARS.items()
    }
    years = [year for year, files in there.items() if files]
    if args.year is None and len(years) > 1:
        raise InputError(
            f"--input {folder.root} has captions of 2014 and of 2017, which are the "
            "same captions in other splits; choose one with --year 2014 or --year 2017"
        )
    year = args.year or next(iter(years), "2014")
    files = there[year]
    if not files:
        raise folder.lacks(f"annotations/captions_train{year}.json")
    missing = [split for split in YEARS[year] if split not in files]
    expected = expect_rows(files.items(), CAPTIONS, PAGE)
    expected[IMAGE_STAGE] = Expected(rows=sum(IMAGES[s] for s in files), source=PAGE)
    return Reading(
        sources=tuple(files.values()),
        entries=lambda: _entries(files),
        expected=expected,
        image_folders=tuple(f"{prefix}{split}" for split in files for prefix in ("", "images/")),
        messages=tuple(
            f"note: captions_{s}.json does not exist; its split is missing" for s in missing
        ),
    )


LicensedImage = tuple[ListedImage, str]  # with the number of its licence
Images = ValueStore[LicensedImage]  # by their numbers


def _pack(licensed_image: LicensedImage) -> tuple[Any, ...]:
    return licensed_image[0].pack(), licensed_image[1]


def _unpack(values: tuple[Any, ...]) -> LicensedImage:
    return ListedImage.unpack(values[0]), values[1]


def _entries(files: Mapping[str, Source]) -> Iterator[Entry]:
    claims = Claims()
    for split, source in files.items():
        file = JsonLists(source=source, known=KNOWN)
        images = Images(_pack, _unpack)
        licenses: dict[str, str] = {}
        yield from _read_images(file, split, images, licenses)
        for number, annotation in enumerate(file.elements("annotations")):
            yield _entry(source, number, split, annotation, images, licenses, claims)


def _read_images(
    file: JsonLists, split: str, images: Images, licenses: dict[str, str]
) -> Iterator[Entry]:
    """Adds a file's images and licences by number; yields invalid images."""
    index = -1
    for member, element in file.member_elements("images", "licenses"):
        if member == "licenses":
            if isinstance(element, dict) and isinstance(element.get("url"), str):
                licenses[str(element.get("id"))] = element["url"]
            continue
        index += 1
        image = _image(element, split) if isinstance(element, dict) else None
        drop = None if image else Drop(Reason.BAD_ROW, "an image without an id or a file_name")
        if image is not None and (earlier := images.get(element["id"])) is not None:
            drop = came_earlier(image.image_id, same=earlier[0] == image)
        if drop is not None or image is None:
            assert drop is not None
            yield Entry(key=f"{file.source.name}:images:{index}", group="", rows=drop)
        else:
            images.put(element["id"], (image, str(element.get("license"))))


def _image(image: Mapping[str, Any], split: str) -> ListedImage | None:
    """Returns an image, or None without id or name, which its annotations then report."""
    image_id, name = coco_id(image.get("id")), image.get("file_name")
    if image_id is None or not isinstance(name, str):
        return None
    photo = flickr_id(str(image.get("flickr_url") or ""))
    return ListedImage(
        image_id=image_id,
        paths=(f"{split}/{name}", f"images/{split}/{name}"),
        url=image["coco_url"] if isinstance(image.get("coco_url"), str) else None,
        aliases=(f"flickr/{photo}",) if photo else (),
    )


def _entry(
    source: Source,
    number: int,
    split: str,
    annotation: object,
    images: Images,
    licenses: Mapping[str, str],
    claims: Claims,
) -> Entry:
    key = f"{source.name}:{number}"
    result = _pair(split, annotation, images, claims)
    if isinstance(result, Drop):
        return Entry(key=key, group=source.name, rows=result)
    pair, image, notes = result
    pair["license"] = licenses.get(pair["license"])
    rows = ((PAIRS, pair),)
    return Entry(key=key, group=source.name, rows=rows, images=(image,), notes=notes)


def _pair(
    split: str, annotation: object, images: Images, claims: Claims
) -> tuple[dict[str, Any], ListedImage, tuple[str, ...]] | Drop:
    if not isinstance(annotation, dict):
        return Drop(Reason.BAD_ROW, f"a {type(annotation).__name__}, expected an object")
    annotation_id, image_number = (
        whole_number(annotation.get("id")),
        whole_number(annotation.get("image_id")),
    )
    if annotation_id is None or image_number is None:
        return Drop(Reason.BAD_ROW, "id and image_id must be whole numbers")
    licensed_image = images.get(image_number)
    if licensed_image is None:
        return Drop(Reason.BAD_ROW, f"its image {image_number} is not in the list of images")
    text = validate_text(annotation.get("caption"))
    if isinstance(text, Drop):
        return text
    image, license = licensed_image
    drop = claims.claim(annotation_id, f"{image_number}\0{text}")
    if drop is not None:
        return drop
    pair = {
        "pair_id": f"coco/{annotation_id}",
        "image_id": image.image_id,
        "text": text,
        "language": "en",
        "source": "coco",
        "split": split,
        "text_source": "human",
        "image_url": image.url,
        "license": license,
    }
    return pair, image, note_repairs(text, annotation["caption"])


def _open_karpathy(folder: Folder, _: argparse.Namespace) -> Reading:
    file = SplitFile(
        source=folder.require(KARPATHY),
        pair_prefix="coco-karpathy",
        name="coco",
        groups={"train": "train+restval", "restval": "train+restval"},
        folds=True,
        image=_karpathy_image,
    )
    return karpathy_reading(
        file,
        captions={"train+restval": 566_747, "val": 25_010, "test": 25_010},
        images=123_287,
        folders=("train2014", "val2014"),
    )


def _karpathy_image(image: Mapping[str, Any]) -> ListedImage | Drop:
    image_id, folder, name = coco_id(image.get("cocoid")), image.get("filepath"), image["filename"]
    if image_id is None or not isinstance(folder, str):
        return Drop(Reason.BAD_ROW, f"image {name} without cocoid or filepath")
    return ListedImage(image_id=image_id, paths=(f"{folder}/{name}", f"images/{folder}/{name}"))


COCO = DataSet(
    about="""\
MS-COCO captions (Chen et al. 2015) as pairs: annotations/captions_{train,val}{2014,2017}.json and
the folders train2014/, val2014/, train2017/, val2017/, from cocodataset.org (annotations CC BY
4.0; images under their Flickr licence, in the column license). Both years have the same captions,
so one is read. image_id is coco/<twelve digits> in all years, pair_id coco/<annotation id>.
val2017 is not one of Karpathy's splits: see `coco-karpathy`.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("year",),
    papers=(
        ("InterBERT, pretraining data", "587K train (117K images), 15K validation (3K)"),
        ("Karpathy split of 2014", "113,287 + 5,000 + 5,000 images"),
    ),
)
COCO_KARPATHY = DataSet(
    about="""\
MS-COCO captions in the splits of Karpathy and Fei-Fei (2015): dataset_coco.json of
caption_datasets.zip, and train2014/, val2014/. Splits: train, restval (also for training), val,
test. pair_id is coco-karpathy/<sentid>, which is not a COCO annotation id. Test pairs have fold
0..4 (blocks of 1,000 images) and caption_no: retrieval is measured on 1K folds and on all 5K.""",
    tables=(PAIRS,),
    open=_open_karpathy,
    papers=(("Karpathy and Fei-Fei 2015", "82,783 + 30,504 / 5,000 / 5,000 images"),),
)
