"""Defines the fields of VCR's recipes."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmill.train.settings.parts import Masking
from vlmill.train.settings.tasks import TaskRecipe

SUBTASKS = ("q2a", "qa2r")


@dataclass(frozen=True, kw_only=True)
class VcrSettings:
    """Holds the fields that only VCR has."""

    # The sub-tasks to train and measure: answers, rationales given the right answer, or both
    # by one model (ViLBERT, InterBERT).
    subtasks: tuple[str, ...] = SUBTASKS
    # Of several sub-tasks, each optimiser step is of one, and they alternate (the codes of ViLBERT
    # and InterBERT). Otherwise a batch holds rows of all.
    in_turns: bool = False
    # How a text names objects. "names": a person's name is sampled for each question, [SEP] is
    # between question and answer, a text has 60 tokens, with an answer 80 (ViLBERT). "tags":
    # persons' names come in turn, "and" between several, question and answer follow each other, and
    # each token of a name has its object's visual vector (VL-BERT).
    texts: Literal["names", "tags"] = "names"
    # Tokens of a question with a choice: of "names" with [CLS] and [SEP], of "tags" without.
    max_tokens: int = 60
    max_tokens_with_answer: int = 80
    # Tokens cut from the question for one choice stay cut for the later ones (ViLBERT's code); with
    # "tags" for all of them in any case (VL-BERT's code).
    shared_cut: bool = False
    # Which objects are shown: ``all``, as in all released runs, or only the ones that question and
    # choices name, in the order of their first mention (an option of VL-BERT's code, there
    # `ONLY_USE_RELEVANT_DETS`). Texts count the shown ones.
    objects: Literal["all", "named"] = "all"
    # Each choice is right or wrong alone (VL-BERT's code), or one of four is right (the papers).
    loss: Literal["softmax", "sigmoid"] = "softmax"
    # Whose categories are also predicted: of ``all`` regions, with nothing masked (VL-BERT's
    # code), of the ``masked`` ones (its paper), or of none.
    regions: Literal["none", "all", "masked"] = "none"
    words: bool = False  # masked words are predicted, too (its ablation); model.masked_words=true
    masking: Masking = field(default_factory=Masking)  # of both
    # Of an evaluation: the folder of one of the other sub-task's checkpoint (`--scores`).
    scores: str | None = None

    def __post_init__(self) -> None:
        if not self.subtasks or set(self.subtasks) - set(SUBTASKS):
            raise ValueError(f"settings.subtasks={list(self.subtasks)}: expected q2a, qa2r or both")
        if min(self.max_tokens, self.max_tokens_with_answer) < 8:
            raise ValueError(
                "settings.max_tokens: expected at least 8, for the question and with an answer"
            )


LONGEST = 512  # of the stored texts; `VcrSettings` has the length of the texts that are read


@dataclass(frozen=True, kw_only=True)
class VcrRecipe(TaskRecipe):
    """Describes a run of VCR."""

    published: ClassVar[dict[str, Any]] = {"validation_pairs": 10_000}
    task: str = "vcr"
    settings: VcrSettings = field(default_factory=VcrSettings)
