"""From labelled pairs to a scorer, and a finished output's pairs scored again."""

import contextlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.pipelines.filters.generated_pairs import World, write_world

from vlmill.pipelines.filters.facts import FactsReader, Sources, open_sources
from vlmill.pipelines.filters.scorer import GROUPS, NAMES, HashedShares, Scorer
from vlmill.pipelines.fit_scorer.__main__ import main
from vlmill.pipelines.fit_scorer.job import labelled_pairs, labelled_rows
from vlmill.pipelines.web_pairs import rescoring
from vlmill.pipelines.web_pairs.__main__ import main as web_pairs
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import PAIRS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("world") / "w", 160)


def fit(world: World, output: Path, *flags: str) -> int:
    words = ["--pairs", str(world.output), "--labels", str(world.labels), "--output", str(output)]
    return main([*words, *flags])


def with_regions(world: World) -> list[str]:
    return ["--regions", str(world.regions), "--classes", str(world.classes)]


@dataclass(frozen=True)
class Fit:
    model: Path
    said: str  # what it printed


@pytest.fixture(scope="module")
def fitted(world: World, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """A scorer with images and regions."""
    path = tmp_path_factory.mktemp("scorer") / "scorer.model"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert fit(world, path, "--images", str(world.output), *with_regions(world)) == 0
    return Fit(path, said.getvalue())


def described(world: World) -> dict[str, bool]:
    lines = (line.split("\t") for line in world.labels.read_text().splitlines())
    return {pair_id: label == "1" for pair_id, label in lines}


def test_the_scorer_finds_what_regions_say(fitted: Fit) -> None:
    aucs = {
        line.split()[0]: float(line.split()[1])
        for line in fitted.said.splitlines()
        if line.split()[0] in GROUPS
    }
    assert float(fitted.said.partition("AUC ")[2].split()[0]) > 0.9
    assert abs(float(fitted.said.partition("shuffled labels ")[2].split()[0]) - 0.5) < 0.05
    assert aucs.keys() == GROUPS.keys()
    assert aucs["text_and_regions"] > 0.9 and aucs["text_form"] < 0.7
    page = fitted.model.with_name("scorer.model.html").read_text()
    assert "cross_" in page and "<script" not in page


def test_groups_without_a_value_are_left_out(world: World) -> None:
    labels = described(world)
    pairs = labelled_pairs(str(world.output), labels)
    rows = labelled_rows(pairs, labels, Sources(), HashedShares.from_texts([]))
    assert set(rows.groups) == {"text_form", "text_words", "text_signs", "place"}
    assert rows.features.shape == (160, len(NAMES)) and rows.names == NAMES


def test_a_scorer_of_new_pairs(world: World, fitted: Fit, tmp_path: Path) -> None:
    """Held out: other images and texts of the same kind."""
    other = write_world(tmp_path / "w", 60, seed=1)
    sources = open_sources(other.output, str(other.regions), str(other.classes), None)
    rows = read_table(other.output, PAIRS).to_pylist()
    facts = list(FactsReader(sources).facts(rows))
    scores = Scorer.load(fitted.model).score(facts, classes=sources.classes)
    labels = np.array([described(other)[row["pair_id"]] for row in rows])
    assert scores.dtype == np.float32 and scores.shape == (60,)
    assert np.mean(scores[labels][:, None] > scores[~labels]) > 0.9
    assert Scorer.load(fitted.model).score([]).shape == (0,)


def test_features_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--list-features"])
    lines = capsys.readouterr().out.splitlines()
    assert left.value.code == 0 and [line.split("\t")[1] for line in lines] == list(NAMES)


def scores_of(folder: Path) -> dict[str, float]:
    return {row["pair_id"]: row["score"] for row in read_table(folder, PAIRS).to_pylist()}


def again(world: World, output: Path, *flags: str) -> int:
    return web_pairs(["--output", str(output), *with_regions(world), *flags])


def test_a_finished_output_is_scored_again(
    world: World, fitted: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(world.output, out)
    assert again(world, out) == 0
    assert "160 pairs scored" in capsys.readouterr().out
    assert verify_folder(out) == [] and not (out / "_rescoring").exists()
    by_regions = scores_of(out)
    truth = described(world)
    assert np.mean([(by_regions[i] > 0.65) == truth[i] for i in truth]) > 0.9
    assert json.loads((out / "_manifest.json").read_text())["scoring"]["threshold"] == 0.5
    assert [entry.flag for entry in read_manifest(out)["inputs"]] == ["--regions", "--classes"]
    assert (
        "scoring"
        in pq.read_metadata(out / "pairs-00000-of-00002.parquet")
        .metadata[b"vlmill.producer"]
        .decode()
    )

    assert again(world, out, "--scorer", str(fitted.model)) == 0
    assert scores_of(out) != by_regions and verify_folder(out) == []
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert again(world, out, "--scorer", str(fitted.model)) == 0  # nothing is left to do
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert again(world, out) == 0  # from the mined scores once more, not from the scorer's
    assert scores_of(out) == by_regions


@pytest.mark.parametrize("moment", ["shards", "publishing"])
def test_a_killed_run_is_continued(
    moment: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    for folder in (out, whole):
        shutil.copytree(world.output, folder)
    assert again(world, whole) == 0
    name = {"shards": "read_group", "publishing": "sync"}[moment]
    original, calls = getattr(rescoring, name), []

    def killed(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if moment == "publishing" or len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(rescoring, name, killed)
    assert again(world, out) == 130
    monkeypatch.undo()
    assert (out / "_manifest.json").exists() == (moment == "shards")
    assert again(world, out) == 0
    assert scores_of(out) == scores_of(whole) and verify_folder(out) == []
    assert not (out / "_rescoring").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--regions", "R"], "--regions needs --classes"),
        (["--classes", "C"], "--classes gives the names of region classes"),
        (["--regions", "R", "--classes", "short.txt"], "--classes has 2 names"),
        (["--regions", "R", "--classes", "absent"], "--classes absent"),
        (["--regions", "absent", "--classes", "C"], "--regions absent"),
        (["--images", "absent"], "--images absent"),
        (["--labels", "other.tsv"], "20 of 20 ids have no row in --pairs"),
        (["--labels", "one.tsv"], "0 of 20 ids have the label 0"),
        (["--threshold", "-1"], "--threshold -1"),
    ],
)
def test_mistakes_are_told_in_one_line(
    flags: list[str],
    said: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{n}\t{n % 2}" for n in range(20)]
    Path("other.tsv").write_text("\n".join(lines))
    Path("one.tsv").write_text("\n".join(line[:-1] + "1" for line in lines))
    Path("short.txt").write_text("dog\ncat\n")
    table = pq.read_table(world.regions / "regions-00000-of-00001.parquet")
    producer = json.dumps({"detector": {"num_classes": 8}})
    Path("R").mkdir()
    named = table.replace_schema_metadata(
        {**table.schema.metadata, b"vlmill.producer": producer.encode()}
    )
    pq.write_table(named, "R/regions-00000-of-00001.parquet")
    shutil.copy(world.classes, "C")
    words = ["--pairs", str(world.output), "--labels", str(world.labels), "--output", "m"]
    assert main([*words, *flags]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1] and not Path("m").exists()


def test_what_cannot_be_scored_again(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(output: Path, *flags: str) -> str:
        assert web_pairs(["--output", str(output), *flags]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "no _manifest.json" in said(tmp_path / "none", *with_regions(world))
    assert "was written by regions" in said(world.regions, *with_regions(world))
    assert "--wat GLOB or --table FILE to mine, or --regions" in said(world.output)
    both = said(world.output, "--warc", "x", *with_regions(world))
    assert "--regions cannot be combined with --warc: mine first" in both
    assert "not a readable model" in said(world.output, "--scorer", str(world.classes))
    assert "scoring" not in read_manifest(world.output)
