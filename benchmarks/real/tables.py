"""Writes the tables that the runs read: pairs, images, regions, and the BERT to start from."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from real import networks
from real.photographs import (
    ALL,
    CAPTIONS,
    FIRST,
    FLICKR8K,
    IMAGES,
    SMALL,
    TASKS,
    Row,
    baseline_images,
    find_images,
    flickr8k_captions,
    read_rows,
)
from real.regions import write_regions
from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.runtime.files.atomic import write_text
from vlmill.schemas.errors import InputError
from vlmill.train.cli import main as train_vl


@dataclass(frozen=True, kw_only=True)
class Test:
    """Names test images with their captions. ``digest`` identifies both."""

    name: str
    pairs: Path
    regions: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Holds the folders below ``output`` that are written from ``data``, and from ``test``."""

    data: Path
    output: Path
    test: Path | None = None
    jobs: int = 1

    @property
    def pairs(self) -> Path:
        """Returns the captions that are trained and validated on."""
        return self.output / "pairs" / "train"

    @property
    def regions(self) -> Path:
        """Returns the regions of all images of ``data``."""
        return self.output / "regions"

    @property
    def negatives(self) -> Path:
        """Returns the hard negatives of ``pairs``, by TF-IDF."""
        return self.output / "negatives"

    @property
    def bert(self) -> Path:
        """Returns MiniLM as a checkpoint of ours."""
        return self.output / "bert"

    def digest(self) -> str:
        """Identifies the captions and their splits."""
        return file_digest(self.data / CAPTIONS)

    def write(self) -> None:
        """Writes the tables, or those that are missing. Raises InputError."""
        write_regions(find_images(self.data), self.regions, jobs=self.jobs)
        rows = read_rows(self.data / CAPTIONS)
        self._write_pairs(self.pairs, self.data, filter(is_learnt, rows))
        for test in self.tests():
            self._write_pairs(test.pairs, self.data, self._test_rows(test.name, self.data))
        if self.test is not None:
            regions = self.output / "regions-test"
            write_regions(find_images(self.test), regions, jobs=self.jobs)
            for test in self.other_tests():
                name = test.name.removeprefix("other-")
                self._write_pairs(test.pairs, self.test, self._test_rows(name, self.test))
        self._write_bert()

    def write_negatives(self) -> None:
        """Finds the hard negatives of the training captions."""
        flags = ["--pairs", str(self.pairs), "--output", str(self.negatives)]
        if hard_negatives.main(flags):
            raise InputError(f"--output {self.output}: hard negatives failed, see above")

    def tests(self) -> list[Test]:
        """Returns the tests on Flickr8k's test images."""
        return [self._named_test(name, self.data, self.regions) for name in (SMALL, FIRST, ALL)]

    def other_tests(self) -> list[Test]:
        """Returns the tests on the Flickr8k images of ``--test``, which are all test images."""
        if self.test is None:
            return []
        regions = self.output / "regions-test"
        return [self._named_test(f"other-{name}", self.test, regions) for name in (FIRST, ALL)]

    def _named_test(self, name: str, folder: Path, regions: Path) -> Test:
        pairs = self.output / "pairs" / name
        digest = file_digest(folder / CAPTIONS)
        return Test(name=name, pairs=pairs, regions=regions, digest=digest)

    def _test_rows(self, name: str, folder: Path) -> list[Row]:
        splits = None if folder == self.test else {"test"}
        captions = {
            image: texts
            for (split, image), texts in flickr8k_captions(folder).items()
            if splits is None or split in splits
        }
        if name == SMALL:
            captions = {image: captions[image] for image in baseline_images(folder)[1]}
        count = None if name == ALL else 1
        return [
            {"image": image, "caption": text, "split": "test"}
            for image, texts in captions.items()
            for text in texts[:count]
        ]

    def _write_pairs(self, output: Path, folder: Path, rows: Iterable[Row]) -> None:
        """Writes captions with their images by the job for your own captions."""
        table = output.parent / f"{output.name}.tsv"
        lines = [f"{r['image']}\t{r['caption']}\t{r['split']}\n" for r in rows]
        text = "image\tcaption\tsplit\n" + "".join(lines)
        if not table.exists() or table.read_text(encoding="utf-8") != text:
            table.parent.mkdir(parents=True, exist_ok=True)
            write_text(table, text)
        flags = ["own", "--input", str(table), "--output", str(output), "--language", "en"]
        flags += ["--text-column", "caption", "--image-column", "image"]
        flags += ["--image-root", str(folder / IMAGES)]
        if manifest.main(flags):
            raise InputError(f"--output {output}: the captions could not be written, see above")

    def _write_bert(self) -> None:
        if self.bert.exists():
            return
        source = networks.unpack_minilm(self.output / "minilm")
        flags = [
            "convert",
            "--family",
            "bert",
            "--checkpoint",
            str(source),
            "--output",
            str(self.bert),
        ]
        if train_vl(flags):
            raise InputError(f"--output {self.bert}: MiniLM could not be converted, see above")


def is_learnt(row: Row) -> bool:
    """Returns whether a caption is trained on, or validates Flickr8k's."""
    is_validation = row["split"] == "val" and row["image"].startswith(FLICKR8K)
    return row["split"] == "train" or is_validation


def file_digest(path: Path) -> str:
    """Returns the start of a file's SHA-256. Raises InputError where there is none."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give the folder of the photographs")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


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
