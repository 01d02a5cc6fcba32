"""Keeps one text for each image, limits the images of a text, and groups similar images."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby

import numpy as np

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.decode import DecodedPairs, place_key
from vlmill.pipelines.web_pairs.groups import HashCount, groups_path, make_groups
from vlmill.pipelines.web_pairs.pair import OtherText, Pair, with_others
from vlmill.pipelines.web_pairs.shared import SharedTexts, shared_path
from vlmill.pipelines.web_pairs.spool import (
    SLICES,
    Row,
    SpoolWriter,
    read_slices,
    sorted_rows,
    spool,
)
from vlmill.pipelines.web_pairs.stages import BEST_TEXT, EXCLUDE, SHARED_TEXT
from vlmill.pipelines.web_pairs.units import Job, open_counts
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.units.counts import Counts
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.rejects import Reason

IMAGE_KEY = 32  # bytes of an image_id
MOST_OTHERS = 1_000  # further texts of one image that are compared, the best from many pages
COUNTED_TEXTS = 100_000  # kept in memory before their counts are written


def best_texts(job: Job, unit: Unit) -> Result:
    """Keeps the best candidate of each image: writes a spool by images, and counts by texts."""
    paths = job.join_spools("choose", "candidates")
    excluded = excluder(job)
    with ExitStack() as stack:
        counts = stack.enter_context(open_counts(job, job.joins / f"{unit.name}.rejects.spool"))
        best = stack.enter_context(spool(job.joins / f"{unit.name}.best.spool"))
        texts = stack.enter_context(spool(job.joins / f"{unit.name}.texts.spool"))
        counter = TextCounter(texts)
        for slice_, stream in read_slices(paths, unit.slices):
            for key, group in groupby(stream, key=lambda row: row[0][:IMAGE_KEY]):
                pair = select_best(group, excluded, counts, job.rules.keep_texts)
                if pair is not None:
                    counter.add(rows.shared_key(pair.text))
                    best.add(slice_, key, rows.encode(pair))
        counter.flush()
    return Result(tallies=counts.tallies)


def excluder(job: Job) -> Callable[[ArchivedImage], str | None]:
    """Returns a function that returns why an image is excluded (by a list or its URL), or None."""
    excluded = job.excluded
    ids = {key.decode() for key, _ in sorted_rows(job.join_spools("join", "excluded"), 0)}

    def why(image: ArchivedImage) -> str | None:
        return "its URL" if image.image_id in ids else excluded.why(image)

    return why


def select_best(
    group: Iterable[Row],
    excluded: Callable[[ArchivedImage], str | None],
    counts: Counts,
    keep_texts: int,
) -> Pair | None:
    """Returns the first candidate of an image, which is its best, unless the image is excluded.

    The candidate gets the image's further texts, so that ``keep_texts`` texts are kept in all.
    """
    best: Pair | None = None
    others: list[OtherText] = []
    for _, value in group:
        candidate = rows.pair(value)
        if (why := excluded(candidate.image)) is not None:
            counts.dropped(EXCLUDE, candidate.image.url, Drop(Reason.EXCLUDED, why))
            continue
        counts.passed(EXCLUDE)
        if best is None:
            counts.passed(BEST_TEXT)
            best = candidate
        else:
            detail = f"{candidate.score:.3f} {candidate.text_source}: {candidate.text}"
            drop = Drop(Reason.NOT_BEST_TEXT, detail)
            counts.dropped(BEST_TEXT, candidate.image.image_id, drop)
            if keep_texts > 1 and len(others) < MOST_OTHERS:
                others += (candidate.as_other(), *candidate.others)
    return with_others(best, (*best.others, *others), keep_texts - 1) if best and others else best


class TextCounter:
    """Counts the images of texts; a text of a million images is a few rows, not a million."""

    def __init__(self, texts: SpoolWriter) -> None:
        self._texts = texts
        self._counts: Counter[bytes] = Counter()

    def add(self, key: bytes) -> None:
        """Counts one more image of a text."""
        self._counts[key] += 1
        if len(self._counts) > COUNTED_TEXTS:
            self.flush()

    def flush(self) -> None:
        """Writes the counts."""
        for key, count in self._counts.items():
            self._texts.add(key[0], key, rows.encode(count))
        self._counts.clear()


def shared_texts(job: Job, unit: Unit) -> Result:
    """Writes the sorted keys of texts that too many images share: 16 bytes each."""
    paths = job.join_spools("best", "texts")
    with atomic_path(shared_path(job, unit)) as path, path.open("wb") as file:
        for _, stream in read_slices(paths, unit.slices):
            for key, group in groupby(stream, key=lambda row: row[0]):
                if sum(rows.number(value) for _, value in group) > job.rules.max_images_per_text:
                    file.write(key)
    return Result()


def settle(job: Job, unit: Unit) -> Result:
    """Drops pairs of shared texts; writes the other pairs by the location of their images.

    Images of pages' data: URIs have been decoded with their pages.
    """
    paths, shared = job.join_spools("best", "best"), SharedTexts(job)
    with ExitStack() as stack:
        decoded = DecodedPairs(job, unit.name, stack)
        undecoded = stack.enter_context(spool(job.joins / f"{unit.name}.undecoded.spool"))
        for _, stream in read_slices(paths, unit.slices):
            for _, value in stream:
                pair = rows.pair(value)
                if rows.shared_key(pair.text) in shared:
                    detail = f"{pair.image.url} {pair.text}"
                    pair_id = compute_pair_id(pair.image.image_id, pair.text)
                    drop = Drop(Reason.SHARED_TEXT, detail)
                    decoded.counts.dropped(SHARED_TEXT, pair_id, drop)
                    continue
                decoded.counts.passed(SHARED_TEXT)
                if pair.image.phash is not None:
                    decoded.add(pair)
                else:
                    key = place_key(pair.image)
                    undecoded.add(key[0], key, value)
    return Result(tallies=decoded.counts.tallies)


def group_images(job: Job, unit: Unit) -> Result:
    """Writes the groups of similar images and their counts."""
    paths = job.spools("hashes", range(SLICES))
    stream = (row for _, rows in read_slices(paths, range(SLICES)) for row in rows)
    groups, metrics = make_groups(read_hash_counts(stream))
    with atomic_path(groups_path(job.joins)) as path, path.open("wb") as file:
        np.save(file, groups, allow_pickle=False)
    return Result(metrics=metrics)


def read_hash_counts(stream: Iterable[Row]) -> Iterator[HashCount]:
    """Yields each hash with the number of its images and the largest of them."""
    for phash, group in groupby(stream, key=lambda row: row[0][:8]):
        ranks = (key[8:] for key, _ in group)
        first = next(ranks)
        yield HashCount(int.from_bytes(phash, "big"), 1 + sum(1 for _ in ranks), first)
