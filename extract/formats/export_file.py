"""Writes regions to a feature file of another project, and their provenance next to it."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmill.extract.formats import (
    cocobu,
    hdf5_write,
    lmdb,
    npy,
    npz,
    oscar_write,
    tsv,
    uniter,
    vlbert,
)
from vlmill.extract.formats.classes import KNOWN_COLUMNS
from vlmill.extract.formats.folders import file_name
from vlmill.extract.formats.names import ATTRIBUTES, CLASSES, FORMATS, IMPORT_JOB, PROBS, Format
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import COLUMNS
from vlmill.extract.formats.sizes import ENDING as SIZES
from vlmill.extract.formats.unfinished import ROWS, Unfinished, is_complete
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.runtime.readers.class_names import first_names, require_names, stored_names
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS

Writer = Callable[[Rows, Unfinished, ExportPlan], None]
WRITE: dict[str, Writer] = {
    **dict.fromkeys(tsv.FIELDS, tsv.write),
    **dict.fromkeys(lmdb.ITEMS, lmdb.write),
    **dict.fromkeys(("npy", "npy-mmf"), npy.write),
    **dict.fromkeys(("npz", "npz-openvqa", "npz-gqa"), npz.write),
    "npz-uniter": uniter.write,
    "npz-cocobu": cocobu.write,
    **dict.fromkeys(("hdf5", "hdf5-fixed", "hdf5-adaptive"), hdf5_write.write),
    **dict.fromkeys(("oscar", "oscar-retrieval"), oscar_write.write),
    "vl-bert": vlbert.write,
}
# Formats whose files state their provenance; other formats have PATH.json next to the file.
STATES_ITSELF = ("npz", "hdf5", "hdf5-fixed", "hdf5-adaptive")
GROUPS_AT_ONCE = 64  # row groups of small columns: less than 1 MB
COLUMN_NAMES = (*PROBS, *CLASSES, *ATTRIBUTES, "global_feature")
BY_FILE_NAME = ("npy", "npz", "vl-bert")  # readers of formats with ids as file names


def export_file(
    regions: str | Path,
    path: Path,
    name: str,
    *,
    fresh: bool = False,
    classes: str | None = None,
    attributes: str | None = None,
    block: int = ROWS,
) -> int:
    """Writes all rows to ``path`` in one of FORMATS; returns the number of rows.

    ``classes`` and ``attributes`` are files of names. An earlier export at ``path`` is replaced
    only with ``fresh``. A killed export loses at most ``block`` images, and continues
    (:class:`.Unfinished`). Memory is bounded by a few row groups and the index of ids. The columns
    that the format cannot hold are printed first. Raises InputError, without changing any file, if
    the rows lack a column that the format needs.
    """
    if not is_complete(path):
        require_free(path, name, fresh=fresh)
    reader = RegionReader(regions, flag="REGIONS")
    if not len(reader):
        raise InputError(f"REGIONS {regions} has no rows; there is nothing to export")
    plan = make_plan(reader, regions, name, classes, attributes)
    check_ids(plan.image_ids, name)
    files = open_files(regions, path, plan, fresh=fresh, block=block)
    if files.is_complete:
        files.publish()
        return plan.count
    if plan.made_by["random_weights"]:
        print(
            f"WARNING: the regions of {regions} come from a detector with RANDOM "
            "weights and are meaningless; the export records this.",
            file=sys.stderr,
        )
    try:
        with Progress(total=len(reader), unit="image", label="export") as progress:
            WRITE[name](files.rows(reader, progress), files, plan)
        if name not in STATES_ITSELF:
            write_json(about_path(files.path), plan.made_by)
        files.finish(plan.count)
    except InputError:
        files.remove()
        raise
    finally:
        files.close()
    if name == "hdf5":
        layout = "hdf5-fixed" if hdf5_write.is_fixed(plan) else "hdf5-adaptive"
        print_status(f"note: written as {layout}; the ids are in {hdf5_write.index_path(path)}")
    return plan.count


def open_files(
    regions: str | Path, path: Path, plan: ExportPlan, *, fresh: bool, block: int
) -> Unfinished:
    """Returns the files of a new export, or those of the same export that was killed."""
    source = table_input("REGIONS", regions, REGIONS)
    settings = {"software": SOFTWARE, "REGIONS": source.digest, **dataclasses.asdict(plan)}
    settings["image_ids"] = len(plan.image_ids)
    settings["format"] = settings.pop("name")
    return Unfinished(path, settings, fresh=fresh, block=block)


def make_plan(
    reader: RegionReader,
    regions: str | Path,
    name: str,
    classes: str | None,
    attributes: str | None,
) -> ExportPlan:
    """Returns the plan of an export. Raises InputError if the format needs missing data."""
    format_, counts = FORMATS[name], reader.box_counts()
    background = get_background(reader)
    if "class_probs" in format_.needs and background == "none":
        raise InputError(
            f"REGIONS {regions} has class distributions without background, which --format {name} "
            "has first; give --format lmdb, npz or hdf5"
        )
    every = int(counts[0]) if (counts == counts[0]).all() else None
    if name == "hdf5-fixed" and every is None:
        raise InputError(
            f"REGIONS {regions} has {counts.min()} to {counts.max()} boxes an image, and --format "
            "hdf5-fixed needs the same number for all; give --format hdf5-adaptive, or run with "
            "--min-boxes 36 --max-boxes 36"
        )
    columns = check_columns(reader, regions, name, format_)
    names = {
        "classes": read_own_names(classes, "classes", regions, reader.producer),
        "attributes": read_own_names(attributes, "attributes", regions, reader.producer),
    }
    require_names(names, reader.producer, str(regions))
    if format_.reader == "oscar" and not names["classes"]:
        raise InputError(
            f"--format {name} has names of classes, and the regions carry none; give --classes "
            "FILE, one name per line in the order of the detector's classes"
        )
    if name == "oscar-retrieval" and not all(i.isdecimal() for i in reader.image_ids[:1]):
        print_status("note: Oscar's retrieval code takes image_ids that are numbers only")
    return ExportPlan(
        name=name,
        payloads=tuple(p for p, column in COLUMNS.items() if column in columns),
        stated={"classes_from": 0} | ({"background": background} if background else {}),
        made_by=make_provenance(reader, name),
        count=len(reader),
        num_boxes=int(counts.sum()),
        every=every,
        width=reader.feature_dim,
        probs_width=reader.arrays.get("class_probs", {}).get("dim", 0),
        classes=tuple(names["classes"]),
        attributes=tuple(names["attributes"]),
        image_ids=reader.image_ids,
    )


def read_own_names(
    file: str | None, what: str, regions: str | Path, producer: Mapping[str, Any]
) -> list[str]:
    """Returns the names of a file, else of an earlier import in the table's folder, else of the
    table's detector.
    """
    own = Path(regions) / f"{what}.json"
    if file is None and own.is_file():
        file = str(own)
    return first_names(file, f"--{what}") or stored_names(producer)[what]


def check_columns(
    reader: RegionReader, regions: str | Path, name: str, format_: Format
) -> list[str]:
    """Returns the columns to write; prints the columns that the format does not hold.

    Raises InputError for a needed column that some rows lack.
    """
    missing = count_missing(reader)
    lacking = [c for c in format_.needs if missing[c]]
    if lacking:
        lost = missing[lacking[0]]
        rows = "" if lost == len(reader) else f" in {lost} of {len(reader)} rows"
        remedy = "give another --format"
        if lacking[0] in PROBS:
            remedy = "run extract-rois run with --class-probs full, or " + remedy
        raise InputError(
            f"REGIONS {regions} has no {lacking[0]}{rows}, which --format {name} needs; {remedy}"
        )
    present = [c for c in COLUMN_NAMES if missing[c] < len(reader)]
    if lost_columns := [c for c in present if c not in format_.holds]:
        print_status(f"note: --format {name} does not hold {', '.join(lost_columns)}")
    for column in format_.keeps:
        if column in present and missing[column]:
            print_status(
                f"note: {column} is not written: {missing[column]} of {len(reader)} rows lack it"
            )
    if "class_probs" in format_.keeps and missing["class_probs"]:
        print_status(
            "note: no class_probs are written, as the regions have none in full; training with "
            "them needs extract-rois run --class-probs full"
        )
    return [c for c in format_.holds if c in present and not missing[c]]


def count_missing(reader: RegionReader) -> dict[str, int]:
    """Returns the number of rows that lack each column; wide columns from the files' metadata."""
    missing = dict.fromkeys(COLUMN_NAMES, len(reader))
    probs = reader.arrays.get("class_probs")
    if probs is not None and "of" not in probs:
        missing["class_probs"] = 0
    if "global_feature" in reader.arrays:
        missing["global_feature"] = 0
    narrow = [*CLASSES, *ATTRIBUTES]
    missing |= dict.fromkeys(narrow, 0)
    for path in reader.paths:
        file = pq.ParquetFile(readable(path), pre_buffer=False)
        groups = range(file.num_row_groups)
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            part = groups[first : first + GROUPS_AT_ONCE]
            table = file.read_row_groups(list(part), columns=narrow, use_threads=False)
            for column in narrow:
                missing[column] += table.column(column).null_count
    return missing


def make_provenance(reader: RegionReader, name: str) -> dict[str, Any]:
    """Returns the regions' provenance: the table's producer with detector and selection."""
    producer = reader.producer
    return {
        "exported_by": SOFTWARE,
        "format": name,
        "images": len(reader),
        "random_weights": str(producer.get("weights", "")).startswith("random weights"),
        "made_by": producer,
    }


def check_ids(image_ids: Sequence[str], name: str) -> None:
    """Raises InputError for the first id that the format cannot hold."""
    reader = FORMATS[name].reader
    for image_id in image_ids:
        in_lines = reader in ("tsv", "oscar") or name in ("npz-uniter", "npz-cocobu")
        has_zero = reader in ("tsv", "oscar", "hdf5") and "\0" in image_id
        if not image_id or has_zero:
            raise InputError(
                f"image_id {image_id[:200]!r} cannot be in --format {name}, as it is empty or has "
                "a zero byte; rename the image"
            )
        if in_lines and (any(c in image_id for c in "\t\r\n") or image_id[:1] in ('"', "\ufeff")):
            what = "a line"
        elif reader == "oscar" and image_id != image_id.strip():
            what = "a line of Oscar's"
        elif reader == "lmdb" and not lmdb.is_key(image_id):
            what = "a key of an LMDB"
        elif reader in BY_FILE_NAME and name != "npy-mmf":
            file_name(image_id, npz.ENDING, name=name)
            continue
        else:
            continue
        raise InputError(
            f"image_id {image_id[:200]!r} cannot be in {what}, which --format {name} has; give "
            "--format hdf5"
        )


def get_background(reader: RegionReader) -> str | None:
    """Returns the column of the background in the distributions: "first" or "none".

    None without distributions, and for an imported table that does not state it.
    """
    about = reader.arrays.get("class_probs")
    if about is None:
        return None
    imported = reader.producer.get("job") == IMPORT_JOB
    background: str | None = about.get("background", None if imported else "first")
    return background or KNOWN_COLUMNS.get(about["dim"])


def about_path(path: Path) -> Path:
    """Returns the path of the JSON next to an export that states its provenance."""
    return path.with_name(f"{path.name}.json")


def other_paths(path: Path, name: str) -> list[Path]:
    """Returns the paths that an export writes in addition to ``path``."""
    paths = [] if name in STATES_ITSELF else [about_path(path)]
    if FORMATS[name].reader == "hdf5":
        paths.append(hdf5_write.index_path(path))
    if name in ("npz-uniter", "npz-cocobu"):
        paths.append(path.with_name(f"{path.name}{SIZES}"))
    if name == "npz-cocobu":
        ends = (cocobu.ATT, cocobu.BOX, cocobu.FC)
        paths += [path.with_name(f"{path.name}{end}") for end in ends]
    return paths


def require_free(path: Path, name: str, *, fresh: bool) -> None:
    """Raises InputError if an export would replace a file.

    With ``fresh`` it may replace a file, and a folder that holds only an export in this format.
    """
    patterns = FORMATS[name].folder
    if path.exists() and path.is_dir() != bool(patterns):
        current, expected = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise InputError(f"--output {path} is a {current}; give the name of a {expected}")
    for target in (path, *other_paths(path, name)):
        if not target.exists():
            continue
        names = [target.name]
        if target.is_dir():
            names = sorted(entry.name for entry in target.iterdir())
        if names and not fresh:
            raise InputError(
                f"--output {target} already exists; give another, or --fresh to replace it"
            )
        known = patterns if target == path else ("*.npz", "*.npy") if target.is_dir() else ("*",)
        other = [n for n in names if known and not any(fnmatch(n, pattern) for pattern in known)]
        folders = [n for n in other if name == "npy-mmf" and (target / n).is_dir()]
        if other and other != folders:
            raise InputError(
                f"--output {target} holds {other[0]}, which is not part of an export; give a new "
                "folder"
            )
