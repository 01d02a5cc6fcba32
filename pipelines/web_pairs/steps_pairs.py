"""Steps from dominant pictures to pairs: join them with their bytes, then choose the texts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from vlmill.pipelines.counting.funnel import BEST_TEXT, JOIN, SCORE, SHARED_TEXT, TEXTS, Drop
from vlmill.pipelines.counting.steps import dropped, entered, left
from vlmill.pipelines.pages import urls
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.texts import captions, scoring
from vlmill.pipelines.texts.scoring import TextSource
from vlmill.pipelines.web_pairs.pair import Candidate, Pair, Picture, preference, text_key
from vlmill.schemas.ids import pair_id_of
from vlmill.schemas.rejects import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One of the texts of a found picture, cleaned; ``others`` are the raw ones beside it."""

    candidate: Candidate
    picture: Picture
    source: TextSource
    text: str
    others: tuple[str, ...]


def candidate_urls(item: tuple[str, Candidate]) -> Iterator[tuple[str, str]]:
    """Yields (URL key, candidate's id) for each URL under which its picture may lie."""
    key, candidate = item
    for url_key in sorted({urls.join_key(url) for url in candidate.urls}):
        yield url_key, key


def match_urls(
    item: tuple[str, Mapping[str, Iterable[Any]]],
) -> Iterator[tuple[str, Picture | Drop]]:
    """Gives what lies under one URL to each candidate that asks for it."""
    picture = best_picture(item[1]["pictures"])
    if picture is not None:
        for candidate_id in item[1]["candidate_ids"]:
            yield candidate_id, picture


def best_picture(outcomes: Iterable[Picture | Drop]) -> Picture | Drop | None:
    """Returns the largest picture of one URL or of one candidate; else why there is none."""
    return min(outcomes, key=_size_rank, default=None)


def _size_rank(outcome: Picture | Drop) -> tuple[int, int, str, str, str, int]:
    if isinstance(outcome, Drop):
        return (1, 0, outcome.reason.value, outcome.detail or "", "", 0)
    area = outcome.width * outcome.height
    return (0, -area, outcome.image_id, outcome.url, outcome.archive, outcome.offset)


class JoinPictures(beam.DoFn):
    """Joins candidates with what lies under their URLs -> (Candidate, Picture)."""

    def process(self, item: tuple[str, Mapping[str, Iterable[Any]]]) -> Iterator[Any]:
        for candidate in item[1]["candidates"]:
            yield entered(JOIN)
            picture = best_picture(item[1]["pictures"])
            if isinstance(picture, Picture):
                yield left(JOIN)
                yield candidate, picture
            else:
                why = Drop(Reason.MISSING_IMAGE)
                if picture is not None:
                    why = Drop(Reason.REJECTED_IMAGE, f"{picture.reason}: {picture.detail}")
                yield from dropped(JOIN, candidate.urls[0], why)


class FindTexts(beam.DoFn):
    """Finds captions: (Candidate, Picture) -> Text."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, item: tuple[Candidate, Picture]) -> Iterator[Any]:
        candidate, picture = item
        seen: set[str] = set()
        for source, raw in candidate.texts:
            yield entered(TEXTS)
            caption = captions.caption_of(raw, self.rules)
            if not isinstance(caption, Drop) and caption in seen:
                caption = Drop(Reason.DUPLICATE, caption)
            if isinstance(caption, Drop):
                yield from dropped(TEXTS, f"{source} {picture.url}", caption)
                continue
            seen.add(caption)
            yield left(TEXTS)
            others = tuple(text for _, text in candidate.texts if text != raw)
            yield Text(
                candidate=candidate, picture=picture, source=source, text=caption, others=others
            )


class ScoreTexts(beam.DoFn):
    """Text -> (image id, Pair), if its score is high enough."""

    def __init__(self, rules: WebPairRules) -> None:
        self.rules = rules

    def process(self, item: Text) -> Iterator[Any]:
        yield entered(SCORE)
        value = scoring.score(
            scoring.features(
                item.text,
                item.source,
                image_url=item.picture.url,
                page_title=item.candidate.page_title,
                others=item.others,
                dominance=item.candidate.dominance,
            )
        )
        if value < self.rules.min_score:
            drop = Drop(Reason.LOW_SCORE, f"{value:.3f} {item.source}: {item.text}")
            yield from dropped(SCORE, item.picture.url, drop)
            return
        yield left(SCORE)
        yield (
            item.picture.image_id,
            Pair(
                picture=item.picture,
                text=item.text,
                text_source=item.source,
                score=value,
                language=self.rules.language,
                page_url=item.candidate.page_url,
            ),
        )


class KeepBestText(beam.DoFn):
    """Chooses each picture's best text: (image id, its pairs) -> (text key, Pair)."""

    def process(self, item: tuple[str, Iterable[Pair]]) -> Iterator[Any]:
        best: Pair | None = None
        for pair in item[1]:
            yield entered(BEST_TEXT)
            loser = pair if best is None or preference(best) <= preference(pair) else best
            if best is not None:
                detail = f"{loser.score:.3f} {loser.text_source}: {loser.text}"
                yield from dropped(BEST_TEXT, item[0], Drop(Reason.NOT_BEST_TEXT, detail))
            if best is None or loser is best:
                best = pair
        if best is not None:
            yield left(BEST_TEXT)
            yield text_key(best.text), best


class DropSharedTexts(beam.DoFn):
    """(text key, pairs) -> the pairs, unless more than ``max_images`` pictures have the text."""

    def __init__(self, max_images: int) -> None:
        self.max_images = max_images

    def process(self, item: tuple[str, Iterable[Pair]]) -> Iterator[Any]:
        pairs: list[Pair] = []
        for count, pair in enumerate(item[1], start=1):
            yield entered(SHARED_TEXT)
            pairs.append(pair)
            if count > self.max_images:  # from here on memory stays bounded
                for one in pairs:
                    key = pair_id_of(one.picture.image_id, one.text)
                    yield from dropped(
                        SHARED_TEXT, key, Drop(Reason.SHARED_TEXT, f"{one.picture.url} {one.text}")
                    )
                pairs.clear()
        for pair in pairs:
            yield left(SHARED_TEXT)
            yield pair
