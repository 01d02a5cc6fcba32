"""Recorded cases of the families that read text and regions.

B pairs, T tokens, R regions. The recorded names of inputs are those of ViLBERT's code.
"""

from collections.abc import Callable
from typing import Any

import torch
from tests.parity.networks import Case
from torch import Tensor
from torch.nn import functional as F

from vlmill.models import VLInputs


def recorded_pairs(case: Case) -> VLInputs:
    """The recorded inputs; masks that were not given are all ones."""
    tokens, features = case["in.input_ids"], case["in.image_feat"]
    return VLInputs(
        tokens=tokens,
        token_mask=case.mask("in.attention_mask", tokens),
        region_features=features,
        region_locations=case["in.image_loc"],
        region_mask=case.mask("in.image_attention_mask", features[..., 0]),
        segments=case.optional("in.token_type_ids"),
    )


def own_first(scores: Tensor, own: Tensor) -> Tensor:
    """Scores [S, P, K] of candidates, of each sample its ``own`` [S] before the others."""
    others = torch.arange(scores.shape[1]) != own[:, None]
    order = others.to(torch.int64).argsort(dim=1, stable=True)
    return scores.take_along_dim(order[..., None], dim=1)


def on_grid(head: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """A head that takes rows, applied to every row of [B, N, H]."""
    return head(hidden.flatten(0, 1)).reshape(*hidden.shape[:2], -1)


def region_scores(trunk: Any, hidden: Tensor) -> Tensor:
    """What the region head gives: class logits, or features."""
    head = trunk.region_features if trunk.regress_features else trunk.region_class_logits
    return on_grid(head, hidden)


def masked_word_loss(case: Case, scores: Tensor) -> Tensor:
    """Mean cross-entropy of all labelled positions, [1]."""
    labels = case["in.masked_lm_labels"]
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-1).reshape(1)


def divergence(scores: Tensor, target: Tensor) -> Tensor:
    """KL divergence of each row's softmax from a distribution; 0 log 0 is 0."""
    return F.kl_div(scores.log_softmax(-1), target, reduction="none").sum(-1)
