"""Reads the user's boxes for detector training: TSV, COCO's JSON, Pascal VOC, YOLO."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from vlmill.pipelines.manifest.cleaning import NamedClaims
from vlmill.pipelines.manifest.entries import DataSet, Entry, ListedImage, Reading
from vlmill.pipelines.manifest.flags import add_source
from vlmill.pipelines.manifest.layouts import box_files
from vlmill.pipelines.manifest.layouts.boxes import Box, Frame, clip_box, read_frame, size_notes
from vlmill.pipelines.manifest.layouts.yolo_files import (
    YOLO_NAMES,
    yolo_backgrounds,
    yolo_image,
    yolo_names,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.pipelines.manifest.sets.vg_detector import lines_by_number, read_names
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import BOXES

CLASSES, ATTRIBUTES = "classes.json", "attributes.json"
Images = Callable[[], Iterator[box_files.AnnotatedImage]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Holds one layout's opened files: the inputs that determine rows, and the images in order."""

    sources: tuple[Source, ...]
    images: Images
    classes: tuple[str, ...] = ()  # in the files' order; empty: sorted by appearance


def _add_arguments(p: argparse.ArgumentParser) -> None:
    add_source(p, "boxes")
    p.add_argument(
        "--split",
        metavar="NAME",
        help="split of all rows (default: from the names of files and folders)",
    )
    for name in ("classes", "attributes"):
        p.add_argument(
            f"--{name}",
            type=Path,
            metavar="FILE",
            help=f"names of {name} in their order, one per line, synonyms separated by commas; "
            f"other {name} are omitted and counted (default: the names in the files)",
        )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    layout = find_layout(folder)
    classes, attributes = (
        {} if path is None else read_names(one_file(path))
        for path in (args.classes, args.attributes)
    )
    classes = classes or {name: number for number, name in enumerate(layout.classes)}
    if not classes or not attributes:
        names, words = count_labels(layout.images())
        classes = classes or {name: number for number, name in enumerate(sorted(names))}
        attributes = attributes or {word: number for number, word in enumerate(sorted(words))}
    if not classes:
        raise InputError(f"--input {folder.root}: the boxes have no classes; give --classes FILE")
    extra = [one_file(path) for path in (args.classes, args.attributes) if path is not None]
    return Reading(
        sources=(*layout.sources, *extra),
        entries=lambda: _entries(folder, layout.images, classes, attributes, args),
        image_folders=("images", "JPEGImages", "train", "val", "."),
        files={CLASSES: lines_by_number(classes), ATTRIBUTES: lines_by_number(attributes)},
    )


def one_file(path: Path) -> Source:
    """Returns a file as a source. Raises InputError if it does not exist."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a list of names, one per line")
    return file_source(path)


def count_labels(images: Iterator[box_files.AnnotatedImage]) -> tuple[Counter[str], Counter[str]]:
    """Counts the classes and attributes of all boxes, in one pass over the files."""
    names, words = Counter[str](), Counter[str]()
    for image in images:
        for annotated_object in [] if isinstance(image.objects, Drop) else image.objects:
            names.update([annotated_object.name] if annotated_object.name else [])
            words.update(annotated_object.attributes)
    return names, words


def find_layout(folder: Folder) -> Layout:
    """Returns the first known layout in ``--input``. Raises InputError."""
    root = folder.root
    if coco := coco_files(folder):
        names = dict.fromkeys(name for s in coco for name in box_files.coco_categories(s).values())
        return Layout(
            sources=tuple(coco),
            images=partial(read_each, box_files.coco_images, coco),
            classes=tuple(names),
        )
    if tables := [one_file(path) for path in folder.files(".tsv", ".tsv.gz")]:
        return Layout(
            sources=tuple(tables), images=partial(read_each, box_files.tsv_images, tables)
        )
    if xml := sorted(root.rglob("*.xml")):
        lists, splits = box_files.voc_splits(root)
        return Layout(
            sources=(listing(root, xml, "annotations.xml"), *map(one_file, lists)),
            images=lambda: (box_files.voc_image(path, root, splits) for path in xml),
        )
    names_files = [root / name for name in YOLO_NAMES if (root / name).is_file()]
    texts = sorted(p for p in root.rglob("*.txt") if p not in names_files and p.parent != root)
    if names_files and texts:
        classes = yolo_names(root)
        return Layout(
            sources=(one_file(names_files[0]), listing(root, texts, "labels.txt")),
            images=lambda: chain(
                (yolo_image(path, root, classes) for path in texts), yolo_backgrounds(root, texts)
            ),
            classes=tuple(dict.fromkeys(classes.values())),
        )
    raise folder.lacks(
        f"*.tsv, a *.json of COCO's instances, Pascal VOC's *.xml, or YOLO's labels/ with "
        f"{' or '.join(YOLO_NAMES)}"
    )


def coco_files(folder: Folder) -> list[Source]:
    """Returns COCO's instance files; by name if the folder also has keypoints or segments."""
    root = folder.root
    below = sorted([*root.glob("*/*.json"), *root.glob("*/*.json.gz")])
    for paths in (folder.files(".json", ".json.gz"), below):
        sources = [
            replace(one_file(path), name=path.relative_to(root).as_posix()) for path in paths
        ]
        coco = [s for s in sources if {"images", "annotations", "categories"} <= list_members(s)]
        if coco:
            return [s for s in coco if s.path.name.startswith("instances")] or coco
    return []


def list_members(source: Source) -> set[str]:
    """Returns the members of a JSON object; an empty set for a list."""
    file = JsonLists(source=source)
    return set() if file.is_list() else set(file.members())


def read_each(
    read: Callable[[Source], Iterator[box_files.AnnotatedImage]], sources: Sequence[Source]
) -> Iterator[box_files.AnnotatedImage]:
    """Yields the images of several files."""
    for source in sources:
        yield from read(source)


def listing(root: Path, paths: Sequence[Path], name: str) -> Source:
    """Returns many small files as one source, identified by their number and bytes."""
    return Source(path=root, name=f"{len(paths)} {name}", size=sum(p.stat().st_size for p in paths))


def _entries(
    folder: Folder,
    images: Images,
    classes: dict[str, int],
    attributes: dict[str, int],
    args: argparse.Namespace,
) -> Iterator[Entry]:
    claims = NamedClaims()
    for annotated in images():
        group = args.source
        if isinstance(annotated.objects, Drop):
            yield Entry(key=annotated.key, group=group, rows=annotated.objects)
            continue
        drop = claims.claim(annotated.file_name, repr(annotated.objects))
        if drop is not None or not annotated.file_name:
            why = drop or Drop(Reason.NO_ID, "an image without a name")
            yield Entry(key=annotated.key, group=group, rows=why)
            continue
        yield _entry(folder, annotated, annotated.objects, (classes, attributes), args)


def _entry(
    folder: Folder,
    annotated: box_files.AnnotatedImage,
    objects: Sequence[box_files.AnnotatedObject],
    vocabularies: tuple[dict[str, int], dict[str, int]],
    args: argparse.Namespace,
) -> Entry:
    image = ListedImage(
        image_id=annotated.file_name,
        paths=box_files.with_endings(annotated.file_name, annotated.folders),
        width=annotated.width,
        height=annotated.height,
        alone=True,
    )
    frame = read_frame(folder, image)
    if frame is None:
        drop = Drop(
            Reason.IMAGE_MISSING,
            "the size of the image is unknown: it is not given, and the file does not exist",
        )
        return Entry(key=annotated.key, group=args.source, rows=drop)
    row: dict[str, list[object]] = {"boxes": [], "class_ids": [], "attribute_ids": []}
    notes = list(size_notes(frame, [t.box for t in objects if not t.fractions]))
    crowds = []
    for annotated_object in objects:
        box = compute_box(annotated_object, frame)
        number = vocabularies[0].get(annotated_object.name)
        if isinstance(box, Drop) or number is None:
            reason = box.reason if isinstance(box, Drop) else Reason.LABEL_UNKNOWN
            notes.append(f"objects skipped, {reason.value}")
            continue
        known = [
            vocabularies[1][word] for word in annotated_object.attributes if word in vocabularies[1]
        ]
        unknown = len(annotated_object.attributes) - len(known)
        notes += ["attributes skipped, label_unknown"] * unknown
        row["boxes"].append(list(box))
        row["class_ids"].append(number)
        row["attribute_ids"].append(list(dict.fromkeys(known)))
        crowds.append(annotated_object.crowd)
    width, height = frame.upright_size
    box_row = {
        **row,
        "image_id": annotated.file_name,
        "width": width,
        "height": height,
        "is_crowd": crowds if any(crowds) else None,
        "split": args.split or annotated.split,
        "source": args.source,
    }
    if not objects:
        notes.append("images without an object")
    return Entry(
        key=annotated.key,
        group=args.source,
        rows=((BOXES, box_row),),
        images=(image,),
        notes=tuple(notes),
    )


def compute_box(annotated_object: box_files.AnnotatedObject, frame: Frame) -> Box | Drop:
    """Returns an object's box in the upright image, or why it is dropped."""
    box = annotated_object.box
    if isinstance(box, Drop):
        return box
    if annotated_object.fractions:
        x1, y1, x2, y2 = box
        box = (x1 * frame.width, y1 * frame.height, x2 * frame.width, y2 * frame.height)
    inside = clip_box(box, frame)
    return inside if isinstance(inside, Drop) else inside[0]


OWN_BOXES = DataSet(
    about="""\
Your own annotated boxes as `boxes`, one row per image, and their images as `images`: the input of
`extract-rois train`. DIR has one of these

  *.tsv       a header with image, x1, y1, x2, y2, class (and attributes, separated by commas, and
              split), one row per object; corners in pixels, the second one exclusive. An image
              without an object has a row with an empty class
  *.json      COCO's instances, in DIR or its folders: images, annotations with bbox and
              category_id, categories
  *.xml       Pascal VOC, in DIR or below it; ImageSets/Main/*.txt define the splits
  labels/     YOLO, in DIR or below it: one .txt per image with boxes or polygons, and data.yaml or
              classes.txt in DIR; images in images/, also those without a .txt

image_id is the image's file name in these files (for YOLO its path without the extension).
classes.json and attributes.json are written next to the tables: the names of class_ids and
attribute_ids, in the order of --classes and --attributes, of COCO's category ids or of YOLO's list,
else sorted. Files and folders with train, val or test in their names belong to that split.""",
    tables=(BOXES,),
    open=_open,
    add_arguments=_add_arguments,
    options=("source", "split", "classes", "attributes"),
)
