"""Reads annotated boxes in the common layouts: TSV, COCO's JSON, Pascal VOC.

Each reader yields one image at a time with its objects, whose boxes are in pixels of the stored
image. ``yolo_files`` reads YOLO's boxes, which are fractions of the image.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from vlmill.pipelines.manifest.reading.lines import tsv_rows
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import IMAGE_ENDINGS
from vlmill.schemas.rejects import Reason

IMAGE_FOLDERS = ("images/", "JPEGImages/", "train/", "val/", "test/")
MAX_XML = 1 << 22  # bytes
MAX_PX = 10_000_000  # limit of a side or a corner: no image is larger
COLUMNS = ("image", "x1", "y1", "x2", "y2", "class")  # of a TSV; attributes and split may follow
VOC_LISTS = ("val", "test", "train", "trainval")  # the first list that names an image counts
COCO_KEYS = {
    "": frozenset(("info", "images", "licenses", "annotations", "categories", "type")),
    "images": frozenset(
        (
            *("id", "file_name", "width", "height", "license"),
            *("coco_url", "flickr_url", "date_captured"),
        )
    ),
    "categories": frozenset(("id", "name", "supercategory")),
    "annotations": frozenset(
        (
            *("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
            *("ignore", "attributes"),
        )
    ),
}


@dataclass(kw_only=True, slots=True)
class AnnotatedObject:
    """Holds one annotated object: its corners, or why they are invalid."""

    box: tuple[float, float, float, float] | Drop  # x1, y1, x2, y2
    name: str
    attributes: tuple[str, ...] = ()
    crowd: bool = False
    fractions: bool = False  # fractions of the image's sides, instead of pixels


@dataclass(kw_only=True, slots=True)
class AnnotatedImage:
    """Holds an image's file name and its objects, or why the objects are invalid."""

    key: str
    file_name: str
    objects: list[AnnotatedObject] | Drop = field(default_factory=list)
    width: int | None = None
    height: int | None = None
    split: str | None = None
    folders: tuple[str, ...] = ()  # folders of --input that may have the image, with a final slash


def numbers(values: list[Any]) -> tuple[float, float, float, float] | Drop:
    """Returns four numbers, or why they are invalid."""
    try:
        a, b, c, d = (float(value) for value in values)
    except (TypeError, ValueError):
        return Drop(Reason.BAD_ROW, f"a box of {values!a}, expected four numbers"[:200])
    if not all(abs(value) < MAX_PX for value in (a, b, c, d)):  # also refuses NaN
        return Drop(Reason.BAD_ROW, f"a box of {values!a}, expected numbers of pixels"[:200])
    return a, b, c, d


def tsv_images(source: Source) -> Iterator[AnnotatedImage]:
    """Reads a TSV with a header: one row per object; an image's rows may be in any order.

    An image without an object has a row with an empty class. Raises InputError for a header that
    lacks these columns.
    """
    rows = tsv_rows(source)
    _, header = next(rows, (0, []))
    if isinstance(header, Drop) or not set(COLUMNS) <= set(header):
        raise InputError(
            f"{source.display_name}: the first line must name the columns "
            f"{', '.join(COLUMNS)} (and attributes, split), separated by tabs"
        )
    images: dict[str, AnnotatedImage] = {}
    for number, fields in rows:
        key = f"{source.name}:{number}"
        if isinstance(fields, Drop) or len(fields) != len(header):
            count = 0 if isinstance(fields, Drop) else len(fields)
            drop = (
                fields
                if isinstance(fields, Drop)
                else Drop(Reason.BAD_ROW, f"{count} fields, expected {len(header)}")
            )
            yield AnnotatedImage(key=key, file_name="", objects=drop)
            continue
        row = dict(zip(header, fields, strict=True))
        name = row["image"].strip()
        annotated = images.setdefault(
            name, AnnotatedImage(key=key, file_name=name, split=row.get("split") or None)
        )
        if row["class"].strip() and not isinstance(annotated.objects, Drop):
            words = row.get("attributes", "").split(",")
            annotated.objects.append(
                AnnotatedObject(
                    box=numbers([row[side] for side in COLUMNS[1:5]]),
                    name=row["class"].strip().lower(),
                    attributes=tuple(word.strip().lower() for word in words if word.strip()),
                )
            )
    yield from images.values()


CocoId = int | str


def coco_id(entry: Any, key: str) -> CocoId | None:
    """Returns the id of an entry of a COCO file, or None if it is invalid."""
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def coco_categories(source: Source) -> dict[CocoId, str]:
    """Returns the names of a COCO file's categories by id, in the order of the ids.

    Raises InputError for a category without an id or a name, or with another category's id.
    """
    names: dict[CocoId, str] = {}
    categories = JsonLists(source=source, known=COCO_KEYS).elements("categories")
    for index, category in enumerate(categories):
        number = coco_id(category, "id")
        if number is None or not isinstance(category.get("name"), str):
            raise InputError(
                f"{source.display_name}: categories[{index}] has no id or no name; give it both"
            )
        name = category["name"].lower()
        if names.setdefault(number, name) != name:
            raise InputError(
                f"{source.display_name}: the categories {names[number]} and {name} share the id "
                f"{number}; give each its own"
            )
    return dict(sorted(names.items(), key=lambda pair: (isinstance(pair[0], str), pair[0])))


def coco_images(source: Source) -> Iterator[AnnotatedImage]:
    """Reads COCO's instances: boxes of x, y, width, height, with ``iscrowd``.

    Memory: the annotations, some 300 bytes each.
    """
    names = coco_categories(source)
    file = JsonLists(source=source, known=COCO_KEYS)
    images: dict[CocoId | None, AnnotatedImage] = {}
    split, folders = find_split(source.name), coco_folders(source.name)
    for index, element in enumerate(file.elements("images")):
        key, number = f"{source.name}:{index}", coco_id(element, "id")
        if number is None or not isinstance(element.get("file_name"), str):
            drop = Drop(Reason.BAD_ROW, "an image without an id or a file_name")
            yield AnnotatedImage(key=key, file_name="", objects=drop)
            continue
        if number in images:
            drop = Drop(Reason.ID_CONFLICT, f"the id of {images[number].file_name}: {number}")
            yield AnnotatedImage(key=key, file_name="", objects=drop)
            continue
        images[number] = AnnotatedImage(
            key=key,
            file_name=element["file_name"],
            width=parse_side(element.get("width")),
            height=parse_side(element.get("height")),
            split=split,
            folders=folders,
        )
    for index, element in enumerate(file.elements("annotations")):
        image = images.get(coco_id(element, "image_id"))
        if image is None or isinstance(image.objects, Drop):
            drop = Drop(Reason.BAD_REFERENCE, "an annotation of an image that is not listed")
            yield AnnotatedImage(
                key=f"{source.name}:annotations:{index}", file_name="", objects=drop
            )
            continue
        box = numbers(element.get("bbox") if isinstance(element.get("bbox"), list) else [])
        if not isinstance(box, Drop):
            box = (box[0], box[1], box[0] + box[2], box[1] + box[3])
        words, category = element.get("attributes"), coco_id(element, "category_id")
        image.objects.append(
            AnnotatedObject(
                box=box,
                name=names.get(category, "") if category is not None else "",
                attributes=tuple(str(a).lower() for a in words) if isinstance(words, list) else (),
                crowd=bool(element.get("iscrowd")),
            )
        )
    yield from images.values()


def coco_folders(name: str) -> tuple[str, ...]:
    """Returns the folders of a COCO file's images: ``train2017/`` by its name, and its own."""
    path = PurePosixPath(name)
    stem = path.name.split(".")[0].removeprefix("instances_")
    folders = (path.parent, path.parent / stem, path.parent.parent / stem)
    return tuple(f"{folder}/" for folder in folders)


def find_split(name: str) -> str | None:
    """Returns the split in a file's or folder's name: train, val or test."""
    lower = name.lower()
    return next((split for split in ("train", "val", "test") if split in lower), None)


def parse_side(value: Any) -> int | None:
    """Returns the side of an image, a positive whole number; None for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 < value < MAX_PX else None


def digits(text: str) -> int | None:
    """Returns the whole number that a text represents; None for other texts or over nine digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


def voc_splits(root: Path) -> tuple[list[Path], dict[str, str]]:
    """Returns VOC's lists of images (``ImageSets/Main/val.txt``), and the split of each name.

    ``trainval`` counts as ``train`` if no finer list has the name.
    """
    paths = [
        path for name in VOC_LISTS for path in sorted(root.rglob(f"ImageSets/Main/{name}.txt"))
    ]
    splits: dict[str, str] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.strip():
                splits.setdefault(line.split()[0], path.stem.replace("trainval", "train"))
    return paths, splits


def voc_image(path: Path, root: Path, splits: Mapping[str, str]) -> AnnotatedImage:
    """Reads a Pascal VOC file, whose pixels count from 1 and whose boxes include the last pixel."""
    folder = path.relative_to(root).parent
    annotated = AnnotatedImage(
        key=path.name,
        file_name=path.stem,
        split=splits.get(path.stem) or find_split(folder.as_posix()),
        folders=tuple(f"{f.as_posix()}/" for f in (folder, folder.parent / "JPEGImages")),
    )
    try:
        content = path.read_bytes()
        if len(content) > MAX_XML or b"<!ENTITY" in content:
            raise ValueError("too large, or with its own entities")
        tree = ElementTree.fromstring(content)
    except (ElementTree.ParseError, OSError, ValueError) as error:
        annotated.objects = Drop(Reason.BAD_ROW, f"no XML: {error}")
        return annotated
    annotated.file_name = (tree.findtext("filename") or path.stem).strip()
    sides = [(tree.findtext(f"size/{side}") or "").strip() for side in ("width", "height")]
    annotated.width, annotated.height = (parse_side(digits(side)) for side in sides)
    objects = []
    for node in tree.iter("object"):
        corners = [node.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        box = numbers(corners)
        if not isinstance(box, Drop):
            box = (box[0] - 1, box[1] - 1, box[2], box[3])
        words = [word.text or "" for word in node.iter("attribute")]
        objects.append(
            AnnotatedObject(
                box=box,
                name=(node.findtext("name") or "").strip().lower(),
                attributes=tuple(word.strip().lower() for word in words if word.strip()),
            )
        )
    annotated.objects = objects
    return annotated


def with_endings(file_name: str, folders: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names that an image's file may have in ``folders`` and ``IMAGE_FOLDERS``; a name
    without an ending may have any.
    """
    names = [file_name]
    if Path(file_name).suffix.lower() not in IMAGE_ENDINGS:
        names = [f"{file_name}{ending}" for ending in IMAGE_ENDINGS]
    return tuple(f"{folder}{name}" for name in names for folder in ("", *folders, *IMAGE_FOLDERS))
