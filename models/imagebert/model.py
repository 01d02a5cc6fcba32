"""ImageBERT (Qi et al., arXiv:2001.07966): one stream over text and regions.

B pairs, T tokens, R regions, N labelled positions, H width, V vocabulary, K region classes, D
feature width. The paper has no released code: details that it does not specify are marked [choice].
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.convert.keymap import Link, link_module
from vlmill.models.convert.names import (
    POOLER,
    layers_from_bert,
    mlm_head_links,
    text_embedding_links,
)
from vlmill.models.imagebert.config import (
    ImageBertClassifierConfig,
    ImageBertConfig,
    ImageBertRetrievalConfig,
)
from vlmill.models.inputs import VLInputs, check_dtype
from vlmill.models.layers.blocks import config_layers, init_bert, run_layers
from vlmill.models.layers.embeddings import RegionEmbedding, TextEmbedding
from vlmill.models.layers.heads import Classifier, MlmHead, Pooler
from vlmill.models.layers.operators import Linear
from vlmill.models.layers.packing import make_layout
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Cells, Positions, concatenate_positions

TEXT_SEGMENT, IMAGE_SEGMENT = 0, 1  # [choice] the two rows of BERT's segment table
FULL_IMAGE = (0.0, 0.0, 1.0, 1.0, 1.0)  # corners and area


class ImageBert(nn.Module):
    """Holds the encoder and its four pretraining heads (sec. 3.3)."""

    def __init__(self, config: ImageBertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.text_embedding = TextEmbedding(
            config.vocab_size, config.num_positions, 2, width, config.dropout
        )
        self.region_embedding = RegionEmbedding(
            config.region_width, width, config.dropout, pre_norm=config.image_pre_ln
        )
        self.global_features = nn.ModuleList(
            Linear(features, width) for features in config.global_widths
        )
        self.layers = config_layers(config, config.num_layers)
        self.mlm_head = MlmHead(width, config.vocab_size)
        self.class_head = Linear(width, config.num_region_classes)
        self.feature_head = Linear(width, config.region_width)
        self.pooler = Pooler(width) if config.itm_pooler else nn.Identity()
        self.match_head = Linear(width, config.match_outputs)
        init_bert(self, config.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs: text first, then the regions (sec. 3.1, figure 1).

        Padding costs nothing and is returned as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for more tokens than ``max_text_tokens``, another feature width and, on
        the CPU, invalid values (`VLInputs.check`).
        """
        inputs.check(vocab_size=self.config.vocab_size, num_segments=None, need_regions=False)
        regions = self.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            inputs.global_features,
            real=inputs.real_regions if pack else None,
        )
        return self.encode(
            inputs.tokens,
            inputs.token_mask,
            regions,
            inputs.region_mask,
            real=inputs.real,
            read=inputs.read,
            pack=pack,
        )

    def embed_regions(
        self,
        features: Float[Tensor, "B R D"],
        locations: Float[Tensor, "B R 5"],
        global_features: Float[Tensor, "B G"] | None = None,
        *,
        real: Positions | None = None,
    ) -> Float[Tensor, "B E H"]:
        """Embeds regions, once for all texts of an image. ``real``: as in `RegionEmbedding`.

        All regions share one dummy position, so that their order has no effect (sec. 3.2). If
        configured, a row for each image-level network and one for [SEP] follow, so E >= R. Raises
        ValueError for another feature width, and if image-level features are missing.
        """
        tables, config = self.text_embedding, self.config
        offset = (
            tables.segment.weight[IMAGE_SEGMENT] + tables.position.weight[config.visual_position_id]
        )
        parts = [self.region_embedding(features, locations, offset, real)]
        if global_features is not None or self.global_features:
            parts.append(self._embed_globals(global_features, offset))
        if config.visual_sep_id is not None:
            sep = tables.norm(tables.word.weight[config.visual_sep_id] + offset)
            parts.append(tables.dropout(sep.expand(features.shape[0], 1, -1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _embed_globals(
        self, features: Float[Tensor, "B G"] | None, offset: Float[Tensor, " H"]
    ) -> Float[Tensor, "B C H"]:
        """Embeds image-level features (sec. 5.3, table 4) as regions that fill the image.

        [choice] Each network has one token and its own projection.
        """
        widths = self.config.global_widths
        width = None if features is None else features.shape[1]
        if width != (sum(widths) or None) or features is None:
            raise ValueError(
                f"global_features are {width} wide, the model takes {sum(widths)} (global_widths="
                f"{widths}); give features of the networks that it was built for"
            )
        check_dtype("global_features", features, self.text_embedding.word.weight)
        split = torch.split(features, list(widths), dim=1)
        projected = [linear(f) for linear, f in zip(self.global_features, split, strict=True)]
        stacked = torch.stack(projected, dim=1)
        image_locations = features.new_tensor(FULL_IMAGE).expand(*stacked.shape[:2], -1)
        embedded: Float[Tensor, "B C H"] = self.region_embedding.join(
            stacked, image_locations, offset
        )
        return embedded

    def encode(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        regions: Float[Tensor, "B E H"],
        region_mask: Bool[Tensor, "B R"],
        *,
        real: Cells | None = None,
        read: Cells | None = None,
        pack: bool = True,
    ) -> Encoded:
        """Encodes texts together with embedded regions; arguments as in `VLInputs`.

        Rows beyond ``region_mask`` were added by `embed_regions`: they are always real and never
        returned.
        """
        num_tokens = tokens.shape[1]
        if not 0 < num_tokens <= self.config.max_text_tokens:
            raise ValueError(
                f"tokens has {num_tokens} positions, expected 1 to max_text_tokens="
                f"{self.config.max_text_tokens}; cut the texts at the end, keeping [SEP]"
            )
        text = self.text_embedding(tokens, TEXT_SEGMENT)
        num_regions = region_mask.shape[1]
        added = region_mask.new_ones(regions.shape[0], regions.shape[1] - num_regions)
        mask = torch.cat([token_mask, region_mask, added], dim=1)
        real_positions = None
        if real is not None:
            added_positions = torch.arange(added.numel(), device=added.device)
            columns = [(real.text, num_tokens), (real.regions, num_regions)]
            real_positions = concatenate_positions([*columns, (added_positions, added.shape[1])])
        read_positions = read and read.joined(num_tokens, num_regions, width=mask.shape[1])
        layout = make_layout(mask, real_positions, read=read_positions, pack=pack)
        hidden = layout.pack(torch.cat([text, regions], dim=1))
        hidden = run_layers(self.layers, hidden, layout)
        return Encoded(
            text=hidden[:, :num_tokens],
            regions=hidden[:, num_tokens : num_tokens + num_regions],
            pooled=self.pooler(hidden[:, 0]),
        )

    @torch.no_grad()
    def standardise_regions(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Initialises new weights as if the features had mean 0 and variance 1.

        Regression of masked features starts from ``mean``; see `RegionEmbedding.standardise`.
        """
        self.region_embedding.standardise(mean, std)
        self.feature_head.bias.add_(mean)

    def mlm_logits(self, text_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Returns logits over the vocabulary at labelled positions (masked language modelling)."""
        logits: Float[Tensor, "N V"] = self.mlm_head(text_hidden, self.text_embedding.word.weight)
        return logits

    @property
    def class_decoder(self) -> nn.Linear:
        """Returns the layer whose rows are the detector's classes."""
        return self.class_head

    def region_class_logits(self, region_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N K"]:
        """Returns logits over the detector's classes (masked object classification)."""
        logits: Float[Tensor, "N K"] = self.class_head(region_hidden)
        return logits

    def region_features(self, region_hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N D"]:
        """Returns the features that were masked (masked region feature regression)."""
        features: Float[Tensor, "N D"] = self.feature_head(region_hidden)
        return features

    def match_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns log odds that text and image belong together.

        With ``match_outputs=2`` this is the difference of the two logits; the second is "belongs".
        """
        logits: Tensor = self.match_head(pooled)
        return logits[:, 0] if self.config.match_outputs == 1 else logits[:, 1] - logits[:, 0]


class ImageBertRetrieval(nn.Module):
    """Scores a pair twice: the pretrained matching logit, and a score among candidates.

    The binary loss trains the first, which also ranks at the end (the paper's best, table 4). The
    multi-class and the triplet loss train the second, one layer for both [choice].
    """

    def __init__(self, config: ImageBertRetrievalConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = ImageBert(config.trunk)
        self.score_head = nn.Linear(config.trunk.width, 1)
        init_bert(self.score_head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs as in pretraining but without masking; raises the errors of `ImageBert`."""
        encoded: Encoded = self.trunk(inputs, pack=pack)
        return encoded

    def match_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns c(t), log odds that text and image belong together."""
        return self.trunk.match_logit(pooled)

    def rank_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns the score for ranking: `match_logit` or `scores`, as configured."""
        by_score = self.config.rank_by == "score"
        return self.scores(pooled) if by_score else self.match_logit(pooled)

    def scores(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns s(t), the score of the pair among candidates."""
        scores: Float[Tensor, "B 1"] = self.score_head(pooled)
        return scores[:, 0]


class ImageBertClassifier(nn.Module):
    """Classifies a text with an image by the hidden state of [CLS].

    [choice] The paper has no such task: the head is that of ViLBERT's and InterBERT's classifiers,
    a layer with layer norm and a linear layer.
    """

    def __init__(self, config: ImageBertClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = ImageBert(config.trunk)
        self.dropout = nn.Dropout(config.dropout)
        width = config.trunk.width
        self.head = Classifier(width, width, config.num_labels)
        init_bert(self.head, config.trunk.init_std)

    def forward(self, inputs: VLInputs, *, pack: bool = True) -> Encoded:
        """Encodes pairs as in pretraining but without masking; raises the errors of `ImageBert`."""
        encoded: Encoded = self.trunk(inputs, pack=pack)
        return encoded

    def label_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B C"]:
        """Returns logits over labels."""
        logits: Float[Tensor, "B C"] = self.head(self.dropout(pooled))
        return logits


def links(model: ImageBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links text embeddings with both segments, layers, word head, and the pooler if used.

    Regions' projections, their layer norm unless configured, and the heads of classes, features and
    matching are new (arXiv:2001.07966, sec. 3.1 and 4; the word head is [choice]).
    """
    norm = link_module("region_embedding.norm", "bert.embeddings.LayerNorm")
    return [
        *text_embedding_links(),
        *layers_from_bert("layers", counts=[len(model.layers)]),
        *mlm_head_links(),
        *(link_module("pooler.dense", POOLER) if isinstance(model.pooler, Pooler) else []),
        *(norm if model.config.image_norm_from_bert else []),
    ]
