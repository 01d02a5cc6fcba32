"""Uploads a checkpoint to the Hugging Face hub as one commit with a card (``train-vl push``)."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vlmill.inference.load.answering import ANSWER, GROUND
from vlmill.inference.load.detector import open_detector_network, recorded_weights
from vlmill.inference.push.card import CardFacts, card
from vlmill.inference.show.folder import FolderSummary, read_folder
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.files.atomic import temporary_folder
from vlmill.runtime.files.checkpoints import CHECKPOINTS, TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.files.listed import FILE_RECORD
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.weights.hub import endpoint, refusal
from vlmill.runtime.weights.names import HubLocation, parse_repository
from vlmill.schemas.errors import InputError, StoreFailed
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint, save_tensors
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, TOKENIZER, VOCABULARY
from vlmill.train.checkpoints.named import CARD, DETECTOR, FILES, RECIPE, find_pickles
from vlmill.train.tasks.evaluating.model import find_recipe
from vlmill.train.tasks.retrieval.checks import find_feeding, select_ranking

# A recipe's absolute paths are reduced to names: the paths are private.
ABSOLUTE = re.compile(r"(?m)(:\s+['\"]?)/(?:[^\s'\"]*/)?([^\s/'\"]+)")
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
CARRIED = (MODEL, VOCABULARY, TOKENIZER, TRAINED_PAIRS, TRAINED_IMAGES)  # unchanged


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Holds the options of ``train-vl push``. ``with_detector`` is its file; "": the checkpoint's
    own; None: it is not uploaded.
    """

    checkpoint: Path
    to: str
    with_detector: str | None = None
    license: str | None = None
    data_license: str | None = None
    metrics: Sequence[Path] = ()
    public: bool = False
    dry_run: bool = False


def push(options: PushOptions) -> int:
    """Uploads the checkpoint, or with ``dry_run`` prints the card; returns the exit status.

    Raises InputError for problems that a user can fix, StoreFailed without a network.
    """
    location = parse_repository(options.to)
    if location.revision != "main":
        raise InputError(f"--to {options.to}: a commit goes to main; leave the revision out")
    if options.license is not None and not LICENSE.fullmatch(options.license):
        raise InputError(
            f"--license {options.license}: expected an ID such as apache-2.0 or cc-by-4.0"
        )
    loaded = load_checkpoint(options.checkpoint)
    summary = read_folder(options.checkpoint)
    with temporary_folder() as folder:
        files = collect_files(options, loaded, summary, folder)
        for name, path in files.items():
            if path.stat().st_size > FILES[name]:
                raise InputError(f"{path} has more than {FILES[name]} bytes, which no load fetches")
        sizes = {name: path.stat().st_size for name, path in files.items()}
        for name, size in sizes.items():
            print_status(f"{name:24} {size_words(size)}")
        if options.dry_run:
            print(files[CARD].read_text(encoding="utf-8"), end="")
            print_status(f"dry run: nothing was sent to {location}")
            return 0
        message = f"{loaded.variant}, {loaded.training.recipe}, step {loaded.training.step}"
        commit = commit_files(location, files, message, public=options.public)
    count = format_count(len(files), "file")
    print(f"{location}@{commit}: {count}, {size_words(sum(sizes.values()))}")
    return 0


def collect_files(
    options: PushOptions, loaded: LoadedCheckpoint, summary: FolderSummary, folder: Path
) -> dict[str, Path]:
    """Returns the files to upload by their names there; generated files are in ``folder``.

    Raises InputError for a detector that is not the checkpoint's, and for invalid metrics.
    """
    where = loaded.path
    files = {name: _local(where / name, folder) for name in CARRIED if (where / name).is_file()}
    (folder / SETTINGS).write_text(hide_paths(where / SETTINGS), encoding="utf-8")
    files[SETTINGS] = folder / SETTINGS
    run = where.parent.parent if where.parent.name == CHECKPOINTS else where
    recipe = None
    if (run / RECIPE).is_file():
        text = (run / RECIPE).read_text(encoding="utf-8")
        recipe = ABSOLUTE.sub(r"\1\2", text)
        (folder / RECIPE).write_text(recipe, encoding="utf-8")
        files[RECIPE] = folder / RECIPE
    call = find_call(loaded)
    reads_regions = call is not None and find_input_kind(loaded, call) == "regions"
    if options.with_detector is not None:
        if not reads_regions:
            raise InputError(f"--with-detector: checkpoint {where} reads no regions; remove it")
        write_detector(loaded, options.with_detector, folder / DETECTOR)
        files[DETECTOR] = folder / DETECTOR
    facts = CardFacts(
        location=options.to,
        call=call,
        recipe=recipe,
        license=options.license,
        data_license=options.data_license,
        figures={f"{path.parent.name}/{path.name}": read_figures(path) for path in options.metrics},
        has_detector=DETECTOR in files if reads_regions else None,
    )
    (folder / CARD).write_text(card(summary, facts), encoding="utf-8")
    return {**files, CARD: folder / CARD}


def _local(path: Path, folder: Path) -> Path:
    """Returns the file itself, or for a file in a store a copy in ``folder``."""
    if not isinstance(path, RemotePath):
        return path
    path.download(folder / path.name)
    return folder / path.name


def hide_paths(path: Path) -> str:
    """Returns a checkpoint's settings with the paths of its inputs reduced to names, since paths
    are private.
    """
    settings = read_json(path)
    if FILE_RECORD in settings:
        settings[FILE_RECORD] = {
            name: entry for name, entry in settings[FILE_RECORD].items() if name in CARRIED
        }
    for entry in settings.get("inputs") or []:
        entry["path"] = PurePosixPath(str(entry["path"])).name or str(entry.get("flag"))
    return json.dumps(settings, indent=2) + "\n"


def write_detector(loaded: LoadedCheckpoint, argument: str, path: Path) -> None:
    """Writes the detector's weights as safetensors. Raises InputError for another detector."""
    if "detector" not in (loaded.detector or {}):
        raise InputError(
            f"--with-detector: checkpoint {loaded.path} does not record its detector, "
            "like every converted one; publish the detector's file separately, and load "
            "the checkpoint with detector=FILE"
        )
    saved_detector = loaded.path / DETECTOR
    weights: Path | None = to_path(argument) if argument else saved_detector
    if not argument and not saved_detector.is_file():
        weights = recorded_weights(loaded)
    detector = open_detector_network(loaded, weights, "cpu", folded=False)
    save_tensors(detector.model.state_dict(), path)


def find_call(loaded: LoadedCheckpoint) -> str | None:
    """Returns the first supported method of a loaded checkpoint; None without one."""
    by_task = {ANSWER: "answer", GROUND: "ground"}
    if loaded.task is not None and loaded.task.name in by_task:
        return by_task[loaded.task.name]
    try:
        select_ranking(loaded)
        find_feeding(loaded)
    except InputError:
        return None
    return "score"


def find_input_kind(loaded: LoadedCheckpoint, call: str) -> str:
    """Returns the image inputs of a method's model: "regions" or "pixels"."""
    task = {"answer": ANSWER, "ground": GROUND}.get(call)
    if task is None:
        return find_feeding(loaded).kind
    return find_recipe(loaded, task).stages[0].feeding.kind


def read_figures(path: Path) -> dict[str, float]:
    """Reads the numbers of a ``metrics.json``. Raises InputError for another file."""
    try:
        content = read_json(path)
        numbers = {
            str(name): float(value)
            for name, value in content.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"--metrics {path}: {error}; give the metrics.json of `train-vl evaluate`"
        ) from None
    return numbers


def commit_files(
    location: HubLocation, files: Mapping[str, Path], message: str, *, public: bool
) -> str:
    """Commits the files in one commit, deleting leftovers of an earlier push; returns its id.

    Raises InputError if the hub refuses, StoreFailed if it cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=endpoint())
    try:
        api.create_repo(location.repo, private=not public, exist_ok=True)
        there = api.list_repo_files(location.repo)
        if pickles := find_pickles(there):
            raise InputError(
                f"{location} holds {pickles[0]}, a pickle, so no file of the repository "
                "would be loaded; delete it there, or give another repository"
            )
        operations: list[Any] = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=os.fspath(path))
            for name, path in files.items()
        ]
        operations += [
            CommitOperationDelete(path_in_repo=name)
            for name in there
            if name in FILES and name not in files
        ]
        commit = api.create_commit(location.repo, operations, commit_message=message)
    except InputError:
        raise
    except HfHubHTTPError as error:
        if (refused := refusal(location, error)) is not None:
            raise refused from None
        raise StoreFailed(f"{location}: the hub has failed ({error}); try again") from None
    except Exception as error:  # the errors of its HTTP library differ between versions
        raise StoreFailed(f"{location}: the hub cannot be reached ({error}); try again") from None
    return str(commit.oid)
