"""Names changes to a recipe's fields that change nothing in the run, because of other fields.

If a user sets a field that is not read, the run differs from the user's expectation.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vlmill.models.registry import get_variant
from vlmill.train.settings.spec import RunSettings
from vlmill.train.settings.tasks import TaskRecipe

PIXEL_KINDS = ("pixels", "pictures")

# By the field's last names: the object that holds it -> why it has no effect, None if it has one.
Reason = Callable[[Any], str | None]


def _unless(**wanted: Any) -> Reason:
    """Returns a check: fields that differ from the values (any of a tuple) that have an effect."""

    def reason(holder: Any) -> str | None:
        for name, values in wanted.items():
            value = getattr(holder, name)
            if value not in (values if isinstance(values, tuple) else (values,)):
                return f"{name}={value}"
        return None

    return reason


def _unused(**values: Any) -> Reason:
    """Returns a check: the fields whose value prevents another field from being read."""

    def reason(holder: Any) -> str | None:
        return next((f"{n}={v}" for n, v in values.items() if getattr(holder, n) == v), None)

    return reason


def _warmup(optimizer: Any) -> str | None:
    steps = optimizer.warmup_steps
    return None if steps is None else f"warmup_steps={steps}"


OF_PIXELS = _unless(kind=PIXEL_KINDS)
OF_REGIONS = _unless(kind=("regions", "picture-regions"))
REASONS: dict[str, Reason] = {
    "optimizer.momentum": _unless(kind="sgd"),
    "optimizer.beta1": _unused(kind="sgd"),
    "optimizer.beta2": _unused(kind="sgd"),
    "optimizer.eps": _unused(kind="sgd"),
    "optimizer.drop_factor": _unless(schedule="milestones"),
    "optimizer.end": _unless(schedule=("linear", "cosine")),
    "optimizer.warmup": _warmup,
    "masking.group_overlap": _unless(region_rule="groups"),
    "masking.group_pixels": _unless(region_rule="groups"),
    "feeding.text_row_tokens": _unused(text_rows=0),
    "feeding.image_size": OF_PIXELS,
    "feeding.crop": OF_PIXELS,
    "feeding.augment": OF_PIXELS,
    "feeding.jitter": OF_PIXELS,
    "feeding.token_size": OF_PIXELS,
    "feeding.short_side": _unless(kind="picture-regions"),
    "feeding.long_side": _unless(kind="picture-regions"),
    "feeding.max_regions": OF_REGIONS,
    "feeding.region_order": OF_REGIONS,
    "feeding.whole_image": OF_REGIONS,
    "feeding.region_targets": OF_REGIONS,
    "loading.pad_to": _unused(bucket=1),
}


def _relative_positions(recipe: RunSettings) -> str | None:
    """Returns a reason unless the model has relative positions: the kernel adds a bias of them."""
    model = recipe.model
    parts = (model, getattr(model, "encoder", None))
    if any(getattr(part, "relative_positions", False) for part in parts):
        return None
    return f"variant={recipe.variant} has no relative positions here"


def _layer_scale(recipe: RunSettings) -> str | None:
    """Returns a reason unless the model has layer scale: the kernel sums with it."""
    if recipe.compile:
        return f"compile={str(recipe.compile).lower()} joins these operators with others"
    parts = (recipe.model, getattr(recipe.model, "encoder", None))
    if any(getattr(part, "layer_scale", None) is not None for part in parts):
        return None
    return f"variant={recipe.variant} has no layer scale here"


def _skipped_on_device(recipe: RunSettings) -> str | None:
    """Returns a reason unless updates can be skipped on the device: by a fused Adam."""
    if recipe.precision == "fp16":
        return "precision=fp16 scales the losses"
    kinds = {stage.optimizer.kind for stage in recipe.stages}
    return "optimizer.kind=sgd" if kinds == {"sgd"} else None


OF_RUN: dict[str, Reason] = {
    "validation_pairs": _unused(validate_every=0),
    "attention_kernel": _relative_positions,
    "residual_kernel": _layer_scale,
    "half_norms": _unused(precision="no"),
    "run_ahead": _skipped_on_device,
}
OF_PRETRAINING: dict[str, Reason] = {
    "negative_text_share": _unused(negative_share=0.0),
    "hard_negative_share": _unused(negative_share=0.0),
}


def _mirrored(recipe: TaskRecipe) -> str | None:
    return None if any(s.feeding.flip for s in recipe.stages) else "feeding.flip=0.0"


def _whole_image(recipe: TaskRecipe) -> str | None:
    has_whole_image = any(stage.feeding.whole_image != "none" for stage in recipe.stages)
    return None if has_whole_image else "feeding.whole_image=none"


def _masking(recipe: TaskRecipe) -> str | None:
    settings = recipe.settings
    masks = settings.words or settings.regions == "masked"
    return None if masks else f"words=false and regions={settings.regions}"


def _with_answer(recipe: TaskRecipe) -> str | None:
    subtasks = recipe.settings.subtasks
    return None if "qa2r" in subtasks else f"subtasks={list(subtasks)}"


def _contrast(recipe: TaskRecipe) -> str | None:
    """Returns why settings of losses have no effect: a dual encoder has only its contrast."""
    if recipe.settings.negatives == "batch" and get_variant(recipe.variant).contrasts:
        return "negatives=batch"
    return None


def _margin(recipe: TaskRecipe) -> str | None:
    if contrast := _contrast(recipe):
        return contrast
    losses = recipe.settings.losses
    return None if "triplet" in losses else f"losses={list(losses)}"


def _of_settings(reason: Reason) -> Callable[[TaskRecipe], str | None]:
    return lambda recipe: reason(recipe.settings)


def _of_evaluation(recipe: TaskRecipe) -> str | None:
    return "it is for evaluations only (evaluate --scores)"


# Of tasks' settings.
OF_TASKS: dict[tuple[str, str], Callable[[TaskRecipe], str | None]] = {
    ("vqa", "mirror_words"): _mirrored,
    ("vqa", "unlabelled"): _of_settings(_unless(loss="binary")),
    ("refcoco", "mirror_words"): _mirrored,
    ("refcoco", "choose_whole"): _whole_image,
    ("vcr", "shared_cut"): _of_settings(_unless(texts="names")),
    ("vcr", "max_tokens_with_answer"): _with_answer,
    ("vcr", "masking"): _masking,
    ("vcr", "scores"): _of_evaluation,
    ("glue", "scores"): _of_evaluation,
    ("retrieval", "margin"): _margin,
    ("retrieval", "nearest"): _of_settings(_unless(negatives="alignment")),
    ("retrieval", "losses"): _contrast,
    ("retrieval", "num_candidates"): _of_settings(_unused(negatives="batch")),
    ("retrieval", "same_picture_negatives"): _of_settings(_unless(negatives="batch")),
}


def without_effect(
    recipe: RunSettings, words: Sequence[str], *, init: str | None = None, vocab: str | None = None
) -> Iterator[str]:
    """Yields a sentence for each of the ``field=value`` words that changes nothing in the run.

    ``recipe`` already has these changes, ``init`` and ``vocab`` are the run's flags.
    """
    for word in words:
        path, assigned, _ = word.partition("=")
        if not assigned:
            continue
        reason = _reason(recipe, path.split("."))
        if path == "vocabulary_size" and vocab is not None:
            reason = "--vocab is the vocabulary"
        if path.endswith("optimizer.bert_rate") and init is None:
            reason = "without --init no weight is BERT's"
        if reason is not None:
            yield f"{word} has no effect: {reason}"


def _reason(recipe: RunSettings, names: list[str]) -> str | None:
    if names[0] == "settings" and isinstance(recipe, TaskRecipe):
        task_rule = OF_TASKS.get((recipe.task, names[1])) if len(names) > 1 else None
        return None if task_rule is None else task_rule(recipe)
    if len(names) == 1 and names[0] in OF_RUN:
        return OF_RUN[names[0]](recipe)
    stages: list[Any] = list(recipe.stages)
    if names[0] == "stages" and len(names) > 2 and names[1].isdigit():
        stages, names = [recipe.stages[int(names[1])]], names[2:]
    if len(names) == 1 and names[0] in OF_PRETRAINING and hasattr(stages[0], names[0]):
        return OF_PRETRAINING[names[0]](stages[0])
    rule = REASONS.get(".".join(names[:2]))
    return None if rule is None else rule(getattr(stages[0], names[0]))
