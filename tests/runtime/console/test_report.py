"""Reports: hostile text is inert, the page needs no network, the same data give the same bytes."""

import io
import re
import sys

import pytest
from markupsafe import Markup
from PIL import Image

import vlmill
from vlmill.runtime.console import report
from vlmill.runtime.console.bars import bar_chart, funnel_bars
from vlmill.runtime.console.progress import Progress

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'text' {{ 7*7 }} </td> $x_1$"


def test_hostile_text_is_escaped_everywhere() -> None:
    funnel = [{"stage": HOSTILE, "in": 3, "out": 1, "rejects": {HOSTILE: 2}}]
    sections = [
        report.Section(
            title=HOSTILE, intro=HOSTILE, body=report.html_table([HOSTILE], [[HOSTILE]])
        ),
        report.Section(title="f", body=report.funnel_table(funnel)),
        report.Section(title="c", body=bar_chart({HOSTILE: 2.0}, title="bars")),
        report.Section(title="s", body=report.settings_table({HOSTILE: HOSTILE})),
    ]
    page = report.page(HOSTILE, sections, subtitle=HOSTILE, notice=HOSTILE)
    assert "<script" not in page
    assert "49" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)


def test_a_page_says_which_version_wrote_it() -> None:
    """It is often all of an output that is sent to somebody."""
    assert f">vlmill {vlmill.__version__}</footer>" in report.page("t", [])


@pytest.mark.filterwarnings("error")
def test_curves_of_zeros_fit_no_logarithmic_axis() -> None:
    for curves in ({"loss": ([1.0], [0.0])}, {}):
        chart = report.line_chart(curves, title="t", x_label="x", y_label="y", log=True)
        assert "</svg>" in chart


def test_a_page_asks_nothing_of_the_network() -> None:
    chart = report.line_chart(
        {"a": ([1, 2], [3, 4])}, title="t", x_label="x", y_label="y", log=True
    )
    page = report.page("t", [report.Section(title="s", body=chart)])
    page = re.sub(
        r"<!DOCTYPE svg[^>]*>|xmlns(:\w+)?=\"[^\"]*\"|<metadata>.*?</metadata>",
        "",
        page,
        flags=re.S,
    )
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "http://" not in page and "https://" not in page


def test_charts_are_reproducible() -> None:
    curves = {"a": ([1.0, 2.0], [3.0, 4.0])}
    first, second = (
        report.line_chart(curves, title="t", x_label="x", y_label="y") for _ in range(2)
    )
    assert first == second


def test_thumbnails_are_small_jpegs() -> None:
    out = io.BytesIO()
    Image.new("RGBA", (1000, 400), (255, 0, 0, 128)).save(out, "PNG")
    uri = report.thumbnail_uri(out.getvalue(), side=100)
    assert uri.startswith("data:image/jpeg;base64,")
    assert len(uri) < 3_000


def test_progress_lines_say_rate_rest_and_rejects(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(total=10, unit="image", label="regions", done=2) as progress:
        progress.advance(4, rejects=1, loss="0.5")
    line = progress.line(seconds=2.0)
    assert line == "regions: 6/10 images, 2/s, 2 s left, 1 rejected, loss 0.5"
    assert "6/10 images" in capsys.readouterr().err
    assert "left" not in Progress(total=None, unit="page", label="p").line(seconds=1.0)


def test_tables_align_numbers_and_keep_words_whole() -> None:
    long = "http://photos.example/a/long/address.jpg"
    numbers = [3, "± 1.7 %", Markup("<b>94.9</b> ± 0.3"), "–", ""]
    table = report.html_table(["a", "b"], [[number, "icon"] for number in numbers])
    assert re.findall(r"<td class='(\w*)'>", table) == ["number", "short"] * 5
    assert "<th class='number'>a</th><th>b</th>" in table
    table = report.html_table(["a", "b"], [[3, long], ["icon", ""]])  # settings, for example
    assert re.findall(r"<td class='(\w*)'>", table) == ["short", "", "short", "short"]
    assert "<th>a</th>" in report.html_table(["a"], [])


def test_without_matplotlib_a_page_says_which_chart_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    curve = report.line_chart({"a": ([1], [2.0])}, title="Losses & rates", x_label="x", y_label="y")
    assert curve.startswith("<p>Losses &amp; rates: no chart; matplotlib is not installed")
    assert "pip install -e &#39;.[train]&#39;" in curve


def test_many_settings_are_folded() -> None:
    few, many = ({f"s{number}": number for number in range(n)} for n in (20, 21))
    assert "<details>" not in report.settings_table(few)
    folded = report.settings_table(many)
    assert folded.startswith("<details><summary>21 settings</summary><table>")
    assert folded.count("<tr>") == 22 and folded.endswith("</table></details>")


def test_every_curve_and_every_colour_is_named() -> None:
    curves = {name: ([1, 2, 3], [3.0, 2.0, 1.0]) for name in ("loss", "loss/words")}
    chart = report.line_chart(curves, title="t", x_label="step", y_label="loss")
    assert ">loss/words</text>" in chart and ">1.5</text>" not in chart  # no half a step
    bars = funnel_bars([{"stage": "pages", "in": 4, "out": 3, "rejects": {"empty": 1}}])
    assert "passed on" in bars and "dropped" in bars
    page = report.page("t", [report.Section(title="s", body=bars)])
    assert "max-width: 1080px" in page and "prefers-color-scheme: dark" in page
