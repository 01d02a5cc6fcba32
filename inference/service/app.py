"""Defines the endpoints of a checkpoint."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import Request, Response

from vlmill.inference.service.openapi import PICTURE, describe_method
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
    SIMILAR,
    NoAnswer,
    Question,
)
from vlmill.inference.service.served_index import ServedIndex
from vlmill.runtime.console.report import thumbnail
from vlmill.runtime.readers.class_names import stored_names
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.runtime.service.bodies import Form
from vlmill.runtime.service.guard import DEADLINE, Guard
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell, guard_application, new_application, require_query
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Rejected

DESCRIPTION = "A vision-and-language model over HTTP, with the results of `vlmill.load`."
MOST_TEXTS, TOP, MOST_TOP = 256, 10, 1_000
MOST_ITEMS, MOST_SEEN = 100, 1_000  # of a history whose neighbours are searched; that are omitted
CLIENT = "from vlmill.client import Client\n"
CLIENT += 'client = Client("http://127.0.0.1:8080")\n'
COSINE = "cosine"  # the scale of an index's scores


def sample(source: str) -> dict[str, str]:
    """Returns an example for the OpenAPI document."""
    return {"lang": "Python", "source": f"{CLIENT}print({source})\n"}


HELP = {
    SCORE: (
        "Scores of images with texts",
        "Form: files, and `texts` once or more. Gives `scores`, a list for each image; null "
        "where an image or text cannot be read.",
        sample('client.score(["image.jpg"], ["a red kite", "two dogs"])'),
    ),
    ATTEND: (
        "Regions that a score depends on",
        "Form: one file and `text`. Gives `score`, the row of `regions`, and `losses`: the "
        "decrease of "
        "the score without each region.",
        sample('client.attend("image.jpg", "a red kite")["losses"]'),
    ),
    EMBED: (
        "Vectors of images and texts",
        "Form: files, `texts`, or both. Gives `pictures` (images) and `texts`, unit "
        "vectors; their products "
        "are the scores; null for unreadable inputs.",
        sample('client.embed(["image.jpg"], ["a red kite"])'),
    ),
    SEARCH: (
        "Nearest vectors of an index",
        "Form: `text` or one file; `top`, 10 unless it is given; and `where`, as COLUMN=VALUE, for "
        "rows with that value (of one column: any of them). Gives `answers`, rows with their "
        "`score`, the nearest first. With `rerank`, a service with a reranker sorts that many "
        "results of a text by `match`, the logit of its matching head.",
        sample('client.search(text="a red kite", top=3)'),
    ),
    SIMILAR: (
        "Items similar to an item, or to a user's history",
        "Form: `items`, the ids of one item or of several, the one that was seen last at the end; "
        "`seen`, further ids to exclude; `top`, 10 unless it is given; `where` as for "
        "search. An item's id is its image_id, or its pair_id if it has no image. Gives `answers`, "
        "rows with `item_id`, `score`, and `near`, the given item that it is near. The nearest of "
        "each item come first, beginning with the last item. `missing` has the given "
        "items that the index does not have.",
        sample('client.similar(["17"], top=5)'),
    ),
    ANSWER: (
        "The answer to a question about an image",
        "Form: one file and `question`. Gives `answer`.",
        sample('client.answer("image.jpg", "what is this?")'),
    ),
    CLASSIFY: (
        "The classes of an image, or of an image with a text",
        "Form: one file and, optionally, `text`. Gives `labels`, the predicted classes, and "
        "`probabilities`, those of all classes by name, the likeliest first.",
        sample('client.classify("image.jpg")["labels"]'),
    ),
    ENTAIL: (
        "Whether an image entails a statement",
        "Form: one file and `statement`. Gives `labels` and `probabilities` as classify does.",
        sample('client.entail("image.jpg", "A man is asleep.")["labels"]'),
    ),
}


def score_question(form: Form) -> Question:
    """Parses a request for scores. Raises RequestRefused."""
    texts = form.words.get("texts", [])
    if not form.images or not texts:
        raise bad_request("expected at least one image and one text")
    return Question(method=SCORE, images=contents(form), texts=limit_texts(texts))


def embed_question(form: Form) -> Question:
    """Parses a request for vectors. Raises RequestRefused."""
    texts = form.words.get("texts", [])
    if not form.images and not texts:
        raise bad_request("expected images, texts, or both")
    return Question(method=EMBED, images=contents(form), texts=limit_texts(texts))


def search_question(form: Form) -> Question:
    """Parses a search. Raises RequestRefused."""
    texts, top = form.words.get("text", []), read_count(form, "top", TOP, MOST_TOP)
    if len(texts) + len(form.images) != 1:
        raise bad_request("expected one text or one image")
    rerank = read_count(form, "rerank", 0, MOST_RERANKED)
    if rerank and not texts:
        raise bad_request("rerank: expected a text; only its results can be ranked again")
    images, where = contents(form), read_where(form)
    return Question(method=SEARCH, images=images, texts=texts, top=top, where=where, rerank=rerank)


def similar_question(form: Form) -> Question:
    """Parses a request for items near others. Raises RequestRefused."""
    items, excluded = form.words.get("items", []), form.words.get("seen", [])
    if form.images:
        raise bad_request("expected ids of items, and no image")
    if not items or len(items) > MOST_ITEMS:
        raise bad_request(f"items: expected 1 to {MOST_ITEMS} ids")
    if len(excluded) > MOST_SEEN:
        raise bad_request(f"seen: expected at most {MOST_SEEN} ids")
    top, where = read_count(form, "top", TOP, MOST_TOP), read_where(form)
    return Question(method=SIMILAR, items=items, excluded=excluded, top=top, where=where)


def read_count(form: Form, name: str, default: int, most: int) -> int:
    """Parses a number of results, from 1 to ``most``. Raises RequestRefused."""
    words = form.words.get(name)
    if words is None:
        return default
    is_number = len(words) == 1 and words[0].isascii() and words[0].isdigit() and len(words[0]) <= 5
    if not is_number or not 1 <= int(words[0]) <= most:
        raise bad_request(f"{name}: expected a number from 1 to {most}")
    return int(words[0])


def read_where(form: Form) -> dict[str, list[str]]:
    """Parses the values that columns must have. Raises RequestRefused."""
    where = dict[str, list[str]]()
    for word in form.words.get("where", []):
        column, equals, value = word.partition("=")
        if not column or not equals:
            raise bad_request(f"where: expected COLUMN=VALUE, not {word[:80]!r}")
        where.setdefault(column, []).append(value)
    return where


def answer_question(form: Form) -> Question:
    """Parses a question about an image. Raises RequestRefused."""
    image = form.image()
    return Question(method=ANSWER, images=[image.content], texts=[form.get_word("question")])


def classify_question(form: Form) -> Question:
    """Parses an image with an optional text. Raises RequestRefused."""
    texts = form.words.get("text", [""])
    if len(texts) != 1:
        raise bad_request("text: expected one at most")
    return Question(method=CLASSIFY, images=[form.image().content], texts=texts)


def entail_question(form: Form) -> Question:
    """Parses an image and a statement. Raises RequestRefused."""
    image = form.image()
    return Question(method=ENTAIL, images=[image.content], texts=[form.get_word("statement")])


def attend_question(form: Form) -> Question:
    """Reads an image and a text. Raises RequestRefused."""
    image = form.image()
    return Question(method=ATTEND, images=[image.content], texts=[form.get_word("text")])


def contents(form: Form) -> list[bytes]:
    """Returns the images' bytes."""
    return [image.content for image in form.images]


def limit_texts(texts: Sequence[str]) -> Sequence[str]:
    """Returns the texts. Raises RequestRefused for too many."""
    if len(texts) > MOST_TEXTS:
        raise RequestRefused(
            413, "too_many_texts", f"over {MOST_TEXTS} texts; send several requests"
        )
    return texts


READERS: dict[str, tuple[tuple[str, ...], Callable[[Form], Question]]] = {
    SCORE: (("texts",), score_question),
    ATTEND: (("text",), attend_question),
    EMBED: (("texts",), embed_question),
    SEARCH: (("text", "top", "where", "rerank"), search_question),
    SIMILAR: (("items", "seen", "top", "where"), similar_question),
    ANSWER: (("question",), answer_question),
    CLASSIFY: (("text",), classify_question),
    ENTAIL: (("statement",), entail_question),
}


def format_title(about: Mapping[str, Any]) -> str:
    """Returns the title of the page; ``about`` is the worker's description of its model."""
    if "index" not in about:
        return f"Model: {about['variant']}"
    kind = str(about["index"].get("of"))
    if SEARCH not in about["methods"]:
        return "Similar items"
    return {"image": "Image search", "text": "Text search"}.get(kind, "Search")


def format_subtitle(about: Mapping[str, Any]) -> str:
    """Returns what is served, in a line."""
    index = about.get("index", {})
    if "vectors" not in index:
        return str(about["variant"])
    counted = format_count(index["vectors"], str(index.get("of", "row")))
    recall = index.get("recall_at_10")
    words = f", recall@10 {100 * recall:.1f} %" if isinstance(recall, float) else ""
    return f"{about['variant']}, index of {counted}{words}"


class Images:
    """Reads the images of search results, to show them on the page."""

    def __init__(self, images: Path) -> None:
        self.reader, self.lock = ImageReader(images), threading.Lock()

    def make_thumbnail(self, image_id: str) -> bytes:
        """Returns a small JPEG for the page. Raises RequestRefused for a missing or broken
        image.
        """
        with self.lock:
            (row,) = self.reader.find([image_id])
            data = None if row == ABSENT else self.reader.read_bytes(int(row))
        if data is None:
            raise RequestRefused(404, "no_picture", "--images has no image of this image_id")
        try:
            return thumbnail(data)
        except Rejected as why:
            raise RequestRefused(404, why.reason.value, "the image cannot be read") from None


def model_service(
    settings: ServiceSettings,
    *,
    index: ServedIndex | None = None,
    images: Path | None = None,
    classes: Sequence[str] = (),
    attributes: Sequence[str] = (),
) -> tuple[Shell, Guard]:
    """Returns the application of the service.

    ``index`` is searched for vectors of the workers, and for items. ``images`` is the table of the
    images in search results. ``classes`` and ``attributes`` are the names of regions for the page,
    which replace those that the detector's record has. Raises InputError for a table that cannot
    be read.
    """
    shell = Shell(settings=settings)
    shown_images = None if images is None else Images(images)
    if index is not None:
        index.watch(shell.metrics)

    def methods() -> list[str]:
        there = shell.about.get("methods", [])
        return sorted([*there, SIMILAR] if index is not None else there)

    def about() -> Mapping[str, Any]:
        index_data: Mapping[str, Any] = {} if index is None else index.about
        stored = stored_names(shell.about.get("producer", {}))
        described = {"variant": index_data.get("variant"), **shell.about, "methods": methods()}
        if index is not None:
            scales = dict.fromkeys((SEARCH, SIMILAR), COSINE)
            scales = {**shell.about.get("scales", {}), **scales}
            described |= {"index": index_data, "scales": scales}
        return {
            "service": "model",
            "title": format_title(described),
            "subtitle": format_subtitle(described),
            "limits": {"bytes": settings.max_bytes, "pictures": settings.max_images},
            "has_pictures": shown_images is not None,
            "random": False,
            **described,
            "classes": list(classes or stored["classes"]),
            "attributes": list(attributes or stored["attributes"]),
        }

    application = new_application(shell, "vlmill model", DESCRIPTION, about)

    async def answer_request(request: Request, method: str) -> Any:
        if method not in methods():
            there = ", ".join(methods())
            raise RequestRefused(
                404, "no_such_method", f"this service has nothing for {method}; it has {there}"
            )
        words, read = READERS[method]
        form = await shell.form(request, words=words)
        question = read(form)
        if question.rerank and not shell.about.get("reranks"):
            raise RequestRefused(404, "no_reranker", "the service was started without --reranker")
        result = await compute(request, question)
        return result if method != SEARCH else await search(request, question, result)

    async def compute(request: Request, question: Question) -> Any:
        (result,) = await shell.ask(request, [question], weight=question.weight)
        if isinstance(result, NoAnswer):
            raise RequestRefused(422, result.reason, result.message)
        return result

    async def search(request: Request, question: Question, vector: Any) -> Any:
        assert index is not None
        top, count = question.top, question.rerank
        question = dataclasses.replace(question, top=max(top, count))
        response = await index.ask(question, request.scope[DEADLINE], vector=vector)
        if not count:
            return response
        rows = parse_json(bytes(response.body))["answers"]
        again = Question(method=RERANK, texts=question.texts, rows=rows[:count])
        best = (await compute(request, again))["answers"]
        return {"answers": [*best, *rows[count:]][:top]}

    def add(method: str) -> None:
        summary, how, example = HELP[method]

        async def endpoint(request: Request) -> Any:
            return await answer_request(request, method)

        application.add_api_route(
            f"/v1/{method}",
            endpoint,
            methods=["POST"],
            summary=summary,
            description=how,
            operation_id=method,
            openapi_extra={**describe_method(method), "x-codeSamples": [example]},
        )

    for method in READERS:
        add(method)
    if index is not None:
        served = index

        async def similar(request: Request) -> Response:
            words, read = READERS[SIMILAR]
            form = await shell.form(request, words=words, needs_worker=False)
            return await served.ask(read(form), request.scope[DEADLINE])

        application.direct[f"/v1/{SIMILAR}"] = similar

    @application.get(
        "/v1/picture",
        summary="A small JPEG of an image in a search result",
        operation_id="picture",
        response_class=Response,
        responses=PICTURE,
    )
    async def image(request: Request, image_id: str = "") -> Response:
        require_query(request, ("image_id",))
        if shown_images is None:
            raise RequestRefused(404, "no_pictures", "the service was started without --images")
        content = await asyncio.to_thread(shown_images.make_thumbnail, image_id)
        return Response(content, media_type="image/jpeg")

    return shell, guard_application(shell, application)
