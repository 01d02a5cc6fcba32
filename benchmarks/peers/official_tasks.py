"""Runs the official repositories' own steps of VQA on our batches, for comparison in one run.

They take the checkouts that `official_models` names. ViLBERT's code computes the heads of all tasks
and those of pretraining in every step, and pads questions to 16 and regions to 100; PyTorch's norm
has the place of apex's.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from peers.choices import VcrWork
from peers.official_models import Step, step_of, vilbert_code, vl_bert_code
from peers.questions import ANSWERS, SIDE_PX, VqaWork
from peers.works import CLS, MASK, SEP, mask_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

MAX_TOKENS, MAX_REGIONS = 16, 100  # of ViLBERT's reader


def padded(rows: Tensor, size: int) -> Tensor:
    """Pads the second dimension to ``size`` with zeros."""
    return F.pad(rows, [0, 0] * (rows.ndim - 2) + [0, size - rows.shape[1]])


def vilbert_model(root: Path, num_labels: int) -> nn.Module:
    """Makes the model of ViLBERT's tasks with six co-attention layers."""
    code, config = vilbert_code(root)
    model: nn.Module = code.VILBertForVLTasks(config, num_labels=num_labels)
    for module in model.modules():  # today's PyTorch refuses to overwrite what a ReLU has kept
        if isinstance(module, nn.Dropout):
            module.inplace = False
    return model


def vilbert_vqa(root: Path, work: VqaWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of ViLBERT's VQA with six co-attention layers."""
    model = vilbert_model(root, ANSWERS)
    tokens = torch.zeros(len(work.questions), MAX_TOKENS, dtype=torch.int64)
    for row, question in zip(tokens, work.word_pieces(), strict=True):
        row[: len(question) + 2] = torch.tensor([CLS, *question, SEP])
    fields = {
        "input_txt": tokens,
        "input_imgs": padded(work.features, MAX_REGIONS),
        "image_loc": padded(work.locations, MAX_REGIONS),
        "token_type_ids": torch.zeros_like(tokens),
        "attention_mask": (tokens > 0).long(),
        "image_attention_mask": mask_of(work.region_lengths, MAX_REGIONS).long(),
    }

    def loss() -> Tensor:
        logits = model(**fields)[0]
        return F.binary_cross_entropy_with_logits(logits, work.targets) * work.targets.shape[1]

    return model, step_of(model, loss)


class WordIds:
    """Numbers the special words as BERT's vocabulary does."""

    @staticmethod
    def convert_tokens_to_ids(words: list[str]) -> list[int]:
        """The words' numbers."""
        numbers = {"[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
        return [numbers[word] for word in words]


def vl_bert_vqa(root: Path, work: VqaWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of VL-BERT base's VQA on precomputed features."""
    code, config = vl_bert_code(
        root,
        "vqa.function.config",
        "cfgs/vqa/base_4x16G_fp32.yaml",
        "vqa.modules.resnet_vlbert_for_vqa",
        tokenizer=WordIds(),
    )
    code.ResNetVLBERT.init_weight = lambda self: None  # copies a downloaded BERT's head
    model: nn.Module = code.ResNetVLBERT(config)
    present = mask_of(work.region_lengths, work.features.shape[1])
    boxes = torch.cat([work.locations[..., :4] * SIDE_PX, work.features], dim=-1)
    boxes = torch.where(present[..., None], boxes, -2.0)
    size = torch.full((len(boxes), 4), float(SIDE_PX))

    def loss() -> Tensor:
        _, total = model(None, boxes.clone(), size, work.questions, work.targets)
        of_answers: Tensor = total
        return of_answers

    return model, step_of(model, loss)


TASK_PEERS: dict[str, Callable[..., tuple[nn.Module, Step]]] = {
    "vilbert": vilbert_vqa,
    "vl-bert": vl_bert_vqa,
}

MAX_TOKENS = 60  # of ViLBERT's reader of answers


def vilbert_vcr(root: Path, work: VcrWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of ViLBERT's VCR with six co-attention layers."""
    model = vilbert_model(root, 1)
    choices = work.tokens.shape[1]

    def texts(rows: Tensor) -> Tensor:
        return padded(rows.flatten(0, 1), MAX_TOKENS)

    def repeated(rows: Tensor) -> Tensor:
        return rows.repeat_interleave(choices, dim=0)

    present = mask_of(work.region_lengths, MAX_REGIONS).long()
    fields = {
        "input_txt": texts(work.tokens),
        "input_imgs": repeated(padded(work.features, MAX_REGIONS)),
        "image_loc": repeated(padded(work.locations, MAX_REGIONS)),
        "token_type_ids": texts(work.segments),
        "attention_mask": texts(work.token_mask.long()),
        "image_attention_mask": repeated(present),
    }

    def loss() -> Tensor:
        logits = model(**fields)[1]
        return F.cross_entropy(logits.view(-1, choices), work.right)

    return model, step_of(model, loss)


class GivenFeatures(nn.Module):
    """Stands in for VL-BERT's network of regions with stored features: its own code for these,
    which VCR's module does not call.
    """

    def __init__(self, extractor: nn.Module, features: Tensor) -> None:
        super().__init__()
        self.extractor, self.features = extractor, features

    def forward(self, *, boxes: Tensor, **fields: Tensor) -> dict[str, Tensor]:
        """The projected vectors of the regions at ``boxes``."""
        fields.pop("segms")
        stored = torch.cat([boxes, self.features[:, : boxes.shape[1]]], dim=-1)
        vectors: dict[str, Tensor] = self.extractor(boxes=stored, **fields)
        return vectors

    def bn_eval(self) -> None:
        """There is no batch normalisation."""


def parts(work: VcrWork, segment: int) -> Tensor:
    """The pieces of the questions (0) or choices (1) with what they name [B, C, T, 2], no special
    ones among them.
    """
    special = torch.tensor([CLS, SEP])
    mine = work.token_mask & (work.segments == segment) & ~torch.isin(work.tokens, special)
    pieces = torch.stack([work.tokens, work.objects], dim=-1)
    rows = [
        row[chosen] for row, chosen in zip(pieces.flatten(0, 1), mine.flatten(0, 1), strict=True)
    ]
    stacked = pad_sequence(rows, batch_first=True)
    return stacked.view(*work.tokens.shape[:2], *stacked.shape[1:])


def vl_bert_vcr(root: Path, work: VcrWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of VL-BERT base's VCR behind its network of regions."""
    code, config = vl_bert_code(
        root,
        "vcr.function.config",
        "cfgs/vcr/base_q2a_4x16G_fp32.yaml",
        "vcr.modules.resnet_vlbert_for_vcr",
        tokenizer=WordIds(),
    )
    config["NETWORK"]["IMAGE_FEAT_PRECOMPUTED"] = True
    model: nn.Module = code.ResNetVLBERT(config)
    extractor = model.image_feature_extractor
    model.image_feature_extractor = GivenFeatures(extractor, work.features)  # type: ignore[arg-type]
    present = mask_of(work.region_lengths, work.features.shape[1])
    corners = torch.where(present[..., None], work.locations[..., :4] * SIDE_PX, -1.0)
    categories = torch.ones(*present.shape, 1)
    boxes = torch.cat([corners, categories], dim=-1)
    questions, answers = parts(work, 0)[:, 0], parts(work, 1)
    size = torch.full((len(boxes), 4), float(SIDE_PX))

    def loss() -> Tensor:
        _, total = model(
            None, boxes.clone(), boxes, questions, None, answers, None, work.right, size
        )
        of_choices: Tensor = total
        return of_choices

    return model, step_of(model, loss)


CHOICE_PEERS: dict[str, Callable[..., tuple[nn.Module, Step]]] = {
    "vilbert": vilbert_vcr,
    "vl-bert": vl_bert_vcr,
}
