"""InterBERT (Lin et al., arXiv:2003.13198): one stream for interaction, then one for each modality.

B pairs, T tokens, R regions, D feature width, H width, P width of the pooled vector. Row 0 of the
regions is the full image: the mean feature with the location (0, 0, 1, 1, 1). Details that neither
the paper nor the released code specifies are marked [choice].
"""

from typing import Any

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
from vlmill.models.layers.blocks import config_layers, init_bert, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.packing import make_layout
from vlmill.models.layers.pair_heads import EncodedPair, PairClassifier, PairHeads, ScoreHeads, fuse
from vlmill.models.positions import Cells, Positions, concatenate_positions

IMAGE_SEGMENT, TEXT_SEGMENT = 0, 1  # with modality_segments


class InterBert(PairHeads):
    """Holds interaction over both modalities, extraction of each, and three pretraining heads.

    It also encodes only texts (no regions: R = 0) or only images (T = 0).
    """

    needs_text = False
    config: InterBertConfig

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(
            config,
            (config.width, config.width),
            config.pooled_width,
            regress_features=config.regress_features,
            dropout=config.head_dropout,
        )
        self.text_embedding = TextEmbedding(
            config.vocab_size,
            config.num_positions,
            config.num_segments,
            config.width,
            config.dropout,
            padding_id=0,
        )
        self.region_embedding = RegionEmbedding(config.region_width, config.width, config.dropout)
        self.interaction_layers = config_layers(config, config.num_interaction_layers)
        self.text_layers = config_layers(config, config.num_text_layers)
        self.visual_layers = config_layers(config, config.num_visual_layers, "visual_")
        self.text_pooler = Pooler(config.width, config.pooled_width, "relu")
        self.visual_pooler = Pooler(config.width, config.pooled_width, "relu")
        init_bert(self, config.init_std)

    def region_options(self, inputs: VLInputs) -> dict[str, Any]:
        """Returns whether the texts are captions."""
        return {"for_captions": inputs.segments is None}

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


class InterBertImages(PairClassifier):
    """Classifies a text with one image or several by the concatenated pooled vectors.

    [choice] The paper has no such task: the head is that of 12-in-1 for two images
    (arXiv:1912.02315), a layer as wide as both vectors and a linear layer.
    """

    def __init__(self, config: InterBertImagesConfig) -> None:
        super().__init__(config, InterBert(config.trunk), config.trunk.pooled_width)
