"""Downloads files of a Hugging Face hub repository: ``hf://OWNER/NAME`` becomes a local folder.

The files are listed first, and the caller chooses by names and sizes. Downloads are resumable, are
compared with the hub's SHA-256 of large files, and are stored in the cache of the hub's library.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.copies import FULL, one_at_a_time
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.net.remote_file import endpoint_networks
from vlmill.runtime.weights.download import download_to, require_digest
from vlmill.runtime.weights.names import HubLocation, WebLocation
from vlmill.schemas.errors import InputError

# Selects the files to fetch from the sizes of all files by name; raises InputError if none match.
Choose = Callable[[Mapping[str, int | None]], Sequence[str]]
# Prints that files come from the cache because the hub cannot be reached.
Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """Holds the hub's size of a file and, for a large file, its SHA-256."""

    size: int | None
    sha256: str | None = None


def fetch_files(
    location: HubLocation,
    choose: Choose,
    *,
    allow_addresses: Sequence[str] = (),
    warn: Warn = print_status,
) -> Path:
    """Fetches the chosen files of a repository into the hub's cache on this machine, and returns
    the folder that holds them under their names.

    ``allow_addresses`` are private networks that may be connected to; the server that HF_ENDPOINT
    names may have any address. Without a network the files are those of an earlier call. Raises
    InputError for a repository that does not exist, for files that change while they are fetched
    or have another SHA-256, and without a network and an earlier call; OSError for a full disk.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    cache = hub_cache()
    try:
        commit, files = _list_files(location)
    except HfHubHTTPError as error:
        if (refused := refusal(location, error)) is not None:
            raise refused from None
        return _find_cached(location, choose, cache, error, warn)
    except Exception as error:  # the errors of its HTTP library differ between versions
        return _find_cached(location, choose, cache, error, warn)
    names = list(choose({name: file.size for name, file in files.items()}))
    base = cache / f"models--{location.repo.replace('/', '--')}"
    folder = base / "snapshots" / commit
    missing = {
        name: files[name]
        for name in names
        if not isinstance(
            try_to_load_from_cache(location.repo, name, cache_dir=cache, revision=commit), str
        )
    }
    try:
        _fetch_missing(location, commit, missing, base, allow_addresses)
        if location.revision != commit:  # for a later call without a network
            write_text(base / "refs" / location.revision, commit)
    except OSError as error:
        if error.errno not in FULL:
            raise
        message = (
            f"{error.strerror}; delete files there, or set HF_HUB_CACHE to a folder of another disk"
        )
        raise OSError(error.errno, message, str(cache)) from None
    for name in names:
        if (size := (folder / name).stat().st_size) != files[name].size:
            raise InputError(
                f"{location}: {folder / name} has {size} bytes, the hub states {files[name].size}; "
                "delete it, and try again"
            )
    if location.sha256 is not None:
        require_digest(location, (folder / location.path).resolve(), location.sha256)
    return folder


def _fetch_missing(
    location: HubLocation,
    commit: str,
    files: Mapping[str, HubFile],
    base: Path,
    allow_addresses: Sequence[str],
) -> None:
    """Downloads files of a commit to its folder in the cache. Raises InputError and OSError."""
    if not files:
        return
    if find_spec("pycurl") is None:  # without the extras, by the hub's own library
        from huggingface_hub import hf_hub_download

        for name in files:
            hf_hub_download(
                location.repo, name, revision=commit, cache_dir=base.parent, endpoint=endpoint()
            )
        return
    from huggingface_hub import constants, get_token

    server = (endpoint() or constants.ENDPOINT).rstrip("/")
    allowed = parse_networks("--allow-address", allow_addresses)
    if endpoint():
        allowed += endpoint_networks(server, "HF_ENDPOINT")
    token = get_token()
    parts = base / ".partial" / commit
    parts.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(parts / ".lock"):
        for name, file in files.items():
            target = base / "snapshots" / commit / name
            if target.exists():  # another process was first
                continue
            url = f"{server}/{location.repo}/resolve/{commit}/{quote(name)}"
            path = parts / hashlib.sha256(name.encode()).hexdigest()[:16]
            try:
                download_to(
                    WebLocation(url=url, sha256=file.sha256),
                    path,
                    allowed,
                    None if token is None else f"Bearer {token}",
                )
            except InputError as error:
                raise InputError(f"{location}: {error}") from None
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)


class Below(dict[str, int | None]):
    """Holds a folder's file sizes by name; ``full_names`` are the names in the repository."""

    def __init__(self, folder: str, sizes: Mapping[str, int | None]) -> None:
        prefix = f"{folder}/" if folder else ""
        inside = {name: size for name, size in sizes.items() if name.startswith(prefix)}
        super().__init__({name.removeprefix(prefix): size for name, size in inside.items()})
        self.full_names = {name.removeprefix(prefix): name for name in inside}


def select_below(location: HubLocation, sizes: Mapping[str, int | None]) -> Below:
    """Returns the files of a location's folder. Raises InputError for an absent folder."""
    below = Below(location.path, sizes)
    if location.path and not below:
        names = ", ".join(sorted(sizes)[:8])
        raise InputError(f"{location}: the repository has no {location.path}; it has {names}")
    return below


def refusal(location: HubLocation, error: Any) -> InputError | None:
    """Returns the error of a hub that has refused; None for a temporary failure."""
    status = error.response.status_code
    if status in (401, 403, 404):
        return InputError(
            f"{location}: the hub has no such repository or revision, or not for you (status "
            f"{status}); check the name, and log in with `hf auth login` or HF_TOKEN"
        )
    return None if status >= 500 else InputError(f"{location}: {shorten(error)}")


def endpoint() -> str | None:
    """Returns the address that ``HF_ENDPOINT`` names; None for the hub's own."""
    return os.environ.get("HF_ENDPOINT") or None


def hub_cache() -> Path:
    """Returns the cache folder of the hub's library: ``HF_HUB_CACHE``, or its default."""
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def shorten(error: Exception) -> str:
    """Returns an error of the hub's library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _list_files(location: HubLocation) -> tuple[str, dict[str, HubFile]]:
    """Requests the commit, and the names, sizes and digests of its files."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint()).model_info(
        location.repo, revision=location.revision, files_metadata=True
    )
    files = {
        sibling.rfilename: HubFile(
            size=sibling.size, sha256=None if sibling.lfs is None else sibling.lfs.sha256
        )
        for sibling in info.siblings or []
    }
    return str(info.sha), files


def _find_cached(
    location: HubLocation, choose: Choose, cache: Path, error: Exception, warn: Warn
) -> Path:
    """Returns the files of an earlier call, and warns. Raises InputError without any."""
    unreachable = f"{location}: the hub cannot be reached ({shorten(error)})"
    remedy = (
        "try again with a network, or copy the cache from where there is one and name it by "
        "HF_HUB_CACHE"
    )
    base = cache / f"models--{location.repo.replace('/', '--')}"
    head = base / "refs" / location.revision
    commit = head.read_text().strip() if head.is_file() else location.revision
    folder = base / "snapshots" / commit
    if not folder.is_dir():
        raise InputError(f"{unreachable}, and {cache} has nothing of it; {remedy}")
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    try:
        choose({name: path.stat().st_size for name, path in paths.items()})
    except InputError as why:
        raise InputError(f"{unreachable}, and of {cache}: {why}; {remedy}") from None
    warn(f"{location}: the hub cannot be reached; taken from the cache, {folder}")
    return folder
