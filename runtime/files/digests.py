"""Computes cheap digests of inputs: a table of terabytes is identified without reading it again.

There are four rules. ``manifest``: the shards' names, rows, sizes and SHA-256 from the manifest of
their folder, if each shard exists with its size. ``content``: the SHA-256 of one file, as
`sha256sum` prints it. ``ends``: names, sizes and the first and last MiB of each file: a change in
the middle that keeps the size is not detected. ``listing``: names and sizes of the files of a
folder or a glob.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.runtime.files.contract import read_parquet_footer
from vlmill.runtime.files.inputs import Input, Rule
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.manifest import MANIFEST, read_manifest
from vlmill.runtime.files.outputs import PLAN
from vlmill.runtime.files.paths import is_web, matches, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.shards import Shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import TABLES, Table

ENDS_BYTES = 1 << 20
# With more files in a glob, reading their ends would cost more than the job itself.
MANY_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Holds the result of a rule: a digest and sizes. ``rows`` are known for tables only."""

    digest: str
    files: int
    bytes: int
    rows: int | None = None


def table_input(flag: str, argument: str | Path, spec: Table) -> Input:
    """Returns the record of a table argument. Raises InputError if it has no such table."""
    paths = find_shards(argument, spec, flag)
    folders = {path.parent for path in paths if (path.parent / MANIFEST).is_file()}
    jobs = sorted(filter(None, {read_manifest(folder)["job"] for folder in folders}))
    rule: Rule = "manifest" if _listed(paths) is not None else "ends"
    return _record(flag, str(argument), rule, spec.name, job=", ".join(jobs) or None)


def file_input(flag: str, path: str | Path, *, job: str | None = None) -> Input:
    """Returns the record of one file of a moderate size, by its whole content."""
    return _record(flag, str(path), "content", None, job=job)


def path_input(flag: str, argument: str | Path, *, job: str | None = None) -> Input:
    """Returns the record of a file or glob by sizes and ends, of many files by listing."""
    path = str(argument)
    many = not is_web(path) and (to_path(path).is_dir() or len(_matches(path)) > MANY_FILES)
    return _record(flag, path, "listing" if many else "ends", None, job=job)


def _record(flag: str, path: str, rule: Rule, table: str | None, *, job: str | None) -> Input:
    if is_web(path):
        return Input(flag=flag, path=path, rule=rule, digest=None, files=0, bytes=0, table=table)
    measure = measure_path(path, rule, table)
    return Input(
        flag=flag,
        path=path,
        rule=rule,
        digest=measure.digest,
        files=measure.files,
        bytes=measure.bytes,
        table=table,
        rows=measure.rows,
        job=job,
    )


def measure_path(path: str, rule: Rule, table: str | None = None) -> Measure:
    """Applies a rule to a path; of a ``table``, to its shards there.

    Raises InputError or OSError if nothing can be measured.
    """
    if table is not None and table not in TABLES:
        raise InputError(f"{path}: table {table!r} is not one of {', '.join(TABLES)}")
    return MEASURES[rule](path, None if table is None else TABLES[table])


def _by_manifest(path: str, spec: Table | None) -> Measure:
    assert spec is not None
    paths = find_shards(path, spec)
    shards = _listed(paths)
    if shards is None:
        raise InputError(f"{path}: no {MANIFEST} lists these shards any more")
    for file, shard in zip(paths, shards, strict=True):
        if file.stat().st_size != shard.bytes:
            raise InputError(f"{file} has {file.stat().st_size} bytes, {MANIFEST} says otherwise")
    lines = [f"{s.name} {s.rows} {s.bytes} {s.sha256}" for s in shards]
    return Measure(
        digest=_hash_lines(lines),
        files=len(shards),
        bytes=sum(s.bytes for s in shards),
        rows=sum(s.rows for s in shards),
    )


def _listed(paths: Sequence[Path]) -> list[Shard] | None:
    """Returns the manifests' entries of these shards; None if one is missing."""
    entries: dict[Path, Shard] = {}
    for folder in {path.parent for path in paths}:
        if not (folder / MANIFEST).is_file():
            return None
        entries |= {folder / shard.name: shard for shard in read_manifest(folder)["shards"]}
    return [entries[path] for path in paths] if entries.keys() >= set(paths) else None


def _by_content(path: str, _: Table | None) -> Measure:
    file = to_path(path)
    return Measure(digest=hash_file(file), files=1, bytes=file.stat().st_size)


def _by_ends(path: str, spec: Table | None) -> Measure:
    files = _matches(path) if spec is None else find_shards(path, spec)
    if not files:
        raise FileNotFoundError(f"{path}: no such file")
    rows = None if spec is None else sum(read_parquet_footer(file).num_rows for file in files)
    lines = [f"{file.name} {file.stat().st_size} {_ends(file)}" for file in files]
    size = sum(file.stat().st_size for file in files)
    return Measure(digest=_hash_lines(lines), files=len(files), bytes=size, rows=rows)


def _matches(path: str) -> list[Path]:
    file = to_path(path)
    if file.is_file():
        return [file]
    return [match for match in matches(path, recursive=True) if match.is_file()]


def _ends(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        digest.update(stream.read(ENDS_BYTES))
        stream.seek(max(ENDS_BYTES, file.stat().st_size - ENDS_BYTES))
        digest.update(stream.read(ENDS_BYTES))
    return digest.hexdigest()


def _by_listing(path: str, _: Table | None) -> Measure:
    matched_files = ((file.name, file.stat().st_size) for file in _matches(path))
    is_folder = to_path(path).is_dir()
    files = sorted(_walk(path) if is_folder else matched_files)
    if not files and not is_folder:
        raise FileNotFoundError(f"{path}: no such folder")
    lines, size = [], 0
    for name, count in files:
        lines.append(f"{name!r} {count}")
        size += count
    return Measure(digest=_hash_lines(lines), files=len(lines), bytes=size)


def _walk(folder: str) -> Iterator[tuple[str, int]]:
    """Yields the files below a folder, with their sizes.

    Hidden files and outputs of jobs are skipped: the output of the run that reads this input may be
    inside.
    """
    root = to_path(folder)
    if isinstance(root, RemotePath):
        yield from _walk_store(root)
        return
    for base, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not os.path.exists(os.path.join(base, name, PLAN))
        ]
        below = "" if base == folder else os.path.join(os.path.relpath(base, folder), "")
        for name in names:
            if name.startswith("."):
                continue
            try:
                found = os.stat(os.path.join(base, name))
            except OSError:  # a link to a missing file
                continue
            if stat.S_ISREG(found.st_mode):
                yield f"{below}{name}", found.st_size


def _walk_store(folder: RemotePath) -> Iterator[tuple[str, int]]:
    sizes = {str(path).removeprefix(f"{folder}/"): s.st_size for path, s in folder.below()}
    output_folders = [name.removesuffix(PLAN) for name in sizes if name.endswith(f"/{PLAN}")]
    for name, size in sizes.items():
        hidden = any(part.startswith(".") for part in name.split("/"))
        if not hidden and not name.startswith(tuple(output_folders)):
            yield name, size


def _hash_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


MEASURES: dict[Rule, Callable[[str, Table | None], Measure]] = {
    "manifest": _by_manifest,
    "content": _by_content,
    "ends": _by_ends,
    "listing": _by_listing,
}
