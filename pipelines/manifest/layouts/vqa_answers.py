"""Reads the answers of VQA's ten annotators to each question from its ``*_annotations.json``."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.manifest.cleaning import Claims, whole_number
from vlmill.pipelines.manifest.entries import Entry
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.kept_values import NumberStore, ValueStore
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.answers import clean_answer, label_answers
from vlmill.schemas.rejects import Reason

ABOUT = ("info", "license", "data_type", "data_subtype", "question_types")  # the last of OK-VQA
ANNOTATION_KEYS = {
    "": frozenset((*ABOUT, "annotations")),
    "annotations": frozenset(
        (
            *("question_id", "image_id", "question_type", "answer_type"),
            *("multiple_choice_answer", "answers", "confidence"),
        )
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """Holds the answers to a question; ``answers`` are as the annotators typed them.

    ``image_id`` is the image's number, None if the file does not state it.
    """

    image_id: int | None
    question_type: str | None
    answer_type: str | None
    answer: str
    answers: tuple[str, ...]


def parse_annotation(record: Any) -> tuple[int, Annotation] | Drop:
    """Reads an entry of ``*_annotations.json`` into a question_id and its annotation.

    OK-VQA does not state the most frequent answer: it is the first of these.
    """
    try:
        question_id = record["question_id"]
        answers = tuple(entry["answer"] for entry in record["answers"])
        answer = record.get("multiple_choice_answer", most_frequent(answers))
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


def most_frequent(answers: Sequence[Any]) -> Any:
    """Returns the first of the most frequent answers, "" without answers."""
    return max(answers, key=answers.count, default="")


def text_or_none(value: Any) -> str | None:
    """Returns the value if it is a string, else None."""
    return value if isinstance(value, str) else None


def answer_columns(
    annotation: Annotation, numbers: Mapping[str, int] | None, source: str
) -> dict[str, Any]:
    """Returns the columns of a question's answers and, if ``numbers`` are given, of its labels."""
    columns: dict[str, Any] = {
        "question_type": annotation.question_type,
        "answer_type": annotation.answer_type,
        "answer": annotation.answer,
        "answers": list(annotation.answers),
    }
    if numbers is not None:
        label_ids, label_scores = label_answers(source, annotation.answers, numbers)
        columns |= {"label_ids": label_ids, "label_scores": label_scores}
    return columns


def published_answers(sources: Iterable[Source]) -> Iterator[str]:
    """Yields the most frequent answer to each question."""
    with Progress(total=None, unit="answer", label="labels") as progress:
        for source in sources:
            for record in JsonLists(source=source).elements("annotations"):
                entry = parse_annotation(record)
                if not isinstance(entry, Drop):
                    yield entry[1].answer
                progress.advance(1)


def count_labelled(sources: Iterable[Source], labels: Collection[str]) -> tuple[int, int]:
    """Counts annotated questions, and those with an answer among ``labels``."""
    questions = labelled = 0
    with Progress(total=None, unit="answer", label="labels") as progress:
        for source in sources:
            for record in JsonLists(source=source).elements("annotations"):
                entry = parse_annotation(record)
                if not isinstance(entry, Drop):
                    questions += 1
                    labelled += any(answer in labels for answer in entry[1].answers)
                progress.advance(1)
    return questions, labelled


class Annotations:
    """Looks up the annotations of a file by the number of their question.

    Both files are mostly in the same order, so they are read in parallel: annotations that are read
    before their question are stored on disk. ``faults`` are invalid entries, which the caller
    collects from time to time.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._coming = self._read()
        self._claims, self._num_read = Claims(), 0
        self._kept = ValueStore[Annotation](_pack, _unpack)
        self._asked, self._num_asked = NumberStore(), 0
        self.faults: list[Entry] = []

    def get(self, question_id: int) -> Annotation | None:
        """Returns the annotation of a question, None if the file has none."""
        if (annotation := self._kept.get(question_id)) is not None:
            return annotation
        for number, coming in self._coming:
            self._kept.put(number, coming)  # also the requested one: questions may repeat
            if number == question_id:
                return coming
        return None

    def used(self, question_id: int) -> None:
        """Records that a question has used its annotation."""
        if self._asked.claim(question_id, 0) is None:
            self._num_asked += 1

    def _read(self) -> Iterator[tuple[int, Annotation]]:
        """Yields the first valid annotation of each question; the others become faults."""
        file = JsonLists(source=self._source, known=ANNOTATION_KEYS)
        for index, record in enumerate(file.elements("annotations")):
            entry = parse_annotation(record)
            if not isinstance(entry, Drop):
                content = "\0".join(map(str, (*_pack(entry[1])[:4], *entry[1].answers)))
                repeated = self._claims.claim(entry[0], content)
                if repeated is None:
                    self._num_read += 1
                    yield entry
                    continue
                entry = Drop(repeated.reason, f"question {entry[0]} has an annotation before")
            self._fault(index, entry)

    def _fault(self, index: int, drop: Drop) -> None:
        self.faults.append(Entry(key=f"{self._source.name}:{index}", group="", rows=drop))

    def end(self, questions: str) -> None:
        """Reads the remaining annotations; annotations that no question of the file ``questions``
        has used become faults.
        """
        for _ in self._coming:
            pass
        if self._num_read == self._num_asked:
            return
        reported = NumberStore()
        for record in JsonLists(source=self._source).elements("annotations"):
            entry = parse_annotation(record)
            if isinstance(entry, Drop) or self._asked.get(entry[0]) is not None:
                continue
            if reported.claim(entry[0], 0) is None:
                drop = Drop(Reason.BAD_REFERENCE, f"no question {entry[0]} in {questions}")
                key = f"{self._source.name}:{entry[0]}"
                self.faults.append(Entry(key=key, group="", rows=drop))


def _pack(annotation: Annotation) -> tuple[Any, ...]:
    ann = annotation
    return ann.image_id, ann.question_type, ann.answer_type, ann.answer, ann.answers


def _unpack(values: tuple[Any, ...]) -> Annotation:
    image_id, question_type, answer_type, answer, answers = values
    return Annotation(
        image_id=image_id,
        question_type=question_type,
        answer_type=answer_type,
        answer=answer,
        answers=answers,
    )
