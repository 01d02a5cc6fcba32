"""ViLBERT (Lu et al., arXiv:1908.02265): two streams with co-attention between them.

B pairs, T tokens, R regions, N rows of a stream, H its width (Ht of the text, Hv of the regions), P
width of co-attention and of the pooled vectors. Row 0 of the regions is the full image (IMG): the
mean feature with the location (0, 0, 1, 1, 1).
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.layers.blocks import CoAttentionBlock, config_layers, init_bert, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Pooler
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.layers.pair_heads import EncodedPair, PairHeads, fuse
from vlmill.models.positions import Cells, Positions, find_positions, first_cells, shift_positions
from vlmill.models.vilbert.config import VilbertConfig


class Stream(NamedTuple):
    """Holds sequences between layers of the network.

    projected: their queries, keys and values for the first co-attention, if they were computed in
    advance (`Vilbert.projected_text`).
    """

    hidden: Float[Tensor, "*rows H"]
    layout: Layout
    projected: Float[Tensor, "*rows three_P"] | None = None

    def take(self, which: Int[Tensor, " P"]) -> "Stream":
        """Returns the sequences with these numbers, repeated as often as a number occurs.

        Waits for the device if they are packed.
        """
        mask, shape = self.layout.key_mask, (len(which), self.layout.shape[1])
        layout = Layout(shape)
        if mask is not None:
            is_packed = self.layout.real is not None
            mask = mask[which]
            layout = make_layout(mask, find_positions(mask) if is_packed else None, pack=is_packed)
        hidden, projected = (
            None if rows is None else layout.pack(self.layout.unpack(rows)[which])
            for rows in (self.hidden, self.projected)
        )
        assert hidden is not None
        return Stream(hidden, layout, projected)

    def pooled_alone(self) -> "Stream":
        """Marks that only the first position of each sequence is read after the last layer."""
        first = first_cells(self.layout.shape, self.hidden)
        return self._replace(layout=self.layout._replace(read=first))


class Vilbert(PairHeads):
    """Holds two streams with co-attention layers between, and three pretraining heads (fig. 1)."""

    needs_regions = True
    config: VilbertConfig

    def __init__(self, config: VilbertConfig) -> None:
        super().__init__(
            config,
            (config.width, config.visual_width),
            config.co_width,
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
        self.task_table = nn.Embedding(config.num_tasks, config.width) if config.num_tasks else None
        # The released code applies the text's dropout rate to regions here.
        self.region_embedding = RegionEmbedding(
            config.region_width, config.visual_width, config.dropout
        )
        self.text_layers = config_layers(config, config.num_layers)
        self.visual_layers = config_layers(config, config.visual_num_layers, "visual_")
        self.co_layers = nn.ModuleList(_co_layer(config) for _ in config.text_co_layers)
        self.text_pooler = Pooler(config.width, config.co_width, "relu")
        self.visual_pooler = Pooler(config.visual_width, config.co_width, "relu")
        widths = (config.visual_width, config.width) if config.keep_unused else ()
        self.unused = nn.ModuleList(
            nn.ModuleList(Unused(config.co_width, width, config.init_std) for width in widths)
            for _ in self.co_layers
        )
        init_bert(self, config.init_std)

    def encode(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        regions: Float[Tensor, "B R Hv"],
        region_mask: Bool[Tensor, "B R"],
        *,
        segments: Int[Tensor, "B T"] | None = None,
        task: Int[Tensor, " B"] | None = None,
        real: Cells | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> EncodedPair:
        """Encodes texts together with embedded regions; arguments as in `VLInputs`.

        ``task`` is each pair's task number. Raises ValueError for a task without a token.
        """
        text = self.read_text(
            tokens,
            token_mask,
            segments,
            task=task,
            real=real and real.text,
            read=read and read.text,
            pack=pack,
        )
        stream = self.read_regions(
            regions, region_mask, real=real and real.regions, read=read and read.regions, pack=pack
        )
        return self.join(text, stream)

    def embed_regions(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        *,
        real: Positions | None = None,
    ) -> Float[Tensor, "B R Hv"]:
        """Embeds regions for the layers; without gradient if layers are frozen.

        ``real``: as in `RegionEmbedding`.
        """
        with torch.set_grad_enabled(
            torch.is_grad_enabled() and not self.config.frozen_visual_layers
        ):
            embedded: Float[Tensor, "B R Hv"] = self.region_embedding(
                features, locations, real=real
            )
        return embedded

    def read_text(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        task: Int[Tensor, " B"] | None = None,
        real: Positions | None = None,
        read: Positions | None = None,
        pack: bool = True,
    ) -> Stream:
        """Runs texts up to the first co-attention; the result is the same for all images.

        Retrieval reads each text and each image once, then selects pairs with `Stream.take` and
        joins them with `join`.
        """
        frozen = self.config.frozen_text_layers
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            hidden = self.text_embedding(
                tokens, 0 if segments is None else segments, self._task_token(task)
            )
            if self.task_table is not None:
                real, read = (
                    None if positions is None else _with_task(positions, token_mask.shape)
                    for positions in (real, read)
                )
                token_mask = torch.cat([token_mask[:, :1], token_mask], dim=1)
            layout = make_layout(token_mask, real, read=read, pack=pack)
            hidden = _run(self.text_layers, range(frozen), layout.pack(hidden), layout)
        start = range(frozen, self.config.text_co_layers[0])
        return Stream(_run(self.text_layers, start, hidden, layout), layout)

    def _task_token(self, task: Int[Tensor, " B"] | None) -> Float[Tensor, "B 1 Ht"] | None:
        if (task is None) != (self.task_table is None):
            raise ValueError(
                f"task is {'missing' if task is None else 'given'}, but num_tasks="
                f"{self.config.num_tasks}; a model with task tokens needs one for each pair"
            )
        return None if task is None or self.task_table is None else self.task_table(task)[:, None]

    def read_regions(
        self,
        embedded: Float[Tensor, "B R Hv"],
        region_mask: Bool[Tensor, "B R"],
        *,
        real: Positions | None = None,
        read: Positions | None = None,
        pack: bool = True,
    ) -> Stream:
        """Runs embedded regions up to the first co-attention; indices as in `read_text`."""
        layout = make_layout(region_mask, real, read=read, pack=pack)
        frozen = self.config.frozen_visual_layers
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            hidden = _run(self.visual_layers, range(frozen), layout.pack(embedded), layout)
        start = range(frozen, self.config.visual_co_layers[0])
        return Stream(_run(self.visual_layers, start, hidden, layout), layout)

    def projected_text(self, text: Stream) -> Stream:
        """Adds the texts' projections for the first co-attention, to join the texts many times."""
        if not self.config.co_attention:
            return text
        first = cast(CoAttentionBlock, self.co_layers[0])
        return text._replace(projected=first.attention.second_qkv(text.hidden))

    def projected_regions(self, regions: Stream) -> Stream:
        """Adds the regions' projections for the first co-attention, like `projected_text`."""
        if not self.config.co_attention:
            return regions
        first = cast(CoAttentionBlock, self.co_layers[0])
        return regions._replace(projected=first.attention.first_qkv(regions.hidden))

    def pool_text(self, text: Stream) -> Float[Tensor, "B P"]:
        """Returns the pooled vectors of texts that were read, without co-attention."""
        span = range(self.config.text_co_layers[0], self.config.num_layers - 1)
        hidden = _run(self.text_layers, span, text.hidden, text.layout)
        pooled: Tensor = self.text_pooler(
            run_layers([self.text_layers[-1]], hidden, text.layout)[:, 0]
        )
        return pooled

    def pool_regions(self, regions: Stream) -> Float[Tensor, "B P"]:
        """Returns the pooled vectors of images that were read, without co-attention."""
        span = range(self.config.visual_co_layers[0], self.config.visual_num_layers - 1)
        hidden = _run(self.visual_layers, span, regions.hidden, regions.layout)
        pooled: Tensor = self.visual_pooler(
            run_layers([self.visual_layers[-1]], hidden, regions.layout)[:, 0]
        )
        return pooled

    def join(self, text: Stream, regions: Stream) -> EncodedPair:
        """Runs the remaining layers: each Co-TRM, then each stream's own layers (fig. 1)."""
        t, v, config = text.hidden, regions.hidden, self.config
        has_task = self.task_table is not None
        text_spans = _spans(config.text_co_layers, config.num_layers - 1)
        visual_spans = _spans(config.visual_co_layers, config.visual_num_layers - 1)
        projected = (regions.projected, text.projected)
        for co_layer, text_span, visual_span in zip(
            self.co_layers, text_spans, visual_spans, strict=True
        ):
            if config.co_attention:
                v, t = co_layer(v, regions.layout, t, text.layout, projected)
                projected = (None, None)
            v = _run(self.visual_layers, visual_span, v, regions.layout)
            t = _run(self.text_layers, text_span, t, text.layout)
        t = run_layers([self.text_layers[-1]], t, text.layout)
        v = run_layers([self.visual_layers[-1]], v, regions.layout)
        text_pooled, region_pooled = self.text_pooler(t[:, 0]), self.visual_pooler(v[:, 0])
        return EncodedPair(
            text=torch.cat([t[:, :1], t[:, 2:]], dim=1) if has_task else t,
            regions=v,
            pooled=fuse(text_pooled, region_pooled, config.fusion),
            text_pooled=text_pooled,
            region_pooled=region_pooled,
            task=t[:, 1] if has_task else None,
        )


def _co_layer(config: VilbertConfig) -> CoAttentionBlock:
    """Builds a Co-TRM, regions first. Rates on attention weights belong to the keys' stream."""
    return CoAttentionBlock(
        (config.visual_width, config.width),
        config.co_width,
        config.co_num_heads,
        (config.visual_intermediate_width, config.intermediate_width),
        (config.visual_dropout, config.dropout),
        (config.attention_dropout, config.visual_attention_dropout),
        (config.visual_act, config.act),
    )


def _with_task(positions: Positions, shape: Sequence[int]) -> Positions:
    """Shifts indices for a task token that was inserted after each text's first position."""
    rows, columns = shape
    shift = (positions % columns > 0).to(positions.dtype)
    tasks = first_cells((rows, columns + 1), positions) + 1
    return (
        torch.cat([shift_positions(positions, columns, columns + 1, 0) + shift, tasks])
        .sort()
        .values
    )


def _spans(ids: Sequence[int], end: int) -> list[range]:
    """Returns the ranges of layers between co-attention layers, and from the last to ``end``."""
    ends = [*ids[1:], end]
    return [range(start, end) for start, end in zip(ids, ends, strict=True)]


def _run(
    layers: nn.ModuleList, span: range, hidden: Float[Tensor, "*rows H"], layout: Layout
) -> Float[Tensor, "*rows H"]:
    for number in span:
        hidden = layers[number](hidden, layout)
    return hidden


class Unused(nn.Module):
    """Holds tensors of a linear layer that released checkpoints have and no computation reads."""

    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, out_width: int, std: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(out_width, width) * std)
        self.register_buffer("bias", torch.zeros(out_width))
