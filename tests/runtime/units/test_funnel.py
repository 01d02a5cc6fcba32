import pytest

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.stages import STAGES
from vlmill.runtime.units.funnel import build_funnel


def test_counts_become_stages_in_order() -> None:
    funnel = build_funnel(
        [
            (("pages", "in"), 3),
            (("pages", "out"), 1),
            (("pages", "empty"), 1),
            (("pages", "empty"), 1),
        ],
        STAGES,
    )
    assert [stage["stage"] for stage in funnel] == [stage.name for stage in STAGES]
    pages = next(stage for stage in funnel if stage["stage"] == "pages")
    assert pages == {"stage": "pages", "unit": "pages", "in": 3, "out": 1, "rejects": {"empty": 2}}
    assert funnel[0] == {"stage": "archives", "unit": "archives", "in": 0, "out": 0, "rejects": {}}


def test_what_does_not_add_up_is_refused() -> None:
    with pytest.raises(AssertionError, match="pages: 2 in, 1 out"):
        build_funnel([(("pages", "in"), 2), (("pages", "out"), 1)], STAGES)


def test_rules_check_themselves() -> None:
    with pytest.raises(ValueError, match="min_score"):
        WebPairRules(min_score=1.5)
    with pytest.raises(ValueError, match="min_words"):
        WebPairRules(min_words=5, max_words=4)
    with pytest.raises(ValueError, match="max_images_per_text"):
        WebPairRules(max_images_per_text=0)
    with pytest.raises(ValueError, match="min_side_px"):
        WebPairRules(min_side_px=-1)
