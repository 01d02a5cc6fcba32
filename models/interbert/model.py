"""InterBERT (Lin et al., arXiv:2003.13198): one stream for interaction, then one for each modality.

B pairs, T tokens, R regions, D feature width, H width, P width of the pooled vector. Row 0 of the
regions is the full image: the mean feature with the location (0, 0, 1, 1, 1). Details that neither
the paper nor the released code specifies are marked [choice].
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertImagesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
)
from vlmill.models.layers.blocks import init_bert, post_norm_layers, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Classifier, Pooler
from vlmill.models.layers.packing import make_layout
from vlmill.models.layers.pair_heads import (
    EncodedPair,
    PairHeads,
    ScoreHeads,
    check_modalities,
    fuse,
    side_by_side,
)
from vlmill.models.positions import Cells, Positions, concatenate_positions

IMAGE_SEGMENT, TEXT_SEGMENT = 0, 1  # with modality_segments


class InterBert(PairHeads):
    """Holds interaction over both modalities, extraction of each, and three pretraining heads."""

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(
            vocab_size=config.vocab_size,
            widths=(config.width, config.width),
            pooled_width=config.pooled_width,
            num_region_classes=config.num_region_classes,
            region_width=config.region_width,
            regress_features=config.regress_features,
            act=config.act,
            dropout=config.head_dropout,
        )
        self.config = config
        self.text_embedding = TextEmbedding(
            config.vocab_size,
            config.num_positions,
            config.num_segments,
            config.width,
            config.dropout,
            padding_id=0,
        )
        self.region_embedding = RegionEmbedding(config.region_width, config.width, config.dropout)
        self.interaction_layers = _text_layers(config, config.num_interaction_layers)
        self.text_layers = _text_layers(config, config.num_text_layers)
        self.visual_layers = post_norm_layers(
            config.num_visual_layers,
            config.width,
            config.visual_num_heads,
            config.visual_intermediate_width,
            dropout=config.visual_dropout,
            attention_dropout=config.visual_attention_dropout,
            act=config.visual_act,
        )
        self.text_pooler = Pooler(config.width, config.pooled_width, "relu")
        self.visual_pooler = Pooler(config.width, config.pooled_width, "relu")
        init_bert(self, config.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> EncodedPair:
        """Encodes pairs, only texts (no regions: R = 0) or only images (T = 0).

        Padding costs nothing and is returned as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for a batch with neither text nor regions, more tokens than positions,
        another feature width and, on the CPU, invalid values (`VLInputs.check`).
        """
        check_modalities(
            inputs,
            need_text=False,
            need_regions=False,
            vocab_size=self.config.vocab_size,
            num_segments=self.config.num_segments,
        )
        regions = self.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            for_captions=inputs.segments is None,
            real=inputs.real_regions if pack else None,
        )
        return self.encode(
            inputs.tokens,
            inputs.token_mask,
            regions,
            inputs.region_mask,
            segments=inputs.segments,
            real=inputs.real,
            read=inputs.read,
            pack=pack,
        )

    def embed_regions(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        *,
        for_captions: bool = True,
        real: Positions | None = None,
    ) -> Float[Tensor, "B R H"]:
        """Embeds regions for the layers, once for all texts of an image. ``real``: as in
        `RegionEmbedding`.

        [choice] ``modality_segments`` apply with captions only: texts of two parts (VCR) use the
        segments for their parts.
        """
        marked = self.config.modality_segments and for_captions
        offset = self.text_embedding.segment.weight[IMAGE_SEGMENT] if marked else None
        embedded: Float[Tensor, "B R H"] = self.region_embedding(features, locations, offset, real)
        return embedded

    def encode(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        regions: Float[Tensor, "B R H"],
        region_mask: Bool[Tensor, "B R"],
        *,
        segments: Int[Tensor, "B T"] | None = None,
        real: Cells | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> EncodedPair:
        """Encodes texts together with embedded regions; arguments as in `VLInputs`.

        For a missing modality nothing is returned, and ``pooled`` is that of the other one.
        """
        num_regions, num_tokens = regions.shape[1], tokens.shape[1]
        caption = TEXT_SEGMENT if self.config.modality_segments else 0
        text = self.text_embedding(tokens, caption if segments is None else segments)
        real_positions = None
        if real is not None:
            real_positions = concatenate_positions(
                [(real.regions, num_regions), (real.text, num_tokens)]
            )
        layout = make_layout(torch.cat([region_mask, token_mask], dim=1), real_positions, pack=pack)
        hidden = layout.pack(torch.cat([regions, text], dim=1))
        hidden = run_layers(self.interaction_layers, hidden, layout)
        regions, text = hidden[:, :num_regions], hidden[:, num_regions:]
        text_pooled = region_pooled = None
        if num_regions:
            layout = make_layout(
                region_mask, real and real.regions, read=read and read.regions, pack=pack
            )
            regions = run_layers(self.visual_layers, layout.pack(regions), layout)
            region_pooled = self.visual_pooler(regions[:, 0])
        if num_tokens:
            layout = make_layout(token_mask, real and real.text, read=read and read.text, pack=pack)
            text = run_layers(self.text_layers, layout.pack(text), layout)
            text_pooled = self.text_pooler(text[:, 0])
        return EncodedPair(
            text=text,
            regions=regions,
            pooled=self._fused(text_pooled, region_pooled),
            text_pooled=text_pooled,
            region_pooled=region_pooled,
        )

    def _fused(
        self, text: Float[Tensor, "B P"] | None, regions: Float[Tensor, "B P"] | None
    ) -> Float[Tensor, "B P"]:
        if text is not None and regions is not None:
            return fuse(text, regions, self.config.fusion)
        only = regions if text is None else text
        assert only is not None  # forward refuses a batch with neither
        return only


def _text_layers(config: InterBertConfig, count: int) -> nn.ModuleList:
    return post_norm_layers(
        count,
        config.width,
        config.num_heads,
        config.intermediate_width,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        act=config.act,
    )


class InterBertTasks(ScoreHeads):
    """Holds the released heads over the fused pair, each region and each token."""

    def __init__(self, config: InterBertTasksConfig) -> None:
        trunk = config.trunk
        super().__init__(
            InterBert(trunk),
            (trunk.width, trunk.width),
            trunk.pooled_width,
            config.dropout,
            init_std=trunk.init_std,
        )
        self.config = config
        self.answer_head = nn.Linear(trunk.pooled_width, config.num_answers)
        init_bert(self.answer_head, trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> EncodedPair:
        """Returns the inputs of the heads; arguments as for the trunk."""
        encoded: EncodedPair = self.trunk(inputs, pack=pack)
        return encoded

    def answer_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B A"]:
        """Returns logits of each answer."""
        logits: Float[Tensor, "B A"] = self.answer_head(self.pooled_dropout(pooled))
        return logits


class InterBertText(nn.Module):
    """Classifies text without images: interaction over words, extraction, pooler, dropout, linear
    layer.

    The paper evaluates this on GLUE and does not specify the input without an image; [choice]
    without any region.
    """

    def __init__(self, config: InterBertTextConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = InterBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.trunk.pooled_width, config.num_labels)
        init_bert(self.head, config.trunk.init_std)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B C"]:
        """Returns logits of the labels; ``segments`` 0 and 1 for sentence pairs, 0 if not given.

        ``real``: the indices that ``token_mask`` marks.
        """
        batch, width = len(tokens), self.config.trunk.region_width
        table = self.trunk.text_embedding.word.weight
        pooled = self.trunk(
            VLInputs(
                tokens=tokens,
                token_mask=token_mask,
                region_features=table.new_zeros(batch, 0, width),
                region_locations=table.new_zeros(batch, 0, 5),
                region_mask=token_mask[:, :0],
                segments=torch.zeros_like(tokens) if segments is None else segments,
                real_tokens=real,
                real_regions=None if real is None else real[:0],
            ),
            pack=pack,
        ).pooled
        logits: Float[Tensor, "B C"] = self.head(self.dropout(pooled))
        return logits


class InterBertImages(nn.Module):
    """Classifies a text with one image or several by the concatenated pooled vectors.

    [choice] The paper has no such task: the head is that of 12-in-1 for two images
    (arXiv:1912.02315), a layer as wide as both vectors and a linear layer.
    """

    def __init__(self, config: InterBertImagesConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = InterBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        width = config.num_pictures * config.trunk.pooled_width
        self.head = Classifier(width, width, config.num_labels, config.trunk.act)
        init_bert(self.head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> EncodedPair:
        """Returns the input of the head; arguments as for the trunk."""
        encoded: EncodedPair = self.trunk(inputs, pack=pack)
        return encoded

    def label_logits(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "examples C"]:
        """Returns logits over labels; each ``num_pictures`` consecutive rows are one example."""
        rows = side_by_side(self.dropout(pooled), self.config.num_pictures)
        logits: Float[Tensor, "examples C"] = self.head(rows)
        return logits
