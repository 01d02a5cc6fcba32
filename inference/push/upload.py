"""Uploads a checkpoint to the Hugging Face hub as one commit with a card (``train-vl push``).

The card is written from the checkpoint's own records. It has only the names of paths, because it is
read on other machines.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from vlmill.inference.load.detector import open_detector_network, recorded_weights
from vlmill.inference.load.model import REFCOCO, VQA
from vlmill.inference.show.folder import FolderSummary, read_folder
from vlmill.inference.show.lines import stage_lines
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.files.atomic import temporary_folder
from vlmill.runtime.files.checkpoints import CHECKPOINTS, TRAINED_IMAGES, TRAINED_PAIRS
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.listed import FILE_RECORD
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.settings.plain_fields import flatten
from vlmill.runtime.weights.hub import endpoint, refusal
from vlmill.runtime.weights.names import HubLocation, parse_repository
from vlmill.schemas.errors import InputError, StoreFailed
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.train.checkpoints.detector import detector_words
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint, save_tensors
from vlmill.train.checkpoints.folders import MODEL, SETTINGS, TOKENIZER, VOCABULARY
from vlmill.train.checkpoints.named import CARD, DETECTOR, FILES, RECIPE, find_pickles
from vlmill.train.tasks.evaluating.recipe import find_recipe
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
    by_task = {VQA: "answer", REFCOCO: "ground"}
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
    task = {"answer": VQA, "ground": REFCOCO}.get(call)
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


NOT_STATED = "not stated"
TASKS = {"vqa": "visual-question-answering"}  # the hub's names
# The method for each type of checkpoint; `Pretrained` has these methods.
CALLS = {
    "score": ("scores", 'model.score(["image.jpg"], ["a dog on a beach", "two cats"])'),
    "answer": ("answer", 'model.answer("image.jpg", "what is on the beach?")'),
    "ground": ("found", 'model.ground("image.jpg", "the dog on the left")'),
}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Holds the facts of a card in addition to the checkpoint's own record.

    ``location`` is its address (``hf://owner/name``), ``call`` the method of :data:`CALLS` that it
    supports, None for weights that only training uses; ``recipe`` is its YAML. ``figures`` are the
    results of evaluations by file name. ``has_detector``: the detector's file is in the repository;
    None for a model that reads no regions.
    """

    location: str
    call: str | None
    recipe: str | None = None
    license: str | None = None
    data_license: str | None = None
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    has_detector: bool | None = None


def card(summary: FolderSummary, facts: CardFacts) -> str:
    """Returns the card as Markdown, after the fields that the hub reads."""
    training = summary.settings.get("training") or {}
    parts = [
        "\n".join(_front_matter(summary, facts)),
        f"# {PurePosixPath(facts.location).name}\n\n{_opening(summary, training)}",
        "## How to load it\n\n" + "\n".join(_loading(facts)),
        "## Training data\n\n" + "\n".join(_data(summary, training)),
        "## Figures\n\n" + "\n".join(_figures(training, facts)),
        *([] if facts.has_detector is None else ["## Regions\n\n" + _regions(summary, facts)]),
        "## Licences\n\n" + "\n".join(_licences(facts)),
        "## Settings\n\n" + _settings(summary, facts),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(summary: FolderSummary, facts: CardFacts) -> Iterator[str]:
    yield "---"
    yield "library_name: vlmill"
    if facts.license is not None:
        yield f"license: {facts.license}"
    task = summary.settings.get("task") or {}
    if (tag := TASKS.get(task.get("name", ""))) is not None:
        yield f"pipeline_tag: {tag}"
    yield "tags:"
    yield "- vision-and-language"
    yield f"- {summary.settings.get('variant')}"
    yield "---"


def _opening(summary: FolderSummary, training: Mapping[str, Any]) -> str:
    variant, recipe = summary.settings.get("variant"), training.get("recipe")
    task = summary.settings.get("task") or {}
    if task:
        origin = f"fine-tuned for {task.get('name')} by the recipe `{recipe}`"
    elif training.get("step"):
        origin = f"pretrained by the recipe `{recipe}`"
    else:
        origin = f"not trained further (`{recipe}`)"
    blind = " It was trained without images (blind)." if task.get("blind") else ""
    size = ""
    if summary.weights is not None:
        types = ", ".join(sorted(summary.weights.dtypes))
        size = f" {summary.weights.parameters / 1e6:,.1f} million parameters ({types})."
    software = summary.settings.get("software")
    by = f" Its files were written by {software}." if software else ""
    return f"Model `{variant}`, {origin}.{size}{blind}{by}"


def _loading(facts: CardFacts) -> Iterator[str]:
    if facts.call is None:
        yield "These weights have no task head; use them with `--init` of `train-vl`."
        return
    name, call = CALLS[facts.call]
    detector = ', detector="FILE"' if facts.has_detector is False else ""
    yield "```python"
    yield "import vlmill"
    yield ""
    yield f'model = vlmill.load("{facts.location}"{detector})'
    yield f"{name} = {call}"
    yield f"print({name})"
    yield "```"
    yield ""
    yield f'`"{facts.location}@COMMIT"` pins a commit of the repository.'


def _data(summary: FolderSummary, training: Mapping[str, Any]) -> Iterator[str]:
    for line in stage_lines(summary.recipe, training, finished=summary.finished):
        yield f"- {line}"
    yield ""
    inputs = summary.inputs
    if not inputs:
        yield "Its inputs are not recorded."
        return
    rows = [(entry.flag, _name(entry), _rows(entry), _digest(entry)) for entry in inputs]
    yield from _table(("input", "name", "size", "digest"), rows)


def _name(entry: Input) -> str:
    return PurePosixPath(entry.path.replace("\\", "/")).name or entry.flag


def _rows(entry: Input) -> str:
    rows = "" if entry.rows is None else f"{entry.rows:,} {entry.table}, "
    return rows + size_words(entry.bytes)


def _digest(entry: Input) -> str:
    return "" if entry.digest is None else f"{entry.rule} {entry.digest[:12]}"


def _figures(training: Mapping[str, Any], facts: CardFacts) -> Iterator[str]:
    training_figures = {
        name: training[name]
        for name in ("validation_loss", "validation_score")
        if training.get(name) is not None
    }
    by_source = {
        **({"held out while training": training_figures} if training_figures else {}),
        **facts.figures,
    }
    if not by_source:
        yield "No metrics were given."
        return
    rows = [
        (source, name, f"{value:.4g}")
        for source, figures in by_source.items()
        for name, value in figures.items()
    ]
    yield from _table(("of", "figure", "value"), rows)


def _regions(summary: FolderSummary, facts: CardFacts) -> str:
    detector_text = detector_words(summary.settings.get("detector")) or "unknown"
    fingerprint = summary.settings.get("detector_fingerprint")
    name = f" (fingerprint {fingerprint[:16]})" if fingerprint else ""
    if facts.has_detector:
        return f"Its regions come from the detector in this repository: {detector_text}{name}."
    return f"Its regions are made by a detector that is not part of this: {detector_text}{name}."


def _licences(facts: CardFacts) -> Iterator[str]:
    data = facts.data_license or f"{NOT_STATED}; the licences of the data sets above apply"
    yield from _table(
        ("of", "licence"),
        [("the weights", facts.license or NOT_STATED), ("the data of training", data)],
    )


def _settings(summary: FolderSummary, facts: CardFacts) -> str:
    if facts.recipe is not None:
        return f"```yaml\n{facts.recipe.strip()}\n```"
    rows = [
        (name, str(value)) for name, value in flatten(summary.settings.get("model") or {}).items()
    ]
    return "\n".join(_table(("of the model", "value"), rows))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
