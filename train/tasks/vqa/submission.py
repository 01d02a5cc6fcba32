"""Writes VQA's result files, which its server and its official scorer read."""

from collections.abc import Mapping, Set
from pathlib import Path

from vlmill.runtime.files.atomic import write_json
from vlmill.schemas.errors import InputError
from vlmill.train.tasks.scores import require_same_ids


def official_id(question_id: str) -> int:
    """Returns the number that a question has in the published files: 1 of ``vqa2/1``.

    Raises InputError for a question that is none of VQA's.
    """
    number = question_id.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"question_id {question_id!r}: want SOURCE/NUMBER as `manifest vqa2` writes them; the "
            "server knows questions by their numbers"
        )
    return int(number)


def write_results(
    folder: Path, split: str, predictions: Mapping[str, str], question_ids: Set[str]
) -> Path:
    """Writes ``vqa_SPLIT_result.json``: question_id and answer of each question, by rising ids.

    Raises InputError unless the predictions are of just these questions, and for two questions
    that have one number.
    """
    path = folder / f"vqa_{split}_result.json"
    require_same_ids(predictions.keys(), question_ids, path.name)
    answers = {official_id(key): answer for key, answer in predictions.items()}
    if len(answers) < len(predictions):
        raise InputError(
            f"{path.name}: questions of several sources share numbers; evaluate one source"
        )
    entries = [{"question_id": key, "answer": answers[key]} for key in sorted(answers)]
    write_json(path, entries)
    return path
