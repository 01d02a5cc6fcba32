"""InterBERT (Lin et al., arXiv:2003.13198): one stream for interaction, then one for each modality.

B pairs, T tokens, R regions, D feature width, H width, P width of the pooled vector. Row 0 of the
regions is the full image: the mean feature with the location (0, 0, 1, 1, 1). Details that neither
the paper nor the released code specifies are marked [choice].
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.config import InterBertConfig
from vlmill.models.layers.blocks import init_bert, post_norm_layers, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.packing import make_layout
from vlmill.models.layers.pair_heads import EncodedPair, PairHeads, check_modalities, fuse
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
