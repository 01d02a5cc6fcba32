"""Makes rows of ``images`` for published images from folders, archives or downloads."""

from typing import TYPE_CHECKING, Any

from vlmill.pipelines.manifest.cleaning import flickr_id
from vlmill.pipelines.manifest.entries import IMAGE_STAGE, ListedImage
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.manifest.published.placeholders import is_unavailable
from vlmill.pipelines.manifest.reading.images import make_image_row
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.web.pages.images import Examiner
from vlmill.runtime.bounded_calls import CallLimits
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import ALIASES, IMAGES, REJECTS

if TYPE_CHECKING:
    from vlmill.pipelines.manifest.published.downloads import FetchedImages

MAX_PIXELS = 178_000_000  # of a published image: pillow's own limit against decompression bombs
LIMITS = CallLimits(more_bytes=11 << 29)  # as much per pixel as for 50 million elsewhere
# Reject reasons of unreadable images in published data sets.
_REASONS = {
    Reason.MISSING_IMAGE: Reason.IMAGE_MISSING,
    Reason.TOO_LARGE: Reason.IMAGE_TOO_LARGE,
    Reason.UNREADABLE_IMAGE: Reason.IMAGE_BROKEN,
    Reason.UNSUPPORTED_FORMAT: Reason.IMAGE_BROKEN,
    Reason.ANIMATED: Reason.IMAGE_BROKEN,
    Reason.EMPTY: Reason.IMAGE_BROKEN,
}


def published_row(
    folder: Folder, fetched: "FetchedImages | None", image: ListedImage, examiner: Examiner
) -> dict[str, Any] | Drop:
    """Returns the row of ``images`` for an image of the data set, or a Drop.

    An examiner that hashes adds the perceptual hash as ``phash``, which is not a column.
    """
    content = folder.image(image.paths) if image.content is None else image.content
    if isinstance(content, Drop):
        if fetched is None or image.url is None or content.reason is not Reason.IMAGE_MISSING:
            return _said(content)
        content = fetched.image(image.url)
        if isinstance(content, Drop):
            return _said(content, Reason.IMAGE_MISSING)
    if flickr_id(image.url) is not None and is_unavailable(content):
        return Drop(Reason.PLACEHOLDER, "Flickr's placeholder for a deleted photo")
    row = make_image_row(content, image.image_id, examiner)
    return (
        _said(row) if isinstance(row, Drop) else row | {"source_url": image.url, "uri": image.uri}
    )


def _said(drop: Drop, otherwise: Reason | None = None) -> Drop:
    reason = _REASONS.get(drop.reason, otherwise or drop.reason)
    if reason is drop.reason:
        return drop
    return Drop(reason, ": ".join(filter(None, (drop.reason.value, drop.detail))))


def write_image(image: ListedImage, row: dict[str, Any] | Drop | None, part: Part) -> None:
    """Writes an image's aliases, and its row or reject (None: the run writes no images)."""
    for alias in image.aliases:
        part.add(ALIASES, {"image_id": image.image_id, "alias": alias})
    if isinstance(row, Drop):
        part.add(REJECTS, reject(IMAGE_STAGE, image.image_id, row.reason, row.detail))
    elif row is not None:
        part.add(IMAGES, row)
