"""Writes and verifies ``_manifest.json``: the shards of a finished run, with row counts, sizes and
checksums.

It is written last, so a folder with a manifest is complete.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.inputs import Input, make_records, parse_inputs
from vlmill.runtime.files.listed import ListedFile, file_problems, parse_listed
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import SOFTWARE, Shard, describe_shard
from vlmill.runtime.files.value_offsets import ShardByteRanges, binary_columns, find_misplaced
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import TABLES, check_version, conform

MANIFEST = "_manifest.json"
WARCS = "warcs.json"  # lists the archives of a crawl, which are not tables


def write_manifest(
    folder: str | Path,
    shards: Sequence[Shard],
    *,
    job: str,
    settings: Mapping[str, Any],
    inputs: Sequence[Input] = (),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Lists ``shards`` as the complete output of ``job`` run with ``settings`` (plain JSON values).

    ``inputs`` are the inputs of the job, ``about`` its further records by name.
    """
    write_json(
        to_path(folder) / MANIFEST,
        {
            **(about or {}),
            "manifest": 1,
            "software": SOFTWARE,
            "job": job,
            "settings": dict(settings),
            "inputs": make_records(inputs, folder),
            "shards": [dataclasses.asdict(s) for s in sorted(shards, key=lambda s: s.name)],
        },
    )


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads a finished folder's manifest, ``shards`` as :class:`Shard`; else InputError.

    ``inputs`` are :class:`~vlmill.runtime.files.inputs.Input`; none of an older vlmill's manifest.
    """
    path = to_path(folder) / MANIFEST
    try:
        content = read_json(path)
        content["shards"] = [Shard(**shard) for shard in content["shards"]]
        content["inputs"] = parse_inputs(content.get("inputs", []))
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {MANIFEST}: the run that writes it has not finished; run it again"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}); write the folder again") from None
    assert isinstance(content, dict)
    return content


def verify_folder(folder: str | Path) -> list[str]:
    """Compares a folder with its manifest by reading everything; returns the problems, one line
    each.

    Checks that each listed shard exists with its size, checksum and rows, that every column of
    every row fulfils the table's contract, that binary values are at the recorded positions, that
    no unlisted shard exists, and that each archive of a crawl is unchanged.
    """
    folder = to_path(folder)
    manifest = read_manifest(folder)
    shards: list[Shard] = manifest["shards"]
    problems = [problem for shard in shards for problem in _verify_shard(folder, shard)]
    problems += file_problems(folder, read_archives(folder, manifest["job"]))
    listed_names = {shard.name for shard in shards}
    for name in TABLES:
        stray = sorted(
            p.name for p in folder.glob(f"{name}-*.parquet") if p.name not in listed_names
        )
        problems += [f"{folder / n}: not in the manifest" for n in stray]
    return problems


def digest_problems(folder: str | Path) -> list[str]:
    """Returns the differences between a finished folder's files and their recorded digests.

    Each shard and each archive of a crawl is read once; rows are not checked.
    """
    folder = to_path(folder)
    manifest = read_manifest(folder)
    shards = [ListedFile(name=s.name, bytes=s.bytes, sha256=s.sha256) for s in manifest["shards"]]
    return file_problems(folder, [*shards, *read_archives(folder, manifest["job"])])


def read_archives(folder: Path, job: str) -> list[ListedFile]:
    """Returns the archives that ``job`` lists in ``folder``; only a crawl has any."""
    path = folder / WARCS
    if job != "crawl":
        return []
    try:
        return parse_listed(read_json(path))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run the crawl again with --fresh") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy") from None


def _verify_shard(folder: Path, shard: Shard) -> list[str]:
    path = folder / Path(shard.name).name
    if not path.is_file():
        return [f"{path}: listed in the manifest, but missing"]
    try:
        actual = describe_shard(path, shard.table)
        if actual != shard:
            wrong = [
                f"{f.name} is {getattr(actual, f.name)}, manifest says {getattr(shard, f.name)}"
                for f in dataclasses.fields(Shard)
                if getattr(actual, f.name) != getattr(shard, f.name)
            ]
            return [f"{path}: {', '.join(wrong)}"]
        path = Path(os.fspath(path))  # in a store: its copy, which is mapped
        file, spec = pq.ParquetFile(path), TABLES[shard.table]
        check_version(file.schema_arrow.metadata, spec, str(path))
        byte_ranges, mapped = (
            ShardByteRanges(path, file.metadata),
            pa.memory_map(str(path)).read_buffer(),
        )
        problems = []
        for group in range(file.num_row_groups):
            table = conform(file.read_row_group(group), spec)
            problems += [
                f"{path}: row group {group}: values of {name} are not at their recorded position"
                for name in find_misplaced(byte_ranges, group, table, binary_columns(spec), mapped)
            ]
    except (OSError, ValueError, KeyError) as error:
        return [f"{path}: {error}"]
    return problems
