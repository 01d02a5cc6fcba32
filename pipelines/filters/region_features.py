"""Computes named features of an image's regions, and of their agreement with the words of its text.

R boxes with a class each, from a detector whose class names the user passes; attributes by number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.web.texts.words import word_set
from vlmill.runtime.readers.region_rows import RegionRow

NAN = float("nan")
SURE = 0.5  # of a class score
CONTENT = (
    *("boxes", "sure_boxes", "classes", "sure_classes", "class_score_mean", "class_score_best"),
    *("class_score_spread", "box_area_mean", "box_area_largest", "box_area_smallest"),
    *("box_area_of_best", "small_boxes_share", "middle_boxes_share", "best_box_across"),
    *("best_box_down", "most_boxes_of_a_class", "person_boxes", "attribute_score_mean"),
    *("attribute_score_best", "attributes"),
)
CROSS = (
    *("classes_named", "classes_named_share", "boxes_named_share", "sure_boxes_named_share"),
    *("score_named_best", "score_named_sum", "area_named", "area_named_largest"),
    *("words_that_name_share", "content_words_that_name_share", "first_named_word_place"),
    *("best_class_is_named", "largest_box_is_named", "best_five_named", "best_unnamed_score"),
    *("named_over_unnamed_score", "attributes_named", "attribute_and_class_named"),
    *("attribute_words_share", "people_said_and_seen", "people_said_not_seen"),
    *("people_seen_not_said", "number_said_minus_seen", "plural_said_and_many_seen"),
    *("known_class_words", "known_class_words_not_seen", "known_words_seen_share"),
)
PEOPLE = word_set("person man woman boy girl child lady guy player baby kid")
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS)}
FAR = 3  # words between a number and its noun: two big dogs
IRREGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person"}
STOP = word_set(
    "a an the of in on at with by from to for and or is are was were his her its their as"
)


@lru_cache(maxsize=100_000)
def singular(word: str) -> str:
    """Returns an English word without its plural's ending; other words unchanged."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    if word in IRREGULAR:
        return IRREGULAR[word]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def make_phrases(words: Sequence[str]) -> list[str]:
    """Returns words to compare with classes: singular, lower-case, and adjacent pairs."""
    single = [singular(word.lower()) for word in words]
    return [*single, *(f"{first} {second}" for first, second in pairwise(single))]


@dataclass(frozen=True)
class ClassNames:
    """Maps each name of a detector's classes, or attributes, to their numbers.

    A class with a longer name ("tennis racket") is also found by its last word.
    """

    numbers: Mapping[str, frozenset[int]]

    @classmethod
    def from_names(cls, names: Sequence[Sequence[str]]) -> "ClassNames":
        """Returns the names of classes from all names of each, in the order of their numbers."""
        numbers: dict[str, set[int]] = {}
        for number, synonyms in enumerate(names):
            for name in synonyms:
                words = [singular(word) for word in name.lower().split()]
                for phrase in {" ".join(words[-2:]), *words[-1:]} - {""}:
                    numbers.setdefault(phrase, set()).add(number)
        return cls({phrase: frozenset(classes) for phrase, classes in numbers.items()})

    def find_classes(self, phrases: Sequence[str]) -> frozenset[int]:
        """Returns the numbers of classes that any of the phrases names."""
        known = [self.numbers[phrase] for phrase in phrases if phrase in self.numbers]
        return frozenset().union(*known)

    @cached_property
    def people(self) -> frozenset[int]:
        """Returns the classes of people."""
        return self.find_classes(sorted(PEOPLE))


def region_features(
    row: RegionRow | None,
    words: Sequence[str],
    classes: ClassNames | None,
    attributes: ClassNames | None,
) -> list[float]:
    """Returns the features of CONTENT, then CROSS; all NaN without regions or class names."""
    if row is None or row.class_ids is None or classes is None:
        return [NAN] * (len(CONTENT) + len(CROSS))
    scores = np.ones(len(row.class_ids)) if row.class_scores is None else row.class_scores
    order = np.argsort(-scores, kind="stable")
    regions = Regions(
        ids=row.class_ids[order].tolist(),
        scores=scores[order].tolist(),
        boxes=_fractions(row.boxes[order], row.width, row.height),
        attributes=None if row.attribute_ids is None else row.attribute_ids[order].tolist(),
        attribute_scores=(
            [] if row.attribute_scores is None else row.attribute_scores[order].tolist()
        ),
    )
    return [*_content(regions, classes), *_cross(regions, words, classes, attributes)]


@dataclass(frozen=True)
class Regions:
    """Holds an image's regions, the surest first, as plain lists, because they are few.

    ``boxes`` are (across, down, area) as fractions of the image: the middle, and the size.
    """

    ids: list[int]
    scores: list[float]
    boxes: list[list[float]]
    attributes: list[int] | None
    attribute_scores: list[float]


def _fractions(boxes: npt.NDArray[np.float32], width: int, height: int) -> list[list[float]]:
    x1, y1, x2, y2 = boxes.astype(np.float64).T
    area = np.maximum(x2 - x1, 0) * np.maximum(y2 - y1, 0) / (width * height)
    fractions: list[list[float]] = np.stack(
        [(x1 + x2) / (2 * width), (y1 + y2) / (2 * height), area], axis=1
    ).tolist()
    return fractions


def _content(regions: Regions, classes: ClassNames) -> list[float]:
    count = len(regions.ids)
    if not count:
        return [0.0] * 4 + [NAN] * (len(CONTENT) - 4)
    scores = regions.scores
    areas = [area for _, _, area in regions.boxes]
    sure = [n for n, score in zip(regions.ids, scores, strict=True) if score >= SURE]
    middle = sum(abs(x - 0.5) < 0.25 and abs(y - 0.5) < 0.25 for x, y, _ in regions.boxes)
    mean = sum(scores) / count
    known = regions.attribute_scores
    return [
        count,
        len(sure),
        len(set(regions.ids)),
        len(set(sure)),
        mean,
        scores[0],
        (sum((score - mean) ** 2 for score in scores) / count) ** 0.5,
        sum(areas) / count,
        max(areas),
        min(areas),
        areas[0],
        sum(area < 0.02 for area in areas) / count,
        middle / count,
        regions.boxes[0][0],
        regions.boxes[0][1],
        max(Counter(regions.ids).values()),
        sum(number in classes.people for number in regions.ids),
        sum(known) / len(known) if known else NAN,
        max(known) if known else NAN,
        len(set(regions.attributes)) if regions.attributes is not None else NAN,
    ]


def _cross(
    regions: Regions, words: Sequence[str], classes: ClassNames, attributes: ClassNames | None
) -> list[float]:
    phrases = make_phrases(words)
    singles = phrases[: len(words)]
    text_classes = classes.find_classes(phrases)
    content = [word for word in singles if word not in STOP and word.isalpha()]
    region_classes = frozenset(regions.ids)
    naming = [bool(classes.numbers.get(word, NONE) & region_classes) for word in singles]
    boxes = list(zip(regions.ids, regions.scores, regions.boxes, strict=True))
    matching_regions = [(score, box[2]) for number, score, box in boxes if number in text_classes]
    other_scores = [score for number, score, _ in boxes if number not in text_classes]
    sure = [number for number, score, _ in boxes if score >= SURE]
    count, best = max(1, len(boxes)), max((score for score, _ in matching_regions), default=0.0)
    largest = max(boxes, key=lambda one: one[2][2], default=None)
    unseen = text_classes - region_classes
    return [
        len(text_classes & region_classes),
        len(text_classes & region_classes) / max(1, len(region_classes)),
        len(matching_regions) / count,
        sum(number in text_classes for number in sure) / max(1, len(sure)),
        best,
        sum(score for score, _ in matching_regions),
        sum(area for _, area in matching_regions),
        max((area for _, area in matching_regions), default=0.0),
        sum(naming) / max(1, len(words)),
        sum(naming) / max(1, len(content)),
        naming.index(True) / len(naming) if any(naming) else NAN,
        float(regions.ids[0] in text_classes) if boxes else NAN,
        float(largest[0] in text_classes) if largest else NAN,
        sum(number in text_classes for number in regions.ids[:5]),
        max(other_scores, default=0.0),
        best - max(other_scores, default=0.0),
        *_attributes(regions, phrases, text_classes, attributes),
        *_people(regions, singles, classes),
        *_numbers(regions, words, singles, classes),
        len(text_classes),
        len(unseen),
        len(text_classes & region_classes) / max(1, len(text_classes)),
    ]


def _attributes(
    regions: Regions, phrases: Sequence[str], text_classes: frozenset[int], names: ClassNames | None
) -> list[float]:
    """Returns how many regions have a named class and a named attribute."""
    if regions.attributes is None or names is None:
        return [NAN] * 3
    text_attributes = names.find_classes(phrases)
    both = zip(regions.ids, regions.attributes, strict=True)
    return [
        sum(number in text_attributes for number in regions.attributes),
        sum(attribute in text_attributes and number in text_classes for number, attribute in both),
        sum(phrase in names.numbers for phrase in phrases) / max(1, len(phrases)),
    ]


def _people(regions: Regions, singles: Sequence[str], classes: ClassNames) -> list[float]:
    in_text = not PEOPLE.isdisjoint(singles)
    in_regions = not classes.people.isdisjoint(regions.ids)
    return [
        float(in_text and in_regions),
        float(in_text and not in_regions),
        float(in_regions and not in_text),
    ]


def _numbers(
    regions: Regions, words: Sequence[str], singles: Sequence[str], classes: ClassNames
) -> list[float]:
    """Returns how far the regions are from two dogs for "two dogs", and if "dogs" are several."""
    counts = Counter(regions.ids)
    difference, plurals = NAN, NAN
    number, number_position = 0, -FAR
    for position, (word, single) in enumerate(zip(words, singles, strict=True)):
        if single in NUMBERS:
            number, number_position = NUMBERS[single], position
        numbers = classes.numbers.get(single)
        if numbers:
            num_regions = max(counts[class_number] for class_number in numbers)
            if position - number_position < FAR:
                difference, number_position = abs(number - num_regions), -FAR
            if word.lower() != single:
                plurals = float(num_regions > 1)
    return [difference, plurals]


NONE: frozenset[int] = frozenset()
