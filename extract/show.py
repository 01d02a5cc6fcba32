"""Runs ``extract-rois show``: draws boxes, classes and scores on the images."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from PIL import Image

from vlmill.extract.config import PAGE, InputLimits
from vlmill.extract.images.decode import decode
from vlmill.extract.images.given_boxes import find_file_id, find_similar_id
from vlmill.extract.images.plan import FILE, InputImage, plan_images
from vlmill.extract.images.reader import InputReader
from vlmill.runtime.console.drawing import Corners, draw_boxes
from vlmill.runtime.console.report import Section, image_uri, template, write_page
from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.readers.class_names import require_names, stored_names
from vlmill.runtime.readers.joining import Join
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Rejected, format_rejects

MAX_SIDE_PX = 900
FIGURE = template(
    '<figure><img src="{{ uri }}" alt="{{ alt }}"><figcaption>{{ text }}</figcaption></figure>'
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Holds names of classes and attributes; without names, their numbers are shown."""

    classes: Sequence[str] = ()
    attributes: Sequence[str] = ()

    def or_stored(self, producer: Mapping[str, Any]) -> "Vocabulary":
        """Returns these names, or those in the table's metadata if there are none."""
        stored = stored_names(producer)
        return Vocabulary(
            classes=self.classes or stored["classes"],
            attributes=self.attributes or stored["attributes"],
        )

    def label(self, row: RegionRow, region: int) -> str:
        """Returns the attribute, class and class score of a region, as far as they are stored."""
        if row.class_ids is None or row.class_scores is None:
            return ""
        words = [get_name(self.classes, int(row.class_ids[region]), "class")]
        if self.attributes and row.attribute_ids is not None:
            words.insert(0, get_name(self.attributes, int(row.attribute_ids[region]), "attribute"))
        return f"{' '.join(words)} {row.class_scores[region]:.2f}"


def get_name(names: Sequence[str], number: int, kind: str) -> str:
    """Returns the name of a number, or the number; -1 is not a class."""
    if number < 0:
        return f"no {kind}"
    return names[number] if number < len(names) else f"{kind} {number}"


@dataclass(kw_only=True)
class ImageCounts:
    """Counts the rows with an image, and the images that were not used."""

    num_rows: int
    num_drawn: int = 0
    unnamed: list[str] = field(default_factory=list)  # images without a row
    unread: Counter[str] = field(default_factory=Counter)  # reasons
    first_unread: str = ""
    verb: str = "drawn"

    def leave_out(self, image: InputImage, why: Rejected) -> None:
        """Counts an image that cannot be read."""
        self.first_unread = self.first_unread or name_in(image)
        self.unread[why.reason] += 1

    def format_counts(self, index: IdIndex) -> str:
        """Returns a line with the counts; with ids of both sides if nothing was drawn."""
        parts = [f"{self.num_drawn} of {format_count(self.num_rows, 'image')} {self.verb}"]
        if self.unnamed:
            parts.append(f"{format_count(len(self.unnamed), 'image')} of --images without a row")
        if self.unread:
            parts.append(f"{format_rejects(self.unread)}, the first is {self.first_unread}")
        if self.unnamed and not self.num_drawn:
            join = Join(index, asking="--images", holding="REGIONS")
            parts.append(join.samples(self.unnamed))
        return ", ".join(parts)


def show(
    regions: str,
    images: Sequence[str],
    output: Path,
    *,
    names: Vocabulary,
    max_boxes: int,
    max_images: int,
) -> tuple[int, str]:
    """Draws up to ``max_images`` rows to one HTML file or a folder.

    Returns their number and a line about it. Raises InputError for names that do not fit the
    detector, and for an image that matches two rows.
    """
    reader = RegionReader(regions, flag="REGIONS")
    require_names(vars(names), reader.producer, "REGIONS")
    names = names.or_stored(reader.producer)
    image_counts = ImageCounts(num_rows=len(reader))
    drawn = islice(drawings(reader, images, names, max_boxes, image_counts), max_images)
    if output.suffix.lower() != PAGE:
        image_counts.num_drawn = sum(save(output, row, canvas) for row, canvas in drawn)
        return image_counts.num_drawn, image_counts.format_counts(reader.index)
    sections = [section(row, canvas) for row, canvas in drawn]
    image_counts.num_drawn = len(sections)
    producer = reader.producer
    weights = str(producer.get("weights", "unknown"))
    notice = (
        f"Detector with {weights}: boxes and names are meaningless." if "random" in weights else ""
    )
    detector = reader.detector_fingerprint or "unknown"
    subtitle = f"{len(sections)} of {format_count(len(reader), 'image')}, detector {detector}"
    write_page(output, "Regions", sections, subtitle=subtitle, notice=notice)
    return image_counts.num_drawn, image_counts.format_counts(reader.index)


def save(folder: Path, row: RegionRow, canvas: Image.Image) -> int:
    """Writes one drawing under its id; returns 1, the number of files."""
    write_bytes(folder / f"{quote(row.image_id, safe='')}.png", encode_image(canvas, "PNG"))
    return 1


def section(row: RegionRow, canvas: Image.Image) -> Section:
    """Returns one image's section of the page."""
    text = f"{row.width} x {row.height} pixels, {format_count(len(row.boxes), 'region')}"
    figure = FIGURE.render(
        uri=image_uri(encode_image(canvas, "JPEG"), "image/jpeg"), alt=row.image_id, text=text
    )
    return Section(title=row.image_id, body=Markup(figure))


def encode_image(canvas: Image.Image, kind: str) -> bytes:
    """Returns a drawing's file: PNG keeps its lines sharp, JPEG a page small."""
    out = io.BytesIO()
    canvas.save(out, kind, quality=85)
    return out.getvalue()


def drawings(
    reader: RegionReader,
    images: Sequence[str],
    names: Vocabulary,
    max_boxes: int,
    image_counts: ImageCounts,
) -> Iterator[tuple[RegionRow, Image.Image]]:
    """Yields the rows whose images are among ``images``, in that order, with their drawings.

    An image belongs to the row with its id or with another name of it; a file is matched by its
    name, else by the SHA-256 of its content. ``image_counts`` counts the others.
    """
    limits = InputLimits()
    source = InputReader(limits.max_bytes)
    drawn: set[str] = set()
    for image in plan_images(images):
        matching_id = find_row_id(reader.index, image)
        if matching_id in drawn:
            continue
        try:
            own_id, data = source.read(image)
            image_id = own_id if matching_id is None else matching_id
            if image_id not in reader:
                image_counts.unnamed.append(name_in(image))
                continue
            if image_id in drawn:
                continue
            pixels = decode(data, limits)
        except Rejected as why:
            image_counts.leave_out(image, why)
            continue
        drawn.add(image_id)
        row = reader[image_id]
        yield row, draw(Image.fromarray(pixels[:, :, ::-1].copy()), row, names, max_boxes)


def name_in(image: InputImage) -> str:
    """Returns the name of an image at its source."""
    return image.image_id or Path(image.path).name


def find_row_id(index: IdIndex, image: InputImage) -> str | None:
    """Returns the id of the row that a planned image is named after; None if no name matches."""
    if image.kind == FILE:
        return find_file_id(index, image.path, "REGIONS")
    return None if image.image_id is None else find_similar_id(index, image.image_id, "REGIONS")


def draw(image: Image.Image, row: RegionRow, names: Vocabulary, max_boxes: int) -> Image.Image:
    """Draws the image, shrunk to a page's width, with its highest-scoring boxes on it."""
    boxes = [
        (get_corners(row, region), names.label(row, region))
        for region in best_regions(row, max_boxes)
    ]
    return draw_boxes(image, boxes, size=(row.width, row.height), max_side_px=MAX_SIDE_PX)


def get_corners(row: RegionRow, region: int) -> Corners:
    """Returns a region's x1, y1, x2, y2."""
    x1, y1, x2, y2 = map(float, row.boxes[region])
    return x1, y1, x2, y2


def best_regions(row: RegionRow, count: int) -> list[int]:
    """Returns the numbers of the regions with the highest class scores, or of the first without
    scores.
    """
    order = range(len(row.boxes))
    if row.class_scores is None:
        return list(order)[:count]
    scores = row.class_scores
    return sorted(order, key=lambda region: -float(scores[region]))[:count]
