import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipelines.filters.generated import encoded, photograph

from vlmill.pipelines.filters.agreement import agreement_score
from vlmill.pipelines.filters.region_features import ClassNames, singular
from vlmill.pipelines.filters.scorer import (
    GROUPS,
    NAMES,
    HashedShares,
    PairFacts,
    Vocabularies,
    measure_file,
    pair_features,
)
from vlmill.runtime.readers.regions import RegionRow

NAMES_OF_CLASSES = [["dog", "puppy"], ["tennis racket"], ["man", "person"], ["tree"]]
CLASSES = ClassNames.from_names(NAMES_OF_CLASSES)
COLOURS = ClassNames.from_names([["red"], ["wooden"]])
WORDS = Vocabularies(classes=CLASSES, attributes=COLOURS)


def pair(text: str, **columns: Any) -> Mapping[str, Any]:
    return {"text": text, "language": "en", "text_source": "alt", **columns}


def regions(*classes: int, attributes: tuple[int, ...] | None = None) -> RegionRow:
    count = len(classes)
    boxes = np.tile(np.array([10, 10, 60, 60], dtype=np.float32), (count, 1))
    return RegionRow(
        image_id="a",
        width=100,
        height=100,
        boxes=boxes.reshape(count, 4),
        class_ids=np.array(classes, dtype=np.int16),
        class_scores=np.linspace(0.9, 0.3, count).astype(np.float32),
        attribute_ids=None if attributes is None else np.array(attributes, dtype=np.int16),
        attribute_scores=None if attributes is None else np.ones(count, dtype=np.float32),
    )


def named(facts: PairFacts, words: Vocabularies = WORDS) -> dict[str, float]:
    return dict(zip(NAMES, pair_features(facts, words), strict=True))


def test_there_are_hundreds_of_features_each_in_one_group() -> None:
    assert len(NAMES) == len(set(NAMES)) == sum(map(len, GROUPS.values())) >= 200


def test_text_by_hand() -> None:
    values = named(PairFacts(pair=pair("Two Red dogs run in Paris, 1998!")))
    assert values["words"] == 7 and values["chars"] == 32 and values["sentences"] == 1
    assert values["years"] == 1 and values["has_number_words"] == 1 and values["has_colours"] == 1
    assert values["places_share"] == pytest.approx(1 / 7) and values["ending_s_share"] == 2 / 7
    assert values["capital_names_share"] == 2 / 7 and values["longest_name"] == 1
    assert values["commas_each_word"] == values["exclamations_each_word"] == pytest.approx(1 / 7)
    assert values["source_alt"] == values["language_en"] == 1 and values["source_other"] == 0


def test_what_is_not_known_is_missing() -> None:
    values = named(PairFacts(pair=pair("A dog")))
    for group in ("picture", "regions", "text_and_picture", "text_and_regions"):
        assert all(math.isnan(values[name]) for name in GROUPS[group]), group
    assert math.isnan(values["same_host"]) and math.isnan(values["common_words_mean"])
    no_names = named(PairFacts(pair=pair("A dog"), regions=regions(0)), Vocabularies())
    assert math.isnan(no_names["regions_boxes"])


def test_addresses_by_hand() -> None:
    values = named(
        PairFacts(
            pair=pair(
                "The old dog runs",
                image_url="http://a.org/pics/old-dog-640x480.jpg",
                page_url="http://a.org/dogs/index.html?x=1",
            )
        )
    )
    assert values["file_name_words"] == 2 and values["file_name_words_in_text"] == 1
    assert values["text_words_in_file_name"] == 0.5 and values["same_host"] == 1
    assert values["image_url_names_a_size"] == values["page_has_query"] == 1
    assert values["file_ends_jpg"] == 1 and values["file_ends_png"] == 0


def test_words_meet_regions() -> None:
    facts = PairFacts(
        pair=pair("Two red dogs and a tennis racket"),
        regions=regions(0, 0, 1, attributes=(0, 1, 1)),
    )
    values = named(facts)
    assert values["cross_classes_named"] == 2 and values["cross_boxes_named_share"] == 1
    assert values["cross_score_named_best"] == pytest.approx(0.9)
    assert values["cross_best_class_is_named"] == 1
    assert values["cross_number_said_minus_seen"] == 0
    assert values["cross_plural_said_and_many_seen"] == 1
    assert values["cross_attributes_named"] == values["cross_attribute_and_class_named"] == 1
    assert values["regions_boxes"] == 3 and values["regions_box_area_mean"] == 0.25
    other = named(PairFacts(pair=pair("A woman under a tree"), regions=regions(0)))
    assert other["cross_classes_named"] == 0 and other["cross_known_class_words_not_seen"] == 1
    assert other["cross_people_said_and_seen"] == 0


def test_a_image_without_boxes_is_none_of_missing_regions() -> None:
    values = named(PairFacts(pair=pair("A dog"), regions=regions()))
    assert values["regions_boxes"] == 0 and values["cross_classes_named"] == 0
    assert values["cross_known_class_words_not_seen"] == 1


def test_names_of_classes() -> None:
    assert CLASSES.find_classes(["puppy", "racket", "tennis racket"]) == {0, 1}
    assert CLASSES.people == {2} and CLASSES.find_classes(["cat"]) == frozenset()
    plurals = ["dogs", "ponies", "boxes", "men", "glass", "bus", "buses", "is"]
    assert [singular(w) for w in plurals] == [
        *("dog", "pony", "box", "man", "glass", "bus", "buse", "is")
    ]


def test_facts_of_an_image_file() -> None:
    data = encoded(photograph(np.random.default_rng(0), 200, 100))
    file = measure_file(data, max_pixels=10**6)
    assert file is not None and (file.width, file.height, file.format) == (200, 100, "jpeg")
    values = named(PairFacts(pair=pair("A red dog"), image=file))
    assert values["aspect"] == 2 and values["bytes_a_pixel"] == len(data) / 20_000
    assert values["said_and_shown_red"] == values["picture_red_share"]
    assert values["said_and_shown_blue"] == 0
    assert measure_file(b"none", max_pixels=10**6) is None


def test_shares_of_words() -> None:
    shares = HashedShares.from_texts([("the cat", "en"), ("The dog", "en")])
    assert shares["the"] == 0.5 and shares["cat"] == 0.25 and shares["horse"] == 0
    assert len(shares) == 3
    values = named(PairFacts(pair=pair("The horse")), Vocabularies(frequency=shares))
    assert values["common_words_mean"] == 0.25 and values["unknown_words_share"] == 0.5


@given(st.text(max_size=40), st.sampled_from([None, "en", "zh"]))
def test_any_text_has_features(text: str, language: str | None) -> None:
    facts = PairFacts(pair={**pair(text), "language": language}, regions=regions(0, 2))
    values = pair_features(facts, WORDS)
    assert len(values) == len(NAMES) and not any(map(math.isinf, values))


def test_agreement_moves_the_mined_score() -> None:
    def score(text: str, row: RegionRow | None) -> float:
        return agreement_score(0.6, PairFacts(pair=pair(text), regions=row), CLASSES, None)

    assert score("A dog under a tree", None) == 0.6
    assert score("A dog under a tree", regions(0, 3)) > 0.8
    assert score("A dog under a tree", regions(1)) < 0.6
    assert score("A man in the sun", regions(0)) < score("Sun", regions(0)) == 0.6
