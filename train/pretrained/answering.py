"""Answers one question by the code that evaluates VQA."""

from collections.abc import Mapping
from pathlib import Path

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.shards import ShardWriter, write_shard
from vlmill.schemas.tables import QUESTIONS, REJECTS
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.tasks.evaluating.job import predict_all, prepared_batches
from vlmill.train.tasks.evaluating.opened import EvaluationOptions, open_evaluation
from vlmill.train.tasks.vqa.task import Vqa

TASK = "vqa"


def answer_of(
    loaded: LoadedCheckpoint, device: str, folder: Path, question: str, tables: Mapping[str, str]
) -> str:
    """Returns the likeliest answer to a question about picture "0" of ``tables``, in ``folder``.

    Raises InputError for a checkpoint of another task.
    """
    row = {"question_id": "0", "image_id": "0", "question": question}
    write_shard(folder / "questions", QUESTIONS, [dict.fromkeys(QUESTIONS.schema.names) | row])
    options = EvaluationOptions(
        task=TASK,
        checkpoint=loaded.path,
        examples=str(folder / "questions"),
        output=folder / "answers",
        regions=tables.get("regions"),
        images=tables.get("images"),
        device=device,
    )
    opened = open_evaluation(options, loaded)
    with ShardWriter(folder / "answers", REJECTS, 0, 1) as rejects:
        batches = prepared_batches(opened, folder / "work", rejects)
    predicted, _ = predict_all(opened, batches)
    if not predicted:
        raise InputError("the picture has no answer: nothing is known of it; give another")
    assert isinstance(opened.task, Vqa)
    answer: str = opened.task.answers[int(predicted[0].value)]
    return answer
