"""VLMo (Bao et al., arXiv:2111.02358): one transformer whose feed-forward parts are experts.

Attention is shared; each layer has a feed-forward expert for text and one for images, the top
layers one more for both together. So the same weights serve as a dual encoder (each modality with
its own experts) and a fusion encoder.

B pairs, C candidates, T tokens, M = N + 1 image positions (class token, patches), S pixels a side,
H width, L layers, h heads, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmill.models.inputs import PixelInputs, check_texts
from vlmill.models.layers.blocks import init_bert
from vlmill.models.layers.heads import MlmHead
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.layers.relative_position import Biases
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Positions, first_cells
from vlmill.models.vlmo.config import VlmoConfig
from vlmill.models.vlmo.encoder import VlmoEncoder, init_encoder

FIRST_SCALE = math.log(1 / 0.07)  # of the contrastive logits, as in CLIP (arXiv:2103.00020)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Holds unit vectors of one modality, and of the second contrastive pair if there is one."""

    unimodal: Float[Tensor, "B H"]
    fused: Float[Tensor, "B H"] | None = None


class Vlmo(nn.Module):
    """Holds the encoder and the pretraining heads that the configuration selects."""

    def __init__(self, config: VlmoConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.encoder = VlmoEncoder(config)
        if config.contrast:
            pairs = ("text", "image", "fused_text", "fused_image")[: 2 * config.num_contrast_pairs]
            self.contrast_heads = nn.ModuleDict(
                {name: nn.Linear(width, width, bias=False) for name in pairs}
            )
            self.log_scale = nn.Parameter(torch.tensor(FIRST_SCALE))
            if config.num_contrast_pairs == 2:
                self.fused_log_scale = nn.Parameter(torch.tensor(FIRST_SCALE))
        if config.match:
            self.match_head = nn.Linear(width, 2)
        if config.mlm:
            self.mlm_head = MlmHead(width, config.vocab_size)
            self.mlm_decoder = nn.Linear(width, config.vocab_size, bias=False)
        init_bert(self, config.init_std)
        init_encoder(self.encoder)

    def forward(self, inputs: PixelInputs, *, pack: bool = True) -> Encoded:
        """Runs the fusion encoder over pairs: text first, then the image.

        Padding costs nothing and is returned as zeros; with ``pack=False`` it is computed too.
        Raises ValueError for more tokens than ``max_text_tokens``, another size of image and, on
        the CPU, invalid values (`PixelInputs.validate`).
        """
        inputs.check(vocab_size=self.config.vocab_size)
        text = self.encoder.embed_text(inputs.tokens)
        image = self.encoder.embed_image(inputs.pixels)
        return self.encoder.fuse(text, inputs.token_mask, image, real=inputs.real_tokens, pack=pack)

    def contrast_text(
        self,
        embedded: Float[Tensor, "B T H"],
        token_mask: Bool[Tensor, "B T"],
        *,
        real: Positions | None = None,
        bias: Biases | None = None,
        pack: bool = True,
    ) -> Contrast:
        """Returns embedded texts' vectors (sec. 3.3); gathers `text_bias` without ``bias``.

        ``real``: the indices that ``token_mask`` marks.
        """
        if bias is None:
            bias = self.encoder.text_bias(embedded.shape[1])
        return self._contrast("text", embedded, make_layout(token_mask, real, pack=pack), bias)

    def contrast_image(
        self, embedded: Float[Tensor, "B M H"], *, bias: Biases | None = None
    ) -> Contrast:
        """Returns embedded images' vectors (sec. 3.3); gathers `image_bias` without ``bias``."""
        if bias is None:
            bias = self.encoder.image_bias()
        layout = Layout((embedded.shape[0], embedded.shape[1]))
        return self._contrast("image", embedded, layout, bias)

    def _contrast(
        self, modality: str, embedded: Tensor, layout: Layout, bias: Biases | None
    ) -> Contrast:
        pairs = self.config.num_contrast_pairs
        layout = layout._replace(read=first_cells(layout.shape, embedded))
        alone, fused = self.encoder.encode_one(
            modality, embedded, layout, bias, also_fused=pairs == 2
        )
        return Contrast(
            unimodal=self._unit(modality, alone),
            fused=None if fused is None else self._unit(f"fused_{modality}", fused),
        )

    def _require_heads(self, *heads: str) -> None:
        """Raises ValueError if the configuration omits one of these heads."""
        for head in heads:
            if not getattr(self.config, head):
                raise ValueError(f"{head}=False: this VLMo has no such head; build it with one")

    def _unit(self, head: str, hidden: Float[Tensor, "B N H"]) -> Float[Tensor, "B H"]:
        self._require_heads("contrast")
        # In float32 under autocast too: bfloat16 vectors have lengths from 0.998 to 1.002.
        return F.normalize(self.contrast_heads[head](hidden[:, 0]).float(), dim=-1)

    def encode_text(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B T H"]:
        """Returns last hidden states of texts only, as in the text-only stage (sec. 3.4).

        ``real``: the indices that ``token_mask`` marks. A GPU packs only with them. Raises
        ValueError for masks of another shape or more tokens than ``max_text_tokens``.
        """
        check_texts(tokens, token_mask)
        embedded = self.encoder.embed_text(tokens)
        bias = self.encoder.text_bias(tokens.shape[1])
        layout = make_layout(token_mask, real, pack=pack)
        return self.encoder.encode_one("text", embedded, layout, bias)[0]

    def encode_image(self, pixels: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B M H"]:
        """Returns last hidden states of images only."""
        embedded = self.encoder.embed_image(pixels)
        layout = Layout((embedded.shape[0], embedded.shape[1]))
        return self.encoder.encode_one("image", embedded, layout, self.encoder.image_bias())[0]

    def text_vectors(
        self,
        tokens: Int[Tensor, "B T"],
        token_mask: Bool[Tensor, "B T"],
        *,
        real: Positions | None = None,
        pack: bool = True,
    ) -> Float[Tensor, "B H"]:
        """Returns the dual encoder's vectors of texts: products with images' rank (sec. 4.3)."""
        return self._unit("text", self.encode_text(tokens, token_mask, real=real, pack=pack))

    def image_vectors(self, pixels: Float[Tensor, "B 3 S S"]) -> Float[Tensor, "B H"]:
        """Returns the dual encoder's vectors of images."""
        return self._unit("image", self.encode_image(pixels))

    def fused_scale(self) -> Float[Tensor, ""] | None:
        """Returns the second contrastive pair's scale, if there is one."""
        return self.fused_log_scale.exp() if self.config.num_contrast_pairs == 2 else None

    def mlm_logits(self, text_hidden: Float[Tensor, "*K H"]) -> Float[Tensor, "*K V"]:
        """Returns logits over the vocabulary at labelled positions (masked language modelling).

        Raises ValueError without that head, like the next two methods.
        """
        self._require_heads("mlm")
        logits: Float[Tensor, "*K V"] = self.mlm_head(text_hidden, self.mlm_decoder.weight)
        return logits

    def match_logits(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Returns logits of two classes; class 1 is pairs that belong together."""
        self._require_heads("match")
        logits: Float[Tensor, "B 2"] = self.match_head(pooled)
        return logits

    def match_logit(self, pooled: Float[Tensor, "B H"]) -> Float[Tensor, " B"]:
        """Returns log odds that a pair belongs together: the difference of the two logits."""
        logits = self.match_logits(pooled)
        return logits[:, 1] - logits[:, 0]
