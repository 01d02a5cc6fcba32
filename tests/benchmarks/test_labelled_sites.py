import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from labelled_sites.build import is_held_out, main
from labelled_sites.labels import Label, counts, verdict_of, wilson
from labelled_sites.mined import Example, fit_weights, joined_pages, weights_source
from PIL import Image

from vlmill.pipelines.rules import WebPairRules

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
    source: dict[str, object] = {"Mapping": Mapping}  # imported where the weights are
    exec(weights_source(weights), source)
    assert source["WEIGHTS"] == weights


PAGE = """<html lang="ja"><head><meta charset="utf-8"><title>t</title></head><body>
<img src="{src}" alt="赤い壁"><img src="http://other.org/x.jpg"><img src=big.png></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "寺").mkdir(parents=True)
    Image.new("RGB", (400, 400), (200, 0, 0)).save(folder / "寺" / "赤 1.jpg")
    (folder / "big.png").write_bytes(b"\0" * (601 << 10))
    (folder / "index.html").write_text(PAGE.format(src="寺/赤 1.jpg"), encoding="utf-8")
    (folder / "寺" / "index.html").write_text(PAGE.format(src="/寺/赤 1.jpg?v=2"), encoding="utf-8")
    (folder / "plain.html").write_text("<p>nothing to see</p>", encoding="utf-8")
    (folder / "secret.html").write_text(PAGE.format(src="寺/赤 1.jpg"), encoding="utf-8")
    author = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "c"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_an_archive_holds_pages_and_their_images(site: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.warc.gz", tmp_path / "b.warc.gz"
    for out in (first, second):
        words = ["--git", str(site), "--url", "http://ab.example/", "--out", str(out)]
        assert main([*words, "--skip", "secret"]) == 0
    assert first.read_bytes() == second.read_bytes()
    pages = {joined.page.url: joined for joined in joined_pages(first, WebPairRules())}
    assert set(pages) == {"http://ab.example/", "http://ab.example/%E5%AF%BA/"}
    for joined in pages.values():
        assert [image.width for image in joined.images.values()] == [400]  # type: ignore[union-attr]


def test_labelled_pages_and_images_are_kept(site: Path, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.jsonl", tmp_path / "a.warc.gz"
    page, image = (
        "http://ab.example/%E5%AF%BA/",
        "http://ab.example/%E5%AF%BA/%E8%B5%A4%201.jpg?v=2",
    )
    texts: dict[str, list[str]] = {"describes": [], "not": [], "unsure": []}
    row = {"archive": out.name, "language": "ja", "page_url": page, "image_url": image}
    labels.write_text(json.dumps(row | {"dominant": True} | texts), encoding="utf-8")
    words = ["--git", str(site), "--url", "http://ab.example/", "--out", str(out)]
    assert main([*words, "--keep", str(labels), "--megabytes", "0.0001"]) == 0
    assert [joined.page.url for joined in joined_pages(out, WebPairRules())] == [page]


def test_a_third_of_sites_is_held_out() -> None:
    held = [is_held_out(f"site{number}.org") for number in range(300)]
    assert 70 < sum(held) < 130
