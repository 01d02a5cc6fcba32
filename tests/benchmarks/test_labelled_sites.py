import pytest
from labelled_sites.fitting import fit_weights, weights_source
from labelled_sites.labels import Label, counts, verdict_of, wilson
from labelled_sites.mined import Example

pytestmark = pytest.mark.nightly

LABEL = Label(
    archive="a.warc.gz",
    language="en",
    page_url="http://a.org/",
    image_url="http://a.org/1.jpg",
    is_content=True,
    describes=("Fig. 7. A red  fox in the snow.",),
    not_describing=("A walk", "We went out and it was cold"),
    unsure=("Foxes",),
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("fig. 7. a red fox in the snow", "right"),
        ("A red fox in the snow", "right"),
        ("Fig. 7", "not_judged"),  # less than half of it
        ("A walk.", "wrong"),
        ("“Foxes”", "unsure"),
        ("Something else", "not_judged"),
    ],
)
def test_how_a_kept_text_is_judged(text: str, verdict: str) -> None:
    assert verdict_of(text, LABEL) == verdict


def test_wilson_by_hand() -> None:
    low, high = wilson(8, 10) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson(0, 0) is None


def test_counts() -> None:
    sums = counts([(LABEL, "A red fox in the snow"), (LABEL, None), (LABEL, "A walk")])
    assert (sums["pictures"], sums["findable"], sums["kept"]) == (3, 3, 2)
    assert (sums["right"], sums["wrong"]) == (1, 1)


def test_weights_say_which_features_describe() -> None:
    examples = [
        Example(archive="a", features={"bias": 1.0, "named": 1.0}, verdict="right"),
        Example(archive="a", features={"bias": 1.0, "far": 1.0}, verdict="wrong"),
        Example(archive="a", features={"bias": 1.0, "odd": 1.0}, verdict="unsure"),
    ]
    weights = fit_weights(examples)
    assert weights["named"] > 0 > weights["far"] and "odd" not in weights
    source: dict[str, object] = {}
    exec(weights_source(weights), source)
    assert source["WEIGHTS"] == weights
