"""Defines the steps of the job: archives, then ranges of keys, then shards."""

from functools import partial

from vlmill.pipelines.web_pairs.decode import decode_images, decode_units
from vlmill.pipelines.web_pairs.join import choose_texts, follow_redirects, join_urls
from vlmill.pipelines.web_pairs.merge import gather, gather_units, merge
from vlmill.pipelines.web_pairs.mine import mine
from vlmill.pipelines.web_pairs.order import order, order_units, shard_units
from vlmill.pipelines.web_pairs.parts import link_parts
from vlmill.pipelines.web_pairs.settle import best_texts, group_images, settle, shared_texts
from vlmill.pipelines.web_pairs.shards import write_shard
from vlmill.pipelines.web_pairs.units import (
    Job,
    archive_units,
    get_join_folder,
    get_mined_folder,
    link_units,
    merge_units,
    range_units,
)
from vlmill.runtime.net.remote_file import Unreachable
from vlmill.runtime.units.step import Step, Units, Work, single_unit
from vlmill.runtime.units.unit import Result, Unit


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
    name="mine",
    units=archive_units,
    work=partial(_reading_archives, mine),
    folder=get_mined_folder,
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
