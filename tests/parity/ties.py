"""Decisions that hang on near ties: two recorded scores that are closer than their tolerance.

Either order of such scores is right. A comparison takes the recorded one, and the report says how
often and how close the scores were; every other decision has to be the recorded one.
"""

import torch
from tests.parity.results import Results
from torch import Tensor


def settle(
    results: Results,
    key: str,
    mine: Tensor,
    scores_key: str,
    recorded: Tensor,
    choice: Tensor | None = None,
) -> Tensor:
    """Our choices ``mine`` [...] among C scores, near ties as recorded.

    ``recorded`` [..., C] are the reference's scores, made of the tensor ``scores_key`` whose
    tolerance they have, and ``choice`` what it chose: without it, its highest score. ``key`` is the
    decision's name in the report.
    """
    theirs = recorded.argmax(-1) if choice is None else choice.reshape(mine.shape)
    allowed = results.golden.allowed(scores_key, recorded)
    pair = torch.stack([mine, theirs], dim=-1)
    margin = recorded.double().gather(-1, pair).diff(dim=-1).abs().squeeze(-1)
    near = (mine != theirs) & (margin <= allowed.gather(-1, pair).amax(-1))
    results.exchange(key, margin[near].tolist())
    return torch.where(near, theirs, mine)
