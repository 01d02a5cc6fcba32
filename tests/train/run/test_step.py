"""Steps whose update is queued before the host reads their numbers: the same run, no wait before
the update, and weights that a step which is not finite leaves as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator
from benchmarks.gpu_check.training import CASES, Work, prepared, recipe_of, table_sizes
from tests.train.run.test_job import Killed, assert_same_run, kill_at, logged
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from vlmill.models import VARIANTS
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_training_state
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.objectives.pretraining import label_counts
from vlmill.train.optim.groups import make_optimizer
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run.job import pretrain
from vlmill.train.run.loop import StepInputs
from vlmill.train.run.pretraining import make_step
from vlmill.train.run.step import (
    NonFiniteLoss,
    Training,
    Uploads,
    train_step,
    with_graph,
    with_uploads,
)
from vlmill.train.run.updates import Update, clip_whole

if TYPE_CHECKING:
    from tests.factories import Tables

META = torch.device("meta")
AHEAD = "run_ahead=true"
BERT_ADAM = ("optimizer.kind=bert-adam", "optimizer.clip=0.01")


def assert_same_states(one: Path, other: Path) -> None:
    """Moments, counts and random states after the last step."""
    first, second = (load_training_state(saved_steps(run)[6]) for run in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    "changes",
    [
        ["optimizer.clip=0.1"],
        [*BERT_ADAM, "accumulation=2", "average=0.9"],
        pytest.param(["optimizer.kind=transformers-adamw"], marks=pytest.mark.nightly),
        pytest.param(["optimizer.kind=sgd", "optimizer.lr=0.01"], marks=pytest.mark.nightly),
        pytest.param(["precision=bf16", "workers=1"], marks=pytest.mark.nightly),
    ],
)
def test_a_run_ahead_has_the_same_bits(
    changes: list[str], tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs, changed = tables.write(), change_recipe(recipe, changes)
    pretrain(changed, inputs, tmp_path / "plain")
    pretrain(change_recipe(changed, [AHEAD]), inputs, tmp_path / "ahead")
    assert_same_run(tmp_path / "ahead", tmp_path / "plain")
    assert_same_states(tmp_path / "ahead", tmp_path / "plain")


def break_gradients_at(step: int, monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Puts an infinite number into a gradient; returns the list that receives the update."""
    clip, updates = Update.clip, list[Update]()

    def clipped(update: Update, accelerator: Accelerator) -> Tensor:
        updates.append(update)
        if len(updates) == step:
            gradients = (p.grad for g in update.optimizer.param_groups for p in g["params"])
            next(grad for grad in gradients if grad is not None).view(-1)[0] = torch.inf
        return clip(update, accelerator)

    monkeypatch.setattr(Update, "clip", clipped)
    return updates


@pytest.mark.parametrize("changes", [[], list(BERT_ADAM)])
def test_a_step_that_is_not_finite_changes_nothing(
    changes: list[str],
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same message, the weights of the checkpoint before, and a run that can be continued."""
    inputs, changed = tables.write(), change_recipe(recipe, changes)
    messages = []
    for name, change in (("plain", "run_ahead=false"), ("ahead", AHEAD)):
        with monkeypatch.context() as patch:
            updates = break_gradients_at(3, patch)
            with pytest.raises(
                NonFiniteLoss, match=r"step 3: .*gradient norm inf; no upd"
            ) as error:
                pretrain(change_recipe(changed, [change]), inputs, tmp_path / name)
        messages.append(str(error.value))
        assert sorted(saved_steps(tmp_path / name)) == [2]
        assert [line["step"] for line in logged(tmp_path / name)] == [1, 2]
        optimizer = updates[0].optimizer
        state = load_training_state(saved_steps(tmp_path / name)[2])
        saved = [value for key, value in state.items() if ".exp_avg." in key]
        moments = [optimizer.state[p]["exp_avg"] for p in optimizer.state]
        assert len(saved) == len(moments)
        assert {t.double().sum().item() for t in saved} == {
            t.double().sum().item() for t in moments
        }
    assert messages[0] == messages[1]
    # The option may change; the continued run is the one that nothing has disturbed.
    pretrain(changed, inputs, tmp_path / "whole")
    pretrain(change_recipe(changed, ["run_ahead=false"]), inputs, tmp_path / "ahead")
    assert_same_run(tmp_path / "ahead", tmp_path / "whole")


def test_an_invalid_next_batch_ends_its_own_step(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step before is logged and, where it is due, saved."""
    inputs, original = tables.write(), StepInputs._next
    count = [0]

    def invalid(self: StepInputs[Any]) -> list[Any]:
        count[0] += 1
        if count[0] == 5:
            raise InputError("the fifth step's images")
        return original(self)

    monkeypatch.setattr(StepInputs, "_next", invalid)
    with pytest.raises(InputError, match="the fifth step's images"):
        pretrain(change_recipe(recipe, [AHEAD]), inputs, tmp_path / "out")
    assert sorted(saved_steps(tmp_path / "out")) == [2, 4]
    assert [line["step"] for line in logged(tmp_path / "out")] == [1, 2, 3, 4]


def test_a_killed_run_continues_ahead(
    tables: Tables, recipe: Recipe, undisturbed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    inputs = tables.write()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(4, patch)
        pretrain(recipe, inputs, tmp_path / "out")
    pretrain(change_recipe(recipe, [AHEAD]), inputs, tmp_path / "out")
    assert_same_run(tmp_path / "out", undisturbed)


class OnMeta(Accelerator):  # type: ignore[misc]
    """Trains on the meta device, where reading any value raises."""

    device = META


class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the names of the operators that are called inside for tensors on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [
            value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)
        ]
        if any(tensor.device == META for tensor in tensors):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Reached(Exception):
    """Stands for the end of what a step queues."""


def on_meta(work: Work, kind: str) -> Training:
    """The tiny model's training, without values."""
    with torch.device("meta"):
        model = VARIANTS[work.recipe.variant].model(work.recipe.model).train()
    settings = change_recipe(work.recipe, [f"optimizer.kind={kind}", "optimizer.clip=1"]).stages[0]
    optimizer = make_optimizer(model.named_parameters(), settings.optimizer)
    return Training(
        step_module=make_step(model, work.stage.objectives, pack=True),
        count_labels=partial(label_counts, weights=work.stage.objectives),
        update=Update(
            optimizer=optimizer,
            rate=lambda _: 1e-4,
            clip_gradients=partial(clip_whole, largest=1.0),
        ),
        accelerator=OnMeta(cpu=True),
        seed=0,
    )


@pytest.mark.parametrize(
    ("name", "kind", "wrap"),
    [
        ("vilbert", "bert-adam", with_graph),
        ("vlmo", "transformers-adamw", lambda training: training),
    ],
)
def test_a_step_queues_its_update_and_the_next_batch_without_a_wait(
    name: str, kind: str, wrap: Callable[[Training], Training], tmp_path: Path
) -> None:
    """All of a step up to the end of its update runs where there are no values to wait for."""
    work = prepared(
        recipe_of(CASES[name], tiny=True), table_sizes(CASES[name], tiny=True), tmp_path
    )
    parts = [work.batches.assembled(number) for number in range(2)]
    training = with_uploads(wrap(on_meta(work, kind)))
    inputs = StepInputs(iter(parts), 1, training.uploads)
    first = inputs.take()

    def fetch_next() -> None:
        inputs.fetch()
        raise Reached

    with Names() as called, pytest.raises(Reached):
        train_step(1, first, training, fetch_next)
    assert "_fused_adamw_" in called.names and len(training.optimizer.state) > 20
    assert not called.names & {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}
    assert all(p.grad is None for p in training.step_module.parameters())
    (second,) = inputs.take()
    assert second is parts[1]
    assert training.uploads is not None and training.uploads._started is not None
    copied = training.uploads._started[1]
    assert training.uploads.take(second) is copied and training.uploads._in_use is copied


def test_without_the_option_a_step_waits_before_its_update(tmp_path: Path) -> None:
    """So the test above would see a wait."""
    case = CASES["vlmo"]
    work = prepared(recipe_of(case, tiny=True), table_sizes(case, tiny=True), tmp_path)
    training = on_meta(work, "transformers-adamw")
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        train_step(1, [work.batches.assembled(0)], training)
    assert not training.optimizer.state


def test_parts_are_fetched_once_and_in_order() -> None:
    copies: list[int] = []

    def copy(part: int) -> int:
        copies.append(part)
        return 10 * part

    uploads = Uploads(copy, META)
    inputs = StepInputs(iter(range(5)), 2, uploads)
    inputs.fetch()
    assert inputs.take() == [0, 1] and copies == [0]
    assert [uploads.take(part) for part in (0, 1)] == [0, 10] and copies == [0, 1]
    assert inputs.take() == [2, 3]
    inputs.fetch()  # one part is left
    assert copies == [0, 1] and inputs.seconds > 0
    with pytest.raises(StopIteration):
        inputs.take()
    on_cpu = Uploads(copy, torch.device("cpu"))
    on_cpu.start(7)
    assert copies == [0, 1] and on_cpu.take(7) == 70
