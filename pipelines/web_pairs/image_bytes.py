"""Reads the bytes of kept images again, from their archives or from their pages."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from vlmill.pipelines.web.archives.reading import open_archive, read_bodies
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs.mine import INLINE
from vlmill.pipelines.web_pairs.pair import Pair
from vlmill.pipelines.web_pairs.spool import sorted_rows
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id

BATCH = 10_000  # images of an archive that are requested together


def read_images(
    pairs: Iterable[tuple[Pair, str]], job: Job, shard: int
) -> Iterator[tuple[Pair, str, bytes]]:
    """Yields pairs with their splits and images' bytes, ordered by archive and offset.

    Raises OSError if an archive has changed since it was mined. Memory: one image, and a batch
    of pairs.
    """
    for archive, group in groupby(pairs, key=lambda one: one[0].image.archive):
        if archive == INLINE:
            yield from _inline(group, job, shard)
            continue
        with open_archive(archive, job.allowed) as file:
            while batch := list(islice(group, BATCH)):
                offsets = [pair.image.offset for pair, _ in batch]
                bodies = read_bodies(file, offsets, max_bytes=job.rules.max_record_bytes)
                for (pair, split), body in zip(batch, bodies, strict=True):
                    yield pair, split, check_unchanged(pair.image, body)


def check_unchanged(image: ArchivedImage, body: bytes | Drop) -> bytes:
    """Returns an image's bytes. Raises OSError if they differ from the mined bytes."""
    if isinstance(body, Drop) or compute_image_id(body) != image.image_id:
        raise OSError(
            f"{image.archive} has changed since it was mined, at byte {image.offset}; "
            "give --fresh to mine all archives again"
        )
    return body


def _inline(
    pairs: Iterable[tuple[Pair, str]], job: Job, shard: int
) -> Iterator[tuple[Pair, str, bytes]]:
    """Matches pairs with inline image bytes; both are sorted by image id.

    An image that several pages have is yielded once.
    """
    images = sorted_rows(job.spools("mined-inline", range(shard, shard + 1)), shard)
    for pair, split in pairs:
        key = bytes.fromhex(pair.image.image_id)
        yield pair, split, next(data for image_key, data in images if image_key == key)
