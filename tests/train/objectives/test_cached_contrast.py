"""A contrast in parts has the losses, gradients and negatives of one part."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.models.vlmo.test_model import tiny_model
from torch import Tensor, nn

from vlmill.models.vlmo.model import Vlmo
from vlmill.train.devices.setup import recompute_activations
from vlmill.train.loading.batch import HostBatch
from vlmill.train.objectives import contrast
from vlmill.train.objectives.cached_contrast import seed_dropout, vectors_contrast
from vlmill.train.objectives.pretraining import PretrainingStep, label_counts
from vlmill.train.recipes import Objectives
from vlmill.train.run.pretraining import make_step
from vlmill.train.run.step import Training, train_step
from vlmill.train.run.updates import Update, clip_whole
from vlmill.train.tasks.finetuning.learning import TaskStep
from vlmill.train.tasks.retrieval.dual import DualEncoder
from vlmill.train.tasks.retrieval.settings import RetrievalSettings

PAIRS = 8
ALL = Objectives(mlm=0.25, moc=0, mrfr=0, itm=1, itc=1)
KEYS = torch.tensor([1, 2, 3, 1, 4, 5, 6, 2])  # captions of one image, also in different parts


def host_batch(rows: range) -> HostBatch:
    """Some rows of one batch; a part is as long as its longest text, as `collate` makes it."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5, 4, 3, 7, 2, 6, 4])
    tokens = torch.randint(5, 50, (PAIRS, 7), generator=generator)
    pixels = torch.randint(256, (PAIRS, 3, 24, 24), generator=generator, dtype=torch.uint8)
    own, longest = slice(rows.start, rows.stop), int(lengths[rows].max())
    mask = torch.arange(longest) < lengths[own, None]
    original = torch.where(mask, tokens[own, :longest], 0)
    # The parts have unequally many masked words, as their mean is over those of the whole step.
    masked = mask & (torch.arange(longest) > 0) & (original % 3 == 0)
    return HostBatch(
        tensors={
            "tokens": original.masked_fill(masked, 4),
            "original_tokens": original,
            "token_mask": mask,
            "real_tokens": mask.flatten().nonzero()[:, 0],
            "read_tokens": mask.flatten().nonzero()[:, 0],
            "masked_tokens": masked.flatten().nonzero()[:, 0],
            "token_targets": original[masked],
            "matching": torch.ones(len(rows)),
            "pixels": pixels[own],
            "image_keys": KEYS[own],
        },
        pair_ids=tuple(map(str, rows)),
    )


def parts_of(number: int) -> list[HostBatch]:
    size = PAIRS // number
    return [host_batch(range(first, first + size)) for first in range(0, PAIRS, size)]


class Gradients(torch.optim.SGD):
    """Keeps what a step would be made of."""

    kept: dict[int, Tensor]

    def step(self, closure: Any = None) -> Any:
        self.kept = {
            id(p): p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None
        }


def trained(
    module: Any, parts: list[HostBatch], precision: str = "no"
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The losses and gradients of one step in these parts."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    optimizer = Gradients(module.parameters(), lr=0.1)
    counted: Callable[[HostBatch], Any] = (
        module.task.count_labels
        if isinstance(module, TaskStep)
        else partial(label_counts, weights=module.weights)
    )
    training = Training(
        step_module=module,
        count_labels=counted,
        update=Update(
            optimizer=optimizer,
            rate=lambda _: 0.1,
            clip_gradients=partial(clip_whole, largest=0.0),
        ),
        accelerator=accelerator,
        seed=3,
    )
    numbers = train_step(1, parts, training)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return numbers, {names[key]: grad for key, grad in optimizer.kept.items()}


def pretraining(model: Vlmo, *, weights: Objectives = ALL, same: bool = False) -> PretrainingStep:
    return make_step(copy.deepcopy(model), weights, same_picture_negatives=same).train()


def retrieval(model: Vlmo, *, same: bool = False) -> TaskStep:
    settings = RetrievalSettings(negatives="batch", same_picture_negatives=same)
    return TaskStep(copy.deepcopy(model), DualEncoder(settings=settings)).train()


def assert_equal(one: Any, other: Any, tolerance: float) -> None:
    losses, gradients = one
    other_losses, other_gradients = other
    assert losses == pytest.approx(other_losses, rel=tolerance)
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        scale = float(other_gradients[name].abs().max())
        torch.testing.assert_close(
            gradient, other_gradients[name], atol=tolerance * max(scale, 1), rtol=0, msg=name
        )


CONTRAST_ALONE = Objectives(mlm=0, moc=0, mrfr=0, itm=0, itc=1)
MATCHING_ALONE = Objectives(mlm=0, moc=0, mrfr=0, itm=1, itc=0)


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        (pretraining, (2, 4)),
        (partial(pretraining, same=True), (4,)),
        (partial(pretraining, weights=CONTRAST_ALONE), (8,)),  # no other pair in a part
        (partial(pretraining, weights=MATCHING_ALONE), (8,)),
        (retrieval, (2, 4, 8)),
        (partial(retrieval, same=True), (4,)),
    ],
    ids=["all", "same image", "contrast", "matching", "retrieval", "retrieval, same image"],
)
def test_parts_of_a_step_have_the_losses_and_gradients_of_one(
    step: Callable[..., nn.Module], numbers: tuple[int, ...]
) -> None:
    model = tiny_model(drop_path=0.0, num_layers=2, first_vl_layer=1)
    whole = trained(step(model), parts_of(1))
    assert len(whole[1]) > 10
    for number in numbers:
        assert_equal(trained(step(model), parts_of(number)), whole, 1e-5)


@pytest.mark.parametrize("step", [pretraining, retrieval])
def test_gradients_in_float64_differ_by_the_vectors_rounding_alone(
    step: Callable[..., nn.Module],
) -> None:
    model = tiny_model(paper=True, drop_path=0.0, num_layers=2, first_vl_layer=1).double()
    model.encoder.patch_embedding.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    whole = trained(step(model), parts_of(1))
    assert_equal(trained(step(model), parts_of(4)), whole, 3e-7)


def test_in_bfloat16_every_parameter_still_learns_what_it_learns_in_one_part() -> None:
    """Autocast would keep weights that were cast in the first pass, without gradients."""
    model = tiny_model(drop_path=0.0, num_layers=2, first_vl_layer=1)
    whole = trained(retrieval(model), parts_of(1), precision="bf16")
    assert_equal(trained(retrieval(model), parts_of(4), precision="bf16"), whole, 0.02)


def test_recomputed_activations_change_nothing() -> None:
    model = tiny_model(drop_path=0.4, num_layers=2, first_vl_layer=1)

    def step(*, recomputed: bool) -> Any:
        module = pretraining(model)
        if recomputed:
            recompute_activations(module)
        torch.manual_seed(5)
        return trained(module, parts_of(2))

    assert_equal(step(recomputed=True), step(recomputed=False), 1e-6)


def test_hard_negatives_are_those_of_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts and images that meet in the joint passes, and which of them count as matches."""
    model, passes = (
        tiny_model(drop_path=0.0, num_layers=2, first_vl_layer=1),
        list[tuple[Tensor, ...]](),
    )
    joint = contrast._joint

    def recorded(*args: Any, **options: Any) -> Any:
        _, (_, *drawn), _, _ = args  # without the masked texts
        # [CLS] embeds alike everywhere: the second word names a text, the last patch an image.
        passes.append(tuple(torch.cat([one.text[:, 1], one.image[:, -1]], 1) for one in drawn))
        return joint(*args, **options)

    monkeypatch.setattr(contrast, "_joint", recorded)
    for number in (1, 4):
        trained(pretraining(model), parts_of(number))
    (whole,), parts = passes[:1], passes[1:]
    for drawn, of_parts in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(of_parts), drawn)
    true, with_images, with_texts = whole
    assert not torch.equal(true, with_images) and not torch.equal(true, with_texts)


def test_the_second_pass_repeats_the_dropout_of_the_first() -> None:
    """Against one graph over all parts, each with its own dropout."""
    model = tiny_model(drop_path=0.5, num_layers=2, first_vl_layer=1)
    torch.manual_seed(7)
    losses, gradients = trained(pretraining(model, weights=CONTRAST_ALONE), parts_of(2))
    torch.manual_seed(7)
    seeds = [int(torch.randint(2**62, ())) for _ in range(2)]
    module, vectors = pretraining(model, weights=CONTRAST_ALONE), list[Tensor]()
    for part, seed in zip(parts_of(2), seeds, strict=True):
        with seed_dropout(seed, torch.device("cpu")):
            vectors.append(module(part.to("cpu"))[0])
    excluded = (KEYS[:, None] == KEYS) & ~torch.eye(PAIRS, dtype=torch.bool)
    loss = vectors_contrast(torch.cat(vectors), excluded)
    loss.backward()  # type: ignore[no-untyped-call]
    assert losses["loss/itc"] == pytest.approx(loss.item(), rel=1e-6)
    expected = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert_equal(({}, gradients), ({}, expected), 1e-6)


def test_random_numbers_continue_after_a_seeded_part() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seed_dropout(9, torch.device("cpu")):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected) and not torch.equal(inside, expected)
