"""Images that pairs need are decoded, an archive or a part of one a unit.

Mining reads only their headers: most images of a page are no content, and decoding is what costs
most. An image that turns out to be damaged, of one colour or refused by a filter ends here.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

from vlmill.pipelines.web.archives.reading import open_archive, read_bodies
from vlmill.pipelines.web.pages.images import BATCH, ArchivedImage, Examiner, ImageFacts
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.image_bytes import check_unchanged
from vlmill.pipelines.web_pairs.mine import examining
from vlmill.pipelines.web_pairs.pair import Pair
from vlmill.pipelines.web_pairs.spool import SpoolWriter, sorted_rows, spool
from vlmill.pipelines.web_pairs.stages import DECODE
from vlmill.pipelines.web_pairs.units import Archive, Job, archive_units, open_counts
from vlmill.runtime.units.counts import Counts
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.rejects import Reason

READ_AHEAD = 2 * BATCH  # images that are read while others are decoded


class DecodedPairs:
    """Leaves pairs whose images are decoded: by shards, and their hashes for the groups."""

    def __init__(self, job: Job, name: str, stack: ExitStack) -> None:
        def open_spool(kind: str) -> SpoolWriter:
            return stack.enter_context(spool(job.joins / f"{name}.{kind}.spool"))

        self._shards, self._excluded = job.shards, job.excluded
        self._counts: Counts = stack.enter_context(
            open_counts(job, job.joins / f"{name}.rejects.spool")
        )
        self._pairs, self._images = open_spool("pairs"), open_spool("images")
        self._hashes = open_spool("hashes")

    @property
    def counts(self) -> Counts:
        """Returns the counts of the unit."""
        return self._counts

    def add(self, pair: Pair) -> None:
        """Adds a pair unless its image looks like an excluded one."""
        image = pair.image
        if (why := self._excluded.why_looks(image)) is not None:
            self._counts.dropped(DECODE, image.url, Drop(Reason.EXCLUDED, why))
            return
        self._counts.passed(DECODE)
        pair_id, value = compute_pair_id(image.image_id, pair.text), rows.encode(pair)
        self._pairs.add(rows.assign_shard(pair_id, self._shards), pair_id.encode(), value)
        shard = rows.assign_shard(image.image_id, self._shards)
        self._images.add(shard, rows.bytes_key(pair), value)
        self._hashes.add(*rows.hash_row(image, bytes.fromhex(image.image_id)))

    def drop(self, pair: Pair, drop: Drop) -> None:
        """Counts a pair whose image is dropped."""
        self._counts.dropped(DECODE, pair.image.url, drop)


def place_key(image: ArchivedImage) -> bytes:
    """Returns the key of an image by its archive and its place in it."""
    archive = Archive(path=image.archive, size=0).id
    return archive + rows.number_key(image.offset) + bytes.fromhex(image.image_id)


def decode_units(job: Job) -> list[Unit]:
    """One unit for each archive, or for each part of a large one."""
    return [replace(unit, name=f"decode-{unit.name}") for unit in archive_units(job)]


def decode_images(job: Job, unit: Unit) -> Result:
    """Decodes the images of pairs that begin in an archive, or in a part of it.

    Raises OSError if the archive has changed since it was mined. Memory: some 64 images.
    """
    archive = job.archives[unit.number]
    begin, end = archive.id, archive.id + b"\xff" * 9
    if unit.slices:
        begin += rows.number_key(unit.slices.start)
        # The offsets of what is read as one stream may lie behind the archive's end.
        if unit.slices.stop < archive.size:
            end = archive.id + rows.number_key(unit.slices.stop)
    stored = sorted_rows(job.spools("undecoded"), archive.id[0], between=(begin, end))
    pairs = (rows.pair(value) for _, value in stored)
    with ExitStack() as stack:
        decoded = DecodedPairs(job, unit.name, stack)
        first = next(pairs, None)
        if first is not None:
            examiner = stack.enter_context(examining(job.rules, job.filters))
            file = stack.enter_context(open_archive(archive.path, job.allowed))
            batch = [first]
            while batch := [*batch, *islice(pairs, READ_AHEAD - len(batch))]:
                offsets = [pair.image.offset for pair in batch]
                bodies = read_bodies(file, offsets, max_bytes=job.rules.max_record_bytes)
                for pair, outcome in _examined(zip(batch, bodies, strict=True), examiner):
                    if isinstance(outcome, Drop):
                        decoded.drop(pair, outcome)
                    else:
                        image = replace(
                            pair.image,
                            width=outcome.width,
                            height=outcome.height,
                            phash=outcome.phash,
                        )
                        decoded.add(replace(pair, image=image))
                batch = []
    return Result(tallies=decoded.counts.tallies)


def _examined(
    bodies: Iterator[tuple[Pair, bytes | Drop]], examiner: Examiner
) -> Iterator[tuple[Pair, ImageFacts | Drop]]:
    """Yields pairs with what decoding their images has shown; some are read ahead."""
    waiting: deque[tuple[Pair, Callable[[], ImageFacts | Drop]]] = deque()
    for pair, body in bodies:
        waiting.append((pair, examiner.submit(check_unchanged(pair.image, body))))
        if len(waiting) == READ_AHEAD:
            first, wait = waiting.popleft()
            yield first, wait()
    for first, wait in waiting:
        yield first, wait()
