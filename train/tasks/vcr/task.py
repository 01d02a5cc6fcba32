"""VCR: which of four answers a question about tagged objects has, and which of four rationales.

Input: the question (for a rationale, followed by the right answer) with each choice in turn, and
the image's regions, the annotated objects among them. Head: one logit for a choice, on the pooled
vector. Loss: a softmax over the four, or a separate one for each choice; with VL-BERT also the
categories of regions and masked words. Metric: how often the right choice has the highest logit.

C choices of a question.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import MODELS, get_variant
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import CHOICES
from vlmill.train.checkpoints.files import LoadedCheckpoint, TaskRecord
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.images.boxed import MASKS
from vlmill.train.loading.masking.regions import MaskedRegions, mask_image
from vlmill.train.loading.masking.words import Lexicon, MaskedTokens, mask_texts
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.pairs import COLUMNS, Examples
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.losses import IGNORED, mean_cross_entropy
from vlmill.train.run.learning import Criterion
from vlmill.train.settings.parts import Feeding
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import (
    EvaluationResult,
    Prediction,
    SampleSource,
    Task,
    require_kind,
    require_variant,
)
from vlmill.train.tasks.vcr import batch_tensors
from vlmill.train.tasks.vcr.evaluation import evaluate_predictions
from vlmill.train.tasks.vcr.examples import COLUMNS as LABELLED
from vlmill.train.tasks.vcr.examples import (
    SEGMS,
    ChoiceSample,
    ChoiceText,
    Question,
    build_texts,
    find_box_fault,
    find_fault,
    find_region_fault,
)
from vlmill.train.tasks.vcr.outlines import chosen_outlines, instance_masks
from vlmill.train.tasks.vcr.settings import VcrSettings
from vlmill.train.tasks.vcr.texts import NO_OBJECT

WHOLE = "whole model"  # one that has heads for categories and words, too
OWN_BOXES = ("annotated", "examples")  # the objects' own boxes, and in their order


class ChoiceScores(NamedTuple):
    """Holds the logits of a question's choices [C], and the size of its image in pixels."""

    logits: list[float]
    size: tuple[int, int]


@dataclass(kw_only=True)
class Vcr(Task):
    """Fine-tunes a variant with its heads for VCR."""

    settings: VcrSettings
    variant: str
    feeding: Feeding
    tokenizer: Tokenizer | None = None
    lexicon: Lexicon | None = None
    num_cells: int = 0  # a side, that outlines are rastered into

    name = "vcr"
    criterion = Criterion(name="accuracy", highest=True)
    weighs_regions = False  # texts refer to regions by their rows

    def __post_init__(self) -> None:
        more = {"regions": self.settings.regions != "none", "words": self.settings.words}
        self.losses = ("choices", *(name for name, is_enabled in more.items() if is_enabled))

    # Input

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the tokenizer: it tokenises texts whose words may be objects."""
        return dataclasses.replace(self, tokenizer=words, lexicon=Lexicon.from_tokenizer(words))

    def examples(self, path: str) -> Examples:
        """Reads the rows of the sub-tasks."""
        return Examples(path=path, table=CHOICES, as_pairs=self._as_pairs, labels=self._labels)

    @property
    def _labels(self) -> pa.Schema:
        """Returns the columns that are read; outlines, which are long, only if rastered."""
        names = (*LABELLED, SEGMS) if self.outlined else LABELLED
        return pa.schema([CHOICES.schema.field(name) for name in names])

    def _as_pairs(self, choices: pa.RecordBatch) -> pa.RecordBatch:
        """Reads choices as pairs, whose text holds all words: a vocabulary is trained on it."""
        is_in_subtasks = pc.is_in(
            choices.column("task"), value_set=pa.array(self.settings.subtasks)
        )
        choices = choices.filter(is_in_subtasks)
        columns = {name: choices.column(name) for name in choices.schema.names}
        texts = [" ".join([row["question"], *row["choices"]]) for row in choices.to_pylist()]
        pairs = columns | {"pair_id": columns["example_id"], "text": pa.array(texts, pa.string())}
        names = (*COLUMNS, *self._labels.names)
        return pa.RecordBatch.from_pydict({name: pairs[name] for name in names})

    @property
    def record(self) -> TaskRecord:
        """Returns the record: the head's outputs are the same for all data."""
        return TaskRecord(name=self.name)

    def in_turns(self, table: SampleTable, rows: Ids) -> Sequence[Ids]:
        """Returns the rows of each sub-task where these alternate, in the settings' order."""
        if not self.settings.in_turns:
            return (rows,)
        subtasks = dict.fromkeys(self.settings.subtasks)
        return [rows[table.is_among("task", [subtask])[rows]] for subtask in subtasks]

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the question with its image and its choices' texts; a faulty row is unusable."""
        question = Question.from_row(batches.table, visit.row, outlined=self.outlined)
        image_id = batches.table.image_id(visit.row)
        if fault := find_fault(question):
            return unusable(question, image_id, *fault)
        sample = batches.example(visit.row, draws)
        if isinstance(sample, Undecodable):
            return sample
        assert sample.regions is not None and self.tokenizer is not None
        row = sample.regions.row
        fault = find_box_fault(question, (row.width, row.height))
        has_object_regions = self.feeding.reads_regions and self.feeding.boxes != "detected"
        if fault is None and has_object_regions and sample.regions.num_shown:
            fault = find_region_fault(question, sample.regions, self.feeding.max_regions)
        if fault is not None:
            return unusable(question, image_id, *fault)
        regions = sample.regions
        if self.settings.objects == "named":
            objects = list_mentioned_objects(question, regions.num_shown - regions.first_annotated)
            question, sample = question_about(question, objects), sample_with(sample, objects)
            assert sample.regions is not None
            regions = sample.regions
        if self.outlined:
            masks = instance_masks(
                question.outlines()[: regions.num_shown],
                question.box_rows[: regions.num_shown],
                self.num_cells,
                mirrored=regions.mirrored,
            )
            sample = dataclasses.replace(sample, pixels={**sample.pixels, MASKS: masks})
        texts = build_texts(question, self.settings, self.tokenizer)
        if batches.training:
            sample, texts = self._masked(sample, texts, draws)
        first = texts[0].tokens
        none = np.zeros(len(first), dtype=np.bool_)
        text = MaskedTokens(original=first, tokens=first, masked=none)
        more = {"text": text, "texts": texts, "question": question}
        return (ChoiceSample(**(vars(sample) | more)),)

    @property
    def outlined(self) -> bool:
        """Returns whether regions have their objects' outlines: from pixels, at the objects'
        boxes.
        """
        return self.feeding.kind == "picture-regions" and self.feeding.boxes in OWN_BOXES

    def read_boxes(self, table: SampleTable, row: int) -> Array:
        """Returns the objects' boxes."""
        return np.array(table.value("boxes", row), dtype=np.float32).reshape(-1, 4)

    def _masked(
        self, sample: Sample, texts: tuple[ChoiceText, ...], draws: Uniforms
    ) -> tuple[Sample, tuple[ChoiceText, ...]]:
        """Masks regions, the same for all choices, and words, as far as they are learnt."""
        masking, regions = self.settings.masking, sample.regions
        if self.settings.regions == "masked":
            assert regions is not None
            size = (regions.row.width, regions.row.height)
            masks = mask_image(regions.boxes, draws, masking, size)
            # A blind model's regions are hidden, masked or not.
            zeroed = masks.zeroed | regions.masks.zeroed
            masks = MaskedRegions(masked=masks.masked, zeroed=zeroed)
            sample = dataclasses.replace(sample, regions=dataclasses.replace(regions, masks=masks))
        if not self.settings.words:
            return sample, texts
        assert self.lexicon is not None
        specials = sorted(self.lexicon.specials)
        masked = []
        for text in texts:
            (drawn,) = mask_texts(
                [text.original], [draws], masking, self.lexicon, longest=len(text.original)
            )
            tokens = np.where(np.isin(text.original, specials), text.original, drawn.tokens)
            is_masked = drawn.masked & ~np.isin(text.original, specials)
            masked.append(dataclasses.replace(text, tokens=tokens, masked=is_masked))
        return sample, tuple(masked)

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns the texts of all choices, the right one, and the targets of regions and words."""
        choice_samples = [sample for sample in samples if isinstance(sample, ChoiceSample)]
        tensors = batch_tensors.choice_tensors(choice_samples, self.feeding, self.settings)
        return {f"{LABEL}{name}": tensor for name, tensor in tensors.items()}

    # Heads and losses

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of questions (or choices, if each has a loss) with a label, and of the
        regions and the masked words of all four sequences.
        """
        num_choices = batch.tensors[f"{LABEL}tokens"].shape[1]
        by_choice = num_choices if self.settings.loss == "sigmoid" else 1
        counts = {"choices": int((batch.tensors[f"{LABEL}right"] != IGNORED).sum()) * by_choice}
        if self.settings.regions != "none":
            counts["regions"] = len(batch.tensors[f"{LABEL}categories"])
        if self.settings.words:
            counts["words"] = len(batch.tensors[f"{LABEL}word_places"])
        return counts

    def outputs(self, model: nn.Module, batch: Batch) -> batch_tensors.ChoiceOutputs:
        """Returns the logits of the variant's heads."""
        variant = MODELS[self.variant]
        if variant.heads[self.name] == WHOLE:
            return batch_tensors.own_outputs(model, batch, self.settings)
        return batch_tensors.ChoiceOutputs(
            choices=batch_tensors.pooled_scores(model, batch, variant.choice_options)
        )

    def compute(self, outputs: batch_tensors.ChoiceOutputs, batch: Batch) -> dict[str, Tensor]:
        """Returns the loss of the choices, and of regions and words where they are learnt."""
        right, logits = batch.labels["right"], outputs.choices
        if self.settings.loss == "softmax":
            losses = {"choices": mean_cross_entropy(logits, right)}
        else:
            losses = {"choices": batch_tensors.mean_of_choices(logits, right)}
        if outputs.categories is not None:
            losses["regions"] = mean_cross_entropy(outputs.categories, batch.labels["categories"])
        if outputs.words is not None:
            losses["words"] = mean_cross_entropy(outputs.words, batch.labels["word_targets"])
        return losses

    # Metric

    def predict(self, outputs: batch_tensors.ChoiceOutputs, batch: Batch) -> list[ChoiceScores]:
        """Returns the logits of each question's choices, and the size of its image."""
        logits = outputs.choices.float().cpu()
        require_finite(dict(zip(batch.pair_ids, logits.numpy(), strict=True)), "--checkpoint")
        rows = zip(logits.tolist(), batch.labels["sizes"].tolist(), strict=True)
        return [ChoiceScores(logits=row, size=(size[0], size[1])) for row, size in rows]

    def compute_score(self, outputs: batch_tensors.ChoiceOutputs, value: ChoiceScores) -> float:
        """Returns the highest logit."""
        return max(value.logits)

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns how often the right choice scores highest, of all questions and by sub-task."""
        hits: dict[str, list[bool]] = {}
        for prediction in predicted:
            label = table.value("label", prediction.row)
            if label >= 0:
                is_right = int(np.argmax(prediction.value.logits)) == label
                hits.setdefault(table.value("task", prediction.row), []).append(is_right)
        every = [hit for task_hits in hits.values() for hit in task_hits]
        means = {f"accuracy/{task}": float(np.mean(task_hits)) for task, task_hits in hits.items()}
        return {"accuracy": float(np.mean(every)) if every else 0.0} | means

    def evaluate(
        self, examples: str, table: SampleTable, predicted: Sequence[Prediction]
    ) -> EvaluationResult:
        """Returns the three official accuracies of each split, and the leaderboard's file."""
        values = {table.pair_id(prediction.row): prediction.value for prediction in predicted}
        scores = {key: np.array(value.logits) for key, value in values.items()}
        sizes = {key: value.size for key, value in values.items()}
        return evaluate_predictions(examples, scores, sizes, self.settings.scores)


def list_mentioned_objects(question: Question, num_shown: int) -> list[int]:
    """Returns the objects that a row's texts name, in the order of their first mention.

    Objects after the first ``num_shown``, which have no region, come last: the others' regions
    follow each other. The code looks at wrong answers of a rationale's question, too, which the row
    does not hold and no text shows.
    """
    first, choices = question.words()
    references = (
        word for words in (first, *choices) for word in words if not isinstance(word, str)
    )
    object_numbers = dict.fromkeys(number for numbers in references for number in numbers)
    return sorted(object_numbers, key=lambda number: number >= num_shown)


def question_about(question: Question, objects: Sequence[int]) -> Question:
    """Returns a question whose image has only these objects, in this order; objects, boxes,
    outlines and tags count from 0 again. ``objects`` include at least the ones that its texts name.
    """
    numbers = {number: index for index, number in enumerate(objects)} | {NO_OBJECT: NO_OBJECT}

    def renumbered(tags: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[numbers[number] for number in word] for word in tags]

    return replace(
        question,
        object_names=[question.object_names[number] for number in objects],
        boxes=question.box_rows[list(objects)].ravel().tolist(),
        question_tags=renumbered(question.question_tags),
        choice_tags=[renumbered(tags) for tags in question.choice_tags],
        segms=chosen_outlines(question.segms, objects),
    )


def sample_with(sample: Sample, objects: Sequence[int]) -> Sample:
    """Returns a sample that shows only these of its objects' regions, in this order, as far as they
    were shown; detected regions stay.
    """
    regions = sample.regions
    assert regions is not None
    first, end = regions.first_annotated, regions.num_shown
    if end <= first:  # a blind model's
        return sample
    chosen = [number for number in objects if number < end - first]
    other_objects = sorted(set(range(end - first)) - set(chosen))
    order = np.arange(len(regions.boxes))
    order[first:end] = first + np.array([*chosen, *other_objects], dtype=np.int64)
    num_shown = first + len(chosen)
    pixels = dict(sample.pixels)
    if "boxes" in pixels:  # of the full image and of the shown regions
        pixels["boxes"] = pixels["boxes"][np.append(0, 1 + order[:num_shown])]
    return replace(sample, regions=regions.reorder(order, num_shown), pixels=pixels)


def unusable(question: Question, image_id: str, reason: Reason, why: str) -> Undecodable:
    """Returns a reject for a row that would teach nonsense."""
    return Undecodable(pair_id=question.example_id, image_id=image_id, reason=reason, why=why)


def vcr(
    recipe: TaskRecipe, examples: str, labels: Path | None, init: LoadedCheckpoint | None
) -> Vcr:
    """Returns the task of a recipe. Raises InputError for settings that the model cannot learn."""
    if labels is not None:
        raise InputError(f"--labels {labels}: vcr has no list of labels; remove --labels")
    require_variant(recipe)
    settings: VcrSettings = recipe.settings
    variant = MODELS[recipe.variant]
    has_heads = variant.heads[recipe.task] == WHOLE
    if not has_heads and (settings.regions != "none" or settings.words):
        raise InputError(
            f"settings.regions={settings.regions}, words={settings.words}: "
            f"{with_article(recipe.variant)} has no head for regions or words of VCR; "
            "keep regions=none and words=false"
        )
    feeding = recipe.stages[0].feeding
    heads, num_cells = recipe.model, 0
    from_pixels = variant.makes_features
    require_kind(recipe, from_pixels=from_pixels)
    if from_pixels:
        has_network = init is not None and get_variant(init.variant).makes_features
        network = init.config.cnn if init is not None and has_network else recipe.model.cnn
        heads, num_cells = recipe.model.model, network.num_cells
    if settings.objects == "named" and feeding.boxes == "detected":
        raise InputError(
            "settings.objects=named: with feeding.boxes=detected the named objects are "
            "not inputs; set feeding.boxes to "
            "annotated or joined"
        )
    if has_heads and settings.words and not heads.masked_words:
        where = "model.model" if from_pixels else "model"
        raise InputError(f"settings.words=true needs its head: add {where}.masked_words=true")
    return Vcr(settings=settings, variant=recipe.variant, feeding=feeding, num_cells=num_cells)
