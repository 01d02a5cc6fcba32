"""Charts of bars: lengths and bins by hand."""

import re

import pytest

from vlmill.runtime.console.bars import bar_chart, binned_columns, histogram


def widths(chart: str) -> list[float]:
    return [float(width) for width in re.findall(r"<rect [^>]*width='([\d.]+)'", chart)]


def bins(chart: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", chart)


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart({"most": 8, "half": 4, "none": 0}, title="t")
    assert widths(chart) == [280.0, 140.0, 0.0]
    assert re.findall(r">([\d.,e-]+)</text>", chart) == ["8", "4", "0"]
    assert re.findall(r">([\d.,e-]+)</text>", bar_chart({"a": 1234.5678}, title="t")) == ["1,235"]


def test_a_value_below_0_has_no_bar() -> None:
    chart = bar_chart({"won": 0.25, "lost": -0.5}, title="t")
    assert widths(chart) == [280.0, 0.0] and ">-0.5</text>" in chart
    assert widths(bar_chart({"lost": -0.5}, title="t")) == [0.0]


def test_a_histogram_counts_twenty_bins_from_the_least_to_the_most() -> None:
    assert bins(histogram([0.0, 0.4, 1.0, 19.5, 20.0], title="t", label="x")) == [
        *("0: 2", "1: 1", "19: 2")  # the most is in the last bin
    ]
    assert bins(histogram([3.0, 3.0], title="t", label="x")) == ["3: 2"]
    assert "no values" in histogram([], title="t", label="x")


def test_bins_begin_at_0() -> None:
    assert bins(binned_columns({0: 2, 3: 1}, 0.1, title="t", label="x")) == ["0: 2", "0.3: 1"]


@pytest.mark.parametrize(
    "chart", [bar_chart({"a": 1}, title="t"), histogram([1.0], title="t", label="x")]
)
def test_a_chart_shrinks_whole_where_a_page_is_narrow(chart: str) -> None:
    """A drawing without a view box would be cut off."""
    assert re.search(r"<svg viewBox='0 0 540 \d+' width='540'", chart)
