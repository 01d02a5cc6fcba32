"""A worker's model: questions are answered by the object that ``vlmill.load`` gives."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vlmill.schemas.console.progress import without_progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.regions import encode_regions
from vlmill.schemas.service.plain import plain_row
from vlmill.schemas.service.workers import Opened
from vlmill.train.pretrained.answering import ANSWER as VQA
from vlmill.train.pretrained.left_out import left_out, reads_regions
from vlmill.train.pretrained.model import Floats, Pretrained, load_pretrained
from vlmill.train.service.questions import (
    ANSWER,
    ATTEND,
    EMBED,
    SCORE,
    SEARCH,
    ModelOptions,
    NoAnswer,
    Question,
)
from vlmill.train.tasks.retrieval.checks import ranking_of
from vlmill.train.tasks.search.answering import answers_of
from vlmill.train.tasks.search.index import open_index
from vlmill.train.tasks.search.opened import way_of
from vlmill.train.tasks.search.queries import Query, asker_with

Answer = dict[str, Any] | NoAnswer
Method = Callable[[Question], Answer]


def open_model(options: ModelOptions, device: str) -> Opened:
    """Loads a checkpoint: what answers questions, and which ones it can be asked.

    Raises InputError for one that can be asked nothing, and for what does not belong to it.
    """
    model = load_pretrained(options.checkpoint, options.detector, None, device, options.batch_size)
    methods = methods_of(model, options.index)
    if not methods:
        raise InputError(
            f"--checkpoint {options.checkpoint}: a {model.loaded.variant} with no head that "
            "scores, embeds or answers; give one that retrieval or VQA can evaluate"
        )

    def compute(questions: Sequence[Question]) -> list[Answer]:
        with without_progress(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # answers say what is wrong with which picture
            return [methods[question.method](question) for question in questions]

    about = {"variant": model.loaded.variant, "methods": sorted(methods)}
    return Opened(compute=compute, about=about)


def methods_of(model: Pretrained, index: Path | None) -> dict[str, Method]:
    """Returns what a checkpoint has the heads for. Raises InputError for another's index."""
    methods: dict[str, Method] = {}
    if holds(lambda: ranking_of(model.loaded)):
        methods[SCORE] = lambda question: score(model, question)
        if reads_regions(model):
            methods[ATTEND] = lambda question: attend(model, question)
    if embeds(model):
        methods[EMBED] = lambda question: embed(model, question)
    if model.loaded.task is not None and model.loaded.task.name == VQA:
        methods[ANSWER] = lambda question: answer(model, question)
    if index is not None:
        methods[SEARCH] = searcher(model, index)
    return methods


def holds(check: Callable[[], object]) -> bool:
    """Says whether a check passes, which raises InputError where it does not."""
    try:
        check()
    except InputError:
        return False
    return True


def embeds(model: Pretrained) -> bool:
    """Says whether pictures and texts have vectors by themselves."""
    try:
        return way_of(model.loaded) == "dual"
    except InputError:
        return False


def score(model: Pretrained, question: Question) -> Answer:
    """Scores every picture with every text; null where one of the two cannot be read."""
    return {"scores": plain(model.score(question.pictures, question.texts))}


def attend(model: Pretrained, question: Question) -> Answer:
    """Scores a text with a picture, and tells what the score loses without each region."""
    try:
        found = left_out(model, question.pictures[0], question.texts[0])
    except InputError:
        return NoAnswer(
            reason="unreadable",
            message="the text has no word, or no two regions are found in the picture",
        )
    (row,) = encode_regions([found.row], dtype=found.arrays["features"]["dtype"]).to_pylist()
    return {
        "score": found.score,
        "losses": found.without.tolist(),
        "regions": [plain_row(row)],
        "arrays": dict(found.arrays),
    }


def embed(model: Pretrained, question: Question) -> Answer:
    """Embeds pictures and texts; null for one that cannot be read."""
    pictures = plain(model.encode_images(question.pictures)) if question.pictures else []
    texts = plain(model.encode_texts(question.texts)) if question.texts else []
    nothing = [None]
    return {
        "pictures": [None if row[:1] == nothing else row for row in pictures],
        "texts": [None if row[:1] == nothing else row for row in texts],
    }


def answer(model: Pretrained, question: Question) -> Answer:
    """Answers a question about a picture."""
    try:
        return {"answer": model.answer(question.pictures[0], question.texts[0])}
    except InputError:
        return NoAnswer(
            reason="unreadable", message="the picture cannot be read, or the question has no word"
        )


def searcher(model: Pretrained, folder: Path) -> Method:
    """Opens an index of the checkpoint's vectors; gives what searches it. Raises InputError."""
    index = open_index(folder)
    asker = asker_with(index, model.loaded, str(model.device), flag="--index")

    def search(question: Question) -> Answer:
        try:
            if question.texts:
                queries: list[Query] = asker.texts(question.texts)
            else:
                queries = asker.pictures({"picture": question.pictures[0]})
        except InputError:
            return NoAnswer(reason="no_text", message="the text has no word")
        if queries[0].error is not None:
            return NoAnswer(reason=queries[0].error, message="the picture cannot be read")
        blocks: Iterator[list[Query]] = iter([queries])
        (answered,) = answers_of(index, blocks, question.top)
        return {"answers": [dict(row) for row in answered.answers]}

    return search


def plain(values: Floats) -> list[list[float | None]]:
    """Returns numbers as JSON has them: null for NaN."""
    rows: list[list[float]] = values.tolist()
    return [[None if math.isnan(value) else value for value in row] for row in rows]
