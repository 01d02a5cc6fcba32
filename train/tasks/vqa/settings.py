"""Defines the fields of the recipes of VQA."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmill.schemas.answers import MIN_QUESTIONS
from vlmill.train.settings.tasks import TaskRecipe


@dataclass(frozen=True, kw_only=True)
class VqaSettings:
    """Holds the fields that only VQA has."""

    # Each answer is right or wrong with soft scores, summed over the answers (all codes), or
    # the answer of most annotators among all (VL-BERT's paper).
    loss: Literal["binary", "softmax"] = "binary"
    # Whether questions without an answer among the labels teach: the target is 0 for each label
    # (ViLBERT, VL-BERT), or nothing is learnt (VLMo). A softmax has nothing to learn of them.
    unlabelled: bool = True
    # "left" and "right" are swapped in the texts of mirrored images (VL-BERT's code).
    mirror_words: bool = False
    # The questions that an answer needs to be a label, if neither --init nor --labels has a list.
    min_questions: int = MIN_QUESTIONS

    def __post_init__(self) -> None:
        if self.min_questions < 1:
            raise ValueError(f"settings.min_questions={self.min_questions}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class VqaRecipe(TaskRecipe):
    """Describes a run of VQA."""

    published: ClassVar[dict[str, Any]] = {"validation_pairs": 10_000}
    task: str = "vqa"
    settings: VqaSettings = field(default_factory=VqaSettings)
