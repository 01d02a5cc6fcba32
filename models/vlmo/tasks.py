"""VLMo has these heads for VQA and NLVR2 (arXiv:2111.02358, sec. 4.2).

Retrieval needs none: `config.retrieval` keeps the first contrastive pair of `Vlmo`.
B examples, T tokens, S pixels a side, H width, A answers.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.checks import check_texts
from vlmill.models.inputs import PixelInputs
from vlmill.models.layers.blocks import init_bert, layer_norm
from vlmill.models.vlmo.config import VlmoNlvr2Config, VlmoVqaConfig
from vlmill.models.vlmo.encoder import VlmoEncoder, init_encoder

CLASSIFIER_EPS = 1e-5  # of the layer norm between a classifier's layers; PyTorch's default


def classifier(inputs: int, hidden: int, classes: int, *, two_layers: bool) -> nn.Module:
    """Builds linear, layer norm, GELU, linear as released; one linear layer as the paper says."""
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
        """Gives logits of the answers; each is right or wrong by itself. Errors as in `Vlmo`."""
        inputs.check(vocab_size=self.config.encoder.vocab_size)
        text = self.encoder.embed_text(inputs.tokens)
        image = self.encoder.embed_image(inputs.pixels)
        pooled = self.encoder.fuse(text, inputs.token_mask, image, pack=pack).pooled
        logits: Float[Tensor, "B A"] = self.classifier(pooled)
        return logits


class VlmoForNlvr2(nn.Module):
    """Classifies true or false of two images: both pairs' pooled vectors side by side."""

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
        pack: bool = True,
    ) -> Float[Tensor, "B 2"]:
        """Gives logits of false and true. The text is embedded once, both passes together.

        Raises ValueError for other shapes, as in `Vlmo`.
        """
        check_texts(tokens, token_mask)
        if pixels.ndim != 5 or pixels.shape[:2] != (len(tokens), 2):
            raise ValueError(
                f"pixels has shape {tuple(pixels.shape)}, want [pairs, 2, 3, S, S] beside tokens "
                f"{tuple(tokens.shape)}"
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
            pack=pack,
        )
        first, second = both.pooled.chunk(2)
        logits: Float[Tensor, "B 2"] = self.classifier(torch.cat([first, second], dim=-1))
        return logits
