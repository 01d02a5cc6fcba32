"""Fine-tunes a run of a task, evaluates it, and stores its figures as a line."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proof import class_arms, text_arms
from proof.arms import Arm
from proof.box_arms import BOX_TASKS, CHANCE, FIGURES
from proof.runs import Job, pretrained
from proof.side_by_side import digest_of, logged, one_thread, outcomes, plain
from proof.tables import ArmTables
from proof.task_arms import BLIND, MARGIN, PRETRAINING, PRETRAINING_STEPS, TaskArm, task_recipe
from shell import add_line, read_lines, result_line
from worlds import World

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
from vlmill.train.tasks.retrieval.job import RetrievalOptions

SPLIT = "test"
Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskJob:
    """An arm with a seed, on a world's tables."""

    arm: TaskArm
    seed: int
    world: World
    tables: ArmTables
    pairs: int
    held_out: int
    output: Path
    device: str = "cpu"

    @property
    def name(self) -> str:
        """As in ``vqa/vilbert/seed-0``."""
        return f"{self.arm.label}/seed-{self.seed}"

    def settings(self) -> Line:
        """What decides the figures, as long as the code is the same."""
        arm = {name: value for name, value in asdict(self.arm).items() if name != "seeds"}
        told = {
            "seed": self.seed,
            "world": asdict(self.world),
            "pairs": self.pairs,
            "held_out": self.held_out,
            "pretraining": [PRETRAINING_STEPS, *PRETRAINING] if self.arm.pretrained else [],
        }
        return plain(arm | told)

    @property
    def folder(self) -> Path:
        """Of the run; another for other settings, so that none gets in another's way."""
        return self.output / "runs" / f"{self.name}-{digest_of(self.settings())[:8]}"

    def chain(self) -> list[Job]:
        """The pretraining that it starts from, part by part, which other runs may share."""
        arm = self.arm
        return [] if arm.pretrained is None else [self.pretraining(arm.pretrained)]

    def untrained(self) -> set[Path]:
        """Where the parts of its chain will lie that are not trained to their end."""
        folders = {job.folder / "train" for job in self.chain()}
        return {folder for folder in folders if not (folder / MANIFEST).exists()}

    def start(self) -> Path | None:
        """The checkpoint that it starts from, trained if it is not there; None: drawn weights."""
        checkpoint: Path | None = None
        for job in self.chain():
            checkpoint = pretrained(job, init=checkpoint)
        return checkpoint

    def pretraining(self, recipe: str) -> Job:
        """The run that it starts from, which all seeds and arms of a model share."""
        return Job(
            arm=Arm(recipe=recipe, changes=PRETRAINING),
            seed=0,
            tables=self.tables,
            pairs=self.pairs,
            held_out=self.held_out,
            output=self.output,
            world=self.world,
            steps=PRETRAINING_STEPS,
            device=self.device,
        )


def finished(job: TaskJob, lines: Sequence[Line]) -> Line | None:
    """The line of a run with the job's settings, if there is one."""
    settings = job.settings()
    return next((line for line in lines if line["settings"] == settings), None)


def run(job: TaskJob) -> Line:
    """Pretrains, fine-tunes and evaluates, or what is left of it.

    What the parts print goes to ``log.txt`` in the run's folder.
    """
    with one_thread(), logged(job.folder / "log.txt"):
        return _line(job)


def _line(job: TaskJob) -> Line:
    arm, trained = job.arm, job.folder / "train"
    start = job.start()
    recipe = task_recipe(arm, job.seed, arm.steps)
    feeding = recipe.stages[0].feeding
    tables = {
        "regions": job.tables.regions if feeding.reads_regions else None,
        "images": job.tables.images if feeding.reads_images else None,
    }
    if arm.task in BOX_TASKS:
        tables = box_inputs(job.tables, feeding)
    inputs = TaskInputs(
        examples=examples_of(job),
        negatives=job.tables.neighbours if arm.reads_neighbours else None,
        init=None if start is None else str(start),
        **tables,  # type: ignore[arg-type]
    )
    continued, clock = bool(saved_steps(trained)), time.process_time()
    if arm.steps or start is None:
        finetune(recipe, inputs, trained)
    else:  # measured as it comes from pretraining
        trained, continued = start, True
    seconds = time.process_time() - clock
    metrics = EVALUATIONS[arm.task](job, trained, tables)
    return {
        "name": job.name,
        "metrics": metrics,
        "cpu_minutes": None if continued else round(seconds / 60, 2),
        "device": job.device,
        "settings": job.settings(),
    }


def examples_of(job: TaskJob) -> str:
    """The table that the arm is trained and asked on."""
    if job.arm.task in BOX_TASKS:
        return job.tables.boxes
    if job.arm.task in class_arms.TASKS:
        task, folder = job.arm.task, job.output / class_arms.FOLDER / job.arm.task
        class_arms.write_classes(folder, job.world, task, pairs=job.pairs, held_out=job.held_out)
        return str(folder)
    if job.arm.task not in text_arms.TASKS:
        return job.tables.pairs
    task, folder = job.arm.task, job.output / text_arms.FOLDER / job.arm.task
    text_arms.write_statements(folder, job.world, task, pairs=job.pairs, held_out=job.held_out)
    return str(folder)


def evaluate_official(job: TaskJob, checkpoint: Path, tables: Mapping[str, str | None]) -> Line:
    """The official metrics of the held-out examples; of tasks with boxes those that are told."""
    task = job.arm.task
    if task in BOX_TASKS:  # whatever the model reads: the report shows them
        tables = {**tables, "images": job.tables.images}
    options = EvaluationOptions(
        task=task,
        checkpoint=checkpoint,
        examples=examples_of(job),
        split=SPLIT,
        output=job.folder / "evaluated",
        device=job.device,
        fresh=True,
        **tables,  # type: ignore[arg-type]
    )
    evaluate_task(options)
    metrics: Line = json.loads((options.output / "metrics.json").read_text(encoding="utf-8"))
    told = FIGURES.get(task, (f"{task}/",))
    return {name: value for name, value in metrics.items() if name.startswith(told)}


def evaluate_recall(job: TaskJob, checkpoint: Path, tables: Mapping[str, str | None]) -> Line:
    """Recall in both directions among all held-out pairs."""
    options = RetrievalOptions(
        checkpoint=checkpoint,
        pairs=job.tables.pairs,
        split=SPLIT,
        output=job.folder / "evaluated",
        device=job.device,
        regions=tables["regions"],
        images=tables["images"],
    )
    metrics = evaluate_retrieval(options)
    return {name: value for name, value in metrics.items() if "_retrieval/r" in name}


EVALUATIONS: dict[str, Callable[[TaskJob, Path, Mapping[str, str | None]], Line]] = {
    **dict.fromkeys(("vqa", *class_arms.TASKS, *text_arms.TASKS, *BOX_TASKS), evaluate_official),
    **dict.fromkeys(("retrieval", "zero-shot"), evaluate_recall),
}


def run_all(
    jobs: Sequence[TaskJob], path: Path, processes: int
) -> Iterator[tuple[TaskJob, Line | BaseException]]:
    """Each job's line: those in the file at ``path``, then those of runs, ``processes`` at once,
    which are added to it.
    """
    known, missing = read_lines(path), list[TaskJob]()
    for job in jobs:
        if (line := finished(job, known)) is None:
            missing.append(job)
        else:
            yield job, line
    for job in missing:
        examples_of(job)  # here, as several runs would write the same
    total, done = len(jobs), len(jobs) - len(missing)
    with Progress(total=total, done=done, unit="run", label="proof", visible=done < total) as bar:

        def look(running: int) -> None:
            bar.advance(total - running - bar.done)

        for job, outcome in outcomes(run, missing, processes, makes=TaskJob.untrained, look=look):
            if not isinstance(outcome, BaseException):
                add_line(path, outcome)
            yield job, outcome


def box_inputs(tables: Any, feeding: Feeding) -> dict[str, str | None]:
    """The tables that a run with this feeding reads: examples with boxes, images, regions."""
    reads = {
        "regions": feeding.reads_regions and feeding.boxes != "annotated",
        "annotated_regions": feeding.reads_regions and feeding.boxes != "detected",
        "images": feeding.reads_images,
    }
    folders = {
        "regions": tables.regions,
        "annotated_regions": tables.boxes,
        "images": tables.images,
    }
    return {name: folders[name] if read else None for name, read in reads.items()}


def box_lines(line: Line, blind: Line | None) -> Sequence[Line]:
    """Each figure beside the blind model's, which is shown where boxes are; ``learned`` says
    whether it was beaten by the margin that is wanted. With one that chance is known of, that too.
    """
    settings, lines = line["settings"], []
    for name in FIGURES[settings["task"]]:
        value = line["metrics"][name]
        more: Line = {"examples": line["metrics"].get(f"{name}_n")}
        more |= {"chance": CHANCE[settings["task"]]}
        more |= {key: settings[key] for key in ("seed", "steps", "pairs", "held_out")}
        more |= {key: line[key] for key in ("cpu_minutes", "device")}
        told = f"learning_tasks/{line['name']}/{name.replace(f'/{SPLIT}', '')}"
        if blind is None or settings["name"] == BLIND:
            lines.append(result_line(told, value, "share", **more))
            continue
        alone = blind["metrics"][name]
        lines.append(
            result_line(
                told,
                value,
                "share",
                peer="a model that sees no image",
                peer_value=alone,
                ratio=value / alone if alone else None,
                margin=value - alone,
                margin_wanted=MARGIN,
                learned=value - alone >= MARGIN,
                limit=1.0,
                fraction_of_limit=value,
                **more,
            )
        )
    return lines
