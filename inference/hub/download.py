"""A checkpoint's folder on the Hugging Face hub: ``hf://owner/name`` becomes a folder here.

What a stranger has put there is listed before anything is fetched: a folder with a pickle is
refused as a whole, only files of known names are fetched, and none larger than it may be. Weights
are safetensors, which hold numbers alone.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from vlmill.inference.hub.repository import HubLocation
from vlmill.inference.input_checks import warn
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, TOKENIZER, VOCABULARY
from vlmill.train.checkpoints.trained_on import TRAINED_IMAGES, TRAINED_PAIRS

CARD, RECIPE, DETECTOR = "README.md", "recipe.yaml", "detector.safetensors"
MB = 1 << 20
# What is fetched and sent, and how many bytes each may have.
FILES: dict[str, int] = {
    MODEL: 20_000 * MB,
    DETECTOR: 4_000 * MB,
    TRAINED_PAIRS: 16_000 * MB,
    TRAINED_IMAGES: 16_000 * MB,
    VOCABULARY: 64 * MB,
    TOKENIZER: 64 * MB,
    SETTINGS: 64 * MB,
    RECIPE: 4 * MB,
    CARD: 4 * MB,
}
# Names under which pickles are published; reading one may run code.
PICKLES = frozenset({".bin", ".ckpt", ".joblib", ".model", ".pickle", ".pkl", ".pt", ".pth"})


def fetch_checkpoint(location: HubLocation) -> Path:
    """Fetches what a checkpoint has into the hub's cache on this machine; returns the folder.

    Without a network it is that of an earlier call. Raises InputError for a repository that is not
    there, that holds a pickle or a file too large, and without a network and an earlier call.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    cache = cache_folder()
    try:
        commit, sizes = _list_files(location)
    except HfHubHTTPError as error:
        if (refused := refusal(location, error)) is not None:
            raise refused from None
        return _find_cached(location, cache, error)
    except Exception as error:  # what its HTTP library raises, which has changed by version
        return _find_cached(location, cache, error)
    require_safe(location, sizes)
    try:
        folder = snapshot_download(
            location.repo,
            revision=location.revision,
            allow_patterns=list(FILES),
            cache_dir=cache,
            endpoint=endpoint(),
        )
    except Exception as error:
        raise InputError(
            f"{location} could not be fetched ({_in_short(error)}); try again"
        ) from None
    there = Path(folder)
    arrived = {path.name: path.stat().st_size for path in there.iterdir() if path.is_file()}
    if there.name != commit or any(size != sizes.get(name) for name, size in arrived.items()):
        raise InputError(f"{location} has changed while it was fetched; try again")
    return there


def require_safe(location: HubLocation, sizes: Mapping[str, int | None]) -> None:
    """Raises InputError for a repository with a pickle, with a file that is larger than it may be,
    or without a checkpoint.
    """
    if pickles := find_pickles(sizes):
        raise InputError(
            f"{location} holds {', '.join(pickles[:3])}, a pickle, which may run code when it is "
            "read; take a repository of safetensors, or download it and use `train-vl convert`"
        )
    if missing := [name for name in (SETTINGS, MODEL, VOCABULARY) if name not in sizes]:
        raise InputError(
            f"{location} has no {missing[0]}: it is no checkpoint of vlmill; give one that "
            "`train-vl "
            "push` has sent, or download a published one and use `train-vl convert`"
        )
    for name, max_bytes in FILES.items():
        size = sizes.get(name, 0)
        if size is None or size > max_bytes:
            size_text = "of unknown size" if size is None else f"of {size} bytes"
            raise InputError(
                f"{location}: {name} is {size_text}, more than {max_bytes} are not fetched"
            )


def find_pickles(names: Iterable[str]) -> list[str]:
    """Returns those of the names that pickles have, sorted."""
    return sorted(name for name in names if PurePosixPath(name).suffix.lower() in PICKLES)


def refusal(location: HubLocation, error: Any) -> InputError | None:
    """Says why the hub has refused; None where it has only failed."""
    status = error.response.status_code
    if status in (401, 403, 404):
        return InputError(
            f"{location}: the hub has no such repository or revision, or not for you (status "
            f"{status}); check the name, and log in with `hf auth login` or HF_TOKEN"
        )
    return None if status >= 500 else InputError(f"{location}: {_in_short(error)}")


def endpoint() -> str | None:
    """Returns the address that ``HF_ENDPOINT`` names; None for the hub's own."""
    return os.environ.get("HF_ENDPOINT") or None


def cache_folder() -> Path:
    """Returns where the hub's library keeps what it has fetched: ``HF_HUB_CACHE``, or its own."""
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def _list_files(location: HubLocation) -> tuple[str, dict[str, int | None]]:
    """Asks for the commit, and for the names and sizes of its files."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint()).model_info(
        location.repo, revision=location.revision, files_metadata=True
    )
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    return str(info.sha), sizes


def _find_cached(location: HubLocation, cache: Path, error: Exception) -> Path:
    """Returns what an earlier call has fetched, and warns. Raises InputError without any."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            location.repo,
            revision=location.revision,
            allow_patterns=list(FILES),
            cache_dir=cache,
            local_files_only=True,
        )
    except OSError:
        raise InputError(
            f"{location}: the hub cannot be reached ({_in_short(error)}), and {cache} has nothing "
            "of "
            "it; try again with a network, or copy the cache from where there is one and name it "
            "by HF_HUB_CACHE"
        ) from None
    warn(f"{location}: the hub cannot be reached; taken from the cache, {folder}")
    return Path(folder)


def _in_short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
