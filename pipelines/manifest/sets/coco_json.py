"""Reads the user's captions in COCO's layout, {images, annotations}; ids may be strings."""

import argparse
from collections.abc import Iterator
from typing import Any

from vlmill.pipelines.manifest.cleaning import NamedClaims, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import (
    DataSet,
    Entry,
    Expected,
    ListedImage,
    Reading,
    kept_images,
)
from vlmill.pipelines.manifest.flags import add_source
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.files.kept_values import ValueStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import MAX_KEY, Reason
from vlmill.schemas.tables import PAIRS


def _add_arguments(p: argparse.ArgumentParser) -> None:
    add_source(p, "coco-json")
    p.add_argument("--split", metavar="NAME", help="split of all rows (default: null)")


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    files = map(file_source, folder.files(".json", ".json.gz"))
    sources = [s for s in files if {"images", "annotations"} <= set(JsonLists(source=s).members())]
    if not sources:
        raise folder.lacks("*.json with the members images and annotations")
    lengths = {s.name: sum(1 for _ in JsonLists(source=s).elements("annotations")) for s in sources}
    return Reading(
        sources=tuple(sources),
        entries=lambda: _entries(sources, args.source, args.split),
        expected={
            name: Expected(rows=rows, source="the list's length") for name, rows in lengths.items()
        },
        image_folders=("images", "train", "val", "."),
    )


KNOWN = {
    "": frozenset(("info", "images", "licenses", "annotations", "categories", "type")),
    "images": frozenset(
        (
            *("id", "file_name", "width", "height", "license"),
            *("coco_url", "flickr_url", "date_captured"),
        )
    ),
    "annotations": frozenset(("id", "image_id", "caption")),
}


def _entries(sources: list[Source], name: str, split: str | None) -> Iterator[Entry]:
    claims, claims_of_images = NamedClaims(), NamedClaims()
    for source in sources:
        file = JsonLists(source=source, known=KNOWN)
        images = kept_images()
        yield from _read_images(file, name, images, claims_of_images)
        for number, annotation in enumerate(file.elements("annotations")):
            key = f"{source.name}:{number}"
            result = _pair(annotation, images, name, split, claims)
            if isinstance(result, Drop):
                yield Entry(key=key, group=source.name, rows=result)
                continue
            pair, image = result
            notes = note_repairs(pair["text"], annotation["caption"])
            yield Entry(
                key=key, group=source.name, rows=((PAIRS, pair),), images=(image,), notes=notes
            )


def _own_id(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip()
    return text if text.isprintable() and 0 < len(text) <= MAX_KEY // 2 else None


def _read_images(
    file: JsonLists, name: str, images: ValueStore[ListedImage], claims: NamedClaims
) -> Iterator[Entry]:
    """Adds the images of a file to ``images`` by id; yields invalid ones.

    ``claims`` covers all files: an id means the same image in each of them.
    """
    for index, element in enumerate(file.elements("images")):
        image_id = _own_id(element.get("id")) if isinstance(element, dict) else None
        if image_id is None or not isinstance(element.get("file_name"), str):
            drop: Drop | None = Drop(Reason.BAD_ROW, "an image without an id or a file_name")
        else:
            drop = claims.claim(image_id, element["file_name"])
        if image_id is not None and (drop is None or drop.reason is Reason.DUPLICATE):
            path = element["file_name"]
            paths = (path, f"images/{path}", f"train/{path}", f"val/{path}")
            images.put(key64(image_id), ListedImage(image_id=f"{name}/{image_id}", paths=paths))
        if drop is not None:
            yield Entry(key=f"{file.source.name}:images:{index}", group="", rows=drop)


def _pair(
    annotation: object,
    images: ValueStore[ListedImage],
    name: str,
    split: str | None,
    claims: NamedClaims,
) -> tuple[dict[str, Any], ListedImage] | Drop:
    if not isinstance(annotation, dict):
        return Drop(Reason.BAD_ROW, f"a {type(annotation).__name__}, expected an object")
    annotation_id, published_id = _own_id(annotation.get("id")), _own_id(annotation.get("image_id"))
    if annotation_id is None or published_id is None:
        return Drop(Reason.BAD_ROW, "an annotation without id or image_id")
    image = images.get(key64(published_id))
    if image is None:
        return Drop(Reason.BAD_ROW, f"its image {published_id[:200]} is not in the list of images")
    text = validate_text(annotation.get("caption"))
    if isinstance(text, Drop):
        return text
    drop = claims.claim(annotation_id, f"{published_id}\0{text}")
    if drop is not None:
        return drop
    return {
        "pair_id": f"{name}/{annotation_id}",
        "image_id": image.image_id,
        "text": text,
        "source": name,
        "split": split,
    }, image


COCO_JSON = DataSet(
    about="""\
JSON files {images: [{id, file_name}], annotations: [{id, image_id, caption}]} as pairs; ids may be
strings. Images are DIR/<file_name>, or below DIR/images. image_id is <source>/<id>.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("source", "split"),
)
