"""Writes a model card for a checkpoint from its own records.

The card has only the names of paths, because it is read on other machines.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from vlmill.inference.show.folder import FolderSummary
from vlmill.inference.show.lines import stage_lines
from vlmill.runtime.console.cost import size_words
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.settings.plain_fields import flatten
from vlmill.train.checkpoints.detector import detector_words

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
