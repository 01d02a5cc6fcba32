"""Several texts of an image are kept and scored with it; what a site's robots.txt says counts."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.factories import NO_MODELS
from tests.pipelines.filters.generated_pairs import write_world

from vlmill.pipelines.fit_scorer.__main__ import main as fit_scorer
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.pipelines.web_pairs import decode
from vlmill.pipelines.web_pairs.pair import OtherText, Pair
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import CANDIDATES, PAIRS, REJECTS

Make = Callable[..., bytes]
Pack = Callable[[Path, Sequence[tuple[str, bytes, str]]], Path]

SITE = "http://site.example/"
PROSE = (
    "<p>This is a page in plain English with enough words in it for anybody to see that it is, "
    "and it goes on for a while about nothing in particular.</p>"
)
ALT, CAPTION = "A black cat on a mat", "The black cat of the neighbours sleeps."


def rows(folder: Path, spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(folder, spec).to_pylist()
    return found


def run(*flags: str) -> int:
    return web_pairs.main([*flags])


def page(name: str, body: str) -> tuple[str, bytes, str]:
    return (f"{SITE}{name}.html", f"<html lang=en><main>{body}</main>{PROSE}".encode(), "text/html")


@pytest.fixture(scope="module")
def warc(tmp_path_factory: pytest.TempPathFactory, image: Make, archive: Pack) -> Path:
    figure = f"<figure><img src=cat.jpg alt='{ALT}'><figcaption>{CAPTION}</figcaption></figure>"
    cat = (f"{SITE}cat.jpg", image(320, 310, seed=1), "image/jpeg")
    return archive(tmp_path_factory.mktemp("warc") / "a.warc.gz", [page("a", figure), cat])


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    world = write_world(folder / "world", 80)
    flags = ["--pairs", str(world.output), "--labels", str(world.labels)]
    assert fit_scorer([*flags, "--output", str(folder / "s.model")]) == 0
    return folder / "s.model"


@pytest.fixture(scope="module")
def kept(warc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "out"
    assert run("--warc", str(warc), "--output", str(out), *NO_MODELS, "--keep-texts", "5") == 0
    return out


def test_kept_texts_have_ranks_and_features(kept: Path) -> None:
    assert verify_folder(kept) == []
    (pair,) = rows(kept, PAIRS)
    first, second = rows(kept, CANDIDATES)
    assert {first["text"], second["text"]} == {ALT, CAPTION}
    assert (first["rank"], second["rank"]) == (0, 1) and first["score"] >= second["score"]
    assert (first["pair_id"], first["image_id"]) == (pair["pair_id"], pair["image_id"])
    assert json.loads(first["features"])["bias"] == 1


class Fixed:
    """A scorer that knows what it wants."""

    threshold = 0.5

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def score(self, facts: Sequence[Any], **_: Any) -> Any:
        return np.array([self._scores[fact.pair["text"]] for fact in facts], dtype=np.float32)


def test_the_best_of_those_above_the_threshold_is_kept(kept: Path) -> None:
    (row,) = rows(kept, PAIRS)
    other = ALT if row["text"] == CAPTION else CAPTION

    def choose(scores: dict[str, float]) -> Any:
        image = ArchivedImage(
            image_id=row["image_id"],
            url=row["image_url"],
            width=9,
            height=9,
            format="jpeg",
            phash=1,
            archive="a",
            offset=0,
        )
        about = {"language": "en", "page_url": row["page_url"], "text_source": "alt"}
        pair = Pair(
            image=image,
            text=row["text"],
            score=0.9,
            others=(OtherText(text=other, score=0.8, **about),),
            **about,
        )
        return decode.choose_scored(pair, None, Fixed(scores))  # type: ignore[arg-type]

    chosen = choose({row["text"]: 0.6, other: 0.7})
    assert (chosen.text, [text.text for text in chosen.others]) == (other, [row["text"]])
    assert choose({row["text"]: 0.4, other: 0.3}).reason == "low_score"


def test_a_scorer_chooses_while_archives_are_mined(
    warc: Path, scorer: Path, kept: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ["--warc", str(warc), "--output", str(out), *NO_MODELS, "--scorer", str(scorer)]
    assert run(*flags) == 0
    assert verify_folder(out) == []
    found = rows(out, PAIRS) or rows(out, REJECTS)
    assert found[0].get("score") != rows(kept, PAIRS)[0]["score"]


def test_candidates_are_scored_and_chosen(kept: Path, scorer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--candidates", str(kept), "--scorer", str(scorer), "--output", str(out)]
    assert run(*flags) == 0
    assert verify_folder(out) == []
    pairs, rejects = rows(out, PAIRS), rows(out, REJECTS)
    assert len(pairs) + len(rejects) == 2 and len(pairs) <= 1
    assert {row["reason"] for row in rejects} <= {"low_score", "not_best_text"}
    for stage in json.loads((out / "funnel.json").read_text()):
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values())
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert run(*flags) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_broken_candidates_are_refused(
    kept: Path, scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(kept, broken)
    (path,) = broken.glob("candidates-*.parquet")
    pq.write_table(pq.read_table(path).drop_columns("text"), path)
    flags = ["--candidates", str(broken), "--scorer", str(scorer)]
    assert run(*flags, "--output", str(tmp_path / "out")) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert str(path) in line


def test_an_output_without_candidates_is_refused(
    warc: Path, scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    assert run("--warc", str(warc), "--output", str(plain), *NO_MODELS) == 0
    flags = ["--candidates", str(plain), "--scorer", str(scorer)]
    assert run(*flags, "--output", str(tmp_path / "o")) == 2
    assert "--keep-texts" in capsys.readouterr().err


def test_the_site_s_robots_txt_in_the_archive_is_honoured(
    image: Make, archive: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robots = b"User-agent: *\nContent-Signal: search=yes, ai-train=no\n"
    cat = (f"{SITE}cat.jpg", image(320, 310, seed=1), "image/jpeg")
    site = [page("a", f"<img src=cat.jpg alt='{ALT}'>"), cat]
    site.append((f"{SITE}robots.txt", robots, "text/plain"))
    warc = archive(tmp_path / "a.warc.gz", site)
    out = tmp_path / "out"
    assert run("--warc", str(warc), "--output", str(out), *NO_MODELS) == 0
    assert "warning: the result has no pairs" in capsys.readouterr().err
    assert ("join", "no_ai") in {(row["stage"], row["reason"]) for row in rows(out, REJECTS)}
    flags = ["--warc", str(warc), "--output", str(tmp_path / "all"), *NO_MODELS]
    assert run(*flags, "--ignore-opt-outs") == 0
    assert len(rows(tmp_path / "all", PAIRS)) == 1


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "b.warc.wat", "c.warc"])
def test_texts_without_pages_are_refused_by_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = (
        b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.org/\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nwords\r\n\r\n"
    )
    (tmp_path / name).write_bytes(record)
    flags = ["--warc", str(tmp_path / name), "--output", str(tmp_path / "out"), *NO_MODELS]
    assert run(*flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert name in error and ("WET" in error or "WAT" in error)
