"""Implements ``train-vl recipes``: the inputs, size and cost of each recipe, without training.

The sizes of the recipes' models are in ``sizes.json``, so that a list of recipes needs no torch.
A test measures them again. ``python -m tests.train.recipes.test_sizes`` writes the file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.plain_json import read_json
from vlmill.train.settings.parts import MixedSource
from vlmill.train.settings.spec import RunSettings, Stage, TrainingStage, contrasts

FILE = Path(__file__).with_name("sizes.json")

# Pairs as published, to give epochs in steps: LAIT's sample (ImageBERT, sec. 5.2), the available
# pairs of Conceptual Captions (ViLBERT's code), InterBERT (sec. 4.1 and 5).
PUBLISHED_PAIRS: Mapping[str, int] = {
    "lait": 2_000_000,
    "cc": 3_136_161,
    "sbu": 890_000,
    "coco": 587_000,
    "tao": 3_100_000,
}
TRAINING_BYTES = 16  # of a parameter: float32 weight, gradient and AdamW's two moments
PATCH_SIZE = 16
COLOURS = 3
# The numbers of float32 that a contrast keeps of a whole step: of each pair of vectors the scores,
# both directions' log-shares and their gradients; of each vector itself, all processes' and its
# gradient.
SCORES_KEPT = 6
VECTORS_KEPT = 3
FLOAT32_BYTES = 4
RECOMPUTED_SHARE = 10  # checkpoint_activations keeps one part in this many
JOINT_PASSES = 4  # of VLMo, other than its contrast: masked, true, two hard negatives
KINDS = {"text": "texts", "pictures": "images"}
HEAD = """\
What is computed here: steps of epochs for the data sets as published; memory for training in one
process as 16 bytes a parameter (weight, gradient, AdamW's moments) and, for each pair of a step
that a device holds at once, what the layers keep of it for the backward pass, at full length
(an estimate: the linear layers' inputs and outputs; what eight models kept on a CPU was 0.8 to 1.6
times as much). Accumulation and several processes divide the pairs, checkpoint_activations keeps a
tenth. In parentheses: the memory of a step of the recipe in one process, in the parts of its
accumulation; a contrast keeps the vectors, scores and images of all pairs of the step."""


class ModelSize(NamedTuple):
    """Holds the number of parameters, and how many values the layers keep of a row for the backward
    pass (inputs and outputs of linear layers): of rows of texts, of images, and of both.
    """

    parameters: int
    texts: int
    images: int
    both: int


def find_size(recipe: RunSettings) -> ModelSize:
    """Returns the size of a recipe's model: from the file, or measured, which imports torch."""
    if (key := size_key(recipe)) in (sizes := read_sizes()):
        return sizes[key]
    return measure_model(recipe.variant, recipe.model)


def measure_model(variant: str, config: Any) -> ModelSize:
    """Returns the size of a configuration's model, built on the meta device, without memory for
    its weights. Imports torch.

    Stacks of layers are the lists of modules named ``*layers``: ``text_layers`` read texts,
    ``visual_layers`` images, all others both.
    """
    import torch

    from vlmill.models.registry import get_variant

    row = get_variant(variant)
    with torch.device("meta"):
        model: torch.nn.Module = row.build(config)
    stored = {"text_layers": 0, "visual_layers": 0, "": 0}
    for path, part in row.get_body(model).named_modules():
        name = path.rpartition(".")[2]
        if isinstance(part, torch.nn.ModuleList) and name.endswith("layers"):
            stored[name if name in stored else ""] += sum(map(_kept_values, part))
    return ModelSize(sum(parameter.numel() for parameter in model.parameters()), *stored.values())


def _kept_values(layer: Any) -> int:
    """Returns the inputs and outputs of a layer's linear layers for a row; it has one expert."""
    from torch import nn

    experts = getattr(layer, "experts", None)
    unused = list(experts.values())[1:] if isinstance(experts, nn.ModuleDict) else []
    skipped = {part for expert in unused for part in expert.modules()}
    return sum(
        part.in_features + part.out_features
        for part in layer.modules()
        if isinstance(part, nn.Linear) and part not in skipped
    )


def size_key(recipe: RunSettings) -> str:
    """Returns the variant and the start of its configuration's SHA-256."""
    plain = json.dumps(to_plain(recipe.model), sort_keys=True)
    return f"{recipe.variant} {hashlib.sha256(plain.encode()).hexdigest()[:12]}"


@cache
def read_sizes() -> dict[str, ModelSize]:
    """Returns the sizes in the file, by `size_key`."""
    return {k: ModelSize(*size) for k, size in read_json(FILE).items()}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Holds a recipe's cost: parameters; bytes of any batch, and bytes for each of its pairs."""

    parameters: int
    fixed_bytes: int
    pair_bytes: int


def compute_cost(recipe: RunSettings) -> Cost:
    """Returns the cost of a recipe, from the size of its model."""
    size = find_size(recipe)
    number = 4 if recipe.precision == "no" else 2
    pair = max(activations(size, stage, recipe.max_text_tokens) for stage in recipe.stages)
    return Cost(
        parameters=size.parameters,
        fixed_bytes=TRAINING_BYTES * size.parameters,
        pair_bytes=number * pair * recipe.samples_of_pair,
    )


def step_bytes(recipe: RunSettings) -> int:
    """Returns the memory of a step in one process, in bytes; of the largest stage."""
    cost = compute_cost(recipe)
    stored_bytes = cost.pair_bytes // (RECOMPUTED_SHARE if recipe.checkpoint_activations else 1)
    return cost.fixed_bytes + max(
        stored_bytes * (stage.batch_size // stage.accumulation) + contrast_bytes(recipe, stage)
        for stage in recipe.stages
    )


def contrast_bytes(recipe: RunSettings, stage: TrainingStage) -> int:
    """Returns the bytes that a contrast (VLMo's) keeps of a step's pairs, in any number of
    parts.
    """
    config: Any = recipe.model
    pairs = stage.batch_size
    if not contrasts(config, stage):
        return 0
    matches = isinstance(stage, Stage) and stage.objectives.itm > 0
    numbers = SCORES_KEPT * pairs**2 + VECTORS_KEPT * 2 * pairs * config.width
    drawn = matches and stage.accumulation > 1  # from the images of all parts, one byte a value
    images = COLOURS * stage.feeding.image_size**2 * pairs if drawn else 0
    return int(FLOAT32_BYTES * config.num_contrast_pairs * numbers + images)


def activations(size: ModelSize, stage: TrainingStage, max_text_tokens: int) -> int:
    """Returns how many numbers the layers keep of one pair: inputs and outputs of linear layers."""
    feeding = stage.feeding
    text = 0 if feeding.kind == "pictures" else feeding.max_tokens or max_text_tokens
    image = 0
    if feeding.has_regions:
        image = feeding.max_regions + (feeding.whole_image != "none")
        if feeding.max_elements is not None:
            image = min(image, feeding.max_elements - 1)
            text = max(feeding.max_elements - image, 2)
    elif feeding.kind != "text":
        image = (feeding.image_size // PATCH_SIZE) ** 2 + 1
    extra_text_tokens = (
        feeding.text_rows * feeding.text_row_tokens // stage.batch_size
    )  # texts alone
    passes = JOINT_PASSES + 1 if isinstance(stage, Stage) and stage.objectives.itc else 1
    rows = text + image + extra_text_tokens
    return passes * (text * size.texts + image * size.images + rows * size.both)


def describe_length(stage: TrainingStage) -> str:
    """Returns a stage's steps, from its epochs where the size of its data is known."""
    if stage.steps is not None:
        return f"{stage.steps:,} steps"
    weights = {mixed.source: mixed.weight for mixed in stage.mixture}
    known = {s: PUBLISHED_PAIRS[s] for s in stage.sources if s in PUBLISHED_PAIRS}
    assert stage.epochs is not None
    if not known or any(mixed.captions_per_picture for mixed in stage.mixture):
        return f"{stage.epochs:g} epochs"
    pairs = sum(known.values())
    share = min(stage.share, (stage.max_pairs or math.inf) / pairs)
    visits = share * sum(count * weights.get(source, 1.0) for source, count in known.items())
    return f"{stage.epochs:g} epochs ({stage.length(round(visits)):,} steps)"


def describe_sources(stage: TrainingStage) -> str:
    """Returns a stage's inputs, with the rules by which sources are mixed."""
    rules = {mixed.source: mixed for mixed in stage.mixture}
    names = stage.sources or (KINDS.get(stage.feeding.kind, "pairs"), *rules)
    return ", ".join(_describe_source(name, rules.get(name)) for name in names)


def _describe_source(name: str, rule: MixedSource | None) -> str:
    if rule is None:
        return name
    max_captions = rule.captions_per_picture
    captions = f", {max_captions} captions an image" if max_captions else ""
    return f"{name} ({rule.weight:g} times{captions})"


def describe_stages(recipe: RunSettings) -> str:
    """Returns a recipe's data and length, stage by stage."""
    return "; then ".join(
        f"{describe_length(stage)} of {stage.batch_size} " + describe_sources(stage)
        for stage in recipe.stages
    )


def describe(recipe: RunSettings) -> list[str]:
    """Returns the lines of a recipe in the list."""
    cost = compute_cost(recipe)
    kinds = {stage.feeding.kind for stage in recipe.stages}
    unit = KINDS.get(kinds.pop(), "pairs") if len(kinds) == 1 else "pairs"
    each = {"texts": "a text", "images": "an image"}.get(unit, "a pair")
    memory = f"{_size(cost.fixed_bytes)} + {_size(cost.pair_bytes)} {each}"
    memory += f" ({_size(step_bytes(recipe))})"
    lines = [
        f"{recipe.name:27} {recipe.about}",
        f"    {describe_stages(recipe)}; {cost.parameters / 1e6:.1f} million parameters, {memory}",
    ]
    if recipe.needs:
        lines.append(f"    needs {recipe.needs}")
    return lines


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
