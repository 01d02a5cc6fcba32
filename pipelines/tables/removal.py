"""Removes rows of images on request: by URL, by SHA-256, by id."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vlmill.pipelines.tables.choice import NO_KEYS, Bools, Dropped, compute_keys, groups
from vlmill.pipelines.tables.inputs import TableInput
from vlmill.runtime.console.lineage import CHECKPOINT
from vlmill.runtime.files.checkpoints import TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, require_unchanged
from vlmill.runtime.readers.trained_on import Keys, known_keys, mapped_keys
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import ALIASES, Table

URL_COLUMNS = ("source_url", "image_url", "page_url")
MAX_LINE = 8_192
# Lists of other rows' ids, and the parallel lists of numbers.
LISTS = {
    "negatives": ("negative_pair_ids", "similarities"),
    "neighbours": ("neighbour_ids", "distances"),
}


@dataclass(frozen=True, kw_only=True)
class RemovalRequest:
    """Holds the request as sorted 64-bit keys of URLs, digests and ids."""

    urls: Keys
    digests: Keys
    ids: Keys
    url_aliases: Keys  # url-sha256/... of the URLs
    lines: Mapping[str, Sequence[str]]  # the given lines, by the name of their flag

    def expand_line(self, flag: str, line: str) -> list[str]:
        """Returns the table values that a line of a flag's file may match."""
        if flag == "urls":
            return [line, _url_alias(line)]
        return [line.lower() if flag == "sha256" else line]


def _url_alias(url: str) -> str:
    return f"url-sha256/{hashlib.sha256(url.encode()).hexdigest()}"


def read_request(urls: Path | None, sha256: Path | None, ids: Path | None) -> RemovalRequest:
    """Reads files with one value per line. Raises InputError."""
    lines = {
        flag: [] if path is None else _lines(path, flag)
        for flag, path in (("--urls", urls), ("--sha256", sha256), ("--image-ids", ids))
    }
    for digest in lines["--sha256"]:
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
            raise InputError(f"--sha256 {sha256}: {digest[:80]} is not a SHA-256 in hexadecimal")
    digests = [digest.lower() for digest in lines["--sha256"]]
    return RemovalRequest(
        urls=_sorted(lines["--urls"]),
        digests=_sorted(digests),
        ids=_sorted([*lines["--image-ids"], *digests]),  # a crawled image's id is its digest
        url_aliases=_sorted(list(map(_url_alias, lines["--urls"]))),
        lines={flag[2:].replace("-", "_"): flag_lines for flag, flag_lines in lines.items()},
    )


def _lines(path: Path, flag: str) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{flag} {path}: {error}; give a text file with one value per line"
        ) from None
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        raise InputError(f"{flag} {path} is empty; give one value per line")
    if any(len(line) > MAX_LINE for line in lines):
        raise InputError(f"{flag} {path}: a line of more than {MAX_LINE} characters")
    return lines


def _sorted(values: list[str]) -> Keys:
    return np.unique(np.fromiter(map(key64, values), np.uint64, len(values)))


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Drops rows that refer to removed images and pairs: sorted keys of each, from all tables."""

    images: Keys
    pairs: Keys
    absent: Mapping[str, Sequence[str]]  # lines of each flag that no table has

    def __call__(self, table: Table, rows: pa.Table) -> Dropped:
        """Returns the rows to drop, which name a removed image or pair."""
        mask = np.zeros(rows.num_rows, dtype=np.bool_)
        if "image_id" in table.fields:
            mask |= known_keys(compute_keys(rows.column("image_id")), self.images)
        if "pair_id" in table.fields:
            mask |= known_keys(compute_keys(rows.column("pair_id")), self.pairs)
        if "image_ids" in table.fields:
            mask |= _match_any(rows.column("image_ids"), self.images)
        return {Reason.EXCLUDED: mask}

    def shorten_lists(self, table: Table, rows: pa.Table) -> pa.Table:
        """Returns the rows without removed ids in their lists."""
        if table.name not in LISTS:
            return rows
        removed = self.pairs if table.name == "negatives" else self.images
        ids, numbers = LISTS[table.name]
        mask = _match_any(rows.column(ids), removed)
        if not mask.any():
            return rows
        changed = [_shorten_row(row, ids, numbers, removed) for row in rows.to_pylist()]
        return pa.Table.from_pylist(changed, schema=rows.schema)


def _match_any(lists: pa.ChunkedArray, keys: Keys) -> Bools:
    names_by_row = [values or [] for values in lists.to_pylist()]
    hashes = set(keys.tolist())
    hits = [any(key64(name) in hashes for name in names) for names in names_by_row]
    return np.array(hits, dtype=np.bool_)


def _shorten_row(
    row: Mapping[str, object], ids: str, numbers: str, removed: Keys
) -> dict[str, object]:
    names, values = row[ids], row[numbers]
    assert isinstance(names, list)
    hashes = set(removed.tolist())
    stays = [index for index, name in enumerate(names) if key64(name) not in hashes]
    shorter = {ids: [names[index] for index in stays]}
    if isinstance(values, list):
        shorter[numbers] = [values[index] for index in stays]
    return {**row, **shorter}


def find_removal(tables: Mapping[str, TableInput], request: RemovalRequest) -> Removal:
    """Returns the removal of images that match the request in any table, and of their pairs.

    An image is removed under all its names, including images that share an alias or the bytes.
    """
    image_keys, matches = _images(tables, request)
    images = np.unique(np.concatenate([request.ids, *image_keys]))
    while len(more := _same_images(tables, images)) > len(images):
        images = more
    pairs = [np.empty(0, np.uint64)]
    if "pairs" in tables:
        columns = ["pair_id", "image_id", "page_url", "image_url"]
        for rows in groups(tables["pairs"], columns):
            mask = known_keys(compute_keys(rows.column("image_id")), images)
            for name in ("page_url", "image_url"):
                mask |= known_keys(compute_keys(rows.column(name)), request.urls)
            pairs.append(compute_keys(rows.filter(pa.array(mask)).column("pair_id")))
    pairs_of_these = np.unique(np.concatenate(pairs))
    return Removal(images=images, pairs=pairs_of_these, absent=_absent(request, matches))


def _absent(request: RemovalRequest, matches: Keys) -> dict[str, list[str]]:
    """Returns the lines of each flag without a match, in order, each once."""
    keys = set(matches.tolist())
    return {
        flag: [
            line
            for line in dict.fromkeys(lines)
            if keys.isdisjoint(map(key64, request.expand_line(flag, line)))
        ]
        for flag, lines in request.lines.items()
        if lines
    }


SAME = {"aliases": "alias", "images": "sha256"}  # a column that two ids of one image share


def _same_images(tables: Mapping[str, TableInput], images: Keys) -> Keys:
    """Returns the images and, as image_ids, aliases and digests that they share with others."""
    for name, column in SAME.items():
        if name not in tables:
            continue
        names = [images]
        for rows in groups(tables[name], ["image_id", column]):
            known = known_keys(compute_keys(rows.column("image_id")), images)
            names.append(compute_keys(rows.filter(pa.array(known)).column(column).drop_null()))
        shared, id_arrays = np.unique(np.concatenate(names)), [images]
        for rows in groups(tables[name], ["image_id", column]):
            known = known_keys(compute_keys(rows.column(column)), shared)
            id_arrays.append(compute_keys(rows.filter(pa.array(known)).column("image_id")))
        images = np.unique(np.concatenate([shared, *id_arrays]))
    return images


def _images(tables: Mapping[str, TableInput], request: RemovalRequest) -> tuple[list[Keys], Keys]:
    """Returns the images of matching rows, and the matched keys."""
    images, matches = list[Keys](), [NO_KEYS]
    for entry in tables.values():
        keys_by_column = {name: request.urls for name in URL_COLUMNS if name in entry.table.fields}
        if "sha256" in entry.table.fields:
            keys_by_column["sha256"] = request.digests
        if entry.table is ALIASES:
            keys_by_column["alias"] = np.union1d(request.url_aliases, request.ids)
        if len(request.ids):
            id_columns = ("image_id", "image_ids")
            keys_by_column |= {
                name: request.ids for name in id_columns if name in entry.table.fields
            }
        keys_by_column = {name: keys for name, keys in keys_by_column.items() if len(keys)}
        if not keys_by_column:
            continue
        has_id = "image_id" in entry.table.fields
        for rows in groups(entry, list(dict.fromkeys([*(["image_id"] * has_id), *keys_by_column]))):
            mask = np.zeros(rows.num_rows, dtype=np.bool_)
            for name, wanted_keys in keys_by_column.items():
                column = rows.column(name)
                is_list = pa.types.is_list(column.type)
                keys = compute_keys(pc.list_flatten(column) if is_list else column)
                known = known_keys(keys, wanted_keys)
                matches.append(np.unique(keys[known]))
                if name != "image_ids":
                    mask |= known
            if has_id:
                ids = rows.filter(pa.array(mask)).column("image_id").drop_null()
                images.append(compute_keys(ids))
    return images, np.unique(np.concatenate(matches))


def count_trained_on(checkpoint: Path, removal: Removal) -> tuple[int, int]:
    """Returns how many of the removed images and pairs a checkpoint was trained on.

    Raises InputError for a folder without such a record.
    """
    try:
        if (checkpoint / CHECKPOINT).is_file():
            files = parse_record(read_json(checkpoint / CHECKPOINT).get(FILE_RECORD))
            keys_files = [file for file in files if file.name in (TRAINED_IMAGES, TRAINED_PAIRS)]
            require_unchanged(checkpoint, keys_files, f"--checkpoints {checkpoint}")
        keys = [mapped_keys(checkpoint / name) for name in (TRAINED_IMAGES, TRAINED_PAIRS)]
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"--checkpoints {checkpoint}: {error}; give a checkpoint's folder"
        ) from None
    counts = [
        int(np.count_nonzero(known_keys(removed_keys, known)))
        for removed_keys, known in zip((removal.images, removal.pairs), keys, strict=True)
    ]
    return counts[0], counts[1]
