"""Manages the checkpoints of a training: written completely, read back, and one published."""

import shutil
from pathlib import Path

from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vlmill.extract.config import DETECTOR, MODEL, saved_steps
from vlmill.extract.detect.checkpoint import read_saved, save_detector
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import load_published
from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.atomic import atomic_folder, link_file
from vlmill.runtime.files.checkpoints import CHECKPOINTS, keep_last, step_folder
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, require_unchanged
from vlmill.runtime.files.mirror import push
from vlmill.runtime.files.outputs import PLAN
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.train.detector.job import TrainJob
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.rejecting import UNDECODABLE
from vlmill.train.run.runner import LOG
from vlmill.train.run.snapshot import RAW, Resumed, Snapshot

STATE = "training_state.safetensors"
METRICS, REPORT = "metrics.json", "report.html"
CRITERION = Criterion(name="vg/map", highest=True)


class DetectorSaving:
    """Writes and reads a run's checkpoints: a detector each, with the state for continuing."""

    def __init__(self, job: TrainJob, accelerator: Accelerator) -> None:
        self.job, self.accelerator = job, accelerator
        name = f"validation/{CRITERION.name}"
        log = read_log(job.output / LOG)
        self.measured: dict[int, float] = {line["step"]: line[name] for line in log if name in line}

    def last(self) -> Resumed | None:
        """Reads the last checkpoint; None for a new run. Raises InputError for one that is
        damaged.
        """
        steps = saved_steps(self.job.output)
        if not steps:
            return None
        step, folder = max(steps), steps[max(steps)]
        model = FasterRCNN(self.job.settings.detector)
        load_published(model, read_saved(folder, "--output").weights)
        try:
            files = parse_record(read_json(folder / DETECTOR).get(FILE_RECORD))
            state_files = [file for file in files if file.name == STATE]
            require_unchanged(folder, state_files, f"--output: {folder}")
            tensors = {name: value.clone() for name, value in load_file(folder / STATE).items()}
        except InputError:
            raise
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"--output: {folder} is damaged ({error}); use --fresh") from None
        # An earlier version's checkpoint has only momenta, by the names of their parameters.
        prefixes = ("optimizer.", "rng.", RAW)
        state = {
            name if name.startswith(prefixes) else f"optimizer.momentum_buffer.{name}": value
            for name, value in tensors.items()
        }
        return Resumed(step=step, model=model, state=state)

    def begin(self, run: StageRun) -> None:
        """Records nothing: the training data of a detector is in the manifest."""

    def save(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, whole or not at all; all processes take part."""
        job, step = self.job, snapshot.step
        weights, state = snapshot.gather(self.accelerator)
        if snapshot.measured is not None:
            self.measured[step] = snapshot.measured
        if not self.accelerator.is_main_process:
            return
        with atomic_folder(step_folder(job.output, step), replace=True) as folder:
            save_file({k: v.detach().cpu().contiguous() for k, v in state.items()}, folder / STATE)
            save_detector(
                folder,
                job.settings.detector,
                weights,
                classes=job.names.classes,
                attributes=job.names.attributes,
                training={"recipe": job.settings.name, "step": step},
                also=(STATE,),
            )
        count = job.settings.keep_checkpoints
        keep_last(saved_steps(job.output), count, also=self.chosen(step))
        push(job.output)

    def chosen(self, last: int) -> int:
        """Returns the step whose detector is the run's result, when the run is at step ``last``."""
        if not self.job.settings.patience or not self.measured:
            return last
        return min(self.measured, key=lambda step: (CRITERION.rank(self.measured[step]), step))

    def publish(self, last: int) -> None:
        """Puts the run's detector at the top of the output, as links."""
        folder = saved_steps(self.job.output)[self.chosen(last)]
        for name in (MODEL, DETECTOR):  # the file that makes the folder a detector comes last
            link_file(folder / name, self.job.output / name)


def remove_run(output: Path) -> None:
    """Deletes a run's checkpoints, log and curves, if the folder holds such a run."""
    if not (output / PLAN).is_file():
        return
    for name in (MODEL, DETECTOR, LOG, UNDECODABLE, METRICS, "trackers.json"):
        (output / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, "tensorboard", "wandb", "mlflow"):
        shutil.rmtree(output / name, ignore_errors=True)
