"""BEiT (Bao et al., arXiv:2106.08254): masked image modelling, and a classifier on the same
encoder.

It is VLMo's first stage. B images, S pixels a side, N patches, M = N + 1 positions (class token
first), H width, h heads, V visual tokens, C classes. Where the paper does not specify a detail, the
released code is followed.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.beit.config import BeitConfig
from vlmill.models.inputs import check_finite, check_tensor, readable
from vlmill.models.layers.blocks import FeedForward, layer_norm
from vlmill.models.layers.embeddings import PatchEmbedding
from vlmill.models.layers.experts import PreNormBlock
from vlmill.models.layers.operators import Linear
from vlmill.models.layers.packing import Layout
from vlmill.models.layers.relative_position import RelativeBias, image_index, num_image_rows

EXPERT = "image"  # the only feed-forward part; VLMo's vision expert starts from it


class Beit(nn.Module):
    """Holds the encoder and the head that the configuration selects."""

    image_index: Int[Tensor, "M M"]

    def __init__(self, config: BeitConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.patch_embedding = PatchEmbedding(
            config.image_size, config.patch_size, width, positions=config.absolute_positions
        )
        last = max(config.num_layers - 1, 1)
        self.layers = nn.ModuleList(
            PreNormBlock(
                width,
                config.num_heads,
                config.intermediate_width,
                experts=(EXPERT,),
                layer_scale=config.layer_scale,
                drop_path=config.drop_path * number / last,
                eps=config.eps,
            )
            for number in range(config.num_layers)
        )
        self.norm = layer_norm(width, config.eps) if config.final_norm else nn.Identity()
        self.relative = nn.ModuleList()
        if config.relative_positions:
            rows = num_image_rows(config.side)
            self.relative.extend(
                RelativeBias(rows, 1, config.num_heads)
                for _ in range(1 if config.shared_relative else config.num_layers)
            )
            self.register_buffer("image_index", image_index(config.side), persistent=False)
        if config.num_visual_tokens:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
            self.visual_head = Linear(width, config.num_visual_tokens)
        if config.num_classes:
            if config.mean_pooling:
                self.pooled_norm = layer_norm(width, config.eps)
            self.class_head = Linear(width, config.num_classes)
        _init_beit(self)

    def forward(
        self, pixels: Float[Tensor, "B 3 S S"], masked: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B M H"]:
        """Returns the last hidden states; the mask token replaces ``masked`` patches (sec. 2.3).

        Raises ValueError for another image size, for masked patches without a head for visual
        tokens or in another number and, on the CPU, for pixels that are not finite.
        """
        check_tensor("pixels", pixels, "numbers", "scale and normalise them")
        if masked is not None and not self.config.num_visual_tokens:
            raise ValueError("masked patches need num_visual_tokens above 0 in the configuration")
        if masked is not None:
            check_tensor("masked", masked, "mask")
            if tuple(masked.shape) != (shape := (len(pixels), self.config.side**2)):
                raise ValueError(f"masked has shape {tuple(masked.shape)}, expected {shape}")
        if readable(pixels):
            check_finite("pixels", pixels, "images", "decode these images again")
        token = None if masked is None else self.mask_token[0, 0]
        hidden: Tensor = self.patch_embedding(pixels, masked, token)
        layout = Layout((hidden.shape[0], hidden.shape[1]))
        biases = self._biases()
        for layer, bias in zip(self.layers, biases, strict=True):
            hidden = layer(hidden, layout, ((EXPERT, hidden.shape[1]),), bias)
        states: Float[Tensor, "B M H"] = self.norm(hidden)
        return states

    def _biases(self) -> list[Float[Tensor, "h M M"] | None]:
        count = self.config.num_layers
        if not self.config.relative_positions:
            return [None] * count
        gathered = [table(self.image_index)[0] for table in self.relative]
        return gathered * count if self.config.shared_relative else gathered

    def visual_logits(self, patches: Float[Tensor, "*K H"]) -> Float[Tensor, "*K V"]:
        """Returns logits of visual tokens for the states of masked patches (eq. 3).

        Raises ValueError if the model has no such head.
        """
        if not self.config.num_visual_tokens:
            raise ValueError("num_visual_tokens=0: this BEiT has no head of visual tokens")
        logits: Float[Tensor, "*K V"] = self.visual_head(patches)
        return logits

    def pooled(self, states: Float[Tensor, "B M H"]) -> Float[Tensor, "B H"]:
        """Returns the input of the classifier: the patches' normalised mean, or the class token."""
        if not self.config.mean_pooling:
            return states[:, 0]
        mean: Float[Tensor, "B H"] = self.pooled_norm(states[:, 1:].mean(dim=1))
        return mean

    def class_logits(self, pixels: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B C"]:
        """Returns logits of the classes [B, C]. Raises ValueError if the model has no such head."""
        if not self.config.num_classes:
            raise ValueError("num_classes=0: this BEiT has no classifier; see image_classifier")
        logits: Float[Tensor, "B C"] = self.class_head(self.pooled(self(pixels)))
        return logits


def _init_beit(model: Beit) -> None:
    """Draws weights from a normal distribution truncated at one standard deviation.

    The output weights of layer l, counted from 1, are then divided by sqrt(2 l) (sec. 2.5).
    """
    std = model.config.init_std
    patches = model.patch_embedding
    drawn: list[Tensor] = [patches.class_token]
    if patches.position is not None:
        drawn.append(patches.position)
    if model.config.num_visual_tokens:
        drawn.append(model.mask_token)
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            drawn.append(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for tensor in drawn:
        nn.init.trunc_normal_(tensor, std=std, a=-std, b=std)
    with torch.no_grad():
        for number, layer in enumerate(model.layers, start=1):
            assert isinstance(layer, PreNormBlock)
            layer.attention.out.weight.div_(math.sqrt(2 * number))
            feed_forward = layer.experts[EXPERT]
            assert isinstance(feed_forward, FeedForward)
            feed_forward.down.weight.div_(math.sqrt(2 * number))
