"""Finds placeholders: the same bytes under many ids, such as "photo unavailable" for a dead link.

The search ends before anything is written, so that all placeholders are rejected, including the
first twenty. Only images whose size occurs often are read.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vlmill.pipelines.manifest.entries import ListedImage, Reading
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.kept_values import NumberStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import key64

if TYPE_CHECKING:
    from vlmill.pipelines.manifest.published.downloads import FetchedImages

# Of the image that Flickr served, with status 200, for deleted photos: caffe,
# examples/finetune_flickr_style/assemble_data.py.
UNAVAILABLE_SHA1 = "6a92790b1c2a301c6e7ddef645dca1f53ea97ac2"
MOST_IDS = 20  # of the same bytes: people may store a photo several times
LEAST_IDS = 3  # of a placeholder in a set that is too small for more than 20 copies


def is_unavailable(content: bytes) -> bool:
    """Returns whether an image is the one that Flickr serves instead of a deleted photo."""
    return hashlib.sha1(content, usedforsecurity=False).hexdigest() == UNAVAILABLE_SHA1


def compute_min_ids(num_images: int) -> int:
    """Returns the smallest number of ids that a placeholder's bytes have in a set of
    ``num_images``: 21, or half of all images in small sets.
    """
    return min(MOST_IDS + 1, max(LEAST_IDS, -(-num_images // 2)))


def find_placeholders(
    folder: Folder, reading: Reading, fetched: "FetchedImages | None" = None
) -> frozenset[str]:
    """Returns the SHA-256 of bytes that more than 20 ids have, or as many URLs of downloaded
    images; in small sets also of bytes that three or more ids, half of all, have.
    """
    with Progress(total=None, unit="image", label="placeholders") as progress:
        sizes, counts = NumberStore(), Counter[int]()  # of existing images
        for image in _images(reading):
            size = folder.image_size(image.paths)
            progress.advance()
            if size is not None:
                sizes.put(key64(image.image_id), size)
                counts[size] += 1
        min_ids = compute_min_ids(counts.total())
        common = {size for size, count in counts.items() if count >= min_ids}
        digests = Counter[str]()
        for image in _images(reading) if common else ():
            if sizes.get(key64(image.image_id)) in common:
                content = folder.image(image.paths)
                if not isinstance(content, Drop):
                    digests[hashlib.sha256(content).hexdigest()] += 1
    repeated = frozenset(digest for digest, count in digests.items() if count >= min_ids)
    return repeated if fetched is None else repeated | fetched.find_repeated(MOST_IDS)


def _images(reading: Reading) -> Iterator[ListedImage]:
    """Yields each image once."""
    known_ids = NumberStore()
    for entry in reading.entries():
        for image in entry.images if not isinstance(entry.rows, Drop) else ():
            if image.alone or known_ids.claim(key64(image.image_id), 0) is None:
                yield image
