"""Makes the page that shows a retrieval evaluation: metrics next to chance, and the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.runtime.console.bars import histogram
from vlmill.runtime.console.report import Section, html_table, settings_table, template
from vlmill.schemas.plurals import format_count
from vlmill.train.tasks.published import PAPERS_TITLE, published_section
from vlmill.train.tasks.report import WeightedImage, read_thumbnails, weights_section
from vlmill.train.tasks.retrieval.candidates import Candidates
from vlmill.train.tasks.retrieval.examples import Neighbour, Outcome, examples, original_score
from vlmill.train.tasks.retrieval.metrics import KS
from vlmill.train.tasks.scores import percent

TASK = "retrieval"
DIRECTIONS = {"image_retrieval": "image from caption", "text_retrieval": "caption from image"}
PUBLISHED = [
    f"{direction_key}/{name}"
    for direction_key in DIRECTIONS
    for name in (*(f"r{k}" for k in KS), "mean_recall")
]

_CARDS = template(
    "{% for query in queries %}<h3>{{ query.title }}"
    " <small class='{{ 'hit' if query.rank == 0 else 'miss' }}'>the correct result has rank "
    "{{ query.rank + 1 }} of {{ query.of }}</small></h3><div class='row'>"
    "{% if query.picture %}<figure>{{ image(query.picture) }}<figcaption>query</figcaption>"
    "</figure>{% endif %}{% for n in query.pictures %}<figure{% if n.right %} class='right'"
    "{% endif %}>{{ image(n.image_id) }}<figcaption>{{ n.place }}. "
    "<small>{{ n.score }}</small>{% if n.right %} <span class='hit'>correct</span>{% endif %}"
    "</figcaption></figure>{% endfor %}"
    "{% if query.texts %}<ol>{% for n in query.texts %}<li value='{{ n.place }}'"
    "{% if n.right %} class='hit'{% endif %}>{{ n.text }} <small>{{ n.score }}"
    "{% if n.right %}, correct{% endif %}</small></li>"
    "{% endfor %}</ol>{% endif %}</div>{% endfor %}"
)
_IMAGE = template(
    "{% if uri %}<img src='{{ uri }}' alt='{{ image_id }}'>{% else %}"
    "<div class='soft'>{{ image_id }}</div>{% endif %}"
)


KINDS = {"best": "most confident correct", "worst": "furthest off", "spread": "evenly spread"}
EXAMPLES = 4  # per kind


def shown_image_ids(
    candidates: Candidates, by_text: Sequence[Outcome], by_image: Sequence[Outcome]
) -> set[str]:
    """Returns the ids of the images in the examples."""
    numbers = {n.candidate for outcome in by_text for n in (*outcome.neighbours, outcome.right)}
    return {candidates.image_ids[n] for n in numbers | {outcome.query for outcome in by_image}}


def sections(
    *,
    metrics: Mapping[str, float],
    candidates: Candidates,
    by_text: Sequence[Outcome],
    by_image: Sequence[Outcome],
    rejects: Mapping[str, int],
    settings: Mapping[str, object],
    images: str | Path | None,
    score: str,
    weighted: Sequence[WeightedImage] = (),
) -> list[Section]:
    """Returns all sections of the page.

    ``score`` names the ranking score, ``weighted`` are images with the weights of their regions.
    """
    texts, found_captions = examples(by_text, EXAMPLES), examples(by_image, EXAMPLES)
    ids = shown_image_ids(candidates, texts.all, found_captions.all)
    uris = read_thumbnails(images, ids)
    return [
        Section(
            title="Recall",
            intro="Fraction of queries with a correct result among the first K, "
            "compared with a random order. Ties count as wrong.",
            body=_recall_table(metrics),
        ),
        papers_section(metrics, model=str(settings["recipe"])),
        *(
            Section(
                title=f"Images found for captions: {name}",
                intro="The first images for a caption; the correct one has a frame. "
                f"Scores are {score}.",
                body=_image_examples(getattr(texts, kind), candidates, uris),
            )
            for kind, name in KINDS.items()
        ),
        *(
            Section(
                title=f"Captions found for images: {name}",
                intro="The first captions for an image; the correct ones, or the best of them, are "
                f"marked. Scores are {score}.",
                body=_text_examples(getattr(found_captions, kind), candidates, uris),
            )
            for kind, name in KINDS.items()
        ),
        *([weights_section(weighted, images)] if weighted else []),
        Section(title="Ranks of the correct result", body=_rank_charts(by_text, by_image)),
        Section(
            title="Rejected pairs",
            body=html_table(["reason", "pairs"], list(rejects.items()))
            if rejects
            else Markup("<p>None.</p>"),
        ),
        Section(title="Settings", body=settings_table(settings)),
    ]


def papers_section(metrics: Mapping[str, float], model: str) -> Section:
    """Returns the comparison with the papers, or why it is missing: training pairs."""
    if not (num_memorised := metrics.get("pairs_trained_on")):
        return published_section(TASK, metrics, PUBLISHED, model=model)
    count = format_count(int(num_memorised), "ranked pair")
    text = f"Not shown: the checkpoint was trained on {count}. Rank held-out pairs to compare."
    return Section(title=PAPERS_TITLE, body=Markup("<p>{}</p>").format(text))


def _recall_table(metrics: Mapping[str, float]) -> Markup:
    rows = []
    for direction, name in DIRECTIONS.items():
        for k in KS:
            recall = f"{direction}/r{k}"
            rows.append(
                [
                    name,
                    f"R@{k}",
                    Markup("<b>{}</b> %").format(percent(metrics[recall])),
                    f"± {percent(metrics[recall + '_stderr'])}",
                    f"{percent(metrics[recall + '_chance'])} %",
                    int(metrics[f"{direction}/n"]),
                ]
            )
        rows.append([name, "median rank", metrics[f"{direction}/median_rank"], "", "", ""])
    return html_table(
        ["direction", "figure", "reached", "standard error", "by chance", "queries"], rows
    )


def _image_examples(
    outcomes: Sequence[Outcome], candidates: Candidates, uris: Mapping[str, str]
) -> Markup:
    queries = [
        {
            "title": candidates.pairs[outcome.query].text,
            "rank": outcome.rank,
            "of": len(candidates.image_ids),
            "picture": None,
            "pictures": [
                {**neighbour, "image_id": candidates.image_ids[neighbour["candidate"]]}
                for neighbour in _list_neighbours(outcome)
            ],
            "texts": [],
        }
        for outcome in outcomes
    ]
    return _cards(queries, uris)


def _text_examples(
    outcomes: Sequence[Outcome], candidates: Candidates, uris: Mapping[str, str]
) -> Markup:
    queries = [
        {
            "title": f"Image {candidates.image_ids[outcome.query][:12]}",
            "rank": outcome.rank,
            "of": len(candidates.pairs),
            "picture": candidates.image_ids[outcome.query],
            "pictures": [],
            "texts": [
                {**neighbour, "text": candidates.pairs[neighbour["candidate"]].text}
                for neighbour in _list_neighbours(outcome)
            ],
        }
        for outcome in outcomes
    ]
    return _cards(queries, uris)


def _list_neighbours(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns the first candidates with their ranks, and the right one if it is not among them."""
    rows = list(enumerate(outcome.neighbours))
    if not any(n.right for n in outcome.neighbours):
        rows.append((outcome.rank, outcome.right))
    return [
        {"candidate": n.candidate, "score": _score(n), "right": n.right, "place": rank + 1}
        for rank, n in rows
    ]


def _score(neighbour: Neighbour) -> str:
    score, is_shortlisted = original_score(neighbour.score)
    return f"{score:.2f}" if is_shortlisted else f"not listed, {score:.2f}"


def _cards(queries: Sequence[Mapping[str, object]], uris: Mapping[str, str]) -> Markup:
    def image(image_id: str) -> Markup:
        return Markup(_IMAGE.render(uri=uris.get(image_id), image_id=image_id))

    return Markup(_CARDS.render(queries=queries, image=image) or "<p>None.</p>")


def _rank_charts(by_text: Sequence[Outcome], by_image: Sequence[Outcome]) -> Markup:
    charts = [
        histogram([outcome.rank + 1 for outcome in ranked], title=title, label="place, from 1")
        for title, ranked in zip(DIRECTIONS.values(), (by_text, by_image), strict=True)
    ]
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))
