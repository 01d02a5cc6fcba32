"""Runs a worker's model, the object of ``vlmill.load``, on batches of requests.

Requests of the same type in a batch are computed together: the detector and the networks process
the images of all of them. Other processes, which can be killed, decode the images.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.inference.load import scoring
from vlmill.inference.load.detector import RANDOM
from vlmill.inference.load.explaining import measure_region_effects, reads_regions
from vlmill.inference.load.model import (
    CLASSIFICATION,
    ENTAILMENT,
    VQA,
    Floats,
    LoadedModel,
    load_pretrained,
    read_answer,
    read_classes,
)
from vlmill.inference.search.embedding_inputs import find_embedding_mode
from vlmill.inference.search.index import read_settings
from vlmill.inference.search.queries import Query, QueryEncoder, require_weights
from vlmill.inference.search.reranking import open_reranker
from vlmill.inference.service.questions import (
    ANSWER,
    ATTEND,
    CLASSIFY,
    EMBED,
    ENTAIL,
    MOST_RERANKED,
    RERANK,
    SCORE,
    SEARCH,
    ModelOptions,
    NoAnswer,
    Question,
)
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.console.progress import without_progress
from vlmill.runtime.cores import all_cores
from vlmill.runtime.readers.class_names import NAMES
from vlmill.runtime.readers.regions import encode_regions
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.logs import log
from vlmill.runtime.service.workers import WorkerContext
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.crop import UndecodableImage, evaluation_image
from vlmill.train.tasks.retrieval.checks import select_ranking
from vlmill.train.tasks.retrieval.vectors import MOST_THREADS

WORKERS = 1  # processes per device, if a detector reads the images
Pixels = NDArray[np.uint8]
Task = tuple[bytes | None, str, int]


class PixelDecoder:
    """Decodes images like :func:`evaluation_image`, in other processes. Thread-safe."""

    def __init__(self) -> None:
        workers = min(MOST_THREADS, all_cores())
        self._pool = BoundedPool[Task, Pixels | Rejected](workers, start_decoding)
        self._pool.begin()  # starts the processes before the first request

    def __call__(self, data: bytes | None, image_id: str, size: int) -> Pixels:
        """Returns the full image at S x S, uint8 [3, S, S]. Raises UndecodableImage."""
        try:
            result = self._pool.call((data, image_id, size))
        except Rejected as why:
            result = why
        if isinstance(result, Rejected):
            raise UndecodableImage(image_id, result)
        return result


def start_decoding() -> Callable[[Task], Pixels | Rejected]:
    """Returns the function with which a process decodes images."""
    return decode_pixels


def decode_pixels(task: Task) -> Pixels | Rejected:
    """Returns an image's pixels, or why it has none."""
    try:
        return evaluation_image(*task)
    except UndecodableImage as error:
        return error.cause


Answer = (
    dict[str, Any] | NDArray[np.float32] | NoAnswer
)  # a vector is what an index is searched for
Method = Callable[[Sequence[Question]], Sequence[Answer]]


def open_model(options: ModelOptions, device: str) -> WorkerContext:
    """Loads a checkpoint: what answers questions, and which ones it can be asked.

    Raises InputError for one that can be asked nothing, and for what does not belong to it.
    """
    with log_warnings():
        model = load_pretrained(
            options.checkpoint,
            options.detector,
            None,
            device,
            options.batch_size,
            decode=PixelDecoder(),
            workers=WORKERS,
        )
    methods = make_methods(model, options.index)
    paths = sorted(methods)
    if not paths:
        raise InputError(
            f"--checkpoint {options.checkpoint}: {with_article(model.loaded.variant)} with no "
            "head that scores, embeds or answers; give one that retrieval or VQA can evaluate"
        )
    with log_warnings():
        model.open_detector()  # starts the processes before the first request
    if options.reranker is not None:
        if SEARCH not in methods:
            raise InputError(
                "--reranker ranks the results of texts, which --checkpoint cannot search for; give "
                "a dual encoder, and an --index of its vectors"
            )
        methods[RERANK] = make_reranker(options, device)

    def compute(questions: Sequence[Question]) -> list[Answer]:
        with without_progress(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # responses name the images with problems
            return answer_all(methods, questions)

    loaded = model.loaded
    # The detector of the regions, in the form of a regions table.
    record = loaded.detector or {}
    about = {
        "variant": loaded.variant,
        "methods": paths,
        "reranks": RERANK in methods,
        "producer": {name: record[name] for name in ("detector", NAMES) if name in record},
        "scales": find_scales(model, methods),
        "random": RANDOM.fullmatch(str(record.get("weights"))) is not None,
    }
    return WorkerContext(compute=compute, about=about)


def find_scales(model: LoadedModel, methods: Mapping[str, Method]) -> dict[str, str]:
    """Returns the scale of the scores, "cosine" or "logit", if the model has them."""
    if SCORE not in methods:
        return {}
    return {SCORE: "cosine" if select_ranking(model.loaded) == "contrast" else "logit"}


@contextmanager
def log_warnings() -> Iterator[None]:
    """Converts warnings to lines of the log, one line each."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield
    for record in records:
        log("note", message=str(record.message))


def answer_all(methods: Mapping[str, Method], questions: Sequence[Question]) -> list[Answer]:
    """Computes questions, those of a method together; results are in the questions' order."""
    answers = dict[int, Answer]()
    for name in dict.fromkeys(question.method for question in questions):
        indices = [index for index, question in enumerate(questions) if question.method == name]
        results = methods[name]([questions[index] for index in indices])
        answers |= zip(indices, results, strict=True)
    return [answers[index] for index in range(len(questions))]


def make_methods(model: LoadedModel, index: Path | None) -> dict[str, Method]:
    """Returns the methods that the checkpoint has heads for. Raises InputError for
    another's index.
    """
    methods: dict[str, Method] = {}
    if holds(lambda: select_ranking(model.loaded)):
        methods[SCORE] = partial(score, model)
        if reads_regions(model):
            methods[ATTEND] = partial(attend, model)
    if embeds(model):
        methods[EMBED] = partial(embed, model)
    task = model.loaded.task
    if task is not None and task.name in TASKS:
        methods |= TASKS[task.name](model)
    encode = None if index is None else make_search_encoder(model, index)
    if encode is not None:
        methods[SEARCH] = encode
    return methods


def holds(check: Callable[[], object]) -> bool:
    """Returns whether a check passes, which raises InputError otherwise."""
    try:
        check()
    except InputError:
        return False
    return True


def embeds(model: LoadedModel) -> bool:
    """Returns whether images and texts have separate vectors."""
    try:
        return find_embedding_mode(model.loaded) == "dual"
    except InputError:
        return False


def score(model: LoadedModel, questions: Sequence[Question]) -> list[Answer]:
    """Scores every image with every text; null where one of the two cannot be read."""
    requests = [(question.images, question.texts) for question in questions]
    scores = scoring.score_each(model, requests)
    return [{"scores": plain(rows)} for rows in scores]


def attend(model: LoadedModel, questions: Sequence[Question]) -> list[Answer]:
    """Scores texts with their images, with the decrease of each score without each region."""
    return [compute_effects(model, question.images[0], question.texts[0]) for question in questions]


def compute_effects(model: LoadedModel, image: bytes, text: str) -> Answer:
    """Returns the effect of each region on a score."""
    try:
        effects = measure_region_effects(model, image, text)
    except InputError:
        return NoAnswer(
            reason="unreadable",
            message="the text has no word, or no two regions are found in the image",
        )
    (row,) = encode_regions([effects.row], dtype=effects.arrays["features"]["dtype"]).to_pylist()
    return {
        "score": effects.score,
        "losses": effects.without.tolist(),
        "regions": [plain_row(row)],
        "arrays": dict(effects.arrays),
    }


def embed(model: LoadedModel, questions: Sequence[Question]) -> list[Answer]:
    """Embeds images and texts; null for one that cannot be read."""
    images = [question.images for question in questions]
    texts = [question.texts for question in questions]
    image_vectors = scoring.split_rows(scoring.encode_images(model, list(chain(*images))), images)
    words = scoring.split_rows(scoring.encode_texts(model, list(chain(*texts))), texts)
    return [
        {"pictures": vectors(image_rows), "texts": vectors(text_rows)}
        for image_rows, text_rows in zip(image_vectors, words, strict=True)
    ]


def vectors(rows: Floats) -> list[list[float | None] | None]:
    """Returns vectors as JSON has them: null for one of NaN."""
    return [None if row[:1] == [None] else row for row in plain(rows)]


def answer(model: LoadedModel, questions: Sequence[Question]) -> list[Answer]:
    """Answers questions about their images."""
    requests = [(item.images[0], item.texts[0]) for item in questions]
    results = model.run_task(VQA, read_answer, requests)
    unread = NoAnswer(
        reason="unreadable", message="the image cannot be read, or the question has no word"
    )
    return [unread if isinstance(item, InputError) else {"answer": item} for item in results]


def classify(model: LoadedModel, task: str, questions: Sequence[Question]) -> list[Answer]:
    """Finds the classes of images with their texts."""
    requests = [(item.images[0], item.texts[0]) for item in questions]
    results = model.run_task(task, read_classes, requests)
    unread = NoAnswer(
        reason="unreadable", message="the image cannot be read, or the statement has no word"
    )
    return [
        unread
        if isinstance(item, InputError)
        else {"labels": list(item.labels), "probabilities": item.probabilities}
        for item in results
    ]


# The methods of a checkpoint that was fine-tuned for a task.
TASKS: dict[str, Callable[[LoadedModel], dict[str, Method]]] = {
    VQA: lambda model: {ANSWER: partial(answer, model)},
    CLASSIFICATION: lambda model: {CLASSIFY: partial(classify, model, CLASSIFICATION)},
    ENTAILMENT: lambda model: {ENTAIL: partial(classify, model, ENTAILMENT)},
}


def make_search_encoder(model: LoadedModel, folder: Path) -> Method | None:
    """Returns the method that encodes queries for an index of the checkpoint's vectors; None for a
    model without vectors of single texts or images. Raises InputError for another's index.
    """
    settings = read_settings(folder)
    require_weights(model.loaded, settings)
    if find_embedding_mode(model.loaded) == "pair":
        return None
    encoder = QueryEncoder(loaded=model.loaded, device=str(model.device), decode=model.decode)

    def encode(questions: Sequence[Question]) -> list[Answer]:
        texts = {
            position: question.texts[0]
            for position, question in enumerate(questions)
            if question.texts
        }
        worded = model.tokens(list(texts.values()))[1]
        worded_texts = {
            position: text for n, (position, text) in enumerate(texts.items()) if n in set(worded)
        }
        query_images = {
            str(position): question.images[0]
            for position, question in enumerate(questions)
            if not question.texts
        }
        queries: dict[int, Query] = dict(
            zip(worded_texts, encoder.texts(list(worded_texts.values())), strict=True)
        )
        if query_images:
            queries |= {int(query.name): query for query in encoder.images(query_images)}
        wordless = NoAnswer(reason="no_text", message="the text has no word")
        return [
            format_query(queries[position]) if position in queries else wordless
            for position in range(len(questions))
        ]

    return encode


def make_reranker(options: ModelOptions, device: str) -> Method:
    """Loads the model that ranks results again. Raises InputError if it cannot, and without the
    table that it reads.
    """
    assert options.reranker is not None
    reranker = open_reranker(
        options.reranker,
        MOST_RERANKED,
        regions=options.regions,
        images=None if options.images is None else str(options.images),
        device=device,
    )
    return lambda questions: [
        {"answers": reranker.rerank(question.texts[0], question.rows)} for question in questions
    ]


def format_query(query: Query) -> Answer:
    """Returns a query's vector, or why it has none."""
    if query.vector is None:
        return NoAnswer(reason=str(query.error), message="the image cannot be read")
    return query.vector


def plain(values: Floats) -> list[list[float | None]]:
    """Returns numbers as JSON has them: null for NaN."""
    rows: list[list[float]] = values.tolist()
    return [[None if math.isnan(value) else value for value in row] for row in rows]
