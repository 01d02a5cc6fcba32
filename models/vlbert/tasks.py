"""Defines VL-BERT's heads for VCR, VQA and RefCOCO+ (arXiv:1908.08530, sec. 4.2; released code).

B samples, C choices of a question, T tokens, R regions, L real regions of all sequences, H width,
O a hidden layer's, A answers, K categories.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import relu

from vlmill.models.inputs import VLInputs
from vlmill.models.layers.heads import MlmHead, RegionHead, Transform
from vlmill.models.layers.operators import Linear
from vlmill.models.vlbert.config import VlBertRefcocoConfig, VlBertVcrConfig, VlBertVqaConfig
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.model import BELONGS, VlBert


class TaskHead(nn.Module):
    """Applies ``transform``, which returns ``width`` numbers, dropout and a linear layer."""

    def __init__(self, transform: nn.Module, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.transform = transform
        self.dropout = nn.Dropout(dropout)
        self.decoder = Linear(width, outputs)
        xavier(self)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N C"]:
        """Returns logits, one row for each position."""
        outputs: Float[Tensor, "*N C"] = self.decoder(self.dropout(self.transform(hidden)))
        return outputs


class HiddenLayer(nn.Module):
    """Applies the first layer of the released two-layer classifier: dropout, linear, ReLU."""

    def __init__(self, width: int, hidden_width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = Linear(width, hidden_width)
        xavier(self)

    def forward(self, hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N O"]:
        """Returns the input of the second layer."""
        return relu(self.dense(self.dropout(hidden)))


def xavier(head: nn.Module) -> None:
    """Initialises linear layers with Xavier's uniform distribution and zero bias."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def load_body(body: VlBertBody, pretrained: VlBert) -> None:
    """Copies a pretrained body into a task's; parts that only one of them has are unchanged."""
    target, source = body.state_dict(), pretrained.state_dict()
    body.load_state_dict(target | {name: source[name] for name in target if name in source})


def copy_transform(head: TaskHead, pretrained: MlmHead | RegionHead | None) -> None:
    """Copies a pretraining head's transform into a task's, if there is one."""
    if pretrained is not None:
        head.transform.load_state_dict(pretrained.transform.state_dict())


class VlBertVqa(nn.Module):
    """Predicts the answer from a [MASK] after the question (figure 2 b)."""

    def __init__(self, config: VlBertVqaConfig) -> None:
        super().__init__()
        self.config = config
        self.body = VlBertBody(config.body)
        width = config.body.width
        transform: nn.Module = nn.Identity()
        if config.classifier == "mlm":
            transform = Transform(width, config.body.act)
        elif config.classifier == "2fc":
            transform = HiddenLayer(width, config.classifier_width, config.dropout)
            width = config.classifier_width
        self.head = TaskHead(transform, width, config.num_answers, config.dropout)

    def forward(
        self, inputs: VLInputs, answer_positions: Int[Tensor, " B"], *, pack: bool = True
    ) -> Float[Tensor, "B A"]:
        """Returns logits over answers; ``answer_positions`` are those of [MASK] (`vqa_text`)."""
        hidden = self.body(inputs, pack=pack).text
        rows = torch.arange(len(hidden), device=hidden.device)
        logits: Float[Tensor, "B A"] = self.head(hidden[rows, answer_positions])
        return logits

    @torch.no_grad()
    def start_from(self, pretrained: VlBert, answers: Sequence[Sequence[int]]) -> None:
        """Copies body and transform; each answer's row becomes the mean of its words' rows.

        ``answers`` are the answers' word-piece ids. Raises ValueError if their number differs, an
        answer without a word piece, and a classifier that is not a word head.
        """
        if self.config.classifier != "mlm":
            raise ValueError(
                f"classifier={self.config.classifier!r} has no word head's shape to start from; "
                "use 'mlm'"
            )
        if len(answers) != self.config.num_answers or not all(answers):
            raise ValueError(
                f"answers: got {len(answers)}, {sum(not a for a in answers)} without a "
                f"word piece; expected num_answers={self.config.num_answers} answers "
                "with at least one word piece each"
            )
        load_body(self.body, pretrained)
        copy_transform(self.head, pretrained.mlm_head)
        table = self.body.text_embedding.word.weight
        means = [table[torch.tensor(pieces)].mean(dim=0) for pieces in answers]
        self.head.decoder.weight.copy_(torch.stack(means))


class VlBertRefcoco(nn.Module):
    """Scores for each region whether the expression refers to it (figure 2 c)."""

    def __init__(self, config: VlBertRefcocoConfig) -> None:
        super().__init__()
        self.config = config
        self.body = VlBertBody(config.body)
        width = config.body.width
        transform = Transform(width, config.body.act, norm=False)
        self.head = TaskHead(transform, width, 1, config.dropout)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Float[Tensor, "B R"]:
        """Returns logits of the candidates, including the full image; minus infinity at padding.

        (In the released code padding can win: it has the logits of a zero vector.)
        """
        logits = self.candidate_logits(self.body(inputs, pack=pack).regions)
        return logits.masked_fill(~inputs.region_mask, float("-inf"))

    def candidate_logits(self, region_hidden: Float[Tensor, "*N H"]) -> Float[Tensor, "*N"]:
        """Returns logits of the encoder's regions, including padding."""
        logits: Tensor = self.head(region_hidden)
        return logits[..., 0]

    def start_from(self, pretrained: VlBert) -> None:
        """Copies body and transform from pretraining."""
        load_body(self.body, pretrained)
        copy_transform(self.head, pretrained.class_head)


@dataclass(frozen=True, kw_only=True)
class ChoiceInputs:
    """Holds questions with C choices each: `VLInputs` with the texts of each choice.

    text_regions: the region that each token refers to, 0 for the full image. masked_regions: as in
    `VLInputs`. Raises ValueError if the shapes do not fit together.
    """

    tokens: Int[Tensor, "B C T"]
    token_mask: Bool[Tensor, "B C T"]
    segments: Int[Tensor, "B C T"]
    text_regions: Int[Tensor, "B C T"]
    region_features: Float[Tensor, "B R D"]
    region_locations: Float[Tensor, "B R 5"]
    region_mask: Bool[Tensor, "B R"]
    masked_regions: Bool[Tensor, "B R"] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.tokens.shape)
        for name in ("token_mask", "segments", "text_regions"):
            if (actual := tuple(getattr(self, name).shape)) != shape:
                raise ValueError(f"{name} has shape {actual}, expected {shape} as tokens")
        images = tuple(self.region_features.shape[:2])
        if len(shape) != 3 or tuple(self.region_mask.shape) != images:
            raise ValueError(
                f"tokens has shape {shape}, region_features {tuple(self.region_features.shape)}, "
                f"region_mask {tuple(self.region_mask.shape)}; expected [questions, "
                "choices, tokens], "
                "[questions, regions, width] and [questions, regions]"
            )
        if images[0] != shape[0]:
            raise ValueError(f"tokens has {shape[0]} questions, region_features {images[0]}")

    def map(self, change: Callable[[Tensor], Tensor]) -> "ChoiceInputs":
        """Returns the same batch with ``change`` applied to each tensor."""
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return ChoiceInputs(**{k: change(v) for k, v in tensors.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class VcrOutput:
    """Holds logits of the choices, and of regions' categories in every sequence.

    ``images`` and ``regions`` identify the region of each row of ``category_logits``. ``text``
    holds the last hidden states of the tokens.
    """

    answer_logits: Float[Tensor, "B C"]
    category_logits: Float[Tensor, "L K"]
    images: Int[Tensor, " L"]
    regions: Int[Tensor, " L"]
    text: Float[Tensor, "BC T H"]


class VlBertVcr(nn.Module):
    """Encodes one sequence for each choice; its pooled vector gives its logit (figure 2 a)."""

    def __init__(self, config: VlBertVcrConfig) -> None:
        super().__init__()
        self.config = config
        self.body = VlBertBody(config.body)
        width, pooled_width = config.body.width, config.body.width
        self.answer_hidden: nn.Module = nn.Identity()
        if config.classifier == "2fc":
            self.answer_hidden = HiddenLayer(width, config.classifier_width, config.dropout)
            pooled_width = config.classifier_width
        self.dropout = nn.Dropout(config.dropout)
        self.answer_head = nn.Linear(pooled_width, 1)
        xavier(self.answer_head)
        self.category_head = TaskHead(
            Transform(width, config.body.act, norm=False),
            width,
            config.num_categories,
            config.category_dropout,
        )
        self.word_head = None
        if config.masked_words:
            self.word_head = MlmHead(width, config.body.vocab_size, config.body.act)
        self._start_names()

    def _start_names(self) -> None:
        if (scale := self.config.visual_scale_names) is not None:
            self.body.text_visual.restart(scale)

    def forward(
        self,
        inputs: ChoiceInputs,
        *,
        category_regions: tuple[Int[Tensor, " L"], Int[Tensor, " L"]] | None = None,
        pack: bool = True,
    ) -> VcrOutput:
        """Encodes all choices; the regions' vectors are computed once an image.

        ``category_regions``: the sequences, counted choice by choice, and the rows of their regions
        whose categories are computed; default: all real ones.
        """
        choices = inputs.tokens.shape[1]
        vectors = self.body.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            inputs.region_mask,
            inputs.masked_regions,
            pack=pack,
        )
        region_mask = inputs.region_mask.repeat_interleave(choices, dim=0)
        masked = inputs.masked_regions
        encoded = self.body.encode(
            inputs.tokens.flatten(0, 1),
            inputs.token_mask.flatten(0, 1),
            vectors.repeat_interleave(choices, dim=0),
            region_mask,
            segments=inputs.segments.flatten(0, 1),
            masked_regions=None if masked is None else masked.repeat_interleave(choices, dim=0),
            text_regions=inputs.text_regions.flatten(0, 1),
            pack=pack,
        )
        logits = self.answer_head(self.dropout(self.answer_hidden(encoded.pooled)))
        sequences, regions = (
            region_mask.nonzero().unbind(dim=1) if category_regions is None else category_regions
        )
        return VcrOutput(
            answer_logits=logits.view(-1, choices),
            category_logits=self.category_head(encoded.regions[sequences, regions]),
            images=sequences // choices,
            regions=regions,
            text=encoded.text,
        )

    def word_logits(self, text_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Returns masked words' logits. Raises ValueError without such a head."""
        if self.word_head is None:
            raise ValueError("masked_words=False: the model has no head for masked words")
        logits: Float[Tensor, "N V"] = self.word_head(
            text_hidden, self.body.text_embedding.word.weight
        )
        return logits

    @torch.no_grad()
    def start_from(self, pretrained: VlBert) -> None:
        """Copies body and category transform from pretraining; segment B is a copy of A.

        If the answer head is one layer, it starts as the matching head's "belongs" minus "does
        not".
        """
        load_body(self.body, pretrained)
        self._start_names()
        copy_transform(self.category_head, pretrained.class_head)
        if self.word_head is not None and pretrained.mlm_head is not None:
            self.word_head.load_state_dict(pretrained.mlm_head.state_dict())
        segments = self.body.text_embedding.segment.weight
        segments[1] = segments[0]
        if (head := pretrained.match_head) is not None and self.config.classifier == "1fc":
            for target, source in (
                (self.answer_head.weight, head.weight),
                (self.answer_head.bias, head.bias),
            ):
                target.copy_((source[BELONGS] - source[1 - BELONGS]).view_as(target))
