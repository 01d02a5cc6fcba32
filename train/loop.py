"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accelerate import Accelerator
from torch import Tensor
from torch.optim import AdamW

from vlmill.models import ImageBert
from vlmill.schemas.progress import Progress
from vlmill.train.collate import StoredBatch
from vlmill.train.log import Log
from vlmill.train.objectives import pretraining_losses, weighted_sum
from vlmill.train.optim import learning_rate
from vlmill.train.recipes.base import Stage


class NonFiniteLoss(ArithmeticError):
    """A loss or gradient is NaN or infinite; the message names the step and its pairs."""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """A stage with its place in the run: its step 1 is the run's step ``offset + 1``."""

    stage: Stage
    number: int
    offset: int
    steps: int

    @property
    def last(self) -> int:
        """The run's step with which the stage ends."""
        return self.offset + self.steps


def run_stage(
    run: StageRun,
    batches: Iterator[StoredBatch],
    model: ImageBert,
    optimizer: AdamW,
    accelerator: Accelerator,
    *,
    done: int,
    log: Log,
    log_every: int,
    save: Callable[[int], None],
    save_every: int,
    progress: Progress,
) -> None:
    """Train from step ``done + 1`` of the stage to its end; ``batches`` begin there.

    Steps in the log and in ``save`` are the run's, counted from 1 over all stages.
    """
    stage, logged, clock = run.stage, run.offset + done, time.perf_counter()
    model.train()
    for within in range(done + 1, run.steps + 1):
        step = run.offset + within
        rate = learning_rate(
            within, steps=run.steps, peak=stage.optimizer.lr, warmup=stage.optimizer.warmup
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        parts = [next(batches) for _ in range(stage.accumulation)]
        losses = train_step(step, parts, stage, model, optimizer, accelerator)
        if step % log_every == 0 or within in (1, run.steps):
            now = time.perf_counter()
            speed = (step - logged) * stage.batch_size / (now - clock)
            logged, clock = step, now
            log.write(
                {"step": step, "stage": stage.name}
                | losses
                | {"lr": rate, "samples_per_second": round(speed, 2)}
            )
            progress.advance(0, speed=f"{speed:.1f} samples/s")
        progress.advance(1, loss=f"{losses['loss']:.3f}")
        if step % save_every == 0 or within == run.steps:
            save(step)


def train_step(
    step: int,
    parts: list[StoredBatch],
    stage: Stage,
    model: ImageBert,
    optimizer: AdamW,
    accelerator: Accelerator,
) -> dict[str, float]:
    """One update from the mean loss of ``parts``; returns ``loss`` and ``loss/OBJECTIVE``.

    Raises NonFiniteLoss before the weights change.
    """
    totals: dict[str, float] = {}
    for part in parts:
        with accelerator.autocast():
            losses = pretraining_losses(model, part.to(accelerator.device), stage.objectives)
            loss = weighted_sum(losses, stage.objectives)
        accelerator.backward(loss / len(parts))
        named = {"loss": loss} | {f"loss/{name}": value for name, value in losses.items()}
        for name, value in named.items():
            totals[name] = totals.get(name, 0.0) + value.item() / len(parts)
    norm: Tensor = accelerator.clip_grad_norm_(model.parameters(), stage.optimizer.clip)
    if not math.isfinite(totals["loss"] + norm.item()):
        pairs = [pair for part in parts for pair in part.pair_ids]
        raise NonFiniteLoss(
            f"step {step}: loss {totals['loss']}, gradient norm {norm.item()}; no update was made. "
            f"Look at the features of these pairs' pictures, or lower optimizer.lr: "
            f"{', '.join(pairs[:16])}{' ...' if len(pairs) > 16 else ''}"
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return totals
