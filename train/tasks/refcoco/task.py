"""RefCOCO, RefCOCO+, RefCOCOg: which of an image's boxes an expression names.

Input: the expression with the image's regions, the full image among them. Head: a logit for
each region's last vector. Loss: each region's binary cross-entropy with whether it overlaps with
the named box by half (or, in ViLBERT's code, by how much). Metric: how often the region with the
highest logit overlaps enough.

B expressions, R regions, the full image in row 0, N of an image.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import MODELS
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import EXPRESSIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.arrays import Array
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.boxes import Size, resized_boxes
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample, SampledRegions, placed_boxes
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import COLUMNS, Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.parts import Feeding
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.refcoco.metrics import (
    RULES,
    Boxes,
    Grounding,
    IouRule,
    choose,
    iou,
    refcoco_metrics,
)
from vlmill.train.tasks.refcoco.settings import RefcocoSettings
from vlmill.train.tasks.report import Case, DrawnBox
from vlmill.train.tasks.scores import NO_SPLIT, Figures, by_id, require_finite, shares_by_group
from vlmill.train.tasks.task import (
    EvaluationResult,
    Prediction,
    SampleSource,
    Task,
    require_kind,
    require_variant,
    without_features,
)
from vlmill.train.tasks.vlbert_texts import find_sides, mirrored_text

LABELS = pa.schema([("box", pa.list_(pa.float32()))])
SAME_PX = 1.0  # corners of an annotated box as far from the named one's: the same box
OUTSIDE_PX = 1.0  # a box that reaches further out of its image is another image's


def make_targets(boxes: Boxes, reference: Boxes, settings: RefcocoSettings) -> NDArray[np.float32]:
    """Returns each box's target [N]: 0 unless it overlaps with the reference by half."""
    rule = RULES[settings.label_rule]
    overlaps = iou(reference, boxes, rule)
    right = rule.is_right(overlaps)
    return np.where(right, overlaps if settings.labels == "soft" else 1, 0).astype(np.float32)


def prepend_image_box(boxes: Array, size: tuple[int, int], feeding: Feeding) -> Array:
    """Returns the full image's box, then the boxes: [N + 1, 4]. VL-BERT's ends at the last
    pixel.
    """
    less = int(feeding.whole_image == "rest")
    image_box = np.array([[0, 0, size[0] - less, size[1] - less]], dtype=np.float32)
    return np.concatenate([image_box, boxes])


@dataclass(kw_only=True)
class Refcoco(Task):
    """Fine-tunes a variant with its head for referring expressions."""

    settings: RefcocoSettings
    variant: str
    feeding: Feeding
    sides: Mapping[int, int] = dataclasses.field(default_factory=dict)  # tokens, left and right

    name = "refcoco"
    losses = ("regions",)
    criterion = Criterion(name="accuracy", highest=True)
    weighs_regions = False  # regions are the candidates, so none can be hidden

    # Input

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the vocabulary's tokens for left and right."""
        sides = find_sides(words) if self.settings.mirror_words else {}
        return dataclasses.replace(self, sides=sides)

    def examples(self, path: str) -> Examples:
        """Reads expressions with the box that each names; also those without a word, and of images
        without detections: they are scored as published.
        """
        return Examples(
            path=path, table=EXPRESSIONS, as_pairs=_as_pairs, labels=LABELS, takes_empty=True
        )

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the head's outputs are the same for all data."""
        return TaskRecord(name=self.name)

    def hide_regions(self, regions: SampledRegions) -> SampledRegions:
        """Returns the regions' boxes only: without them a blind model could not choose one."""
        return without_features(regions)

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the expression with its image; a mirrored image swaps its left and right."""
        sample = batches.example(visit.row, draws)
        if isinstance(sample, Undecodable):
            return sample
        assert sample.regions is not None
        row, box = sample.regions.row, batches.table.value("box", visit.row)
        if is_outside(box, (row.width, row.height)):
            return Undecodable(
                pair_id=sample.pair_id,
                image_id=row.image_id,
                reason=Reason.EMPTY_BOX,
                why=f"the named box {box} is not of an image of {row.width} x {row.height}",
            )
        if self.settings.mirror_words and sample.regions.mirrored:
            text = mirrored_text(sample.text, self.sides)
            sample = dataclasses.replace(sample, text=text)
        return (sample,)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns each region's target, and the boxes as they are stored: the regions' boxes, the
        named box, how many regions there are, and the images' sizes.
        """
        targets, candidates, references, sizes = [], [], [], []
        for sample in samples:
            regions = sample.regions
            assert regions is not None
            reference = np.array(table.value("box", sample.row), dtype=np.float32)
            targets.append(self._targets(sample, regions, reference))
            boxes = regions.stored_boxes[: regions.num_shown]
            size = (regions.row.width, regions.row.height)
            candidates.append(prepend_image_box(boxes, size, self.feeding))
            references.append(reference)
            sizes.append(size)
        return {
            f"{LABEL}targets": pad_rows(targets),
            f"{LABEL}boxes": pad_rows(candidates),
            f"{LABEL}references": torch.from_numpy(np.stack(references)),
            f"{LABEL}sizes": torch.tensor(sizes),
            f"{LABEL}counts": torch.tensor([len(boxes) for boxes in candidates]),
        }

    def _targets(
        self, sample: Sample, regions: SampledRegions, reference: Boxes
    ) -> NDArray[np.float32]:
        """Returns each region's target [N + 1]; from pixels by the boxes of the resized image."""
        size = (regions.row.width, regions.row.height)
        if "boxes" in sample.pixels:
            old = Size(width=size[0], height=size[1])
            new = old.resized(self.feeding.short_side, self.feeding.long_side)
            reference_boxes = resized_boxes(reference[None], old, new, mirrored=regions.mirrored)
            return make_targets(sample.pixels["boxes"], reference_boxes[0], self.settings)
        reference_boxes = placed_boxes(
            reference[None], size, self.feeding, mirrored=regions.mirrored
        )
        boxes = prepend_image_box(regions.boxes[: regions.num_shown], size, self.feeding)
        return make_targets(boxes, reference_boxes[0], self.settings)

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of expressions, or of all their regions, over which the loss is a
        mean.
        """
        counts = batch.tensors[f"{LABEL}counts"]
        return {"regions": len(counts) if self.settings.loss == "sum" else int(counts.sum())}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "B R"]:
        """Returns the logit of each region; far below all others at padding."""
        inputs = dataclasses.replace(batch.inputs, read_regions=batch.inputs.real_regions)
        if (images := batch.image_regions) is not None:
            pixel_scores: Tensor = model(images, inputs, real=inputs.real_regions)
            return pixel_scores
        if MODELS[self.variant].heads[self.name] == "whole model":
            logits: Tensor = model(inputs)
            return logits
        encoded = model(inputs)
        scores: Tensor = model.region_scores(encoded.regions, inputs.region_mask)  # type: ignore[operator]
        return scores

    def compute(self, outputs: Float[Tensor, "B R"], batch: Batch) -> dict[str, Tensor]:
        """Returns the regions' binary cross-entropies; padding is not counted."""
        targets = F.pad(
            batch.labels["targets"], (0, outputs.shape[1] - batch.labels["targets"].shape[1])
        )
        mask = batch.inputs.region_mask
        logits = outputs.masked_fill(~mask, 0.0)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * mask
        number = len(outputs) if self.settings.loss == "sum" else mask.sum()
        return {"regions": losses.sum() / number}

    # Metric

    def predict(self, outputs: Float[Tensor, "B R"], batch: Batch) -> list[Grounding]:
        """Returns the regions' boxes and scores, without the full image unless it may be chosen."""
        first = 0 if self.settings.choose_whole else 1
        logits, labels = outputs.float().cpu().numpy(), batch.labels
        boxes, references, counts, sizes = (
            labels[name].cpu().numpy() for name in ("boxes", "references", "counts", "sizes")
        )
        groundings = [
            Grounding(
                reference=references[i],
                candidates=boxes[i, first:count],
                scores=logits[i, first:count],
                reference_index=self._find_reference(references[i], boxes[i, first:count]),
                size=(int(sizes[i, 0]), int(sizes[i, 1])),
            )
            for i, count in enumerate(counts)
        ]
        scores = {
            k: grounding.scores for k, grounding in zip(batch.pair_ids, groundings, strict=True)
        }
        require_finite(scores, "--checkpoint")
        return groundings

    def _find_reference(self, reference: Boxes, boxes: Boxes) -> int | None:
        """Returns the index of the annotated box that is named; None if it is not among them."""
        if self.feeding.boxes != "annotated" or not len(boxes):
            return None
        distances = np.abs(boxes - reference).max(axis=1)
        nearest = int(distances.argmin())
        return nearest if distances[nearest] <= SAME_PX else None

    def compute_score(self, outputs: Float[Tensor, "B R"], value: Grounding) -> float:
        """Returns the chosen region's logit."""
        return float(value.scores.max(initial=-np.inf))

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns how often the chosen box is right."""
        rule = RULES[self.settings.iou]
        right = [choose(prediction.value, rule).right for prediction in predicted]
        return {"accuracy": float(np.mean(right)) if right else 0.0}

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the accuracy of each split of each data set."""
        groundings = by_id(((table.pair_id(p.row), p.value) for p in predicted), "--checkpoint")
        return evaluate_predictions(examples, groundings, RULES[self.settings.iou])


def _as_pairs(expressions: pa.RecordBatch) -> pa.RecordBatch:
    """Reads expressions as pairs. Raises InputError for an invalid box."""
    names = {"pair_id": "expression_id"}
    columns = {name: expressions.column(names.get(name, name)) for name in COLUMNS}
    boxes = expressions.column("box").to_pylist()
    for key, box in zip(expressions.column("expression_id").to_pylist(), boxes, strict=True):
        if len(box) != 4 or None in box or not (box[0] < box[2] and box[1] < box[3]):
            raise InputError(
                f"--examples: {key} names the box {box}; expected x1, y1, x2, y2 with an area, as "
                "`manifest` writes them"
            )
    return pa.RecordBatch.from_pydict(columns | {"box": pa.array(boxes, LABELS.field(0).type)})


def is_outside(box: Sequence[float], size: tuple[int, int]) -> bool:
    """Returns whether a box extends beyond an image by more than a pixel."""
    lowest, highest = min(box), max(box[2] - size[0], box[3] - size[1])
    return lowest < -OUTSIDE_PX or highest > OUTSIDE_PX


def pad_rows(rows: Sequence[NDArray[np.float32]]) -> Float[Tensor, "B R *columns"]:
    """Stacks rows of different lengths; shorter rows are padded with zeros at their end."""
    longest = max(len(row) for row in rows)
    stacked = np.zeros((len(rows), longest, *rows[0].shape[1:]), dtype=np.float32)
    for i, row in enumerate(rows):
        stacked[i, : len(row)] = row
    return torch.from_numpy(stacked)


def refcoco(
    recipe: TaskRecipe, examples: str | None, labels: Path | None, init: LoadedCheckpoint | None
) -> Refcoco:
    """Returns the task of a recipe. Raises InputError for a file of labels: it has no labels."""
    if labels is not None:
        raise InputError(f"--labels {labels}: refcoco has no list of labels; remove --labels")
    settings: Any = recipe.settings
    require_variant(recipe)
    require_kind(recipe, from_pixels=MODELS[recipe.variant].makes_features)
    return Refcoco(settings=settings, variant=recipe.variant, feeding=recipe.stages[0].feeding)


PUBLISHED = tuple(f"refcoco+/{split}/accuracy" for split in ("val", "testA", "testB"))
NO_SOURCE = "expressions"  # of rows that name none
# Groups by the number of words, and of candidates: each up to this many.
LENGTHS = (2, 4, 7)
CANDIDATES = (5, 10, 20)


@dataclass(kw_only=True)
class Split:
    """Holds the expressions of a split of a data set: their images and texts."""

    expressions: dict[str, tuple[str, str]] = field(default_factory=dict)


def evaluate_predictions(
    examples: str, groundings: Mapping[str, Grounding], rule: IouRule
) -> EvaluationResult:
    """Scores groundings by expression_id."""
    figures, headline, cases = Figures(), list[str](), list[Case]()
    for name, split in read_splits(examples, groundings).items():
        split_groundings = {key: groundings[key] for key in split.expressions}
        figures |= refcoco_metrics(split_groundings, name, rule)
        figures |= by_kind(name, split, split_groundings, rule)
        headline.append(f"{name}/accuracy")
        cases += [
            make_case(key, split, grounding, rule) for key, grounding in split_groundings.items()
        ]
    empty = sum(not len(grounding.candidates) for grounding in groundings.values())
    notes = [f"{empty} expressions have no box to choose; they count as wrong."] if empty else []
    return EvaluationResult(
        figures=figures,
        headline=headline,
        published=PUBLISHED,
        papers="refcoco+",
        cases=cases,
        notes=notes,
    )


def read_splits(examples: str, groundings: Mapping[str, Grounding]) -> dict[str, Split]:
    """Returns the expressions that have been answered, by data set and split: ``refcoco+/val``."""
    splits: dict[str, Split] = {}
    columns = ("expression_id", "image_id", "text", "split", "source")
    for batch in iter_batches(examples, EXPRESSIONS, columns=columns, flag="--examples"):
        for row in batch.to_pylist():
            key = row["expression_id"]
            if key in groundings:
                name = f"{row['source'] or NO_SOURCE}/{row['split'] or NO_SPLIT}"
                splits.setdefault(name, Split()).expressions[key] = (row["image_id"], row["text"])
    return splits


def by_kind(name: str, split: Split, groundings: Mapping[str, Grounding], rule: IouRule) -> Figures:
    """Returns ``NAME/accuracy/words/...`` and ``.../candidates/...``, to locate errors."""
    right = {key: float(choose(grounding, rule).right) for key, grounding in groundings.items()}
    words = {key: find_group(len(split.expressions[key][1].split()), LENGTHS) for key in groundings}
    counts = {
        key: find_group(len(grounding.candidates), CANDIDATES)
        for key, grounding in groundings.items()
    }
    return shares_by_group(f"{name}/accuracy/words", right, words) | shares_by_group(
        f"{name}/accuracy/candidates", right, counts
    )


def find_group(number: int, ends: tuple[int, ...]) -> str:
    """Returns the group of a number: ``0-2``, ``3-4``, ..., and ``above-7``."""
    first = 0
    for end in ends:
        if number <= end:
            return f"{first}-{end}"
        first = end + 1
    return f"above-{ends[-1]}"


def make_case(key: str, split: Split, grounding: Grounding, rule: IouRule) -> Case:
    """Returns an expression as a report shows it; its score is the overlap of the chosen box."""
    image_id, text = split.expressions[key]
    chosen = choose(grounding, rule).chosen
    boxes = [DrawnBox(box=grounding.reference, label="right", kind="right")]
    prediction, score = "(no box)", 0.0
    if chosen is not None:
        box = grounding.candidates[chosen]
        score = float(iou(grounding.reference, box[None], rule)[0])
        prediction = f"box {chosen + 1} of {len(grounding.candidates)}"
        boxes.append(DrawnBox(box=box, label="chosen", kind="chosen"))
    return Case(
        example_id=key,
        image_id=image_id,
        score=score,
        text=text or "(empty)",
        prediction=prediction,
        right=", ".join(f"{corner:.0f}" for corner in grounding.reference),
        boxes=tuple(boxes),
        size=grounding.size,
    )
