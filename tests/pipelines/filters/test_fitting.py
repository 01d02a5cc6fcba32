import numpy as np
import pytest
from tests.pipelines.filters.generated import chart, photograph

from vlmill.pipelines.filters import fitting
from vlmill.pipelines.filters.fit_report import report_lines
from vlmill.pipelines.filters.fitting import LabelledRows, auc, grow, split_folds, validate
from vlmill.pipelines.filters.statistics import NAMES, image_statistics
from vlmill.pipelines.filters.trees import Trees, build_trees


def rows_of(count: int, noise: float) -> LabelledRows:
    """Labels that two features give together, of eight in two groups."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, 8)).astype(np.float32)
    labels = features[:, 0] + features[:, 1] + noise * rng.normal(size=count) > 0
    names = tuple(f"f{n}" for n in range(8))
    return LabelledRows(
        features=features,
        labels=labels,
        units=[str(n) for n in range(count)],
        names=names,
        groups={"signal": names[:2], "noise": names[2:]},
    )


def test_validation_finds_what_is_there() -> None:
    rows = rows_of(400, noise=0.1)
    found = validate(rows, seed=0)
    assert found.rows == 400 and found.positives == int(rows.labels.sum())
    assert found.auc > 0.95 and found.alone["signal"] > 0.95 and found.without["noise"] > 0.95
    assert abs(found.alone["noise"] - 0.5) < 0.1 and abs(found.auc_of_shuffled - 0.5) < 0.05
    assert set(list(found.importances)[:2]) == {"f0", "f1"}
    text = "\n".join(report_lines(found, rows.labels))
    assert "400 labels" in text and "signal" in text and "warning" not in text


def test_trees_are_boosted_here_where_scikit_learn_hides_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has them in private attributes."""
    assert fitting.shows_nodes()
    rows, others = rows_of(400, noise=0.1), rows_of(600, noise=0.1)
    holed = np.where(np.arange(400)[:, None] % 9 == 0, np.float32(np.nan), rows.features)
    usual = grow(holed, rows.labels, seed=0).probabilities(others.features[400:])

    def changed(_: object) -> Trees:
        raise AttributeError("_predictors")

    monkeypatch.setattr(fitting, "plain_trees", changed)
    fitting.shows_nodes.cache_clear()
    assert not fitting.shows_nodes()
    trees = grow(holed, rows.labels, seed=0)
    fitting.shows_nodes.cache_clear()
    found = build_trees(trees.arrays(), num_features=8).probabilities(others.features[400:])
    assert auc(others.labels[400:], found) > 0.97
    assert np.abs(found - usual).mean() < 0.1 and np.corrcoef(found, usual)[0, 1] > 0.95


def test_a_fit_that_is_worth_nothing_says_so() -> None:
    rows = rows_of(100, noise=1000)
    assert "little better than guessing" in report_lines(validate(rows, seed=0), rows.labels)[-1]


def test_images_are_told_apart_and_shuffled_labels_teach_nothing() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 2 == 0
    images = [photograph(rng) if label else chart(rng) for label in labels]
    rows = LabelledRows(
        features=np.stack([image_statistics(pixels) for pixels in images]),
        labels=labels,
        units=[str(n) for n in range(240)],
        names=NAMES,
        groups={"all": NAMES},
    )
    validation = validate(rows, seed=0)
    assert validation.auc > 0.97 and abs(validation.auc_of_shuffled - 0.5) < 0.05


def test_units_stay_together() -> None:
    labels = np.arange(60) % 2 == 0
    units = [str(n // 3) for n in range(60)]
    folds = split_folds(labels, units, seed=0)
    assert sorted(n for fold in folds for n in fold) == list(range(60))
    for fold in folds:
        inside = {units[n] for n in fold}
        assert all((units[n] in inside) == (n in fold) for n in range(60))


def test_trees_are_the_same_every_time() -> None:
    rows = rows_of(80, noise=0.5)
    one, other = (grow(rows.features, rows.labels, seed=1).arrays() for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("labels", "expected"), [([True, True], 0.5), ([False, False], 0.5), ([True, False], 0.0)]
)
def test_auc_of_small_sets(labels: list[bool], expected: float) -> None:
    assert auc(np.array(labels), np.array([0.1, 0.9], dtype=np.float32)) == expected
