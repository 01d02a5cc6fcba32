"""Trains a task in a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.objectives.cached_contrast import CachedContrast, StepContrast
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import CountLabels
from vlmill.train.tasks.batches import TaskBatches, in_parts
from vlmill.train.tasks.task import LearntTask, Prediction


class TaskStep(nn.Module):
    """Wraps a task's model and its losses in one module, for several devices and for compiling."""

    def __init__(self, model: nn.Module, task: LearntTask) -> None:
        super().__init__()
        self.model, self.task, self.names = model, task, task.losses

    @property
    def contrast(self) -> StepContrast | None:
        """Returns how the task contrasts the pairs of a step, or None."""
        return self.task.contrast

    def forward(
        self,
        batch: Batch,
        shares: Float[Tensor, " J"] | None = None,
        numbers: Tensor | None = None,
        cached: CachedContrast | None = None,
    ) -> tuple[Any, dict[str, Tensor]]:
        """Returns the sum of the losses and each loss, times the batch's share of labels.

        Without ``shares``, returns the head's outputs, and each loss as a mean over the batch's
        labels. ``cached``: the contrast of the full step, which replaces the contrast of the batch.
        """
        outputs = self.task.outputs(self.model, batch)
        if cached is None:
            unshared = self.task.compute(outputs, batch)
        else:
            unshared = {name: cached.part_loss(outputs) for name in self.names}
        if shares is None:
            return outputs, unshared
        share_by_name = dict(zip(self.names, shares.unbind(), strict=True))
        losses = {name: loss * share_by_name[name] for name, loss in unshared.items()}
        return torch.stack(list(losses.values())).sum(), losses


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Fine-tunes on a task; `vlmill.train.run.pair_learning.Objective` documents the methods."""

    task: LearntTask
    blind: bool = False

    @property
    def criterion(self) -> Criterion:
        """Returns the task's metric."""
        return self.task.criterion

    def batches(self, run: StageRun, *, training: bool, **common: Any) -> TaskBatches:
        """Returns the batches of the task's examples."""
        return TaskBatches(
            stage=run.stage, task=self.task, training=training, blind=self.blind, **common
        )

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> TaskStep:
        """Returns the module that computes the task's losses."""
        return TaskStep(model, self.task)

    def count_labels(self, run: StageRun) -> CountLabels:
        """Returns the function that counts the task's labels."""
        return self.task.count_labels

    def measure(
        self, module: nn.Module, batches: StageBatches, examples: int, accelerator: Accelerator
    ) -> dict[str, float]:
        """Returns the losses and metrics of ``examples`` held-out examples, always the same
        ones.
        """
        assert isinstance(batches, TaskBatches)
        chosen = self.task.held_out(batches.table, batches.rows(), examples)
        parts = in_parts(
            chosen, self.task.validation_batch_size(batches.table, chosen, batches.size)
        )
        among = np.array(chosen, dtype=np.int64)
        module.eval()
        process_parts: list[tuple[list[Prediction], dict[str, tuple[float, int]]]] = []
        with torch.no_grad(), torch.random.fork_rng(), accelerator.autocast():
            for part, counts in select_parts(parts, accelerator):
                predicted, losses = measure_part(
                    module, self.task, batches, part, among, accelerator
                )
                if counts:
                    process_parts.append((predicted, losses))
        all_parts = (
            process_parts if accelerator.num_processes == 1 else gather_object(process_parts)
        )
        predictions = [prediction for predicted, _ in all_parts for prediction in predicted]
        numbers = mean_losses([losses for _, losses in all_parts])
        numbers |= self.task.measure(batches.table, predictions)
        return {f"validation/{name}": value for name, value in numbers.items()}


def select_parts(
    parts: Sequence[list[int]], accelerator: Accelerator
) -> Iterator[tuple[list[int], bool]]:
    """Yields this process's parts, and whether each counts. Where the processes have unequal
    numbers of parts, the first one is computed once more, as sharded models need all processes for
    every layer.
    """
    every = accelerator.num_processes
    for first in range(0, len(parts), every):
        index = first + accelerator.process_index
        yield (parts[index], True) if index < len(parts) else (parts[0], False)


def measure_part(
    module: nn.Module,
    task: LearntTask,
    batches: TaskBatches,
    rows: Sequence[int],
    among: Ids,
    accelerator: Accelerator,
) -> tuple[list[Prediction], dict[str, tuple[float, int]]]:
    """Returns the model's predictions for some rows, and each loss as a sum with the number of its
    labels; ``among`` are all rows that are measured.
    """
    host, _ = batches.make_batch(rows, among)
    if host is None:
        return [], {}
    counts = task.count_labels(host)
    batch = host.to(accelerator.device)
    outputs, losses = module(batch)
    predicted = batches.match_rows(host, rows, task.predict(outputs, batch))
    sums = {name: (float(loss) * counts[name], counts[name]) for name, loss in losses.items()}
    return predicted, sums


def mean_losses(parts: Sequence[dict[str, tuple[float, int]]]) -> dict[str, float]:
    """Returns ``loss`` and each of the losses over the labels of all parts."""
    names = dict.fromkeys(name for part in parts for name in part)
    means = {
        name: sum(part[name][0] for part in parts if name in part)
        / max(sum(part[name][1] for part in parts if name in part), 1)
        for name in names
    }
    return {"loss": sum(means.values())} | means
