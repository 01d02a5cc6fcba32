"""VQA v1 and v2: questions on COCO's pictures, with what ten annotators answered.

Questions and annotations are in different orders in places and are joined by question_id. The ids
of the two versions overlap, so each has its version in front.
"""

import argparse
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.cleaning import Claims, clean_text, coco_id, whole_number
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Picture, Reading
from vlmill.pipelines.manifest.labels import add_labels
from vlmill.pipelines.manifest.sources import Folder, Source
from vlmill.pipelines.manifest.streams import JsonLists
from vlmill.schemas.answers import MIN_QUESTIONS, clean_answer, labels_of, soft_labels
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import QUESTIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """What was answered to a question; ``answers`` as the annotators typed them.

    ``image_id`` is the picture's number, None where the file does not say it.
    """

    image_id: int | None
    question_type: str | None
    answer_type: str | None
    answer: str
    answers: tuple[str, ...]


def annotation_of(record: Any) -> tuple[int, Annotation] | Drop:
    """Reads an entry of ``*_annotations.json`` as a question_id and its annotation."""
    try:
        question_id, answer = record["question_id"], record["multiple_choice_answer"]
        answers = tuple(one["answer"] for one in record["answers"])
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"an annotation without {error}")
    texts = (answer, *answers)
    if whole_number(question_id) is None or not all(isinstance(a, str) for a in texts):
        return Drop(Reason.BAD_ROW, "question_id must be a whole number and answers text")
    if not answers:
        return Drop(Reason.BAD_ROW, f"question {question_id} has no answers")
    return question_id, Annotation(
        image_id=whole_number(record.get("image_id")),
        question_type=text_or_none(record.get("question_type")),
        answer_type=text_or_none(record.get("answer_type")),
        answer=clean_answer(answer),
        answers=tuple(map(clean_answer, answers)),
    )


def text_or_none(value: Any) -> str | None:
    """Returns a text, None for anything else."""
    return value if isinstance(value, str) else None


def question_row(
    record: Any,
    annotations: Mapping[int, Annotation] | None,
    numbers: Mapping[str, int] | None,
    *,
    split: str,
    source: str,
) -> dict[str, Any] | Drop:
    """Reads an entry of ``*_questions.json`` as a row of ``questions``.

    Without ``annotations`` (test sets) its answers are null, without ``numbers`` of labels (their
    places in the list) its labels. A question whose answers are no labels has empty lists.
    """
    try:
        question_id, image_id, text = record["question_id"], record["image_id"], record["question"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")
    of = coco_id(image_id)
    if whole_number(question_id) is None or of is None or not isinstance(text, str):
        return Drop(Reason.BAD_ROW, "question_id and image_id must be whole numbers, question text")
    question = clean_text(text)
    if not question:
        return Drop(Reason.EMPTY_TEXT, f"question {question_id} of picture {image_id}")
    row: dict[str, Any] = {
        "question_id": f"{source}/{question_id}",
        "image_id": of,
        "question": question,
        "split": split,
        "source": source,
    }
    if annotations is None:
        return row
    annotation = annotations.get(question_id)
    if annotation is None:
        return Drop(Reason.BAD_ROW, f"question {question_id} has no annotation")
    if annotation.image_id not in (None, image_id):
        detail = f"question {question_id} is of picture {image_id}, its annotation of another"
        return Drop(Reason.BAD_REFERENCE, detail)
    return row | answered(annotation, numbers)


def answered(annotation: Annotation, numbers: Mapping[str, int] | None) -> dict[str, Any]:
    """Returns the columns of a question's answers and, where labels are ``numbers``, of these."""
    columns: dict[str, Any] = {
        "question_type": annotation.question_type,
        "answer_type": annotation.answer_type,
        "answer": annotation.answer,
        "answers": list(annotation.answers),
    }
    if numbers is not None:
        label_ids, label_scores = soft_labels(annotation.answers, numbers)
        columns |= {"label_ids": label_ids, "label_scores": label_scores}
    return columns


# The data sets

ANNOTATED = ("train2014", "val2014")
TEST, TEST_DEV = "test2015", "test-dev2015"  # the second is a part of the first
PAGE = "the data set's page"
ABOUT = ("info", "license", "data_type", "data_subtype")
QUESTION_KEYS = {
    "": frozenset((*ABOUT, "task_type", "questions")),
    "questions": frozenset(("question_id", "image_id", "question")),
}
ANNOTATION_KEYS = {
    "": frozenset((*ABOUT, "annotations")),
    "annotations": frozenset(
        (
            *("question_id", "image_id", "question_type", "answer_type"),
            *("multiple_choice_answer", "answers"),
        )
    ),
}


@dataclass(frozen=True, kw_only=True)
class Version:
    """How one version's files are called, and their published numbers of questions."""

    source: str
    questions: str
    annotations: str
    rows: Mapping[str, int]


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
    """A split's questions, and their annotations where these are public."""

    split: str
    questions: Source
    annotations: Source | None


def open_vqa(version: Version, folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens VQA's files. Raises InputError."""
    splits = split_files(version, folder)
    labels, says = labels_for(splits, args.labels)
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
        picture_folders=(*ANNOTATED, TEST),
        files={} if labels is None else {LABELS_FILE: labels},
        says=says,
    )


def split_files(version: Version, folder: Folder) -> list[SplitFiles]:
    """Returns the splits whose questions are there. Raises InputError if none is, or if a split
    that has public answers lacks them.
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
    splits: Sequence[SplitFiles], path: Path | None
) -> tuple[list[str] | None, tuple[str, ...]]:
    """Returns the labels and what to say of them: those of the file, else of these answers.

    None where there is neither.
    """
    if path is not None:
        labels = read_labels(path)
        return labels, (f"labels: {len(labels)} of {path}",)
    annotated = [files.annotations for files in splits if files.annotations is not None]
    if not annotated:
        return None, ("labels: none, as no annotations are here (give --labels FILE)",)
    labels = labels_of(published_answers(annotated))
    return labels, (
        f"labels: {len(labels)} answers that {MIN_QUESTIONS} or more questions of "
        f"{' and '.join(source.name for source in annotated)} have, in {LABELS_FILE}; a checkpoint "
        "has its own list: give --labels FILE to use that",
    )


def published_answers(sources: Iterable[Source]) -> Iterator[str]:
    """Yields the most frequent answer to each question."""
    with Progress(total=None, unit="answer", label="labels") as progress:
        for source in sources:
            for record in JsonLists(source=source).elements("annotations"):
                entry = annotation_of(record)
                if not isinstance(entry, Drop):
                    yield entry[1].answer
                progress.advance(1)


def vqa_entries(
    version: Version, splits: Sequence[SplitFiles], numbers: Mapping[str, int] | None
) -> Iterator[Entry]:
    """Yields a split's questions in the order of their file, after its annotations that are none.

    Memory: the annotations of one split, some 1 KB for each.
    """
    claims = Claims()
    for files in splits:
        annotations: dict[int, Annotation] | None = None
        if files.annotations is not None:
            annotations = {}
            yield from read_annotations(files.annotations, annotations)
        name, asked = files.questions.name, set[int]()
        asking = JsonLists(source=files.questions, known=QUESTION_KEYS)
        for place, record in enumerate(asking.elements("questions")):
            row = question_row(
                record, annotations, numbers, split=files.split, source=version.source
            )
            picture: tuple[Picture, ...] = ()
            if not isinstance(row, Drop):
                asked.add(record["question_id"])
                repeated = claims.claim(
                    record["question_id"], f"{row['image_id']} {row['question']}"
                )
                picture = (coco_picture(record["image_id"], files.split),)
                row = repeated or row
            yield entry_of(f"{name}:{place}", name, row, picture)
        for question_id in sorted((annotations or {}).keys() - asked):
            assert files.annotations is not None
            drop = Drop(Reason.BAD_REFERENCE, f"no question {question_id} in {name}")
            yield entry_of(f"{files.annotations.name}:{question_id}", "", drop)


def entry_of(
    key: str, group: str, row: dict[str, Any] | Drop, pictures: tuple[Picture, ...] = ()
) -> Entry:
    """Returns the entry of a question."""
    if isinstance(row, Drop):
        return Entry(key=key, group=group, rows=row)
    return Entry(key=key, group=group, rows=((QUESTIONS, row),), pictures=pictures)


def read_annotations(source: Source, annotations: dict[int, Annotation]) -> Iterator[Entry]:
    """Puts a file's annotations into ``annotations``; yields those that are none."""
    file = JsonLists(source=source, known=ANNOTATION_KEYS)
    for place, record in enumerate(file.elements("annotations")):
        entry = annotation_of(record)
        if not isinstance(entry, Drop) and entry[0] in annotations:
            same = annotations[entry[0]] == entry[1]
            reason = Reason.DUPLICATE if same else Reason.ID_CONFLICT
            entry = Drop(reason, f"question {entry[0]} has an annotation before")
        if isinstance(entry, Drop):
            yield entry_of(f"{source.name}:{place}", "", entry)
        else:
            annotations[entry[0]] = entry[1]


def coco_picture(image_id: int, split: str) -> Picture:
    """Names a picture of COCO's ``split`` (test-dev2015 is of test2015)."""
    folder = TEST if split == TEST_DEV else split
    name = f"COCO_{folder}_{image_id:012d}.jpg"
    return Picture(image_id=f"coco/{image_id:012d}", paths=(f"{folder}/{name}",))


def _data_set(version: Version, years: str) -> DataSet:
    names = [version.questions.format(split) for split in ("train2014", "val2014", TEST)]
    names += [version.annotations.format(split) for split in ANNOTATED]
    return DataSet(
        title=f"VQA {years}: questions, answers, soft scores",
        about=(
            f"files: {', '.join(names)} (or the published zip archives), pictures in train2014/, "
            "val2014/, test2015/ or --images. From visualqa.org, whose terms page has the licence "
            "(annotations: CC BY 4.0).\n\n"
            "Rows of `questions` have the ten answers as typed, and label_ids and label_scores by "
            "the list of labels, which is written as labels.json. Without --labels it is made as "
            "the published one was, of answers that nine or more questions have; its order is ours."
        ),
        tables=(QUESTIONS,),
        open=functools.partial(open_vqa, version),
        add_arguments=add_labels,
    )


VQA1 = _data_set(VERSIONS["vqa1"], "v1")
VQA2 = _data_set(VERSIONS["vqa2"], "v2")
