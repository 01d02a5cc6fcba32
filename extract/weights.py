"""Finds the files of ``--weights``: a file, a folder of a detector, or a name.

A folder of the hub is used unchanged: ``pytorch_model.bin`` or ``model.safetensors``, in one file
or in several with their index, and ``config.yaml``, which then is ``--config``. Nothing here loads
torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmill.extract.config import DETECTOR, MODEL, saved_folder
from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.weights.download import download_file, download_recorded
from vlmill.runtime.weights.hub import fetch_files, select_below
from vlmill.runtime.weights.names import HubLocation, is_named, parse_name
from vlmill.schemas.errors import InputError

INDEX = ".index.json"
WEIGHTS = (
    *("model.safetensors", "pytorch_model.bin"),
    *(f"model.safetensors{INDEX}", f"pytorch_model.bin{INDEX}"),
)
SUFFIXES = (".pth", ".pkl", ".bin", ".safetensors", ".caffemodel", ".pt")
CONFIGS = ("config.yaml", "config.yml")
MAX_BYTES = 16 << 30  # of one file; the largest published detector has about 1.3 GB


@dataclass(frozen=True, kw_only=True)
class DetectorFiles:
    """Holds the local file or trained detector's folder of ``--weights``, and the configuration
    file next to it.
    """

    weights: Path
    config: Path | None = None


def resolve_weights(
    argument: str | Path, *, allow_addresses: Sequence[str] = (), flag: str = "--weights"
) -> DetectorFiles:
    """Returns the local files of a detector, which are fetched first if it is given by name.

    ``allow_addresses`` are private networks that may be connected to. Raises InputError for a
    malformed name, for a download that fails or has another SHA-256, and for a folder with several
    files of weights.
    """
    if not is_named(argument):
        return find_files(Path(argument), flag)
    location = parse_name(str(argument))
    if isinstance(location, HubLocation):
        folder = fetch_files(
            location, lambda sizes: choose_files(location, sizes), allow_addresses=allow_addresses
        )
        path = folder / location.path
        return DetectorFiles(weights=path) if path.is_file() else find_files(path, flag)
    allowed = parse_networks("--allow-address", allow_addresses)
    if location.url.endswith(("/", f"/{DETECTOR}")):
        folder = download_recorded(location, DETECTOR, (MODEL,), allowed=allowed)
        return DetectorFiles(weights=folder)
    return DetectorFiles(weights=download_file(location, allowed=allowed))


def find_files(path: Path, flag: str) -> DetectorFiles:
    """Returns the files of a local folder; any other path, and a folder without weights, is
    returned unchanged.
    """
    if not path.is_dir() or saved_folder(path) is not None:
        return DetectorFiles(weights=path)
    names = {entry.name for entry in path.iterdir() if entry.is_file()}
    name = select_weights(names, f"{flag} {path}")
    if name is None:
        return DetectorFiles(weights=path)
    config = next((path / config for config in CONFIGS if config in names), None)
    return DetectorFiles(weights=path / name, config=config)


def choose_files(location: HubLocation, sizes: Mapping[str, int | None]) -> list[str]:
    """Returns the files to download from a repository: the file that a location names, or the
    weights and the configuration of a detector.

    Raises InputError if there is no such file, or one that is too large.
    """
    if location.path in sizes:
        folder, _, name = location.path.rpartition("/")
        below = select_below(HubLocation(repo=location.repo, path=folder), sizes)
        names = [name, *select_shards(name, below)]
    else:
        below = select_below(location, sizes)
        if DETECTOR in below and MODEL in below:
            names = [DETECTOR, MODEL]
        else:
            top = [name for name in below if "/" not in name]
            weights = select_weights(top, str(location))
            if weights is None:
                raise InputError(
                    f"{location} holds no weights ({', '.join(WEIGHTS)}, or a file in "
                    f"{', '.join(SUFFIXES)}); it has {', '.join(sorted(below)[:8])}"
                )
            configs = [name for name in CONFIGS if name in below]
            names = [weights, *select_shards(weights, below), *configs]
    for name in names:
        size = below[name]
        if size is None or not 0 < size <= MAX_BYTES:
            raise InputError(
                f"{location}: {name} has {size or 'an unknown number of'} bytes, expected 1 to "
                f"{MAX_BYTES}"
            )
    return [below.full_names[name] for name in names]


def select_weights(
    names: Iterable[str], where: str, suffixes: tuple[str, ...] = SUFFIXES
) -> str | None:
    """Returns the file of weights among a folder's names, or None.

    Raises InputError if several match.
    """
    names = sorted(names)
    if usual := [name for name in WEIGHTS if name in names]:
        return usual[0]
    candidates = [
        name for name in names if name.endswith(suffixes) and not re.search(r"-\d+-of-\d+\.", name)
    ]
    if len(candidates) > 1:
        raise InputError(f"{where} holds {', '.join(candidates[:5])}; give one of these files")
    return candidates[0] if candidates else None


def select_shards(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names of the files of an index: ``model-00001-of-00002.safetensors``."""
    if not name.endswith(INDEX):
        return []
    stem, _, suffix = name.removesuffix(INDEX).rpartition(".")
    pattern = re.compile(rf"{re.escape(stem)}-\d+-of-\d+\.{re.escape(suffix)}")
    return sorted(other for other in names if pattern.fullmatch(other))
