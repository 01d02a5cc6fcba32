"""Defines ViLBERT's baseline, BERT over text and regions (Lu et al., arXiv:1908.02265, sec. 4.1).

B pairs, T tokens, R regions, D feature width, H width. Text first, then the regions, whose row 0 is
the full image as in ViLBERT. The paper does not specify the pooled vector; the code has BERT's tanh
pooler of [CLS], without the image's row.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.layers.blocks import config_layers, init_bert, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.packing import make_layout
from vlmill.models.layers.pair_heads import EncodedPair, PairHeads
from vlmill.models.positions import Cells, Positions
from vlmill.models.vilbert.config import SingleStreamConfig

IMAGE_TYPE = 1  # the row of the regions' own type table


class SingleStream(PairHeads):
    """Holds one stack of layers over text and regions, with ViLBERT's pretraining heads."""

    config: SingleStreamConfig

    def __init__(self, config: SingleStreamConfig) -> None:
        super().__init__(config, (config.width, config.width), config.width)
        # The released code gives all three tables a padding row, so that position 0 and segment 0
        # keep BERT's values.
        self.text_embedding = TextEmbedding(
            config.vocab_size,
            config.num_positions,
            config.num_segments,
            config.width,
            config.dropout,
            padding_id=0,
            fixed_first_rows=True,
        )
        self.region_embedding = RegionEmbedding(config.region_width, config.width, config.dropout)
        self.region_type = nn.Embedding(config.num_segments, config.width)
        self.layers = config_layers(config, config.num_layers)
        self.pooler = Pooler(config.width)
        init_bert(self, config.init_std)

    def embed_regions(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        *,
        real: Positions | None = None,
    ) -> Float[Tensor, "B R H"]:
        """Embeds regions for the layers, once for all texts of an image.

        ``real``: as in `RegionEmbedding`.
        """
        embedded: Float[Tensor, "B R H"] = self.region_embedding(
            features, locations, self.region_type.weight[IMAGE_TYPE], real
        )
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
        """Encodes texts together with embedded regions; arguments as in `VLInputs`."""
        text = self.text_embedding(tokens, 0 if segments is None else segments)
        columns = (tokens.shape[1], regions.shape[1])
        mask = torch.cat([token_mask, region_mask], dim=1)
        real_positions, read_positions = (
            cells and cells.joined(*columns) for cells in (real, read)
        )
        layout = make_layout(mask, real_positions, read=read_positions, pack=pack)
        hidden = run_layers(self.layers, layout.pack(torch.cat([text, regions], dim=1)), layout)
        pooled = self.pooler(hidden[:, 0])
        return EncodedPair(
            text=hidden[:, : tokens.shape[1]],
            regions=hidden[:, tokens.shape[1] :],
            pooled=pooled,
            text_pooled=pooled,
            region_pooled=None,
        )
