"""Files of a repository of the Hugging Face hub: ``hf://OWNER/NAME`` becomes a folder here.

What is there is listed before anything is fetched, and the caller chooses by names and sizes. The
hub's own library fetches, continues after a kill and keeps the files in its cache; what arrives is
compared with the size, and where the hub states it with the SHA-256, of the list.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.copies import FULL
from vlmill.runtime.weights.download import require_digest
from vlmill.runtime.weights.names import HubLocation
from vlmill.schemas.errors import InputError

# Chooses what to fetch from the sizes of all files by name; raises InputError where nothing fits.
Choose = Callable[[Mapping[str, int | None]], Sequence[str]]
# Says that files are taken from the cache, as the hub cannot be reached.
Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """Holds what the hub says of a file; the SHA-256 of large ones alone."""

    size: int | None
    sha256: str | None = None


def fetch_files(location: HubLocation, choose: Choose, *, warn: Warn = print_status) -> Path:
    """Fetches the chosen files of a repository into the hub's cache on this machine, and returns
    the folder that holds them under their names.

    Without a network they are those of an earlier call. Raises InputError for a repository that
    does not exist, for files that change while they are fetched or have another SHA-256, and
    without a network and an earlier call; OSError for a full disk.
    """
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    cache = hub_cache()
    try:
        commit, files = _list_files(location)
    except HfHubHTTPError as error:
        if (refused := refusal(location, error)) is not None:
            raise refused from None
        return _find_cached(location, choose, cache, error, warn)
    except Exception as error:  # what its HTTP library raises, which has changed by version
        return _find_cached(location, choose, cache, error, warn)
    names = list(choose({name: file.size for name, file in files.items()}))
    known = [
        n
        for n in names
        if isinstance(
            try_to_load_from_cache(location.repo, n, cache_dir=cache, revision=commit), str
        )
    ]
    try:
        folder = Path(
            snapshot_download(
                location.repo,
                revision=location.revision,
                allow_patterns=[escape(name) for name in names],
                cache_dir=cache,
                endpoint=endpoint(),
            )
        )
    except OSError as error:
        if error.errno in FULL:
            raise OSError(
                error.errno,
                f"{error.strerror}; make room, or let HF_HUB_CACHE be a folder of another disk",
                str(cache),
            ) from None
        raise _not_fetched(location, error) from None
    except Exception as error:
        raise _not_fetched(location, error) from None
    sizes = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
    if folder.name != commit or sizes != {name: files[name].size for name in names}:
        raise InputError(f"{location} has changed while it was fetched; try again")
    for name in names:
        expected = files[name].sha256
        if expected is not None and name not in known:
            require_digest(f"{location}: {name}", (folder / name).resolve(), expected)
    if location.sha256 is not None:
        require_digest(location, (folder / location.path).resolve(), location.sha256)
    return folder


class Below(dict[str, int | None]):
    """Holds the sizes of the files in a folder of a repository, by their names in that folder;
    ``full_names`` are those in the repository.
    """

    def __init__(self, folder: str, sizes: Mapping[str, int | None]) -> None:
        prefix = f"{folder}/" if folder else ""
        inside = {name: size for name, size in sizes.items() if name.startswith(prefix)}
        super().__init__({name.removeprefix(prefix): size for name, size in inside.items()})
        self.full_names = {name.removeprefix(prefix): name for name in inside}


def select_below(location: HubLocation, sizes: Mapping[str, int | None]) -> Below:
    """Returns the files of the folder that a location names. Raises InputError for one that is not
    in the repository.
    """
    below = Below(location.path, sizes)
    if location.path and not below:
        names = ", ".join(sorted(sizes)[:8])
        raise InputError(f"{location}: the repository has no {location.path}; it has {names}")
    return below


def refusal(location: HubLocation, error: Any) -> InputError | None:
    """Returns the error of a hub that has refused; None where it has only failed."""
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
    """Returns where the hub's library keeps what it has fetched: ``HF_HUB_CACHE``, or its own."""
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def shorten(error: Exception) -> str:
    """Returns an error of the hub's library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _not_fetched(location: HubLocation, error: Exception) -> InputError:
    return InputError(
        f"{location} could not be fetched ({shorten(error)}); the same command continues"
    )


def _list_files(location: HubLocation) -> tuple[str, dict[str, HubFile]]:
    """Asks for the commit, and for the names, sizes and digests of its files."""
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
    """Returns what an earlier call has fetched, and warns. Raises InputError without any."""
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
