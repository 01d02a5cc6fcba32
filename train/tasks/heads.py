"""Computes the logits of heads that classify a text with one image: answers, classes, entailment.

B examples, C outputs (answers or classes). A variant's row declares for each task by which of these
methods its head is applied.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models.registry import MODELS
from vlmill.train.loading.batch import LABEL, Batch
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.prepare import AS_IT_IS, TextForm
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.loading.vocabulary import CLS, MASK, SEP, UNK
from vlmill.train.tasks.task import SampleSource, Task
from vlmill.train.tasks.vlbert_texts import SpecialIds, vqa_text

READS_MASK = "mask"  # the head that reads its answer from a [MASK]
SIZES = ("num_labels", "num_answers")  # the field of a configuration with the number of outputs

Logits = Callable[[Any, Batch], Float[Tensor, "B C"]]


def pooled_logits(model: Any, batch: Batch) -> Float[Tensor, "B C"]:
    """Returns the logits of ViLBERT's answers and of its baseline's: two layers on the pooled
    vectors (arXiv:1908.02265, sec. 3.3).
    """
    logits: Tensor = model.answer_logits(model(batch.inputs).pooled)
    return logits


def label_logits(model: Any, batch: Batch) -> Float[Tensor, "B C"]:
    """Returns the logits of the classifiers of ViLBERT (mmf's), ImageBERT and InterBERT, on the
    pooled vector.
    """
    logits: Tensor = model.label_logits(model(batch.inputs).pooled)
    return logits


def mask_logits(model: Any, batch: Batch) -> Float[Tensor, "B C"]:
    """Returns the logits of VL-BERT: a word head on the [MASK] (arXiv:1908.08530, sec. 4.2)."""
    logits: Tensor = model(batch.inputs, batch.labels["answer_positions"])
    return logits


def pixel_logits(model: Any, batch: Batch) -> Float[Tensor, "B C"]:
    """Returns the logits of VLMo: a classifier on the fusion vector (arXiv:2111.02358, sec.
    4.2).
    """
    logits: Tensor = model(batch.pixel_inputs(masked=False))
    return logits


# By the input that a variant's row declares for its head.
HEADS: dict[str, Logits] = {
    "pooled": pooled_logits,
    "labels": label_logits,
    READS_MASK: mask_logits,
    "pixels": pixel_logits,
}


@dataclass(kw_only=True)
class HeadTask(Task):
    """Defines the input and the head of a task whose outputs have ``names``, one for each."""

    variant: str
    names: tuple[str, ...]
    special: SpecialIds = field(default_factory=SpecialIds)

    def with_vocabulary(self, words: Tokenizer) -> Self:
        """Returns a copy with the vocabulary's special tokens."""
        ids = words.get_vocab()
        special = SpecialIds(cls=ids[CLS], sep=ids[SEP], mask=ids[MASK])
        return dataclasses.replace(self, special=special)

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the head's size: an output for each name."""
        known = {field.name for field in fields(MODELS[self.variant].config)}
        return {name: len(self.names) for name in SIZES if name in known}

    def label_pieces(self, words: Tokenizer) -> list[list[int]]:
        """Returns the names' word-piece ids (VL-BERT starts its outputs from them)."""
        encodings = words.encode_batch(list(self.names), add_special_tokens=False)
        unknown = [words.get_vocab()[UNK]]
        return [encoding.ids or unknown for encoding in encodings]

    @property
    def reads_mask(self) -> bool:
        """Returns whether the answer is read from a [MASK]."""
        return MODELS[self.variant].heads[self.name] == READS_MASK

    @property
    def form(self) -> TextForm:
        """Returns the form of a text: VL-BERT's is followed by [MASK] and [SEP]."""
        return TextForm(apply=self._with_mask, adds=2) if self.reads_mask else AS_IT_IS

    def _with_mask(self, tokens: list[int]) -> list[int]:
        text_ids: list[int] = vqa_text([tokens[1:-1]], self.special).tokens[0].tolist()
        return text_ids

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns the text with its image, and the [MASK] marked that the head reads."""
        sample = batches.example(visit.row, draws)
        if isinstance(sample, Undecodable):
            return sample
        if self.reads_mask:
            masked = sample.text.tokens == self.special.mask
            sample = dataclasses.replace(
                sample, text=dataclasses.replace(sample.text, masked=masked)
            )
        return (sample,)

    def mask_tensors(self, samples: Sequence[Sample]) -> Mapping[str, Tensor]:
        """Returns the segments of the texts and the positions of their [MASK], if the head reads
        one.
        """
        if not self.reads_mask:
            return {}
        texts = [sample.text.tokens[1:-3].tolist() for sample in samples]
        text = vqa_text(texts, self.special)
        assert text.answers is not None
        return {"segments": text.segments, f"{LABEL}answer_positions": text.answers}

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "B C"]:
        """Returns the logits of the variant's head."""
        return HEADS[MODELS[self.variant].heads[self.name]](model, batch)


def ragged_tensors(ids: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Returns the numbers of each row's labels as three tensors of a batch's labels: the ``rows``
    and ``ids`` [N] of all labels, and the ``counts`` [B] of each row.
    """
    lengths = torch.tensor([len(values) for values in ids])
    return {
        f"{LABEL}rows": torch.repeat_interleave(torch.arange(len(ids)), lengths),
        f"{LABEL}ids": torch.tensor([n for values in ids for n in values], dtype=torch.int64),
        f"{LABEL}counts": lengths,
    }
