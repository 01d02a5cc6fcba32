"""Reads VQA v1 and v2: questions on COCO's images, with the answers of ten annotators.

Some questions and annotations are in different orders; they are joined by question_id. The ids of
the two versions overlap, so each is prefixed with its version.
"""

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import Claims, clean_text, coco_id, whole_number
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.layouts import vqa_answers
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import MIN_QUESTIONS, collect_labels
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import QUESTIONS


def question_row(
    record: Any,
    find: Callable[[int], vqa_answers.Annotation | None] | None,
    numbers: Mapping[str, int] | None,
    *,
    split: str,
    source: str,
) -> dict[str, Any] | Drop:
    """Converts an entry of ``*_questions.json`` to a row of ``questions``.

    ``find`` returns a question's annotation. Without it (test sets) the answers are null; without
    ``numbers``, the labels' indices in their list, the labels are null. A question whose answers
    are not labels has empty lists.
    """
    try:
        question_id, image_id, text = record["question_id"], record["image_id"], record["question"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")
    coco_image_id = coco_id(image_id)
    if whole_number(question_id) is None or coco_image_id is None or not isinstance(text, str):
        return Drop(Reason.BAD_ROW, "question_id and image_id must be whole numbers, question text")
    question = clean_text(text)
    if not question:
        return Drop(Reason.EMPTY_TEXT, f"question {question_id} of image {image_id}")
    row: dict[str, Any] = {
        "question_id": f"{source}/{question_id}",
        "image_id": coco_image_id,
        "question": question,
        "split": split,
        "source": source,
    }
    if find is None:
        return row
    annotation = find(question_id)
    if annotation is None:
        return Drop(Reason.BAD_ROW, f"question {question_id} has no annotation")
    if annotation.image_id not in (None, image_id):
        detail = f"question {question_id} has image {image_id}, its annotation has another"
        return Drop(Reason.BAD_REFERENCE, detail)
    return row | vqa_answers.answer_columns(annotation, numbers, source)


# The data sets

ANNOTATED = ("train2014", "val2014")
TEST, TEST_DEV = "test2015", "test-dev2015"  # the second is a part of the first
PAGE = "the data set's page"
QUESTION_KEYS = {
    "": frozenset((*vqa_answers.ABOUT, "task_type", "questions")),
    "questions": frozenset(("question_id", "image_id", "question")),
}


@dataclass(frozen=True, kw_only=True)
class Version:
    """Holds the file names of one version, and their published numbers of questions."""

    source: str
    questions: str
    annotations: str
    rows: Mapping[str, int]
    min_questions: int = MIN_QUESTIONS


VERSIONS = {
    "vqa2": Version(
        source="vqa2",
        questions="v2_OpenEnded_mscoco_{}_questions.json",
        annotations="v2_mscoco_{}_annotations.json",
        rows={"train2014": 443_757, "val2014": 214_354, TEST: 447_793, TEST_DEV: 107_394},
    ),
    "vqa1": Version(
        source="vqa1",
        questions="OpenEnded_mscoco_{}_questions.json",
        annotations="mscoco_{}_annotations.json",
        rows={"train2014": 248_349, "val2014": 121_512, TEST: 244_302, TEST_DEV: 60_864},
    ),
}


@dataclass(frozen=True, kw_only=True)
class SplitFiles:
    """Holds a split's questions, and their annotations if these are public."""

    split: str
    questions: Source
    annotations: Source | None


def open_vqa(version: Version, folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens VQA's files. Raises InputError."""
    splits = split_files(version, folder)
    labels, messages = labels_for(splits, args.labels, version.min_questions)
    numbers = None if labels is None else {label: number for number, label in enumerate(labels)}
    sources = [s for files in splits for s in (files.questions, files.annotations) if s]
    return Reading(
        sources=tuple(sources),
        entries=lambda: vqa_entries(version, splits, numbers),
        expected={
            files.questions.name: Expected(
                rows=version.rows[files.split],
                source=PAGE,
                verified=(version.source, files.split) != ("vqa1", TEST_DEV),
            )
            for files in splits
        },
        image_folders=(*ANNOTATED, TEST),
        files={} if labels is None else {LABELS_FILE: labels},
        messages=messages,
    )


def split_files(version: Version, folder: Folder) -> list[SplitFiles]:
    """Returns the splits whose questions exist. Raises InputError without any split, or if the file
    of public answers of a split is missing.
    """
    splits: list[SplitFiles] = []
    for split in (*ANNOTATED, TEST, TEST_DEV):
        questions = folder.find(version.questions.format(split))
        if questions is None or (split == TEST_DEV and any(s.split == TEST for s in splits)):
            continue
        annotations = None
        if split in ANNOTATED:
            annotations = folder.require(version.annotations.format(split))
        splits.append(SplitFiles(split=split, questions=questions, annotations=annotations))
    if not splits:
        raise folder.lacks(version.questions.format("train2014"))
    return splits


def labels_for(
    splits: Sequence[SplitFiles], path: Path | None, min_questions: int
) -> tuple[list[str] | None, tuple[str, ...]]:
    """Returns the labels, from the file or else from these answers, and a message about them.

    Returns None without file and answers. Raises InputError for a file with none of the answers.
    """
    annotated = [files.annotations for files in splits if files.annotations is not None]
    if path is not None:
        labels = read_labels(path)
        return labels, (check_labels(labels, path, annotated),)
    if not annotated:
        return None, ("labels: none, because there are no annotations (give --labels FILE)",)
    labels = collect_labels(vqa_answers.published_answers(annotated), min_questions=min_questions)
    if not labels:
        return None, (
            f"warning: no labels: no answer occurs in {min_questions} or more questions, so that "
            f"no {LABELS_FILE} is written and label_ids are null (give --labels FILE)",
        )
    return labels, (
        f"labels: {len(labels)} answers that {min_questions} or more questions of "
        f"{' and '.join(source.name for source in annotated)} have, in {LABELS_FILE}; "
        "to use a checkpoint's own list, give --labels FILE",
    )


def check_labels(labels: Sequence[str], path: Path, annotated: Sequence[Source]) -> str:
    """Returns a line: how many questions have a label. Raises InputError if none has one."""
    summary = f"labels: {len(labels)} of {path}"
    if not annotated:
        return summary
    questions, labelled = vqa_answers.count_labelled(annotated, frozenset(labels))
    if questions and not labelled:
        examples = ", ".join(repr(label[:40]) for label in labels[:3])
        answer = next(vqa_answers.published_answers(annotated))
        raise InputError(
            f"--labels {path}: none of its {len(labels)} labels ({examples}, ...) is an answer to "
            "one "
            f"of the {questions} questions here (such as {answer[:40]!r}); give the classifier's "
            "list of answers, one label per line or as JSON"
        )
    few = "warning: " if 2 * labelled < questions else ""
    return (
        f"{few}{summary}; {labelled} of {questions} annotated questions have an answer among them"
    )


def vqa_entries(
    version: Version, splits: Sequence[SplitFiles], numbers: Mapping[str, int] | None
) -> Iterator[Entry]:
    """Yields a split's questions in file order, and its invalid annotations among them."""
    claims = Claims()
    for files in splits:
        annotations = (
            None if files.annotations is None else vqa_answers.Annotations(files.annotations)
        )
        find = None if annotations is None else annotations.get
        name = files.questions.name
        question_file = JsonLists(source=files.questions, known=QUESTION_KEYS)
        for index, record in enumerate(question_file.elements("questions")):
            row = question_row(record, find, numbers, split=files.split, source=version.source)
            image: tuple[ListedImage, ...] = ()
            if annotations is not None and annotations.faults:
                yield from annotations.faults
                annotations.faults.clear()
            if not isinstance(row, Drop):
                if annotations is not None:
                    annotations.used(record["question_id"])
                repeated = claims.claim(
                    record["question_id"], f"{row['image_id']} {row['question']}"
                )
                image = (coco_image(record["image_id"], files.split),)
                row = repeated or row
            yield make_entry(f"{name}:{index}", name, row, image)
        if annotations is not None:
            annotations.end(name)
            yield from annotations.faults


def make_entry(
    key: str, group: str, row: dict[str, Any] | Drop, images: tuple[ListedImage, ...] = ()
) -> Entry:
    """Returns the entry of a question."""
    if isinstance(row, Drop):
        return Entry(key=key, group=group, rows=row)
    return Entry(key=key, group=group, rows=((QUESTIONS, row),), images=images)


def coco_image(image_id: int, split: str) -> ListedImage:
    """Returns an image of COCO's ``split`` (test-dev2015 has images of test2015)."""
    folder = TEST if split == TEST_DEV else split
    name = f"COCO_{folder}_{image_id:012d}.jpg"
    return ListedImage(image_id=f"coco/{image_id:012d}", paths=(f"{folder}/{name}",))


def _data_set(version: Version) -> DataSet:
    names = [version.questions.format(split) for split in ("train2014", "val2014", TEST)]
    names += [version.annotations.format(split) for split in ANNOTATED]
    return DataSet(
        about=(
            f"files: {', '.join(names)} (or the published zip archives), images in train2014/, "
            "val2014/, test2015/ or --images. From visualqa.org, whose terms page has the licence "
            "(annotations: CC BY 4.0).\n\n"
            "Rows of `questions` have the ten answers unchanged, and label_ids and label_scores by "
            "the answer list, which is written as labels.json. Without --labels the list has the "
            "answers with nine or more questions, like the published one, in vlmill's own order. "
            "If no answer has nine, no list is written and both columns are null. A --labels file "
            "without any of the answers is refused."
        ),
        tables=(QUESTIONS,),
        open=functools.partial(open_vqa, version),
        add_arguments=add_labels,
    )


VQA1 = _data_set(VERSIONS["vqa1"])
VQA2 = _data_set(VERSIONS["vqa2"])
