"""Defines VLMo's heads for VQA and NLVR2 (arXiv:2111.02358, sec. 4.2), and one for texts.

Retrieval needs no head: `config.retrieval` keeps the first contrastive pair of `Vlmo`. B examples,
T tokens, S pixels a side, H width, A answers, C labels.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import PixelInputs, check_texts
from vlmill.models.layers.blocks import init_bert, layer_norm
from vlmill.models.layers.packing import make_layout
from vlmill.models.positions import Positions
from vlmill.models.vlmo.config import VlmoNlvr2Config, VlmoTextConfig, VlmoVqaConfig
from vlmill.models.vlmo.encoder import VlmoEncoder, init_encoder

CLASSIFIER_EPS = 1e-5  # of the layer norm between a classifier's layers; PyTorch's default


def classifier(inputs: int, hidden: int, classes: int, *, two_layers: bool) -> nn.Module:
    """Builds linear, layer norm, GELU, linear as released, or one linear layer as in the paper."""
    if not two_layers:
        return nn.Sequential(nn.Linear(inputs, classes))
    norm = layer_norm(hidden, CLASSIFIER_EPS)
    return nn.Sequential(nn.Linear(inputs, hidden), norm, nn.GELU(), nn.Linear(hidden, classes))


class VlmoForVqa(nn.Module):
    """Classifies answers from the fusion encoder's pooled vector."""

    def __init__(self, config: VlmoVqaConfig) -> None:
        super().__init__()
        self.config = config
        width = config.encoder.width
        self.encoder = VlmoEncoder(config.encoder)
        self.classifier = classifier(
            width, 2 * width, config.num_answers, two_layers=config.two_layers
        )
        init_bert(self, config.encoder.init_std)
        init_encoder(self.encoder)

    def forward(self, inputs: PixelInputs, *, pack: bool = True) -> Float[Tensor, "B A"]:
        """Returns the answers' independent logits. Raises the errors of `Vlmo`."""
        inputs.check(vocab_size=self.config.encoder.vocab_size)
        text = self.encoder.embed_text(inputs.tokens)
        image = self.encoder.embed_image(inputs.pixels)
        pooled = self.encoder.fuse(
            text, inputs.token_mask, image, real=inputs.real_tokens, pack=pack
        ).pooled
        logits: Float[Tensor, "B A"] = self.classifier(pooled)
        return logits


class VlmoForNlvr2(nn.Module):
    """Classifies true or false of two images: both pairs' pooled vectors are concatenated."""

    def __init__(self, config: VlmoNlvr2Config) -> None:
        super().__init__()
        self.config = config
        width = config.encoder.width
        self.encoder = VlmoEncoder(config.encoder)
        self.classifier = classifier(2 * width, 2 * width, 2, two_layers=config.two_layers)
        init_bert(self, config.encoder.init_std)
        init_encoder(self.encoder)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        pixels: Float[Tensor, "B 2 3 S S"],
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B 2"]:
        """Returns logits of false and true. The text is embedded once, and both pairs run in one
        pass.

        ``real``: the indices that ``token_mask`` marks. A GPU packs only with them. Raises
        ValueError for other shapes, as in `Vlmo`.
        """
        check_texts(tokens, token_mask)
        if pixels.ndim != 5 or pixels.shape[:2] != (len(tokens), 2):
            raise ValueError(
                f"pixels has shape {tuple(pixels.shape)}, expected [pairs, 2, 3, S, S] "
                f"with tokens {tuple(tokens.shape)}"
            )
        for number in range(2):
            PixelInputs(tokens=tokens, token_mask=token_mask, pixels=pixels[:, number]).check(
                vocab_size=self.config.encoder.vocab_size
            )
        text = self.encoder.embed_text(tokens)
        images = [self.encoder.embed_image(pixels[:, number], number) for number in range(2)]
        both = self.encoder.fuse(
            torch.cat([text, text]),
            torch.cat([token_mask, token_mask]),
            torch.cat(images),
            real=None if real is None else torch.cat([real, real + token_mask.numel()]),
            pack=pack,
        )
        first, second = both.pooled.chunk(2)
        logits: Float[Tensor, "B 2"] = self.classifier(torch.cat([first, second], dim=-1))
        return logits


class VlmoForText(nn.Module):
    """Classifies texts with the text experts, as in the second stage (sec. 3.4).

    [choice] The paper has no such task: the head is a pooler, dropout and a linear layer, like
    BERT's.
    """

    def __init__(self, config: VlmoTextConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VlmoEncoder(config.encoder)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.encoder.width, config.num_labels)
        init_bert(self, config.encoder.init_std)
        init_encoder(self.encoder)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B C"]:
        """Returns logits of the labels.

        VLMo's texts have one segment: the [SEP] before it marks a pair's second text, and
        ``segments`` are not read. ``real``: the indices that ``token_mask`` marks. Raises
        ValueError for masks of another shape and more tokens than ``max_text_tokens``.
        """
        check_texts(tokens, token_mask)
        embedded = self.encoder.embed_text(tokens)
        layout = make_layout(token_mask, real, pack=pack)
        bias = self.encoder.text_bias(tokens.shape[1])
        hidden, _ = self.encoder.encode_one("text", embedded, layout, bias)
        pooled = self.encoder.pooler(hidden[:, 0])
        logits: Float[Tensor, "B C"] = self.classifier(self.dropout(pooled))
        return logits
