"""Defines VL-BERT's encoder and its region vectors (Su et al., arXiv:1908.08530, sec. 3, figure 1).

B samples, T tokens, R regions (the full image in row 0), D a feature's width, V a region vector's,
H the width of the encoder, G of the geometry embedding, N = T + R + 1 elements with padding, S
without.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs, check_dtype
from vlmill.models.layers.blocks import config_layers, init_bert, layer_norm, run_layers
from vlmill.models.layers.embeddings import TextEmbedding
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.operators import Dropout, Linear
from vlmill.models.layers.packing import Compaction, compact, make_layout
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Cells, Positions, concatenate_positions
from vlmill.models.vlbert.config import NUM_SPECIAL_WORDS, VISUAL_SEGMENT, Geometry, VlBertConfig

LONGEST_WAVE = 1000.0
PERCENT = 100.0


def box_numbers(
    locations: Float[Tensor, "*rows 5"], geometry: Geometry = "centre"
) -> Float[Tensor, "*rows 4"]:
    """Returns four numbers for the position of a box, in hundredths of the image's sides.

    ``locations`` as in `VLInputs`: corners as fractions, and area.
    """
    corners = locations[..., :4]
    if geometry == "corners":
        return corners * PERCENT
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], dim=-1) * PERCENT


def geometry_embedding(
    numbers: Float[Tensor, "*rows 4"], num_wavelengths: int = 256
) -> Float[Tensor, "*rows G"]:
    """Returns sines, then cosines, of numbers at wavelengths 1000^(j / J) (sec. 3.2, code).

    Gives G = 4 * 2J values: for each number J sines and J cosines, J = ``num_wavelengths``.
    """
    steps = torch.arange(num_wavelengths, dtype=numbers.dtype, device=numbers.device)
    angles = numbers[..., None] / LONGEST_WAVE ** (steps / num_wavelengths)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class RegionVectors(nn.Module):
    """Computes r = ReLU(W dropout([geometry; appearance])) of each region (sec. 3.2)."""

    def __init__(self, config: VlBertConfig) -> None:
        super().__init__()
        self.config = config
        self.geometry_width = 8 * config.num_wavelengths
        self.dropout = Dropout(config.dropout)
        self.projection = Linear(self.geometry_width + config.region_width, config.vector_width)

    def forward(
        self, features: Float[Tensor, "*rows D"], locations: Float[Tensor, "*rows 5"]
    ) -> Float[Tensor, "*rows V"]:
        """Computes the vector of each region."""
        config = self.config
        check_dtype("region_features", features, self.projection.weight)
        geometry = geometry_embedding(
            box_numbers(locations, config.geometry), config.num_wavelengths
        )
        joined = torch.cat([geometry.to(features.dtype), features], dim=-1)
        return F.relu(self.projection(self.dropout(joined)))


class VisualInput(nn.Module):
    """Projects a visual vector to an element's width (V to H, if they differ) and scales it.

    The scale is a layer norm's gain or one learned factor, initially ``start``.
    """

    def __init__(self, config: VlBertConfig, start: float) -> None:
        super().__init__()
        vector, width = config.vector_width, config.width
        self.start = start
        self.projection = Linear(vector, width) if vector != width else None
        self.norm = layer_norm(width) if config.visual_norm else None
        self.scale = None if config.visual_norm else nn.Parameter(torch.tensor(start))

    def restart(self, start: float) -> None:
        """Sets the scale to ``start`` again."""
        scale = self.scale if self.norm is None else self.norm.weight
        assert scale is not None
        nn.init.constant_(scale, start)

    def forward(self, vectors: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows H"]:
        """Projects and scales each vector."""
        x: Tensor = vectors if self.projection is None else self.projection(vectors)
        if self.scale is not None:
            return x * self.scale
        assert self.norm is not None
        normed: Float[Tensor, "*rows H"] = self.norm(x)
        return normed


class VlBertBody(nn.Module):
    """Holds everything below the heads, for pretraining and for the tasks."""

    def __init__(self, config: VlBertConfig) -> None:
        super().__init__()
        self.config = config
        width, vector = config.width, config.vector_width
        self.region_vectors = RegionVectors(config)
        self.region_token = nn.Embedding(1, width)  # [IMG]
        masking = config.masked_region
        self.masked_feature = (
            nn.Embedding(1, config.region_width) if masking == "appearance" else None
        )
        self.masked_vector = nn.Embedding(1, vector) if masking == "vector" else None
        has_token = config.masked_classes and masking in ("appearance", "pixels")
        self.masked_token = nn.Embedding(1, width) if has_token else None
        self.text_only_vector = nn.Embedding(1, vector) if config.text_only else None
        self.text_embedding = TextEmbedding(
            config.vocab_size, config.num_positions, config.num_segments, width, config.dropout
        )
        self.special_words = nn.Embedding(NUM_SPECIAL_WORDS, width) if config.frozen_words else None
        self.end_token = nn.Embedding(1, width)
        self.text_visual = VisualInput(config, config.visual_scale_text)
        self.region_visual = VisualInput(config, config.visual_scale_region)
        self.layers = config_layers(config, config.num_layers)
        self.pooler = Pooler(width) if config.pooler else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises weights like the released code, before BERT's are copied.

        The projection of regions keeps PyTorch's initial values, and a masked region's feature
        starts at zero.
        """
        init_bert(self, self.config.init_std)
        self.region_vectors.projection.reset_parameters()
        if self.masked_feature is not None:
            nn.init.zeros_(self.masked_feature.weight)
        for visual in (self.text_visual, self.region_visual):
            visual.restart(visual.start)
        tables = self.text_embedding
        tables.word.weight.requires_grad_(not self.config.frozen_words)
        tables.position.weight.requires_grad_(not self.config.frozen_positions)
        if self.special_words is not None:
            self.special_words.weight.data.copy_(tables.word.weight[:NUM_SPECIAL_WORDS].detach())

    @torch.no_grad()
    def standardise_regions(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Initialises new weights as if the features had mean 0 and variance 1.

        The network can compute the same functions; the feature of masked regions starts from
        ``mean``.
        """
        vectors = self.region_vectors
        appearance = vectors.projection.weight[:, vectors.geometry_width :]
        appearance.div_(std)
        vectors.projection.bias.sub_(appearance @ mean)
        if self.masked_feature is not None:
            self.masked_feature.weight.mul_(std).add_(mean)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes text, regions and [END] (figure 1); without regions, text only.

        Padding costs nothing and is returned as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for more tokens than ``max_text_tokens``, another feature width and, on
        the CPU, invalid values (`VLInputs.check`).
        """
        inputs.check(
            vocab_size=self.config.vocab_size,
            num_segments=self.config.num_segments,
            need_regions=False,
        )
        vectors = self.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            inputs.region_mask,
            inputs.masked_regions,
            real=inputs.real_regions,
            pack=pack,
        )
        return self.encode(
            inputs.tokens,
            inputs.token_mask,
            vectors,
            inputs.region_mask,
            segments=inputs.segments,
            masked_regions=inputs.masked_regions,
            text_regions=inputs.text_regions,
            real=inputs.real,
            read=inputs.read,
            pack=pack,
        )

    def embed_regions(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        region_mask: Bool[Tensor, "B R"] | None = None,
        masked_regions: Bool[Tensor, "B R"] | None = None,
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B R V"]:
        """Returns the regions' vectors r, zeros at padding, once for all texts of an image.
        ``real``: the indices that ``region_mask`` marks.
        """
        if features.shape[-1] != self.config.region_width:
            raise ValueError(
                f"region_features are {features.shape[-1]} wide, the model takes "
                f"{self.config.region_width}; set region_width or use that detector's regions"
            )
        if region_mask is None:
            region_mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        layout = make_layout(region_mask, real, pack=pack)
        rows = layout.pack(features)
        masked = None
        if masked_regions is not None:
            masked = layout.pack(masked_regions[..., None])
            if self.masked_feature is not None:
                rows = torch.where(masked, self.masked_feature.weight, rows)
        vectors: Tensor = self.region_vectors(rows, layout.pack(locations))
        if masked is not None and self.masked_vector is not None:
            vectors = torch.where(masked, self.masked_vector.weight, vectors)
        return layout.unpack(vectors).masked_fill(~region_mask[..., None], 0.0)

    def encode(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        regions: Float[Tensor, "B R V"],
        region_mask: Bool[Tensor, "B R"],
        *,
        segments: Int[Tensor, "B T"] | None = None,
        masked_regions: Bool[Tensor, "B R"] | None = None,
        text_regions: Int[Tensor, "B T"] | None = None,
        real: Cells | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> Encoded:
        """Encodes texts with the vectors of `embed_regions`; arguments as in `VLInputs`."""
        region_tokens = self.region_token.weight.expand(*region_mask.shape, -1)
        if masked_regions is not None and self.masked_token is not None:
            region_tokens = torch.where(
                masked_regions[..., None], self.masked_token.weight, region_tokens
            )
        return self.encode_elements(
            tokens,
            token_mask,
            self._vectors_of_text(regions, region_mask, text_regions),
            region_tokens,
            regions,
            region_mask,
            segments=segments,
            real=real,
            read=read,
            pack=pack,
        )

    def encode_elements(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        text_vectors: Float[Tensor, "B T1 V"],
        region_tokens: Float[Tensor, "B R H"],
        region_vectors: Float[Tensor, "B R V"],
        region_mask: Bool[Tensor, "B R"],
        *,
        segments: Int[Tensor, "B T"] | None = None,
        real: Cells | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> Encoded:
        """Encodes elements whose tokens and visual vectors are given.

        ``text_vectors`` has one vector per token, or one for all of a sample's tokens (T1 = 1).
        """
        if not 0 < tokens.shape[1] <= self.config.max_text_tokens:
            raise ValueError(
                f"tokens has {tokens.shape[1]} positions, expected 1 to max_text_tokens="
                f"{self.config.max_text_tokens}; cut the texts at the end, keeping [SEP]"
            )
        words = self._words(tokens) + self.text_visual(text_vectors)
        regions = region_tokens + self.region_visual(region_vectors)
        ends = self.end_token.weight.expand(tokens.shape[0], 1, -1)
        if self.config.end_visual:
            ends = ends + self.text_visual(text_vectors[:, :1])
        elements = torch.cat([words, regions, ends], dim=1)
        elements = elements + self._embed_positions(token_mask, region_mask, segments)
        compaction = self._compacted(token_mask, region_mask, real, read, pack=pack)
        hidden = self._start(compaction, elements)
        grid = run_layers(self.layers, hidden, compaction.layout)
        states = compaction.put_back(grid)
        return Encoded(
            text=states[:, : tokens.shape[1]],
            regions=states[:, tokens.shape[1] : -1],
            pooled=self.pooler(grid[:, 0]),
        )

    def _compacted(
        self,
        token_mask: Bool[Tensor, "B T"],
        region_mask: Bool[Tensor, "B R"],
        real: Cells | None,
        read: Cells | None,
        *,
        pack: bool,
    ) -> Compaction:
        """Compacts texts, regions and [END], without the padding between them."""
        mask = torch.cat(
            [token_mask, region_mask, token_mask.new_ones(token_mask.shape[0], 1)], dim=1
        )
        columns, real_positions, slots_read = (
            (token_mask.shape[1], region_mask.shape[1]),
            None,
            None,
        )
        if real is not None:
            ends = torch.arange(mask.shape[0], device=mask.device)
            parts = zip(real, columns, strict=True)
            real_positions = concatenate_positions([*parts, (ends, 1)])
        if read is not None:  # [END] is never read
            slots_read = read.joined(*columns, width=mask.shape[1])
        return compact(mask, real_positions, read=slots_read, pack=pack)

    def _vectors_of_text(
        self,
        regions: Float[Tensor, "B R V"],
        region_mask: Bool[Tensor, "B R"],
        text_regions: Int[Tensor, "B T"] | None,
    ) -> Float[Tensor, "B T1 V"]:
        """Returns vectors of the regions that tokens refer to; else the image's or the text-only
        one.
        """
        if text_regions is not None:
            return regions.gather(1, text_regions[..., None].expand(-1, -1, regions.shape[-1]))
        if not regions.shape[1]:
            region_mask = region_mask.new_zeros(region_mask.shape[0], 1)
            regions = regions.new_zeros(regions.shape[0], 1, regions.shape[2])
        image_vectors = regions[:, :1]
        if self.text_only_vector is None:
            return image_vectors
        return torch.where(region_mask[:, :1, None], image_vectors, self.text_only_vector.weight)

    def _words(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T H"]:
        words: Tensor = self.text_embedding.word(tokens)
        if self.special_words is None:
            return words
        special = self.special_words(tokens.clamp(max=NUM_SPECIAL_WORDS - 1))
        return torch.where((tokens < NUM_SPECIAL_WORDS)[..., None], special, words)

    def _embed_positions(
        self,
        token_mask: Bool[Tensor, "B T"],
        region_mask: Bool[Tensor, "B R"],
        segments: Int[Tensor, "B T"] | None,
    ) -> Float[Tensor, "B N H"]:
        """Adds position and segment of every element: regions share the position after the text."""
        ranks = token_mask.cumsum(dim=1)
        length = ranks[:, -1:]
        position_ids = [
            (ranks - 1).clamp(min=0),
            length.expand(-1, region_mask.shape[1]),
            length + 1,
        ]
        positions = self.text_embedding.position(
            torch.cat(position_ids, dim=1) + self.config.position_offset
        )
        if segments is None:
            segments = torch.zeros_like(ranks)
        visual = segments.new_full((segments.shape[0], region_mask.shape[1] + 1), VISUAL_SEGMENT)
        located: Tensor = positions + self.text_embedding.segment(torch.cat([segments, visual], 1))
        return located

    def _start(
        self, compaction: Compaction, elements: Float[Tensor, "B N H"]
    ) -> Float[Tensor, "*rows H"]:
        """Returns the first layer's input. Padding has a position and segment A, as released."""
        tables, layout = self.text_embedding, compaction.layout
        rows = compaction.take(elements)
        if layout.real is None and layout.key_mask is not None:
            cells = torch.arange(layout.shape[1], device=rows.device) + self.config.position_offset
            padding = tables.position(cells.clamp(max=self.config.num_positions - 1))
            rows = torch.where(layout.key_mask[..., None], rows, padding + tables.segment.weight[0])
        started: Float[Tensor, "*rows H"] = tables.dropout(tables.norm(rows))
        return started
