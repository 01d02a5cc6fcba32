"""The list of answers that a head tells apart: the checkpoint's own, one that is given, or the
data's.
"""

from collections import Counter
from pathlib import Path

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.answers import MIN_QUESTIONS, collect_labels
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE, read_labels
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import QUESTIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint


def select_answers(
    examples: str, labels: Path | None, init: LoadedCheckpoint | None, *, min_questions: int
) -> list[str]:
    """The answers of a run: those of ``--init`` where it was fine-tuned for VQA, of ``labels``, of
    the list beside the table, or those that ``min_questions`` of its questions have.

    Raises InputError where a checkpoint's list and a given one differ, and where there is none.
    """
    given_labels = None if labels is None else read_labels(labels)
    labels_path = to_path(examples) / LABELS_FILE
    has_list = init is not None and init.task is not None and init.task.name == "vqa"
    if min_questions != MIN_QUESTIONS and (
        has_list or given_labels is not None or labels_path.is_file()
    ):
        source = (
            "--init" if has_list else labels_path if given_labels is None else f"--labels {labels}"
        )
        print_status(
            f"warning: settings.min_questions={min_questions} has no effect: the answers are those "
            f"of {source}"
        )
    if init is not None and init.task is not None and init.task.name == "vqa":
        checkpoint_labels = list(init.task.labels)
        if given_labels is not None and given_labels != checkpoint_labels:
            raise InputError(
                f"--labels {labels}: the checkpoint {init.path} has a list of its own, "
                f"{len(checkpoint_labels)} "
                "answers; leave --labels out"
            )
        return checkpoint_labels
    if given_labels is not None:
        return given_labels
    if labels_path.is_file():
        return read_labels(labels_path)
    answers = collect_labels(published_answers(examples), min_questions=min_questions)
    if not answers:
        raise InputError(
            f"--examples {examples}: no answer is that of {min_questions} questions; give --labels "
            "FILE, or settings.min_questions=1"
        )
    print_status(
        f"answers: {len(answers)}, those of {min_questions} or more questions of --examples"
    )
    return answers


def published_answers(examples: str) -> list[str]:
    """The most frequent answer to each question that is trained or validated on."""
    answers = list[str]()
    columns = ("answer", "split")
    for batch in iter_batches(examples, QUESTIONS, columns=columns, flag="--examples"):
        answers += [
            row["answer"]
            for row in batch.to_pylist()
            if row["answer"] is not None and find_use(row["split"]) != "test"
        ]
    return answers


def report_missing_answers(examples: str, answers: list[str]) -> None:
    """Tells how many of the annotators' answers are not among ``answers``, and how many questions
    have none that is.
    """
    known, counts = set(answers), Counter[str]()
    for batch in iter_batches(examples, QUESTIONS, columns=("answers",), flag="--examples"):
        for row_answers in batch.column("answers").to_pylist():
            if row_answers is None:
                continue
            counts["questions"] += 1
            counts["answers"] += len(row_answers)
            counts["outside"] += sum(answer not in known for answer in row_answers)
            counts["unlabelled"] += not any(answer in known for answer in row_answers)
    if counts["outside"]:
        print_status(
            f"note: {counts['outside']} of {counts['answers']} answers of annotators are not among "
            f"the {len(answers)} of the list; {counts['unlabelled']} of {counts['questions']} "
            "questions have none that is"
        )
