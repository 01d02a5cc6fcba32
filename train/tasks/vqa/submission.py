"""Writes the files of answers that the servers and the scorers of the data sets read."""

from collections.abc import Mapping, Set
from pathlib import Path

from vlmill.runtime.files.atomic import write_json
from vlmill.schemas.errors import InputError
from vlmill.train.tasks.scores import require_same_ids

OFFICIAL = (None, "vqa1", "vqa2", "vgqa", "okvqa")  # questions have numbers


def official_id(question_id: str) -> int:
    """Returns the number that a question has in the published files: 1 of ``vqa2/1``.

    Raises InputError for a question that is not VQA's.
    """
    number = question_id.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"question_id {question_id!r}: expected SOURCE/NUMBER as written by `manifest vqa2`; "
            "the server identifies questions by number"
        )
    return int(number)


def write_results(
    folder: Path, split: str, predictions: Mapping[str, str], question_ids: Set[str]
) -> Path:
    """Writes ``vqa_SPLIT_result.json``: question_id and answer of each question, by rising ids.

    Raises InputError unless the predictions are of exactly these questions, and for two questions
    with the same number.
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


def write_own(folder: Path, split: str, predictions: Mapping[str, str]) -> None:
    """Writes ``own_SPLIT_result.json``: question_id, as in the table, and answer."""
    entries = [{"question_id": key, "answer": answer} for key, answer in predictions.items()]
    write_json(folder / f"own_{split}_result.json", entries)


def write_gqa(folder: Path, split: str, predictions: Mapping[str, str]) -> None:
    """Writes ``gqa_SPLIT_result.json``: questionId and prediction, as GQA's scorer reads them."""
    entries = [
        {"questionId": key.rpartition("/")[2], "prediction": answer}
        for key, answer in predictions.items()
    ]
    write_json(folder / f"gqa_{split}_result.json", entries)


def write_vizwiz(
    folder: Path,
    split: str,
    predictions: Mapping[str, str],
    images: Mapping[str, str],
    answerable: Mapping[str, float],
) -> None:
    """Writes VizWiz's files, ``vizwiz_SPLIT_result.json`` (image, answer) and
    ``vizwiz_SPLIT_answerability.json`` (image, answerable: 0..1) for a head with the answer
    "unanswerable".
    """
    names = {key: image_file(images[key]) for key in predictions}
    entries = [{"image": names[key], "answer": answer} for key, answer in predictions.items()]
    write_json(folder / f"vizwiz_{split}_result.json", entries)
    if answerable:
        path = folder / f"vizwiz_{split}_answerability.json"
        write_json(path, [{"image": names[k], "answerable": v} for k, v in answerable.items()])


def image_file(image_id: str) -> str:
    """Returns the name of VizWiz's file: ``VizWiz_val_00000000.jpg``."""
    name = image_id.rpartition("/")[2]
    return name if "." in name else f"{name}.jpg"
