"""Downloads one file of the web in parts, resumable, and compares it with its SHA-256.

A file is kept in ``weights/`` of the cache (``VLMILL_CACHE``, ~/.cache/vlmill), in a folder named
after its address. Until it is complete it is ``NAME.part``, alongside the size and version that the
server stated, so that parts of different versions are never mixed.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import sync, write_json
from vlmill.runtime.files.copies import FOLDER, FULL, cache_folder, disk_full_error, one_at_a_time
from vlmill.runtime.files.listed import FILE_RECORD, hash_file, parse_record
from vlmill.runtime.net.exchange import Network
from vlmill.runtime.net.remote_file import MOST_BYTES, Part, Unreachable, fetch_part
from vlmill.runtime.weights.names import WebLocation
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

MB = 10**6
MAX_BYTES = 50_000 * MB
SHOWN_BYTES = 10 * MB  # the progress of smaller files is not shown
FIRST_TRIES = 2  # until a server has responded: without a network the wait is short
PAGES = (b"<!doctype html", b"<html")


def download_file(
    location: WebLocation, *, allowed: Sequence[Network] = (), folder: Path | None = None
) -> Path:
    """Downloads a file, unless it is complete in the cache; returns its path.

    ``folder`` takes the place of the folder of the address. ``allowed`` are private networks that
    may be connected to. Memory: one part of 8 MiB. Raises InputError for an address without a file,
    a file whose SHA-256 differs from that of the location, and if the server cannot be reached;
    OSError for a full disk.
    """
    folder = folder or cached_folder(location.url)
    path = folder / file_name(location.url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder / ".lock"):
            if not path.is_file():
                download_to(location, path, allowed)
            elif location.sha256 is not None:
                require_digest(location, path, location.sha256)
    except OSError as error:
        raise (disk_full_error(error) if error.errno in FULL else error) from None
    return path


def download_recorded(
    location: WebLocation, record: str, known: Container[str], *, allowed: Sequence[Network] = ()
) -> Path:
    """Downloads a file named ``record`` and the files of its folder that it lists with their
    SHA-256; returns the local folder.

    The location is the folder's address, which ends in a slash, or the file's. Listed files whose
    names are not ``known`` are not fetched. Raises the errors of :func:`download_file`, and
    InputError for a record that lists nothing.
    """
    base = location.url.removesuffix(record)
    if not base.endswith("/"):
        raise InputError(
            f"{location}: expected the address of a folder, which ends in a slash, or of its "
            f"{record}"
        )
    folder = cached_folder(base)
    about = WebLocation(url=f"{base}{record}", sha256=location.sha256)
    path = download_file(about, allowed=allowed, folder=folder)
    try:
        files = parse_record(read_json(path)[FILE_RECORD])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{about} lists no files with their SHA-256 ({error!r})") from None
    for file in files:
        if file.name in known:
            listed = WebLocation(url=f"{base}{file.name}", sha256=file.sha256)
            download_file(listed, allowed=allowed, folder=folder)
    return folder


def cached_folder(url: str) -> Path:
    """Returns the cache folder of an address."""
    return cache_folder() / "weights" / hashlib.sha256(url.encode()).hexdigest()[:16]


def file_name(url: str) -> str:
    """Returns the name of a file in its address, with only safe characters."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[-100:] or "weights"


def require_digest(location: object, path: Path, sha256: str) -> None:
    """Raises InputError, and deletes the file, unless its SHA-256 is ``sha256``."""
    digest = hash_file(path)
    if digest == sha256:
        return
    path.unlink()
    raise InputError(
        f"{location}: the file has the SHA-256 {digest}, expected {sha256}; it was deleted. Give "
        "the digest of the file that you trust, or another address"
    )


def download_to(
    location: WebLocation, path: Path, allowed: Sequence[Network], authorization: str | None = None
) -> None:
    """Downloads a file to a path, continuing a partial file of an earlier call.

    Only one process at a time may call it. Raises the errors of :func:`download_file`.
    """
    part, about = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    url = location.url
    fetch = partial(fetch_part, url, allowed=allowed, authorization=authorization, whole=True)
    try:
        start, expected = _read_state(about, part)
        first = fetch(start, start + MOST_BYTES, tries=FIRST_TRIES)
        if start and (first.total, first.version) != expected:
            print_status(f"{url} has changed since its download was interrupted; starting over")
            start, first = 0, fetch(0, MOST_BYTES)
        if not start:
            _require_file(url, first)
            part.write_bytes(b"")
            write_json(about, {"url": url, "total": first.total, "version": first.version})
        _require_space(url, first.total - start, path.parent)
        _append(url, part, start, first, fetch)
    except Unreachable as error:
        raise InputError(f"{error} (downloads are kept in {path.parent})") from None
    if location.sha256 is not None:
        require_digest(location, part, location.sha256)
    os.replace(part, path)
    about.unlink()
    sync(path.parent)


def _append(url: str, part: Path, start: int, first: Part, fetch: Callable[..., Part]) -> None:
    """Writes the bytes of ``first``, which begin at ``start``, and all that follow."""
    total, position, chunk = first.total, start, first
    label = f"{part.stem} of {size_words(total)}"
    with (
        part.open("r+b") as file,
        Progress(
            total=total // MB,
            unit="megabyte",
            label=label,
            done=start // MB,
            visible=total > SHOWN_BYTES,
        ) as progress,
    ):
        file.seek(start)
        file.truncate()
        while True:
            file.write(chunk.content)
            file.flush()
            os.fsync(file.fileno())
            end = position + len(chunk.content)
            progress.advance(end // MB - position // MB)
            position = end
            if position >= total:
                return
            chunk = fetch(position, position + MOST_BYTES)
            if not chunk.content or (chunk.total, chunk.version) != (total, first.version):
                raise InputError(f"{url} has changed while it was read; run the command again")


def _read_state(about: Path, part: Path) -> tuple[int, tuple[int, str | None]]:
    """Returns the bytes of an interrupted download, and the size and version of its file."""
    none = 0, (0, None)
    try:
        state, size = read_json(about), part.stat().st_size
        total, version = state["total"], state["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return none
    if not isinstance(total, int) or not 0 < size <= total:
        return none
    # The last byte is requested again: a server states size and version only with some bytes.
    return min(size, total - 1), (total, version)


def _require_file(url: str, first: Part) -> None:
    """Raises InputError for a web page, and for a file that is too large for weights."""
    if first.content[:200].lstrip().lower().startswith(PAGES):
        raise InputError(
            f"{url} is a web page; give the address of the file itself (of Dropbox it ends "
            "in ?dl=1), or download it in a browser and give the file"
        )
    if not 0 < first.total <= MAX_BYTES:
        raise InputError(
            f"{url} has {first.total} bytes, expected 1 to {MAX_BYTES}; give another file"
        )


def _require_space(url: str, size: int, folder: Path) -> None:
    """Raises InputError if a disk has less free space than a download needs."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise InputError(
            f"{url} needs {size_words(size)} more, and {folder} has {size_words(free)} free; "
            f"delete files there, or set {FOLDER} to a folder of another disk"
        )
