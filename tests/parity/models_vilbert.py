"""ViLBERT's sets: pretraining, task heads, the baseline, and the 12-in-1 release."""

from typing import Any

import torch
from tests.parity.golden import GoldenSet
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
from torch import Tensor
from torch.nn import functional as F

from vlmill.models.convert.keymap import export_state
from vlmill.models.layers.pair_heads import EncodedPair
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.published import links
from vlmill.models.vilbert.tasks import Vilbert12in1, VilbertTasks
from vlmill.train.tasks.recipes.vilbert import retrieval_vilbert
from vlmill.train.tasks.retrieval.task import candidate_losses, pair_scores


def vilbert(golden: GoldenSet, results: Results) -> None:
    """Every set of family ``vilbert``."""
    # How a batch is paired is ours to call, and no matter of the network that is read.
    network = {k: v for k, v in golden.config.items() if k != "in_batch_pairs"}
    for case in open_cases(golden, results, network):
        if isinstance(case.model, Vilbert):
            pretraining(case)
        elif isinstance(case.model, Vilbert12in1):
            release_of_12_tasks(case)
        else:
            tasks(case)


def pretraining(case: Case) -> None:
    """Outputs of all rows, the losses where there are labels, and the recorded gradients."""
    model = case.model
    encoded = encode(case, model)
    words, regions = on_grid(model.mlm_logits, encoded.text), region_scores(model, encoded.regions)
    matching = model.match_logits(encoded.pooled)
    check_streams(case, encoded)
    case.check(
        prediction_scores_t=words, prediction_scores_v=regions, seq_relationship_score=matching
    )
    if "in.masked_lm_labels" not in case:
        return
    losses = {
        "masked_lm_loss": masked_word_loss(case, words),
        "masked_img_loss": region_loss(case, regions[:, 1:]),
        "next_sentence_loss": F.cross_entropy(matching, case["in.next_sentence_label"]).reshape(1),
    }
    case.check(**losses)
    if case.name == case.golden.gradient_case:
        gradients(case, torch.cat(list(losses.values())).sum())


def region_loss(case: Case, scores: Tensor) -> Tensor:
    """Divergence, or squared error, mean over the labelled regions, [1].

    Without any, the reference's divergence is 0 / 0, and its error 0.
    """
    labelled, target = case["in.image_label"] == 1, case["in.image_target"]
    if case.model.regress_features:
        error = F.mse_loss(scores[labelled], target[labelled], reduction="sum")
        return (error / max(target[labelled].numel(), 1)).reshape(1)
    return divergence(scores[labelled], target[labelled]).mean().reshape(1)


def gradients(case: Case, loss: Tensor) -> None:
    found = check_gradients(case, loss, links(case.model))
    norms = [p.grad.norm() for p in case.model.parameters() if p.grad is not None]
    case.results.check(f"{case.name}.grad_total_norm", torch.stack(norms).norm())
    without = set(export_state(case.model.state_dict(), links(case.model))) - set(found)
    case.results.check(f"{case.name}.params_without_grad", torch.tensor(len(without)))


def check_streams(case: Case, encoded: EncodedPair, text: Tensor | None = None) -> None:
    assert encoded.text_pooled is not None and encoded.region_pooled is not None
    case.check(
        sequence_output_t=encoded.text if text is None else text,
        sequence_output_v=encoded.regions,
        pooled_output_t=encoded.text_pooled,
        pooled_output_v=encoded.region_pooled,
    )


@torch.inference_mode()
def tasks(case: Case) -> None:
    """The paper's release and its baseline: all heads, and the losses of the tasks."""
    model: VilbertTasks = case.model
    encoded = encode(case, model.trunk)
    if isinstance(model.trunk, Vilbert):
        check_streams(case, encoded)
    else:
        sequence = torch.cat([encoded.text, encoded.regions], dim=1)
        case.check(sequence_output=sequence, pooled_output=encoded.pooled)
    mask = case.mask("in.image_attention_mask", case["in.image_feat"][..., 0])
    answers, scores = model.answer_logits(encoded.pooled), model.scores(encoded.pooled)
    regions = model.region_scores(encoded.regions, mask)
    case.check(
        vil_prediction=answers,
        vil_logit=scores[:, None],
        vil_binary_prediction=model.trunk.match_logits(encoded.pooled),
        vision_prediction=region_scores(model.trunk, encoded.regions),
        vision_logit=regions[..., None],
        linguisic_prediction=on_grid(model.trunk.mlm_logits, encoded.text),
        linguisic_logit=model.token_scores(encoded.text)[..., None],
    )
    if "out.select_idx" in case:
        expressions(case, regions)
    elif "out.probs" in case:
        choices(case, scores, pair_scores(model, "vilbert-tasks", encoded.pooled))
    elif "in.target" in case:
        vqa(case, answers)


def encode(case: Case, trunk: Any) -> EncodedPair:
    """Every text with its image, one text with all, or each with each, as was recorded."""
    tokens, features = case["in.input_ids"], case["in.image_feat"]
    texts, images = len(tokens), len(features)
    has_task = isinstance(trunk, Vilbert) and trunk.task_table is not None
    task = {"task": case["in.task_ids"][:, 0]} if has_task else {}
    if case.golden.config.get("in_batch_pairs"):
        which = (
            torch.arange(texts).repeat_interleave(images),
            torch.arange(images).repeat(texts),
        )
    elif texts == 1 < images:
        which = torch.zeros(images, dtype=torch.int64), torch.arange(images)
    else:
        paired: EncodedPair = trunk(recorded_pairs(case), pack=False, **task)
        return paired
    text = trunk.read_text(
        tokens,
        case.mask("in.attention_mask", tokens),
        case.optional("in.token_type_ids"),
        pack=False,
        **task,
    )
    regions = trunk.read_regions(
        trunk.embed_regions(features, case["in.image_loc"]),
        case.mask("in.image_attention_mask", features[..., 0]),
        pack=False,
    )
    joined: EncodedPair = trunk.join(text.take(which[0]), regions.take(which[1]))
    return joined


def vqa(case: Case, answers: Tensor) -> None:
    target = case["in.target"]
    loss = F.binary_cross_entropy_with_logits(answers, target) * target.shape[1]
    best = case.settle("score", answers.argmax(1), "vil_prediction", is_choice=False)
    case.check(loss=loss, score=target.gather(1, best[:, None]).sum())


def choices(case: Case, scores: Tensor, of_pairs: Tensor) -> None:
    """A sample's options stand one below the other, as many as there are for each target.

    ``of_pairs`` is what retrieval makes of them, whose loss is VCR's, too.
    """
    target = case["in.target"]
    candidates = own_first(of_pairs.view(len(target), -1, 1), target)
    (loss,) = retrieval_vilbert().settings.losses
    of_options = scores.view(len(target), -1)
    best = case.settle(
        "score",
        of_options.argmax(1),
        "vil_logit",
        lambda recorded: recorded.view(len(target), -1),
        is_choice=False,
    )
    case.check(
        loss=candidate_losses(candidates, [loss])[loss],
        probs=of_options.softmax(1),
        score=(best == target).sum(),
    )


def expressions(case: Case, scores: Tensor) -> None:
    target = case["in.target"][..., 0]
    loss = F.binary_cross_entropy_with_logits(scores, target) * target.shape[1]
    best = case.settle(
        "select_idx", scores.argmax(1), "vision_logit", lambda recorded: recorded[..., 0]
    )[:, None]
    case.check(loss=loss, select_idx=best, score=(target.gather(1, best) > 0.5).sum())


@torch.inference_mode()
def release_of_12_tasks(case: Case) -> None:
    """Task tokens, if it has them, and the heads of the 12-in-1 release."""
    model: Vilbert12in1 = case.model
    encoded = encode(case, model.trunk)
    text = encoded.text
    if encoded.task is not None:
        text = torch.cat([text[:, :1], encoded.task[:, None], text[:, 1:]], dim=1)
    check_streams(case, encoded, text)
    pooled = encoded.pooled
    mask = case.mask("in.image_attention_mask", case["in.image_feat"][..., 0])
    # Consecutive rows are a pair's two images; an odd number of rows is scored row by row.
    two_images = model.trunk.match_logits if len(pooled) % 2 else model.two_image_logits
    case.check(
        vil_prediction=model.answer_logits(pooled),
        vil_prediction_gqa=model.gqa_logits(pooled),
        vil_logit=model.scores(pooled)[:, None],
        vil_binary_prediction=two_images(pooled),
        vil_tri_prediction=model.entailment_logits(pooled),
        vision_prediction=region_scores(model.trunk, encoded.regions),
        vision_logit=model.region_scores(encoded.regions, mask)[..., None],
        linguisic_prediction=on_grid(model.trunk.mlm_logits, text),
        linguisic_logit=model.token_scores(text)[..., None],
    )
