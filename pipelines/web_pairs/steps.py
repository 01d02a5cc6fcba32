"""Defines the steps of the job: archives, then ranges of keys, then shards.

The work of the short ones is here: the second step checks that the parts of an archive fit and
follows links across them; after the choice one text is kept for each image, the images of a text
are limited, and similar images are grouped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.decode import (
    DecodedPairs,
    SharedTexts,
    decode_images,
    decode_units,
    place_key,
    shared_path,
)
from vlmill.pipelines.web_pairs.groups import HashCount, groups_path, make_groups
from vlmill.pipelines.web_pairs.join import choose_texts, follow_redirects, join_urls
from vlmill.pipelines.web_pairs.links import LinkFollower, follow_log
from vlmill.pipelines.web_pairs.merge import gather, gather_units, merge
from vlmill.pipelines.web_pairs.mine import mine, mine_records, read_records
from vlmill.pipelines.web_pairs.order import order, order_units, shard_units
from vlmill.pipelines.web_pairs.pair import OtherText, Pair, with_others
from vlmill.pipelines.web_pairs.shards import write_shard
from vlmill.pipelines.web_pairs.sources import Archive, describe
from vlmill.pipelines.web_pairs.spool import (
    SLICES,
    Row,
    SpoolWriter,
    forget_footers,
    read_slices,
    sorted_rows,
    spool,
    unsorted_rows,
)
from vlmill.pipelines.web_pairs.stages import ARCHIVES, BEST_TEXT, EXCLUDE, SHARED_TEXT
from vlmill.pipelines.web_pairs.units import (
    Job,
    archive_units,
    get_join_folder,
    get_mined_folder,
    link_units,
    merge_units,
    open_counts,
    part_units,
    range_units,
)
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.written import record_files
from vlmill.runtime.net.remote_file import Unreachable
from vlmill.runtime.units.funnel import Counts, Drop
from vlmill.runtime.units.step import Step, Units, Work, single_unit
from vlmill.runtime.units.unit import Result, Unit, read_record, record_path, run_unit, write_record
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.rejects import Reason

IMAGE_KEY = 32  # bytes of an image_id
MOST_OTHERS = 1_000  # further texts of one image that are compared, the best from many pages
COUNTED_TEXTS = 100_000  # kept in memory before their counts are written


def link_parts(job: Job, unit: Unit) -> Result | None:
    """Compares the parts of an archive, then runs :func:`follow_links`.

    If a part does not begin at the end of the previous part, or is damaged, the whole archive is
    mined again. A resumed run compares the parts again, as one of them may have been repeated.
    """
    archive = job.archives[unit.number]
    units = part_units(archive, unit.number)
    if not fit_together(archive, _read_records(job, units)):
        print_status(f"{archive.path} is damaged, or contains archives; one unit mines all of it")
        mine_whole(job, archive, units)
    return run_unit(job, job.mined, unit, follow_links)


def follow_links(job: Job, unit: Unit) -> Result:
    """Writes the final targets of an archive's redirects and revisits, over all its parts."""
    archive = job.archives[unit.number]
    units = part_units(archive, unit.number)
    with (
        open_counts(job, job.mined_spool(unit.name, "rejects")) as counts,
        spool(job.mined_spool(unit.name, "redirects")) as redirects,
    ):
        logs = [job.mined_spool(part.name, "links") for part in units]
        follow_log(unsorted_rows(logs, 0), LinkFollower(redirects, counts))
        stages = {stage for record in _read_records(job, units) for stage, *_ in record["tallies"]}
        if ARCHIVES.name not in stages:  # mine_whole has counted it
            counts.passed(ARCHIVES)
    return Result(tallies=counts.tallies, about=describe(archive), metrics={"wrong_digests": 0})


def _read_records(job: Job, units: Sequence[Unit]) -> list[dict[str, Any]]:
    return [read_record(record_path(job.mined, unit)) for unit in units]


def fit_together(archive: Archive, records: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether each part begins where the previous one ends, up to the archive's end."""
    position = 0
    for part, record in zip(archive.parts, records, strict=True):
        if record["begin"] is None and position >= part.stop:
            continue  # a record of an earlier part spans it
        if record["begin"] != position:
            return False
        position = int(record["end"])
    return position == archive.size


def mine_whole(job: Job, archive: Archive, units: Sequence[Unit]) -> None:
    """Mines a whole archive as its first part, and leaves the other parts empty."""
    for unit in units:
        with record_files() as files:
            if unit is units[0]:
                result = mine_records(job, unit, partial(read_records, archive, None, job))
                result.about |= {"begin": 0, "end": archive.size}
            else:
                result = mine_records(job, unit, lambda _: ())
                result.about |= {"begin": None, "end": 0}
        write_record(job, job.mined, unit, result, files)
    forget_footers()


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


def _joining(name: str, units: Units[Job], work: Work[Job]) -> Step[Job]:
    return Step(name=name, units=units, work=work, folder=get_join_folder)


def _ranged(name: str, work: Work[Job]) -> Step[Job]:
    return _joining(name, partial(range_units, name), work)


def _merging(what: str, level: int, *kinds: str) -> Step[Job]:
    units = partial(merge_units, what, kinds, level)
    return _joining(f"merge {what} {level}", units, partial(merge, kinds, level))


def _reading_archives(work: Work[Job], job: Job, unit: Unit) -> Result | None:
    """Raises OSError for an archive on the web that does not respond."""
    try:
        return work(job, unit)
    except Unreachable as error:
        raise OSError(str(error)) from None


MINE = Step(
    name="mine", units=archive_units, work=partial(_reading_archives, mine), folder=get_mined_folder
)
LINK = Step(
    name="link",
    units=link_units,
    work=partial(_reading_archives, link_parts),
    folder=get_mined_folder,
    recorded=False,
)
KEYS = ("mined-pages", "mined-urls", "mined-redirects")
ROWS, REST = ("pairs", "images", "hashes"), ("rejects", "mined-inline")
MERGE_KEYS = (_merging("keys", 1, *KEYS), _merging("keys", 2, *KEYS))
UP_TO_CHOOSE = (
    *MERGE_KEYS,
    _ranged("follow", follow_redirects),
    _ranged("join", join_urls),
    _ranged("choose", choose_texts),
)
STEPS = (
    MINE,
    LINK,
    *UP_TO_CHOOSE,
    _ranged("best", best_texts),
    _ranged("shared", shared_texts),
    _ranged("settle", settle),
    _joining("gather", gather_units, gather),
    _joining("decode", decode_units, partial(_reading_archives, decode_images)),
    _merging("rows", 1, *ROWS),
    _merging("rest", 1, *REST),
    _merging("rows", 2, *ROWS, *REST),
    _joining("groups", partial(single_unit, "groups"), group_images),
    _joining("order", order_units, order),
    _joining("shards", shard_units, partial(_reading_archives, write_shard)),
)
