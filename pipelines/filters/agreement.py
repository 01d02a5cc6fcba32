"""Scores how well a text agrees with its image's regions, without a fitted scorer.

Weights are set by hand: matches between words and regions shift the mined score on the logistic
scale. The score of an image without regions is unchanged.
"""

import math
from collections.abc import Mapping, Sequence

from vlmill.pipelines.filters.region_features import CONTENT, CROSS, ClassNames, region_features
from vlmill.pipelines.filters.scorer import PairFacts
from vlmill.pipelines.web.texts.words import split_words

WEIGHTS: Mapping[str, float] = {
    "score_named_best": 1.2,  # score of the surest region that a word names
    "content_words_that_name_share": 1.0,
    "best_class_is_named": 0.4,
    "attribute_and_class_named": 0.1,  # per region: "red" and "car" of a red car
    "people_said_not_seen": -0.8,
    "known_class_words_not_seen": -0.3,  # per class that a word names and no region has
}
MOST = 3.0  # largest count
LEAST_SCORE = 1e-6  # lowest value for the logarithm


def agreement_score(
    first: float, facts: PairFacts, classes: ClassNames | None, attributes: ClassNames | None
) -> float:
    """Returns the score, 0 to 1 and rounded to 6 digits, of a pair with mined score ``first``."""
    words: Sequence[str] = split_words(facts.pair["text"], facts.pair.get("language"))
    values = region_features(facts.regions, words, classes, attributes)[len(CONTENT) :]
    values_by_name = dict(zip(CROSS, values, strict=True))
    shift = math.fsum(
        weight * min(values_by_name[name], MOST)
        for name, weight in WEIGHTS.items()
        if not math.isnan(values_by_name[name])
    )
    share = min(max(first, LEAST_SCORE), 1 - LEAST_SCORE)
    return round(1 / (1 + math.exp(-(math.log(share / (1 - share)) + shift))), 6)
