"""How well a text agrees with the regions of its image, where no scorer has been fitted.

Weights are set by hand: the mined score, in the logistic scale, moves by what words and regions
have in common. Of an image without regions it stays as it is.
"""

import math
from collections.abc import Mapping, Sequence

from vlmill.pipelines.filters.region_features import CONTENT, CROSS, ClassNames, region_features
from vlmill.pipelines.filters.scorer import PairFacts
from vlmill.pipelines.web.texts.words import split_words

WEIGHTS: Mapping[str, float] = {
    "score_named_best": 1.2,  # the surest region that a word names
    "content_words_that_name_share": 1.0,
    "best_class_is_named": 0.4,
    "attribute_and_class_named": 0.1,  # each region: "red" and "car" of a red car
    "people_said_not_seen": -0.8,
    "known_class_words_not_seen": -0.3,  # each class that a word names and no region is of
}
MOST = 3.0  # of counts
LEAST_SCORE = 1e-6  # lowest value for the logarithm


def agreement_score(
    first: float, facts: PairFacts, classes: ClassNames | None, attributes: ClassNames | None
) -> float:
    """Returns the score 0 to 1, rounded to 6 digits, of a pair that was mined with ``first``."""
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
