"""Trains a run, evaluates it, probes it, and stores its figures in a file."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probes import ProbeInputs, probe, switch_off
from proof.arms import BASE, Arm, recipe_of
from proof.side_by_side import digest_of, logged, one_thread, outcomes, plain
from proof.tables import LARGER, NOISE, ArmTables
from worlds import World, word_groups

from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.train.checkpoints.files import CheckpointRecord, load_checkpoint, save_checkpoint
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.runner import LOG
from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
from vlmill.train.tasks.retrieval.job import RetrievalOptions

DIRECTIONS = ("image_retrieval", "text_retrieval")
EXPERTS = ("text", "image", "vl")
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """An arm with a seed. ``matching``: VLMo's matching head ranks all pairs, too."""

    arm: Arm
    seed: int
    tables: ArmTables
    pairs: int
    held_out: int
    output: Path
    world: World
    steps: int | None = None
    matching: bool = False
    device: str = "cpu"

    @property
    def recipe(self) -> Recipe:
        """The arm's, with this seed and these steps."""
        return recipe_of(self.arm, self.seed, self.steps)

    @property
    def name(self) -> str:
        """As in ``imagebert-small/base/seed-0``."""
        return f"{self.arm.recipe}/{self.arm.name}/seed-{self.seed}"

    def settings(self) -> Figures:
        """What decides the figures."""
        return plain(
            {
                "recipe": to_plain(self.recipe),
                "arm": asdict(self.arm),
                "noise": [NOISE, LARGER],
                "pairs": self.pairs,
                "held_out": self.held_out,
                "matching": self.matching,
            }
        )

    @property
    def folder(self) -> Path:
        """Of the run; another for other settings, so that none gets in another's way."""
        return self.output / "runs" / f"{self.name}-{digest_of(self.settings())[:8]}"

    @property
    def result(self) -> Path:
        """Where the figures are kept: these small files alone let a grid be continued elsewhere."""
        digest = self.folder.name.rpartition("-")[2]
        return self.output / "results" / f"{self.name.replace('/', '_')}-{digest}.json"

    def total_steps(self) -> int:
        """Of all stages."""
        return sum(stage.steps or 0 for stage in self.recipe.stages)

    def steps_done(self) -> int:
        """As far as the log says, or all where the figures are known."""
        if self.result.exists():
            return self.total_steps()
        lines = read_log(self.folder / "train" / LOG)
        return int(lines[-1]["step"]) if lines else 0


def train_minutes(lines: Sequence[Figures], batch_sizes: dict[str, int]) -> float:
    """Minutes of the clock that steps took, from a log's rates; pauses of a run do not count."""
    seconds, before = 0.0, 0
    for line in lines:
        pairs = (line["step"] - before) * batch_sizes[line["stage"]]
        seconds += pairs / max(line["samples_per_second"], 1e-9)
        before = line["step"]
    return seconds / 60


def run(job: Job) -> Figures:
    """Train, evaluate and probe, or what is left of it; the figures by flat names.

    What the parts print goes to ``log.txt`` in the run's folder.
    """
    if job.result.exists():
        stored: Figures = json.loads(job.result.read_text(encoding="utf-8"))
        return stored
    with one_thread(), logged(job.folder / "log.txt"):
        figures = _figures(job)
    job.result.parent.mkdir(parents=True, exist_ok=True)
    write_json(job.result, figures)
    return figures


def pretrained(job: Job, init: Path | None = None) -> Path:
    """Pretrains by the job's recipe, or what is left of it, from ``init`` if it is given, else from
    a BERT of its own where its arm says so; the checkpoint.
    """
    if init is None and job.arm.from_bert:
        init = small_bert(job)
    recipe, tables, trained = job.recipe, job.tables, job.folder / "train"
    feeding = recipe.stages[0].feeding
    inputs = Inputs(
        pairs=tables.pairs,
        regions=tables.regions if feeding.reads_regions else None,
        images=tables.images if feeding.reads_images else None,
        negatives=tables.negatives,
        init=None if init is None else str(init),
    )
    pretrain(recipe, inputs, trained)
    return trained


def _figures(job: Job) -> Figures:
    recipe, trained = job.recipe, job.folder / "train"
    continued, clock = bool(saved_steps(trained)), time.process_time()
    pretrained(job)
    sizes = {stage.name: stage.batch_size for stage in recipe.stages}
    figures: Figures = {
        "name": job.name,
        "recipe": job.arm.recipe,
        "arm": job.arm.name,
        "seed": job.seed,
        "steps": job.total_steps(),
        "pairs": job.pairs,
        "held_out": job.held_out,
        "minutes": train_minutes(read_log(trained / LOG), sizes),
        "cpu_minutes": None if continued else (time.process_time() - clock) / 60,
        "device": job.device,
    }
    figures |= retrieval(job, trained, "retrieval")
    if recipe.variant == "vlmo" and job.matching and recipe.stages[-1].objectives.itm:
        again = retrieval(job, trained, "retrieval-matching", rerank=job.held_out)
        figures |= {f"matching/{name}": value for name, value in again.items()}
    figures |= probes(job, trained)
    if recipe.variant == "vlmo" and job.arm.name == BASE:
        figures |= without_experts(job, trained)
    return figures


def small_bert(job: Job) -> Path:
    """Trains the small BERT on the run's captions, with its seed; the checkpoint."""
    output = job.folder / "bert"
    recipe = recipe_of(Arm(recipe="bert-small"), job.seed, job.steps)
    pretrain(recipe, Inputs(pairs=job.tables.pairs), output)
    return output


def retrieval(job: Job, checkpoint: Path, folder: str, rerank: int | None = None) -> Figures:
    """R@1 in both directions."""
    metrics = evaluate_retrieval(
        RetrievalOptions(
            checkpoint=checkpoint,
            pairs=job.tables.pairs,
            regions=job.tables.regions,
            images=job.tables.images,
            split="test",
            output=job.folder / folder,
            device=job.device,
            rerank=rerank,
        )
    )
    return {f"{direction}/r1": metrics[f"{direction}/r1"] for direction in DIRECTIONS}


def probes(job: Job, checkpoint: Path) -> Figures:
    """What :func:`probes.probe` finds on the held-out pairs."""
    inputs = ProbeInputs(
        pairs=job.tables.pairs,
        regions=job.tables.regions,
        images=job.tables.images,
        groups=word_groups(job.world),
        split="test",
        device=job.device,
    )
    return dict(probe(load_checkpoint(checkpoint), inputs))


def without_experts(job: Job, checkpoint: Path) -> Figures:
    """The same figures with each expert of the trained VLMo adding nothing."""
    figures: Figures = {}
    for expert in EXPERTS:
        loaded, folder = load_checkpoint(checkpoint), job.folder / f"without-{expert}"
        switch_off(loaded.model, expert)
        save_checkpoint(
            folder / "checkpoint",
            loaded.model,
            CheckpointRecord(
                variant=loaded.variant,
                tokenizer=loaded.tokenizer,
                training=loaded.training,
                feeding=loaded.feeding,
            ),
        )
        without = retrieval(job, folder / "checkpoint", f"without-{expert}/retrieval")
        without |= probes(job, folder / "checkpoint")
        figures |= {f"without-{expert}/{name}": value for name, value in without.items()}
    return figures


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Figures | BaseException]]:
    """All runs, ``processes`` at once, each as it finishes; one that fails gives its error."""
    total, before = (sum(f(job) for job in jobs) for f in (Job.total_steps, Job.steps_done))
    with Progress(total=total, done=before, unit="step", label="learning") as bar:

        def look(running: int) -> None:
            bar.advance(sum(job.steps_done() for job in jobs) - bar.done, runs=str(running))

        yield from outcomes(run, jobs, processes, look=look)
