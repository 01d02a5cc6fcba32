"""InterBERT's sets: pretraining at two depths and with either region loss, and task heads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tests.parity.golden import GoldenSet, expect
from tests.parity.networks import Case, check_gradients, open_cases
from tests.parity.results import Results
from tests.parity.vl_cases import (
    divergence,
    masked_word_loss,
    on_grid,
    own_first,
    recorded_pairs,
    region_scores,
)
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.interbert.model import InterBert, InterBertTasks
from vlmill.models.interbert.published import links
from vlmill.models.layers.pair_heads import EncodedPair
from vlmill.train.tasks.recipes.interbert import retrieval_interbert
from vlmill.train.tasks.retrieval.task import candidate_losses, pair_scores


def interbert(golden: GoldenSet, results: Results) -> None:
    """Every set of family ``interbert`` in part ``models``."""
    for case in open_cases(golden, results):
        if isinstance(case.model, InterBert):
            pretraining(case)
        else:
            tasks(case)


def pretraining(case: Case) -> None:
    """Outputs of every layer and row, the losses where there are labels, and all gradients."""
    model: InterBert = case.model
    with recorded_modules(case, model, with_layers=True):
        encoded = model(recorded_pairs(case), pack=False)
    check_streams(case, encoded)
    words = on_grid(model.mlm_logits, encoded.text)
    regions, matching = region_scores(model, encoded.regions), model.match_logits(encoded.pooled)
    case.check(
        prediction_scores_t=words,
        prediction_scores_v=regions,
        seq_relationship_score=matching,
        match_probability=model.match_logit(encoded.pooled).sigmoid(),
    )
    if "in.masked_lm_labels" not in case:
        return
    losses = {
        "masked_lm_loss": masked_word_loss(case, words),
        "masked_img_loss": region_loss(case, regions[:, 1:]),
        "next_sentence_loss": F.cross_entropy(matching, case["in.next_sentence_label"]).reshape(1),
    }
    total = torch.stack(list(losses.values())).sum(0)
    case.check(**losses, total_loss=total)
    if case.name == case.golden.gradient_case:
        check_gradients(case, total, links(model))


def region_loss(case: Case, scores: Tensor) -> Tensor:
    """Of labelled regions in matching pairs; squared errors are summed over the feature, [1]."""
    target = case["in.image_target"]
    counted = (case["in.image_label"] == 1) & (case["in.next_sentence_label"] == 0)[:, None]
    if case.model.regress_features:
        losses = (scores - target).square().sum(-1)[counted]
    else:
        losses = divergence(scores, target)[counted]
    return (losses.sum() / counted.sum().clamp(min=1)).reshape(1)


@contextmanager
def recorded_modules(case: Case, model: InterBert, *, with_layers: bool) -> Iterator[None]:
    """Compares what embeddings and layers give while the model runs."""
    modules: dict[str, nn.Module] = {
        "text_embedding": model.text_embedding,
        "image_embedding": model.region_embedding,
    }
    stacks: dict[str, Sequence[nn.Module]] = {
        "interaction": list(model.interaction_layers),
        "text_extraction": list(model.text_layers),
        "image_extraction": list(model.visual_layers),
    }
    for name, layers in stacks.items() if with_layers else ():
        modules |= {f"layer.{name}.{n}": layer for n, layer in enumerate(layers)}
    hooks = [module.register_forward_hook(comparison(case, key)) for key, module in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def comparison(case: Case, key: str) -> Any:
    return lambda module, arguments, output: case.check(**{key: output})


def check_streams(case: Case, encoded: EncodedPair) -> None:
    assert encoded.text_pooled is not None and encoded.region_pooled is not None
    case.check(
        sequence_output_t=encoded.text,
        sequence_output_v=encoded.regions,
        pooled_output_t=encoded.text_pooled,
        pooled_output_v=encoded.region_pooled,
    )


@torch.inference_mode()
def tasks(case: Case) -> None:
    """All heads, VCR's and retrieval's losses and choices."""
    model: InterBertTasks = case.model
    trunk, pairs = model.trunk, recorded_pairs(case)
    assert isinstance(trunk, InterBert)
    with recorded_modules(case, trunk, with_layers=False):
        encoded = model(pairs, pack=False)
    check_streams(case, encoded)
    scores, matching = model.scores(encoded.pooled), trunk.match_logits(encoded.pooled)
    case.check(
        vil_prediction=model.answer_logits(encoded.pooled),
        vil_logit=scores[:, None],
        vil_binary_prediction=matching,
        vision_prediction=region_scores(trunk, encoded.regions),
        vision_logit=model.region_scores(encoded.regions, pairs.region_mask)[..., None],
        linguisic_prediction=on_grid(trunk.mlm_logits, encoded.text),
        linguisic_logit=model.token_scores(encoded.text)[..., None],
    )
    case.check(match_score=trunk.match_logit(encoded.pooled).sigmoid())
    if "out.vcr_loss" in case:
        vcr(case, scores)
    if "out.retrieval_loss" in case:
        retrieval(case, matching, pair_scores(model, "interbert-tasks", encoded.pooled))


def vcr(case: Case, scores: Tensor) -> None:
    """A question's answers stand one below the other, as many as there are for each target."""
    target = case["in.target"]
    of_answers = scores.view(len(target), -1)
    chosen = case.settle(
        "vcr_prediction", of_answers.argmax(1), "vil_logit", lambda s: s.view(len(target), -1)
    )
    case.check(
        vcr_loss=F.cross_entropy(of_answers, target),
        vcr_prediction=chosen,
        vcr_probability=of_answers.softmax(1),
    )


def retrieval(case: Case, matching: Tensor, scores: Tensor) -> None:
    """A row of targets for each group: 0 for the pair that matches, which the task has first."""
    target = case["in.target"]
    expect(bool(((target == 0).sum(1) == 1).all()), f"{case.name}: expected a match in each group")
    candidates = own_first(scores.view(*target.shape, -1), target.argmin(1))
    (loss,) = retrieval_interbert().settings.losses
    chosen = case.settle(
        "retrieval_choice",
        matching[:, 0].view(target.shape).argmax(1),
        "vil_binary_prediction",
        lambda recorded: recorded[:, 0].view(target.shape),
    )
    case.check(retrieval_loss=candidate_losses(candidates, [loss])[loss], retrieval_choice=chosen)
