"""Defines VLMo's encoder: shared attention, separate experts (arXiv:2111.02358, sec. 3.1, 3.2).

B pairs, T tokens, M = N + 1 image positions (class token, patches), S pixels a side, H width,
L layers, h heads.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.layers.attention import Bias
from vlmill.models.layers.blocks import layer_norm
from vlmill.models.layers.embeddings import PatchEmbedding, TextEmbedding
from vlmill.models.layers.experts import PreNormBlock, Route
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.packing import Layout, make_joint_layout
from vlmill.models.layers.relative_position import (
    Biases,
    RelativeBias,
    image_index,
    joint_index,
    num_image_rows,
    num_text_rows,
    text_index,
)
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Cells, Positions
from vlmill.models.vlmo.config import SHARED, VlmoConfig

EPS = 1e-6  # of the layer norms inside the transformer; text embeddings and word head have BERT's
LayerBiases = Sequence[Bias | None]
TEXT_TYPE, IMAGE_TYPE = 0, 1  # rows of the type table; further images have the next rows


class VlmoEncoder(nn.Module):
    """Holds embeddings, layers, final norm and pooler, which all of VLMo's models share."""

    image_index: Int[Tensor, "M M"]
    text_index: Int[Tensor, "T T"]
    image_rows: int  # of the relative table

    def __init__(self, config: VlmoConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.text_embedding = TextEmbedding(
            config.vocab_size,
            config.max_text_tokens,
            2,  # BERT's segments; only the first is used
            width,
            config.drop_path,
            padding_id=0,
            # In the released code texts have absolute positions if there are no relative ones.
            add_positions=not config.relative_positions,
        )
        self.patch_embedding = PatchEmbedding(
            config.image_size, config.patch_size, width, positions=config.absolute_positions
        )
        self.type_table = nn.Embedding(1 + config.num_images, width)
        last = max(config.num_layers - 1, 1)
        self.layers = nn.ModuleList(
            PreNormBlock(
                width,
                config.num_heads,
                config.intermediate_width,
                experts=config.list_experts(number),
                layer_scale=config.layer_scale,
                drop_path=config.drop_path * number / last,
                eps=EPS,
            )
            for number in range(config.num_layers)
        )
        self.norm = layer_norm(width, EPS)
        self.pooler = Pooler(width) if config.pooler else nn.Identity()
        self.relative: RelativeBias | None = None
        if config.relative_positions:
            self._add_relative_positions(config)

    def _add_relative_positions(self, config: VlmoConfig) -> None:
        self.image_rows, span = num_image_rows(config.side), config.relative_text_span
        self.relative = RelativeBias(
            self.image_rows + num_text_rows(span), config.num_layers, config.num_heads
        )
        on_text = text_index(config.max_text_tokens, span, self.image_rows)
        self.register_buffer("image_index", image_index(config.side), persistent=False)
        self.register_buffer("text_index", on_text, persistent=False)

    def embed_text(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T H"]:
        """Embeds texts (sec. 3.1); they may have fewer tokens than the maximum.

        Raises ValueError for no tokens or more than ``max_text_tokens``.
        """
        num_tokens, max_tokens = tokens.shape[1], self.config.max_text_tokens
        if not 0 < num_tokens <= max_tokens:
            raise ValueError(
                f"tokens has {num_tokens} positions, expected 1 to "
                f"max_text_tokens={max_tokens}; cut "
                "the "
                "texts at the end, keeping [SEP]"
            )
        embedded: Float[Tensor, "B T H"] = self.text_embedding(tokens)
        return embedded + self.type_table.weight[TEXT_TYPE]

    def embed_image(
        self, pixels: Float[Tensor, "B 3 S S"], number: int = 0
    ) -> Float[Tensor, "B M H"]:
        """Embeds images (sec. 3.1); ``number`` is the index of the text's image, from 0."""
        embedded: Float[Tensor, "B M H"] = self.patch_embedding(pixels)
        return embedded + self.type_table.weight[IMAGE_TYPE + number]

    def joint_bias(self, num_tokens: int) -> Biases | None:
        """Gathers every layer's bias of texts followed by images; None without one.

        Its corner blocks are the biases of only texts and of only images (`text_bias`,
        `image_bias`), so a step that needs all three gathers this one.
        """
        if self.relative is None:
            return None
        bias: Biases = self.relative(self.joint_rows(num_tokens))
        return bias

    def joint_rows(self, num_tokens: int) -> Int[Tensor, "N N"]:
        """Returns the table's row for each query and key of texts followed by images."""
        on_text = self.text_index[:num_tokens, :num_tokens]
        return joint_index(on_text, self.image_index, self.image_rows)

    def text_bias(self, num_tokens: int) -> Biases | None:
        """Gathers every layer's bias of texts only; None without one."""
        if self.relative is None:
            return None
        bias: Biases = self.relative(self.text_index[:num_tokens, :num_tokens])
        return bias

    def image_bias(self) -> Biases | None:
        """Gathers every layer's bias of images only; None without one."""
        if self.relative is None:
            return None
        bias: Biases = self.relative(self.image_index)
        return bias

    def _by_layer(self, bias: Biases | None) -> LayerBiases:
        """Splits the layers' biases in one operation, which has one backward operation."""
        return [None] * self.config.num_layers if bias is None else bias.unbind(0)

    def run_layers(
        self,
        hidden: Float[Tensor, "*rows H"],
        layout: Layout,
        biases: LayerBiases,
        route: Route,
        layers: range,
    ) -> Float[Tensor, "*rows H"]:
        """Runs a range of layers with the same experts."""
        for number in layers:
            hidden = self.layers[number](hidden, layout, route, biases[number])
        return hidden

    def finish(
        self,
        hidden: Float[Tensor, "*rows H"],
        layout: Layout,
        biases: LayerBiases,
        expert: str,
        layers: range,
    ) -> Float[Tensor, "B N H"]:
        """Runs the last ``layers`` with one expert and the final norm; returns the padded grid.

        Only the indices in ``layout.read`` are certain to be returned; others may be zeros.
        """
        read = layout.read_rows() if layers else None
        lower = layers if read is None else layers[:-1]
        hidden = self.run_layers(hidden, layout, biases, ((expert, hidden.shape[-2]),), lower)
        if read is None:
            return layout.unpack(self.norm(hidden))
        last, route = layers[-1], ((expert, len(read.rows)),)
        hidden = self.layers[last](hidden, layout, route, biases[last], read)
        return read.layout.unpack(self.norm(hidden))

    def fuse(
        self,
        text: Float[Tensor, "B T H"],
        token_mask: Bool[Tensor, "B T"],
        image: Float[Tensor, "B M H"],
        *,
        bias: Biases | None = None,
        real: Positions | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> Encoded:
        """Runs the fusion encoder: texts followed by images (sec. 3.2, fig. 1).

        Below ``first_vl_layer`` each modality uses its own expert, from there on all positions use
        the vision-language expert. ``bias``: `joint_bias`, gathered here if not given. ``real``:
        the indices that ``token_mask`` marks; ``read``: the indices where last hidden states of
        texts and images are read; others may be zeros.
        """
        num_tokens = text.shape[1]
        if bias is None:
            bias = self.joint_bias(num_tokens)
        present = token_mask.new_ones(image.shape[:2])
        cells = None
        if real is not None:
            cells = Cells(real, torch.arange(present.numel(), device=real.device))
        layout, (text_rows, image_rows) = make_joint_layout(
            token_mask, present, cells, read=read, pack=pack
        )
        hidden = layout.pack(torch.cat([text, image], dim=1))
        top, end = self.config.first_vl_layer, self.config.num_layers
        route: Route = (("text", text_rows), ("image", image_rows))
        if not self.config.modality_experts:
            route = ((SHARED, text_rows + image_rows),)
        biases = self._by_layer(bias)
        hidden = self.run_layers(hidden, layout, biases, route, range(top))
        hidden = self.finish(hidden, layout, biases, "vl", range(top, end))
        return Encoded(
            text=hidden[:, :num_tokens],
            regions=hidden[:, num_tokens:],
            pooled=self.pooler(hidden[:, 0]),
        )

    def encode_one(
        self,
        modality: str,
        embedded: Float[Tensor, "B N H"],
        layout: Layout,
        bias: Biases | None,
        *,
        also_fused: bool = False,
    ) -> tuple[Float[Tensor, "B N H"], Float[Tensor, "B N H"] | None]:
        """Runs half of the dual encoder: ``text`` or ``image`` through its own experts.

        With ``also_fused`` there is a second result: the top layers applied to the same input, with
        the vision-language experts (released code).
        """
        top, end = self.config.first_vl_layer, self.config.num_layers
        hidden, last = layout.pack(embedded), range(top, end)
        expert = modality if self.config.modality_experts else SHARED
        route = ((expert, hidden.shape[-2]),)
        biases = self._by_layer(bias)
        below = self.run_layers(hidden, layout, biases, route, range(top))
        alone = self.finish(below, layout, biases, expert, last)
        if not also_fused:
            return alone, None
        return alone, self.finish(below, layout, biases, "vl", last)


def init_encoder(encoder: VlmoEncoder) -> None:
    """Draws new weights of linear layers, class token and positions (released code).

    The normal distribution is truncated at ±2, not at 2 standard deviations, so almost not at all.
    """
    std = encoder.config.init_std
    patches = encoder.patch_embedding
    for part in encoder.layers.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=std, a=-2.0, b=2.0)
    for drawn in (patches.class_token, patches.position):
        if drawn is not None:
            nn.init.trunc_normal_(drawn, std=std, a=-2.0, b=2.0)
