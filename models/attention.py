"""Multi-head attention over one sequence.  B sequences, N positions, H width."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Scaled dot-product self-attention (Vaswani et al., arXiv:1706.03762, sec. 3.2).

    Query, key and value come from one product; ``dropout`` falls on the attention weights.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(
                f"width {width} is no multiple of num_heads {num_heads}; each head takes an "
                "equal share of the width"
            )
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, hidden: Float[Tensor, "B N H"], key_mask: Bool[Tensor, "B N"] | None
    ) -> Float[Tensor, "B N H"]:
        """Attend from every position to those where ``key_mask`` is True (None: to all).

        A sequence needs one True at least: without any key the softmax is undefined.
        """
        # [B, N, 3, heads, H/heads] -> three of [B, heads, N, H/heads]
        q, k, v = (
            self.qkv(hidden).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            # Broadcast over heads and queries: B x N booleans instead of B x heads x N x N floats.
            attn_mask=None if key_mask is None else key_mask[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        merged: Float[Tensor, "B N H"] = self.out(mixed.transpose(1, 2).flatten(2))
        return merged
