"""Fits the weights of the choice's features: a logistic model of "describes its image"."""

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression

from labelled_sites.mined import Example

STRENGTH = 0.3  # inverse of the L2 penalty, as scikit-learn counts it
# A text that nobody judged stood farther away than those that were: mostly it does not describe.
SAMPLE_WEIGHTS = {"right": 1.0, "wrong": 1.0, "not_judged": 0.7}


def fit_weights(examples: Sequence[Example]) -> dict[str, float]:
    """Weights by feature, rounded to 3 digits; what a person was unsure of is left out."""
    judged = [example for example in examples if example.verdict in SAMPLE_WEIGHTS]
    names = sorted({name for example in judged for name in example.features} - {"bias"})
    rows = np.array([[example.features.get(name, 0.0) for name in names] for example in judged])
    model = LogisticRegression(C=STRENGTH, max_iter=5_000)
    model.fit(
        rows,
        [example.verdict == "right" for example in judged],
        sample_weight=[SAMPLE_WEIGHTS[example.verdict] for example in judged],
    )
    pairs = zip(names, model.coef_[0], strict=True)
    weights = {name: round(float(value), 3) for name, value in pairs}
    return {"bias": round(float(model.intercept_[0]), 3)} | weights


def weights_source(weights: Mapping[str, float]) -> str:
    """The weights as ``pipelines/web/choice/choose.py`` has them, the largest first."""
    ordered = sorted(weights.items(), key=lambda item: (item[0] != "bias", -item[1], item[0]))
    lines = "".join(f'    "{name}": {value},\n' for name, value in ordered)
    return f"WEIGHTS: Mapping[str, float] = {{\n{lines}}}\n"
