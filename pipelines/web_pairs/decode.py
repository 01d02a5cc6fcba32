"""Decodes the images of the remaining pairs; a unit is an archive or a part of one.

Mining reads only image headers, because most images are not content and decoding is the most
expensive step. Damaged images, images of one colour and images that a filter rejects are dropped,
and texts that too many images share, which are looked up in files of sorted keys.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.web.archives.reading import open_archive, read_bodies
from vlmill.pipelines.web.pages.images import BATCH, ArchivedImage, Examiner, ImageFacts
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.image_bytes import check_unchanged
from vlmill.pipelines.web_pairs.merge import gather_units
from vlmill.pipelines.web_pairs.metrics import RejectedImages
from vlmill.pipelines.web_pairs.mine import examining
from vlmill.pipelines.web_pairs.pair import OtherText, Pair, with_others
from vlmill.pipelines.web_pairs.spool import SpoolWriter, sorted_rows, spool
from vlmill.pipelines.web_pairs.stages import DECODE
from vlmill.pipelines.web_pairs.units import Archive, Job, archive_units, open_counts, range_units
from vlmill.runtime.units.funnel import Counts, Drop
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.rejects import Reason

if TYPE_CHECKING:
    from vlmill.pipelines.filters.scorer import Scorer

Keys = npt.NDArray[np.bytes_]


def shared_path(job: Job, unit: Unit) -> Path:
    """Returns the path of the keys of a range's shared texts."""
    return job.joins / f"{unit.name}.shared"


class SharedTexts:
    """Looks up shared texts in memory-mapped files of sorted keys."""

    def __init__(self, job: Job) -> None:
        self._parts: dict[int, Keys] = {}
        for unit in range_units("shared", job):
            path = shared_path(job, unit)
            if path.stat().st_size:
                keys: Keys = np.memmap(path, dtype=f"S{rows.KEY}", mode="r")
                self._parts |= dict.fromkeys(unit.slices, keys)

    def __contains__(self, key: bytes) -> bool:
        keys = self._parts.get(key[0])
        if keys is None:
            return False
        value = np.array(key, dtype=keys.dtype)
        index = int(np.searchsorted(keys, value))
        return index < len(keys) and bool(keys[index] == value)


READ_AHEAD = 2 * BATCH  # images that are read while others are decoded


class DecodedPairs:
    """Writes pairs whose images are decoded, by shard, and their hashes for the groups."""

    def __init__(self, job: Job, name: str, stack: ExitStack) -> None:
        def open_spool(kind: str) -> SpoolWriter:
            return stack.enter_context(spool(job.joins / f"{name}.{kind}.spool"))

        self._shards, self._excluded, self._scorer = job.shards, job.excluded, job.scorer
        self._shared = SharedTexts(job)
        self._counts: Counts = stack.enter_context(
            open_counts(job, job.joins / f"{name}.rejects.spool")
        )
        self._pairs, self._images = open_spool("pairs"), open_spool("images")
        self._hashes = open_spool("hashes")
        self.rejected = RejectedImages()

    @property
    def counts(self) -> Counts:
        """Returns the counts of the unit."""
        return self._counts

    def add(self, pair: Pair, body: bytes | None = None) -> None:
        """Adds a pair unless its image resembles an excluded one or no text passes the scorer.

        ``body`` is the image file, if it is available, for the scorer.
        """
        image = pair.image
        if (why := self._excluded.hash_reject_reason(image)) is not None:
            self._counts.dropped(DECODE, image.url, Drop(Reason.EXCLUDED, why))
            return
        if self._scorer is not None:
            best = choose_scored(pair, body, self._scorer)
            if isinstance(best, Drop):
                self._counts.dropped(DECODE, image.url, best)
                return
            if rows.shared_key(best.text) in self._shared:
                self._counts.dropped(DECODE, image.url, Drop(Reason.SHARED_TEXT, best.text))
                return
            pair = best
        self._counts.passed(DECODE)
        pair_id, value = compute_pair_id(image.image_id, pair.text), rows.encode(pair)
        self._pairs.add(rows.assign_shard(pair_id, self._shards), pair_id.encode(), value)
        shard = rows.assign_shard(image.image_id, self._shards)
        self._images.add(shard, rows.bytes_key(pair), value)
        self._hashes.add(*rows.hash_row(image, bytes.fromhex(image.image_id)))

    def drop(self, pair: Pair, drop: Drop) -> None:
        """Counts a pair whose image is dropped."""
        self.rejected.add(pair, drop)
        self._counts.dropped(DECODE, pair.image.url, drop)


def choose_scored(pair: Pair, body: bytes | None, scorer: "Scorer") -> Pair | Drop:
    """Returns the pair with the text that the scorer rates best for its image, and the other texts.

    In LAIT's order (ImageBERT, arXiv:2001.07966, section 3): each text is scored with the image,
    texts below the threshold are dropped, and the best remaining text is kept.
    """
    from vlmill.pipelines.filters.scorer import PairFacts, measure_file  # loads slowly
    from vlmill.pipelines.filters.statistics import MAX_PIXELS

    texts = [pair.as_other(), *pair.others]
    image = None if body is None else measure_file(body, max_pixels=MAX_PIXELS)
    facts = [PairFacts(pair=_scored_row(pair, text), image=image) for text in texts]
    scores = [round(score, 6) for score in scorer.score(facts).tolist()]
    scored = [replace(text, score=score) for text, score in zip(texts, scores, strict=True)]
    best = max(scored, key=lambda text: (text.score, text.text))
    if best.score < scorer.threshold:
        return Drop(Reason.LOW_SCORE, f"{best.score:.3f} {best.text_source}: {best.text}")
    chosen = replace(pair, **best.as_fields())
    return with_others(chosen, (text for text in scored if text is not best), len(pair.others))


def _scored_row(pair: Pair, text: OtherText) -> dict[str, str | None]:
    """Returns the columns of a ``pairs`` row that a scorer reads."""
    return {
        "text": text.text,
        "language": text.language or None,
        "text_source": text.text_source,
        "page_url": text.page_url or None,
        "image_url": pair.image.url,
    }


def place_key(image: ArchivedImage) -> bytes:
    """Returns the key of an image by its archive and its offset."""
    archive = Archive(path=image.archive, size=0).id
    return archive + rows.number_key(image.offset) + bytes.fromhex(image.image_id)


def decode_units(job: Job) -> list[Unit]:
    """Returns one unit for each archive, or for each part of a large one."""
    return [replace(unit, name=f"decode-{unit.name}") for unit in archive_units(job)]


def decode_images(job: Job, unit: Unit) -> Result:
    """Decodes the images of pairs that begin in an archive, or in a part of it.

    Raises OSError if the archive has changed since it was mined. Memory: some 64 images.
    """
    archive = job.archives[unit.number]
    begin, end = archive.id, archive.id + b"\xff" * 9
    if unit.slices:
        begin += rows.number_key(unit.slices.start)
        # Offsets in an archive that is one compressed stream may exceed its size.
        if unit.slices.stop < archive.size:
            end = archive.id + rows.number_key(unit.slices.stop)
    paths, slice_ = job.join_spools("settle", "undecoded"), archive.id[0]
    for gathered in gather_units(job):
        if slice_ in gathered.slices:
            paths = [job.joins / f"{gathered.name}.undecoded.spool"]
    stored = sorted_rows(paths, slice_, between=(begin, end))
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
                for pair, body, outcome in _examined(zip(batch, bodies, strict=True), examiner):
                    if isinstance(outcome, Drop):
                        decoded.drop(pair, outcome)
                    else:
                        image = replace(
                            pair.image,
                            width=outcome.width,
                            height=outcome.height,
                            phash=outcome.phash,
                            nsfw_score=outcome.nsfw_score,
                            realism_score=outcome.realism_score,
                        )
                        decoded.add(replace(pair, image=image), body)
                batch = []
    return Result(tallies=decoded.counts.tallies, metrics=decoded.rejected.as_json())


def _examined(
    bodies: Iterator[tuple[Pair, bytes | Drop]], examiner: Examiner
) -> Iterator[tuple[Pair, bytes, ImageFacts | Drop]]:
    """Yields pairs with their images and the results of decoding; reads some images ahead."""
    waiting: deque[tuple[Pair, bytes, Callable[[], ImageFacts | Drop]]] = deque()
    for pair, stored in bodies:
        body = check_unchanged(pair.image, stored)
        waiting.append((pair, body, examiner.submit(body)))
        if len(waiting) == READ_AHEAD:
            first, data, wait = waiting.popleft()
            yield first, data, wait()
    for first, data, wait in waiting:
        yield first, data, wait()
