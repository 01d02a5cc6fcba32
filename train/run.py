"""A run with its model and its place in the stages: what stages share and checkpoints hold."""

import contextlib
import dataclasses
import math
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from vlmill.models import VARIANTS, Vlmo
from vlmill.models.bert_sources import BERT_SOURCES
from vlmill.models.blocks import CoAttentionBlock, PostNormBlock, PreNormBlock
from vlmill.models.initialise_vlmo import initialise_from_beit
from vlmill.models.reference import export_reference
from vlmill.models.vlmo import frozen_on_text
from vlmill.models.vlmo_transfer import start_from
from vlmill.schemas.commands import InputError
from vlmill.schemas.manifest import write_manifest
from vlmill.schemas.progress import Progress
from vlmill.schemas.shards import Shard
from vlmill.train.average import MovingAverage
from vlmill.train.batches import PretrainBatches, batch_loader
from vlmill.train.checkpoint import (
    LoadedCheckpoint,
    TrainingRecord,
    keep_checkpoints,
    load_checkpoint,
    load_training_state,
    publish,
    read_record,
    remove_partial,
    save_checkpoint,
    saved_steps,
    step_folder,
)
from vlmill.train.log import Log
from vlmill.train.loop import Events, StageRun, Training, run_stage
from vlmill.train.objectives import PretrainingStep, label_counts
from vlmill.train.optim import (
    make_optimizer,
    restore_training_state,
    training_state,
    whole,
    whole_weights,
)
from vlmill.train.recipes import Optimizer, Recipe
from vlmill.train.sample_table import SampleTable
from vlmill.train.samples import Lexicon
from vlmill.train.sources import Sources, feature_statistics, say
from vlmill.train.throughput import Throughput

JOB = "train-vl pretrain"
LOG = "log.jsonl"
PREPARED, HELD_OUT = "prepared", "held-out"  # folders; made anew by each start, gone at the end
RAW = "weight."  # before a parameter's name: its own value beside the average's
BLOCKS = (PostNormBlock, CoAttentionBlock, PreNormBlock)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run reads and writes, and its stages."""

    recipe: Recipe
    sources: Sources
    output: Path
    tokenizer: Tokenizer
    stages: list[StageRun]
    accelerator: Accelerator

    @property
    def longest(self) -> int:
        """Tokens that the model takes."""
        return self.recipe.max_text_tokens


class Run:
    """Trains the stages from where the last checkpoint left them."""

    def __init__(self, place: Place) -> None:
        self.place, self.recipe = place, place.recipe
        self.accelerator, self.output = place.accelerator, place.output
        self.resumed: LoadedCheckpoint | None = None
        if self.accelerator.is_main_process:
            remove_partial(self.output)
        self.accelerator.wait_for_everyone()
        saved = saved_steps(self.output)
        if saved:
            self.resumed = load_checkpoint(saved[max(saved)], "--output")
        self.state = load_training_state(self.resumed.path) if self.resumed else {}
        self.done = self.resumed.training.step if self.resumed else 0
        self.losses = validation_losses(saved)
        self.model = self._model()
        self.trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        self.average = self._average()
        if self.recipe.checkpoint_activations:
            recompute_activations(self.model)
        self._stop = False

    def _model(self) -> nn.Module:
        if self.resumed:
            model: nn.Module = self.resumed.model
            return model
        torch.manual_seed(self.recipe.seed)
        fresh: nn.Module = VARIANTS[self.recipe.variant].model(self.recipe.model)
        init = self.place.sources.init
        if init is not None and init.variant == "beit" and isinstance(fresh, Vlmo):
            initialise_from_beit(fresh, export_reference("beit", init.model))
        elif init is not None and isinstance(fresh, Vlmo):
            new = start_from(fresh, init.model.state_dict(), self.recipe.model)
            if new:
                say(f"new, as --init lacks it: {', '.join(sorted(new)[:6])}")
        elif init is not None:
            fresh.load_state_dict(init.model.state_dict())
        elif self.recipe.standardise_features:
            fresh.standardise_regions(*feature_statistics(self.place.sources))  # type: ignore[operator]
        return fresh

    def _average(self) -> MovingAverage | None:
        """The moving average; a checkpoint's weights are the average, and raw ones beside."""
        if not self.recipe.average:
            return None
        average = MovingAverage(self.model, self.recipe.average)
        held = (item for item in self.state.items() if item[0].startswith(RAW))
        raw = {name.removeprefix(RAW): weight for name, weight in held}
        self.model.load_state_dict(raw, strict=False)
        return average

    def train(self) -> None:
        """All stages. Raises Stopped when the run was asked to stop and has saved."""
        total, main = self.place.stages[-1].last, self.accelerator.is_main_process
        if self.resumed and main:
            say(f"continues {self.output} after step {self.done} of {total}")
        with (
            Progress(
                total=total, unit="step", label="pretrain", done=self.done, visible=main
            ) as progress,
            Log(self.output / LOG, after=self.done, active=main) as log,
            self._stoppable(),
        ):
            if total == 0 and not self.resumed:
                self._save(self.place.stages[0], None, 0, {})
            for run in self.place.stages:
                if self.done < run.last:
                    self._train_stage(run, log, progress)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """While it lasts, SIGTERM asks the loop to save and leave."""

        def ask(number: int, frame: object) -> None:
            self._stop = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _stopping(self) -> bool:
        if self.accelerator.num_processes == 1:
            return self._stop
        asked = torch.tensor([float(self._stop)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked, reduction="sum").item())

    def _train_stage(self, run: StageRun, log: Log, progress: Progress) -> None:
        done = self.done - run.offset
        training = self._prepared(run)
        torch.manual_seed(self.recipe.seed + run.number + (self.accelerator.process_index << 16))
        if done:
            restore_training_state(self.model, training.optimizer, self.state, self.accelerator)
        measured: dict[str, float] = {}
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
            self.recipe.precision, torch.float32
        )

        def validate() -> dict[str, float]:
            measured.clear()
            measured.update(self._validate(run, training.step_module))
            return measured

        def save(step: int) -> None:
            self._save(run, training.optimizer, step, measured)
            measured.clear()

        events = Events(
            log=log,
            progress=progress,
            throughput=Throughput(self.accelerator.device, kind),
            log_every=self.recipe.log_every,
            save=save,
            save_every=self.recipe.save_every,
            after_step=self._after_step,
            validate=validate,
            validate_every=self.recipe.validate_every if self._held_out(run) else 0,
            stopping=self._stopping,
        )
        run_stage(run, self._loader(run, done), training, events, done=done)

    def _prepared(self, run: StageRun) -> Training:
        """The model wrapped for the devices, with the stage's optimiser."""
        frozen = set(frozen_on_text(self.model)) if run.stage.frozen == "text-stage" else set()
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.trained and name not in frozen)
        tokenizer = self.place.sources.picture_tokenizer
        module: nn.Module = PretrainingStep(
            self.model,
            run.stage.objectives,
            None if tokenizer is None else tokenizer.reader(self.accelerator.device),
        )
        settings = started(run.stage.optimizer, self.place.sources.init is not None)
        from_bert = names_from_bert(self.model) if settings.bert_rate != 1 else set()
        module = self._wrapped(module)
        if self.average is not None:
            self.average.follow(self.model)
        if self.recipe.compile:
            module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
        optimizer = make_optimizer(self.model.named_parameters(), settings, from_bert)
        if self.accelerator.scaler is not None:  # float16: it takes the gradients' scale away
            optimizer = self.accelerator.prepare(optimizer)
        return Training(step_module=module, optimizer=optimizer, accelerator=self.accelerator)

    def _wrapped(self, module: nn.Module) -> nn.Module:
        """On the device, for all processes: whole in each, or divided."""
        processes, device = self.accelerator.num_processes, self.accelerator.device
        if processes == 1 or not self.recipe.shard:
            wrapped: nn.Module = self.accelerator.prepare(module)
            return wrapped
        module.to(device)
        if any(isinstance(parameter, DTensor) for parameter in module.parameters()):
            fully_shard(module)  # a later stage: the model is divided already
            return module
        mesh = init_device_mesh(device.type, (processes,))
        for part in module.modules():
            if isinstance(part, BLOCKS):
                fully_shard(part, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module

    def _loader(self, run: StageRun, done: int) -> Iterator[Any]:
        parts = run.stage.accumulation * self.accelerator.num_processes
        return iter(
            batch_loader(
                self._batches(run, PREPARED),
                done * parts + self.accelerator.process_index,
                run.steps * parts,
                workers=self.recipe.workers,
                pin_memory=self.accelerator.device.type == "cuda",
                every=self.accelerator.num_processes,
            )
        )

    def _batches(self, run: StageRun, folder: str) -> PretrainBatches:
        return PretrainBatches(
            samples=self.output / folder,
            regions=self.place.sources.regions,
            images=self.place.sources.images,
            stage=run.stage,
            stage_number=run.number,
            seed=self.recipe.seed,
            lexicon=Lexicon.of(self.place.tokenizer),
            processes=self.accelerator.num_processes,
            longest=self.place.longest,
            global_features=bool(getattr(self.model.config, "global_widths", ())),
        )

    def _after_step(self) -> None:
        if self.average is not None:
            self.average.update(self.model)

    def _held_out(self, run: StageRun) -> int:
        """Pairs that the stage can be validated on."""
        if not self.recipe.validate_every:
            return 0
        table = SampleTable(self.output / HELD_OUT)
        return len(table.rows_of(run.stage.sources, run.stage.feeding.kind))

    @torch.no_grad()
    def _validate(self, run: StageRun, module: nn.Module) -> dict[str, float]:
        """Each loss over the held-out pairs, by the averaged weights where there is an average.

        Always the same pairs with the same masks, and no random number of training is used up.
        """
        batches = self._batches(dataclasses.replace(run, stage=unaugmented(run)), HELD_OUT)
        pairs = min(self._held_out(run), self.recipe.validation_pairs)
        every, first = self.accelerator.num_processes, self.accelerator.process_index
        # As many for each process: with fewer pairs than that some come twice.
        count = math.ceil(pairs / batches.size / every) * every
        totals: Counter[str] = Counter()
        sums: dict[str, Tensor] = {}
        with torch.random.fork_rng(), self._averaged():
            torch.manual_seed(self.recipe.seed)
            module.eval()
            for index in range(first, count, every):
                stored = batches.assembled(index)
                counts = label_counts(stored, run.stage.objectives)
                totals.update(counts)
                shares = {name: float(number) for name, number in counts.items()}
                _, losses = module(stored.to(self.accelerator.device), shares)
                for name, loss in losses.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + loss
        weights = run.stage.objectives
        found = torch.stack([*sums.values(), *(self._count(totals[name]) for name in sums)])
        values = self.accelerator.reduce(found.double().float(), reduction="sum").tolist()
        means = {
            name: value / max(number, 1.0)
            for name, value, number in zip(
                sums, values[: len(sums)], values[len(sums) :], strict=True
            )
        }
        loss = sum(value * getattr(weights, name) for name, value in means.items())
        return {"validation/loss": loss} | {f"validation/{k}": v for k, v in means.items()}

    def _count(self, number: int) -> Tensor:
        return torch.tensor(float(number), device=self.accelerator.device)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        if self.average is None:
            return contextlib.nullcontext()
        return self.average.applied(self.model)

    def _save(
        self,
        run: StageRun,
        optimizer: torch.optim.Optimizer | None,
        step: int,
        measured: Mapping[str, float],
    ) -> None:
        """Write the checkpoint after ``step``; all processes take part, the first one writes."""
        state = training_state(self.model, optimizer, self.accelerator)
        weights = whole_weights(self.model)
        if self.average is not None:
            state |= {f"{RAW}{name}": weights[name].clone() for name in self.average.shadow}
            weights |= {name: whole(value) for name, value in self.average.shadow.items()}
        loss = measured.get("validation/loss")
        if loss is not None:
            self.losses[step] = loss
        self.done = step
        if not self.accelerator.is_main_process:
            return
        save_checkpoint(
            step_folder(self.output, step),
            variant=self.recipe.variant,
            model=self.model,
            weights=weights,
            tokenizer=self.place.tokenizer,
            detector_fingerprint=self.place.sources.fingerprint,
            feeding=run.stage.feeding,
            training=TrainingRecord(
                recipe=self.recipe.name,
                stage=run.stage.name,
                step=step,
                num_pairs=self.place.sources.num_pairs,
                pairs_digest=self.place.sources.pairs_digest,
                validation_loss=loss,
            ),
            state=state,
        )
        keep_checkpoints(self.output, self.recipe.keep_checkpoints, also=self._best())

    def _best(self) -> int | None:
        """The step with the lowest validation loss of the stage at hand."""
        offset = max(run.offset for run in self.place.stages if run.offset <= self.done)
        losses = {step: loss for step, loss in self.losses.items() if step > offset}
        return min(losses, key=lambda step: (losses[step], step)) if losses else None

    def finish(self, rejects: Shard, settings: dict[str, Any], counts: Counter[str]) -> str:
        """Leave the best checkpoint at the top, and the manifest, which says that all is done."""
        last = self.place.stages[-1].last
        best = self._best()
        chosen = step_folder(self.output, last if best is None else best)
        publish(self.output, chosen)
        for name in (PREPARED, HELD_OUT):
            shutil.rmtree(self.output / name, ignore_errors=True)
        write_manifest(self.output, [rejects], job=JOB, settings=settings)
        rejected = f"; {rejects.rows} rejected" if rejects.rows else ""
        which = "" if best is None else f" (best of the validated ones, {self.losses[best]:.4f})"
        return (
            f"{self.recipe.name}: {last} steps on {counts['kept']} pairs{rejected}; "
            f"checkpoint {chosen}{which}"
        )


def started(settings: Optimizer, from_checkpoint: bool) -> Optimizer:
    """The settings, without what scripts do to what has started from BERT where nothing has."""
    if from_checkpoint:
        return settings
    decay = "matrices" if settings.decay == "inverted" else settings.decay
    return dataclasses.replace(settings, bert_rate=1.0, decay=decay)


def unaugmented(run: StageRun) -> Any:
    """The stage as validation reads it: nothing mirrored, coloured or cropped at random."""
    feeding = dataclasses.replace(
        run.stage.feeding, flip=0.0, jitter=0.0, augment=False, crop=(1.0, 1.0)
    )
    return dataclasses.replace(run.stage, feeding=feeding)


def validation_losses(saved: Mapping[int, Path]) -> dict[int, float]:
    """The validation losses that a run's checkpoints record, by step."""
    records = {step: read_record(folder) for step, folder in saved.items()}
    return {
        step: record.validation_loss
        for step, record in records.items()
        if record.validation_loss is not None
    }


def names_from_bert(model: nn.Module) -> set[str]:
    """The parameters that a BERT checkpoint has, too. Raises InputError for a variant without."""
    links = BERT_SOURCES.get(type(model))
    if links is None:
        raise InputError(f"optimizer.bert_rate: {type(model).__name__} takes nothing from BERT")
    return {link.ours for link in links(model, {})}


def recompute_activations(model: nn.Module) -> None:
    """Have every layer compute its activations again in the backward pass."""
    for part in model.modules():
        if isinstance(part, BLOCKS):
            part.forward = _recomputed(part.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, forward, use_reentrant=False)
