"""Writes the task sets' tables: questions of DAQUAR, statements of NLVR and e-SNLI-VE."""

from dataclasses import dataclass
from pathlib import Path

from real.photographs import IMAGES, TASKS, find_images
from real.regions import write_regions
from real.tables import Tables, Test, file_digest
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.schemas.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """Names a set's file below ``tasks/``, its columns, and the task that learns from it.

    ``captioned``: its images are those of the captions.
    """

    name: str
    file: str
    columns: tuple[str, ...]
    task: str
    captioned: bool = False


SETS = (
    TaskSet(
        name="daquar",
        file="vqa_daquar/qa.tsv",
        columns=("--question-column", "question", "--answer-column", "answer"),
        task="vqa",
    ),
    TaskSet(
        name="nlvr",
        file="nlvr/nlvr.tsv",
        columns=("--statement-column", "sentence", "--label-column", "label"),
        task="entailment",
    ),
    TaskSet(
        name="snli-ve",
        file="snli_ve.tsv",
        columns=("--statement-column", "hypothesis", "--label-column", "label"),
        task="entailment",
        captioned=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class TaskTables:
    """Holds the folders of the task sets, below the tables of the captions."""

    tables: Tables

    def examples(self, name: str) -> Path:
        """Returns the folder of a set's examples."""
        return self.tables.output / "tasks" / name

    def regions(self, name: str) -> Path:
        """Returns the regions of a set's images."""
        return self.tables.regions if find_set(name).captioned else self._task_regions

    @property
    def _task_regions(self) -> Path:
        return self.tables.output / "regions-tasks"

    def test(self, name: str) -> Test:
        """Returns a set's test."""
        return Test(
            name=name,
            pairs=self.examples(name),
            regions=self.regions(name),
            digest=file_digest(self.tables.data / TASKS / find_set(name).file),
        )

    def write(self, names: set[str]) -> None:
        """Writes the examples of these sets and the regions of their images, if missing."""
        sets = [one for one in SETS if one.name in names]
        if any(not one.captioned for one in sets):
            images = find_images(self.tables.data, TASKS)
            write_regions(images, self._task_regions, jobs=self.tables.jobs)
        for one in sets:
            table = self.tables.data / TASKS / one.file
            root = self.tables.data / IMAGES if one.captioned else self.tables.data
            flags = ["own", "--input", str(table), "--output", str(self.examples(one.name))]
            flags += [*one.columns, "--image-column", "image", "--image-root", str(root)]
            if manifest.main(flags):
                raise InputError(f"{table}: the examples could not be written, see above")


def find_set(name: str) -> TaskSet:
    """Returns the set of a name."""
    return next(one for one in SETS if one.name == name)
