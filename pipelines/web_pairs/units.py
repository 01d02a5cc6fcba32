"""Defines the state that every unit shares, and the units: archives, ranges of keys, shards.

The files and records of archives stay with the output, so that archives can be added to it;
the files of the joins belong to one set of archives.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.index import Index, Ranges
from vlmill.pipelines.web.texts.lists import NO_LISTS, TextLists
from vlmill.pipelines.web_pairs.blocked import NO_BLOCKED_PAGES, BlockedPages
from vlmill.pipelines.web_pairs.exclude import Exclusions
from vlmill.pipelines.web_pairs.rows import reject_row
from vlmill.pipelines.web_pairs.sources import TABLE, WARC
from vlmill.pipelines.web_pairs.sources import Archive as Archive
from vlmill.pipelines.web_pairs.spool import (
    SLICES,
    SpoolWriter,
    forget_footers,
    spool,
    unpacked_bytes,
)
from vlmill.pipelines.web_pairs.table_rows import NO_COLUMNS, TableColumns
from vlmill.runtime.files.atomic import atomic_path, remove_leftovers
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.units.funnel import Counts
from vlmill.runtime.units.unit import Unit, read_record, read_result

if TYPE_CHECKING:
    from vlmill.pipelines.filters.scorer import Scorer

# Bytes of mined spools per join range. They hold a thousand pages, 4 s of choosing texts: with
# fewer ranges a run of minutes waits for one process.
UNIT_BYTES = 4 << 20

# Bytes of a part of a large archive: each part is a unit, so that several workers mine it. With
# many archives all workers have work, and smaller parts would only be more files.
PART_BYTES, MAX_PARTS = 8 << 20, 4_096

# More than FAN_IN spools are merged, FAN_IN at a time, in two levels. A spool of the second level
# has one of MERGE_RANGES ranges of the slices, so that no unit reads too much.
FAN_IN, LEVELS, MERGE_RANGES = 64, 2, 32
GATHERED = 4  # ranges: beyond, the undecoded pairs are gathered before archives read them


@dataclass(frozen=True, kw_only=True)
class Job:
    """Holds the state that every unit of a run needs."""

    output: str
    archives: tuple[Archive, ...]
    shards: int
    rules: WebPairRules
    filters: ImageFilters = field(default_factory=ImageFilters)
    lists: TextLists = NO_LISTS
    blocked_pages: BlockedPages = NO_BLOCKED_PAGES
    exclude: tuple[str, ...] = ()
    exclude_hash: tuple[str, ...] = ()
    webdataset: bool = False
    indexed: bool = False  # an index names the records; other records are not read
    scorer: "Scorer | None" = None  # chooses among the texts of each image
    allowed: tuple[str, ...] = ()  # networks that are not public and may be read
    columns: TableColumns = NO_COLUMNS  # of tables with pages

    @property
    def mined(self) -> Path:
        """Returns the folder of the mined archives' files."""
        return get_mined_folder(self)

    @property
    def index(self) -> Path:
        """Returns the folder of the index's record locations, a file for each archive."""
        return to_path(self.output) / WORK / "index"

    def load_ranges(self, archive: Archive) -> Ranges | None:
        """Returns the records of an archive that the index names; None for all records.

        No index lists the archives of ``--fetch``, WAT files and tables.
        """
        if not self.indexed or archive.is_fetched or archive.kind != WARC:
            return None
        with (self.index / f"{archive.id.hex()}.npy").open("rb") as file:
            ranges: Ranges = np.load(file, allow_pickle=False)
        return ranges

    @property
    def excluded(self) -> Exclusions:
        """Returns the exclusions of ``--exclude`` and ``--exclude-hash``."""
        return Exclusions.load(self.exclude, self.exclude_hash, self.rules.max_distance)

    @cached_property
    def joins(self) -> Path:
        """Returns the folder of the joins over this set of archives."""
        names = sorted((archive.id.hex(), archive.size) for archive in self.archives)
        digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=8)
        return to_path(self.output) / WORK / f"joins-{digest.hexdigest()}"

    def mined_spool(self, name: str, kind: str) -> Path:
        """Returns the path of one of the spools that a unit over an archive writes."""
        return self.mined / f"{name}.mined-{kind}.spool"

    @cached_property
    def unit_names(self) -> list[str]:
        """Returns the names of the units over archives: listed once, as each is a hash."""
        return [unit.name for unit in archive_units(self)]

    @cached_property
    def decode_names(self) -> list[str]:
        """Returns the names of the units that decode the images of archives."""
        return [f"decode-{name}" for name in self.unit_names]

    @cached_property
    def link_names(self) -> list[str]:
        """Returns the names of the units over archives in parts."""
        return [unit.name for unit in link_units(self)]

    def _name_spools(self, kind: str) -> list[tuple[Path, str, Sequence[str]]]:
        """Returns folder, ending and names of the spools of each step that writes a kind."""
        ending = f".{kind}.spool"
        if kind == "rejects":
            steps = [self.range_names(step) for step in ("choose", "best", "settle")]
            joined = [(self.joins, ending, names) for names in (*steps, self.decode_names)]
            return [*self._name_spools("mined-rejects"), *joined]
        if kind in ("pairs", "images", "hashes"):
            steps = [self.range_names("settle"), self.decode_names]
            return [(self.joins, ending, names) for names in steps]
        names = self.unit_names
        if kind == "mined-redirects" and self.link_names:  # parts log their links
            names = [name for name in names if "-" not in name]
        linked = self.link_names if kind in ("mined-redirects", "mined-rejects") else []
        return [(self.mined, ending, names), (self.mined, ending, linked)]

    def range_names(self, step: str) -> list[str]:
        """Returns the names of the units of a step over ranges."""
        return [unit.name for unit in range_units(step, self)]

    def count_spools(self, kind: str) -> int:
        """Returns the number of spools of a kind that the units wrote."""
        return sum(len(names) for *_, names in self._name_spools(kind))

    def written_spools(self, kind: str, start: int = 0, stop: int | None = None) -> list[Path]:
        """Returns the spools of a kind as the units wrote them, from one number to another."""
        paths, stop = list[Path](), self.count_spools(kind) if stop is None else stop
        for folder, ending, names in self._name_spools(kind):
            chosen = names[max(0, start) : max(0, stop)]
            paths += [folder / f"{name}{ending}" for name in chosen]
            start, stop = start - len(names), stop - len(names)
        return paths

    def join_spools(self, step: str, kind: str) -> list[Path]:
        """Returns the spools of a kind that a step over ranges wrote."""
        return [self.joins / f"{name}.{kind}.spool" for name in self.range_names(step)]

    def spools(self, kind: str, slices: range) -> list[Path]:
        """Returns the spools that have all rows of a kind with these slices, merged if many."""
        counts = count_merged(self.count_spools(kind))
        if not counts:
            return self.written_spools(kind)
        return [
            self.merged_spool(kind, len(counts), group, part)
            for group in range(counts[-1])
            for part, covered in enumerate(cut_slices(self.count_slices(kind), len(counts)))
            if covered.start < slices.stop and slices.start < covered.stop
        ]

    def merged_spool(self, kind: str, level: int, group: int, part: int) -> Path:
        """Returns the path of a merged spool."""
        return self.joins / f"merged-{level}-{group:05d}-{part:05d}.{kind}.spool"

    def count_slices(self, kind: str) -> int:
        """Returns the number of slices of a kind's spools."""
        return self.shards if kind in ("rejects", "mined-inline", "pairs", "images") else SLICES

    @cached_property
    def num_ranges(self) -> int:
        """Returns the number of ranges of keys, by the mined bytes; read after mining."""
        sizes = 0
        for kind in ("mined-pages", "mined-urls"):
            if count_merged(self.count_spools(kind)):
                units = merge_units("keys", (kind,), 1, self)
                sizes += sum(read_result(self.joins, u).metrics[kind] for u in units)
            else:
                sizes += unpacked_bytes(self.written_spools(kind))
        return max(1, min(SLICES, sizes // UNIT_BYTES))


@contextmanager
def open_counts(job: Job, path: Path) -> Iterator[Counts]:
    """Opens the counts of a unit, whose rejects go into the spool at ``path``, by shard."""
    with spool(path) as rejects:
        yield Counts(keeper(rejects, job.shards))


def get_mined_folder(job: Job) -> Path:
    """Returns the folder of mined files, which stays with the output."""
    return to_path(job.output) / WORK / "archives"


def get_join_folder(job: Job) -> Path:
    """Returns the folder of the joins over this set of archives."""
    return job.joins


def keeper(rejects: SpoolWriter, shards: int) -> Callable[[dict[str, object]], None]:
    """Returns a function that adds a reject to a spool."""

    def keep(row: dict[str, object]) -> None:
        rejects.add(*reject_row(row, shards))

    return keep


def archive_units(job: Job) -> list[Unit]:
    """Returns one unit for each archive, or for each part of a large one."""
    return [
        unit
        for number, archive in enumerate(job.archives)
        for unit in part_units(archive, number) or [Unit(name=archive.id.hex(), number=number)]
    ]


def part_units(archive: Archive, number: int) -> list[Unit]:
    """Returns the units of an archive's parts; [] for one unit."""
    return [
        Unit(name=f"{archive.id.hex()}-{part.start:012d}", number=number, slices=part)
        for part in archive.parts
    ]


def link_units(job: Job) -> list[Unit]:
    """Returns one unit for each archive in parts."""
    return [Unit(name=a.id.hex(), number=n) for n, a in enumerate(job.archives) if a.part_bytes]


def cut_archives(archives: Sequence[Archive]) -> list[Archive]:
    """Cuts archives into parts: of ``PART_BYTES``, or larger ones for many archives.

    A record is mined with the part where it begins, and the output does not depend on the cuts.
    Tables are not cut: a row of text can only be found from the beginning.
    """
    step = max(PART_BYTES, sum(archive.size for archive in archives) // MAX_PARTS)
    return [
        replace(a, part_bytes=step) if a.size > step and a.kind != TABLE else a for a in archives
    ]


def range_units(step: str, job: Job) -> list[Unit]:
    """Returns a step's units over ranges of keys: more units for more mined bytes.

    Units and files depend only on the archives, not on the workers.
    """
    return even_units(step, job.num_ranges)


def even_units(step: str, number: int) -> list[Unit]:
    """Returns ``number`` units over ranges of keys."""
    edges = [SLICES * i // number for i in range(number + 1)]
    return [
        Unit(name=f"{step}-{n:05d}", number=n, slices=range(edges[n], edges[n + 1]))
        for n in range(number)
    ]


def count_merged(number: int) -> list[int]:
    """Returns the number of groups of merged spools at each level; [] for few spools."""
    counts = list[int]()
    while number > FAN_IN and len(counts) < LEVELS:
        number = -(-number // FAN_IN)
        counts.append(number)
    return counts


def count_ranges(level: int) -> int:
    """Returns the number of ranges of slices of a level of merged spools."""
    return 1 if level == 1 else MERGE_RANGES


def cut_slices(slices: int, level: int) -> list[range]:
    """Returns the ranges of slices that the spools of a level are cut into, some perhaps empty."""
    number = count_ranges(level)
    edges = [slices * i // number for i in range(number + 1)]
    return [range(edges[n], edges[n + 1]) for n in range(number)]


def merge_units(what: str, kinds: Sequence[str], level: int, job: Job) -> list[Unit]:
    """Returns the units that merge spools of these kinds: one for each group and range of slices.

    A unit's ``slices`` are the index of its range, as kinds differ in their slices.
    """
    counts = [count_merged(job.count_spools(kind)) for kind in kinds]
    groups = max(([*each, 0, 0][level - 1] for each in counts), default=0)
    return [
        Unit(
            name=f"merge-{what}-{level}-{group:05d}-{part:05d}",
            number=group,
            slices=range(part, part + 1),
        )
        for group in range(groups)
        for part in range(count_ranges(level))
    ]


def prepare_work(job: Job, *, shared: bool = False) -> None:
    """Creates the work folders; removes joins of other archives, and leftovers of killed runs.

    ``shared``: other parts of the job are running, so nothing is removed.
    """
    forget_footers()
    for folder in (job.mined, job.joins, *([job.index] if job.indexed else [])):
        folder.mkdir(parents=True, exist_ok=True)
        if not shared:
            remove_leftovers(folder)
    for folder in () if shared else job.joins.parent.glob("joins-*"):
        if folder != job.joins:
            remove_tree(folder)


def keep_index(job: Job, index: Index) -> None:
    """Writes the index's record locations to the path that the units read.

    Archives that the index does not list were mined or fetched before.
    """
    for archive in job.archives:
        if archive.path not in index.ranges:
            continue
        with atomic_path(job.index / f"{archive.id.hex()}.npy") as path, path.open("wb") as file:
            np.save(file, index.ranges[archive.path], allow_pickle=False)


def mined_before(output: Path) -> list[Archive]:
    """Returns the archives that earlier runs have mined into this output."""
    records = map(read_record, sorted((output / WORK / "archives").glob("[!.]*.json")))
    archives = {
        Archive(
            path=record["path"],
            size=record["size"],
            part_bytes=record.get("part_bytes", 0),
            kind=record.get("kind", "warc"),
        )
        for record in records
    }
    return sorted(archives, key=lambda archive: archive.path)
