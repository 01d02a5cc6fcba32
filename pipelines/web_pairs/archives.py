"""Finds the archives that the flags name, by path, glob, URL, list or index, and checks their kind.

A WET file, and a WAT file among WARC files or the reverse, are refused.
"""

import argparse
import glob
import gzip
import io
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.paths import is_web, to_path
from vlmill.runtime.files.paths import matches as files_matching
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.net.remote_file import open_web, web_url
from vlmill.schemas.errors import InputError

if TYPE_CHECKING:
    from vlmill.pipelines.web.archives.index import Index


COMMON_CRAWL = "https://data.commoncrawl.org/"
COMMON_CRAWL_PATH = "crawl-data/"  # the beginning of each line of its lists and indexes
MAX_LIST_BYTES = 256 << 20  # a crawl's list of 90,000 archives has 12 MB
MAX_PATH_CHARS = 4_096
ASKED_AT_ONCE = 16  # servers that are asked for archive sizes concurrently

_NAMED = re.compile(r"\.(wet|wat)(?:\.gz|\.zst)?$", re.IGNORECASE)
_KINDS = {b"conversion": "WET", b"metadata": "WAT"}
_TYPE = re.compile(rb"^WARC-Type:\s*([a-z]+)", re.IGNORECASE | re.MULTILINE)
_SNIFFED_BYTES, _MAX_SNIFFED = 16 << 10, 100


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags that name archives."""
    parser.add_argument(
        "--warc",
        metavar="GLOB|@FILE|URL",
        help="archives: a path, a glob, a URL (https://, s3:// without a signature), or "
        "@FILE: a list of these, one per line, which may be .gz and on the web",
    )
    parser.add_argument(
        "--index",
        metavar="FILE",
        help="file or glob of index records, instead of --warc: reads only those records; "
        "CDX lines (.gz), or Parquet with the columns filename, offset and length",
    )
    parser.add_argument(
        "--wat",
        metavar="GLOB|@FILE|URL",
        help="WAT files of Common Crawl, named like --warc: the links and alternative texts of "
        "pages, without the pages",
    )
    parser.add_argument(
        "--table",
        metavar="FILE|DIR|GLOB",
        help="tables of image URLs and texts: Parquet, CSV, TSV, JSON or JSON lines; images come "
        "from --warc, or are downloaded with --fetch",
    )
    _add_columns(parser)
    parser.add_argument(
        "--base",
        metavar="PLACE",
        help=f"prefix of relative names in a list or an index (default: {COMMON_CRAWL} for "
        "crawl-data/..., else the folder of the list)",
    )
    add_allow_address(parser)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    """Declares the flags that name the columns of ``--table``."""
    for name, what, usual in (
        ("image", "image URLs", "image_url or url"),
        ("text", "texts", "text, caption or alt"),
        ("page", "page URLs, which may be empty", "page_url, if there is one"),
    ):
        parser.add_argument(
            f"--{name}-column",
            metavar="NAME",
            help=f"column of {what} in --table (default: {usual}; numbers for a file without a "
            "header)",
        )


def require_archives(args: argparse.Namespace) -> None:
    """Raises InputError for flags that name no archives, as far as local checks can show."""
    parse_networks("--allow-address", args.allow_address)
    if args.index is not None:
        if args.warc is not None:
            raise InputError(f"--index {args.index} names its archives; remove --warc")
        if not is_remote(args.index):
            index_files(args.index)
    for flag, pattern in (("--warc", args.warc), ("--wat", args.wat)):
        if pattern is not None:
            require_archive(pattern, flag)
    for flag in ("image_column", "text_column", "page_column"):
        if getattr(args, flag) is not None and args.table is None:
            name = flag.replace("_", "-")
            raise InputError(f"--{name} {getattr(args, flag)}: give --table, which has the column")


def require_archive(pattern: str, flag: str) -> None:
    """Raises InputError for a pattern or a list of local files that matches none.

    Remote paths and ``**``, which only Beam expands, are checked later.
    """
    if is_remote(pattern):
        if is_web(pattern):
            web_url(pattern.removeprefix("@"))
        return
    if pattern.startswith("@"):
        if not Path(pattern[1:]).is_file():
            raise InputError(f"{flag} {pattern}: no such list; give a file with a path a line")
    elif "**" not in pattern and not glob.glob(pattern, include_hidden=True):
        raise nothing_matches(pattern, flag)


def nothing_matches(pattern: str, flag: str) -> InputError:
    """Returns the error for a pattern without archives."""
    return InputError(f"{flag} {pattern}: no file matches; give a path or a quoted glob")


def find_archives(
    pattern: str, *, base: str | None = None, allowed: Sequence[str] = (), flag: str = "--warc"
) -> list[tuple[str, int]]:
    """Returns the sorted (path, bytes) of the archives. Raises InputError if no archive matches.

    Raises Unreachable for an archive on the web that does not respond.
    """
    if pattern.startswith("@"):
        lines = list(read_list(pattern[1:], allowed, flag))
        paths = [resolve_path(line, base, pattern[1:]) for line in lines]
        return add_sizes(f"{flag} {pattern}", paths, allowed)
    if is_web(pattern) and "*" not in pattern:
        return add_sizes(flag, [pattern], allowed)
    return _matches(pattern, flag)


# Paths in other file systems, and patterns that only Beam expands.
_FOR_BEAM = re.compile(r"://|\*\*|\[|\\|/$")


def _here(pattern: str) -> Iterator[tuple[str, int]]:
    """Yields (path, bytes) of a file, of a folder's files, or of the files that match a pattern."""
    is_glob = "*" in pattern or "?" in pattern
    for path in glob.iglob(pattern, include_hidden=True):
        if not is_glob or os.path.isfile(path):
            yield path, os.stat(path).st_size


def _of_beam(pattern: str) -> Iterator[tuple[str, int]]:
    from apache_beam.io.filesystems import FileSystems  # takes seconds to load

    for match in FileSystems.match([pattern])[0].metadata_list:
        yield match.path, match.size_in_bytes


def _matches(pattern: str, flag: str) -> list[tuple[str, int]]:
    if is_remote(pattern) and not is_web(pattern):
        archives = [(str(path), path.stat().st_size) for path in files_matching(pattern)]
        if not archives:
            raise nothing_matches(pattern, flag)
        return archives
    try:
        archives = sorted(_of_beam(pattern) if _FOR_BEAM.search(pattern) else _here(pattern))
    except (ValueError, OSError) as error:
        raise InputError(f"{flag} {pattern}: {error}") from None
    if folders := [path for path, _ in archives if Path(path).is_dir()]:
        raise InputError(f"{flag} {pattern}: {folders[0]} is a folder; give '{folders[0]}/*.gz'")
    if not archives:
        raise nothing_matches(pattern, flag)
    return archives


def read_list(path: str, allowed: Sequence[str] = (), flag: str = "--warc") -> Iterator[str]:
    """Yields the non-empty lines of a list. Raises InputError for a file that is not a list."""
    argument = f"{flag} @{path}"
    try:
        text = _read_unpacked(path, allowed).decode("utf-8", "surrogateescape")
    except (OSError, EOFError, zlib.error, OverflowError) as error:
        raise InputError(f"{argument}: {error}; give a list of archives, one per line") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{argument}: it is empty; give a list of archives, one per line")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_PATH_CHARS or "\0" in line:
            raise InputError(
                f"{argument}: line {number} is not a path: {line[:60]!r}; give one per line"
            )
    yield from lines


def _read_unpacked(path: str, allowed: Sequence[str]) -> bytes:
    """Returns the unpacked bytes of a list. Raises OverflowError for a file that is too large."""
    with open_web(path, allowed) if is_web(path) else to_path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if is_gzip else file
        content: bytes = io.BufferedReader(stream).read(MAX_LIST_BYTES + 1)
    if len(content) > MAX_LIST_BYTES:
        raise OverflowError(f"it has more than {MAX_LIST_BYTES >> 20} MiB")
    return content


def resolve_path(name: str, base: str | None, source: str) -> str:
    """Returns the path of an archive named in a list or an index; ``source`` is the list's path."""
    if is_remote(name) or os.path.isabs(name):
        return name
    if base is not None:
        return f"{base.rstrip('/')}/{name}"
    if name.startswith(COMMON_CRAWL_PATH):
        return f"{COMMON_CRAWL}{name}"
    return f"{source.rpartition('/')[0]}/{name}" if "/" in source else name


def indexed_archives(pattern: str, base: str | None, allowed: Sequence[str] = ()) -> "Index":
    """Reads ``--index``: the records by their archives' paths. Raises InputError.

    Indexes on the web or in a store are copied to a temporary file first.
    """
    from vlmill.pipelines.web.archives.index import read_index  # numpy and pyarrow load slowly

    if not is_remote(pattern):
        paths = index_files(pattern)
        index, source = read_index(paths, "--index"), str(paths[0])
    else:
        with tempfile.TemporaryDirectory() as folder:
            sources = _copy_index(pattern, Path(folder), allowed)
            index, source = read_index(sorted(Path(folder).iterdir()), "--index"), sources[0]
    return index.rename_archives(lambda name: resolve_path(name, base, source))


def _copy_index(pattern: str, folder: Path, allowed: Sequence[str]) -> list[str]:
    """Copies the files of an index on the web or in a store; returns their local paths.

    Raises InputError if no file exists or one cannot be read.
    """
    sources = [pattern] if is_web(pattern) else [str(path) for path in files_matching(pattern)]
    if not sources:
        raise InputError(f"--index {pattern}: no file matches; give a file of CDX lines or Parquet")
    for number, source in enumerate(sources):
        try:
            opened = open_web(source, allowed) if is_web(source) else to_path(source).open("rb")
            with opened as file, (folder / f"{number:08d}").open("wb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
        except OSError as error:
            raise InputError(f"--index {source}: {error}") from None
    return sources


def index_files(pattern: str) -> list[Path]:
    """Returns the files of ``--index``. Raises InputError if no file exists."""
    names = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern))
    paths = [Path(name) for name in names if os.path.isfile(name)]
    if not paths:
        raise InputError(f"--index {pattern}: no file matches; give a file of CDX lines or Parquet")
    return paths


def add_sizes(argument: str, paths: Sequence[str], allowed: Sequence[str]) -> list[tuple[str, int]]:
    """Returns (path, bytes) of archives that are named one by one, sorted, each once.

    Raises InputError for a missing local file, Unreachable for one on the web.
    """
    unique = sorted(set(paths))
    with (
        ThreadPoolExecutor(ASKED_AT_ONCE) as pool,
        Progress(total=len(unique), unit="archive", label="sizes", visible=len(unique) > 1) as bar,
    ):
        sizes = []
        for size in pool.map(partial(_get_size, argument, allowed=allowed), unique):
            sizes.append(size)
            bar.advance()
    return list(zip(unique, sizes, strict=True))


def _get_size(argument: str, path: str, *, allowed: Sequence[str]) -> int:
    if is_web(path):
        with open_web(path, allowed) as file:
            return file.total
    if is_remote(path):
        ((_, size),) = _matches(path, argument)
        return size
    if not Path(path).is_file():
        raise InputError(f"{argument}: {path} does not exist; see --base")
    return os.path.getsize(path)


def require_kind(kind: str, argument: str, paths: Sequence[str]) -> None:
    """Raises InputError for a file that is WARC, WAT or WET, and not of the expected ``kind``.

    Remote files are recognised by their names; for local files the first records are read, too.
    """
    expected = kind.upper()
    refusals = {
        "WET": f"which has only the texts of pages; give the {expected} file of the same name",
        "WAT": "which has only the links of pages; give it to --wat, or give the WARC file of the "
        "same name",
        "WARC": "which has the pages themselves; give it to --warc",
    }
    for path, found in _find_kinds(paths):
        if found is not None and found != expected:
            raise InputError(f"{argument}: {path} is a {found} file, {refusals[found]}")


def _find_kinds(paths: Sequence[str]) -> list[tuple[str, str | None]]:
    """Returns each file with its kind; None if it is not known."""
    kinds: list[tuple[str, str | None]] = []
    for number, path in enumerate(paths):
        named = _NAMED.search(path)
        is_local = number < _MAX_SNIFFED and not is_remote(path) and "://" not in path
        kind = named[1].upper() if named else _sniff(path) if is_local else None
        kinds.append((path, kind))
    return kinds


def _sniff(path: str) -> str | None:
    """Returns the kind of a file whose first records after its description are of one type."""
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if is_gzip else file
            start = io.BufferedReader(stream).read(_SNIFFED_BYTES)
    except (OSError, EOFError, zlib.error):
        return None  # the error is reported when the file is read
    types = {kind.lower() for kind in _TYPE.findall(start)} - {b"warcinfo"}
    if types & {b"response", b"resource", b"revisit"}:
        return "WARC"
    if len(types) != 1:
        return None
    (kind,) = types
    if kind == b"metadata" and b"application/json" not in start:
        return None
    return _KINDS.get(kind)
