"""Scores survive a kill, and those of something else are never taken for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import (
    CPU,
    NAMES,
    TEXTS,
    TOKENIZER,
    VOCABULARY,
    write_images,
    write_regions,
)
from tests.train.tasks.retrieval.test_variants import Workplace

from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval import job
from vlmill.train.tasks.retrieval import matching as retrieval_scores
from vlmill.train.tasks.retrieval import score_store as kept_scores
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores
from vlmill.train.tasks.retrieval.score_store import ScoreCache


class Killed(Exception):
    """Stands for a kill."""


class Dying:
    """A scorer that scores so many batches, and counts them."""

    def __init__(self, name: str, batches: int) -> None:
        self.scorer = make_scorer(tiny_model(name, VOCABULARY))
        self.left, self.scored = batches, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def match(self, texts: Any, image: Any) -> torch.Tensor:
        if self.scored == self.left:
            raise Killed
        self.scored += 1
        return self.scorer.match(texts, image)


def scores_of(
    scorer: Any, reader: RegionReader, kept: ScoreCache, chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    feeding = RANKED["vilbert"].feeding
    return match_scores(
        scorer,
        encode_texts(TOKENIZER, TEXTS, feeding.max_tokens or 8).tokens,
        NAMES,
        RegionImages(reader, feeding),
        device=CPU,
        batch_size=2,
        chosen=chosen,
        cache=kept,
    )


@pytest.mark.parametrize("tokens_kept", [20, 1 << 17])  # texts in two parts, and in one
@pytest.mark.parametrize("some", [False, True])
def test_a_killed_run_goes_on_to_the_same_scores(
    some: bool, tokens_kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_scores, "TOKENS_KEPT", tokens_kept)
    reader = write_regions(str(tmp_path / "regions"))
    flags = np.random.default_rng(1).random((len(NAMES), len(TEXTS))) < 0.7
    chosen = flags if some else None
    alone = Dying("vilbert", 1000)
    whole = scores_of(alone, reader, ScoreCache(), chosen)
    for batches in (0, 1, 5, alone.scored - 1):
        folder = tmp_path / f"work-{batches}"
        dying = Dying("vilbert", batches)
        with pytest.raises(Killed):
            scores_of(dying, reader, ScoreCache.open(folder, "a", seconds=0.0), chosen)
        again, kept = Dying("vilbert", 1000), ScoreCache.open(folder, "a", seconds=0.0)
        np.testing.assert_array_equal(scores_of(again, reader, kept, chosen), whole)
        assert again.scored == alone.scored - batches
        done = Dying("vilbert", 0)  # now all are there: nothing is scored
        kept = ScoreCache.open(folder, "a", seconds=0.0)
        np.testing.assert_array_equal(scores_of(done, reader, kept, chosen), whole)


def numbered(folder: Path, lineage: str = "a") -> ScoreCache:
    """Three files, of the numbers from 0 to 5."""
    kept = ScoreCache.open(folder, lineage, seconds=0.0)
    for start in (0, 2, 4):
        kept.add(np.arange(start, start + 2, dtype=np.float32))
    return kept


def test_scores_come_back_in_their_order(tmp_path: Path) -> None:
    numbered(tmp_path)
    np.testing.assert_array_equal(ScoreCache.open(tmp_path, "a", seconds=0.0).known, np.arange(6))
    assert not len(ScoreCache.open(tmp_path / "nowhere", "a", seconds=0.0).known)
    later = ScoreCache.open(tmp_path / "later", "a", seconds=1000.0)
    later.add(np.zeros(2, np.float32))
    assert not (tmp_path / "later").exists()  # short work has no file


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: content[:-3], "is damaged"),
        (lambda content: content[:-1] + b"\x07", "is damaged"),
        (lambda content: b"", "is damaged"),
        (lambda content: b"[]\n", "is damaged"),
        (lambda content: content.replace(b'"a"', b'"b"'), "belongs to another checkpoint"),
        (None, "begins at pair 4, where pair 2 is missing"),
    ],
)
def test_what_does_not_belong_is_named_and_computed_again(
    spoil: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(tmp_path)
    second = sorted(tmp_path.iterdir())[1]
    if spoil is None:
        second.unlink()
    else:
        second.write_bytes(spoil(second.read_bytes()))
    kept = ScoreCache.open(tmp_path, "a", seconds=0.0)
    np.testing.assert_array_equal(kept.known, [0, 1])
    assert said in capsys.readouterr().err
    kept.add(np.array([7], np.float32))
    np.testing.assert_array_equal(ScoreCache.open(tmp_path, "a", seconds=0.0).known, [0, 1, 7])


def test_an_evaluation_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_regions(str(tmp_path / "regions"))
    write_images(tmp_path / "images")
    place = Workplace(tmp_path)
    place.write(tiny_model("vilbert", VOCABULARY), "vilbert", RANKED["vilbert"].feeding)
    assert place.run("--batch-size", "2") == 0
    metrics = place.metrics()
    assert not (place.out / "work").exists()
    monkeypatch.setattr(kept_scores, "SECONDS_BETWEEN_FILES", 0.0)
    with monkeypatch.context() as killing:
        killing.setattr(job, "make_scorer", lambda *_: Dying("vilbert", 5))
        with pytest.raises(Killed):
            place.run("--batch-size", "2", "--fresh")
    assert len(list((place.out / "work").glob("*.block"))) == 5
    alive = Dying("vilbert", 99)
    with monkeypatch.context() as counting:
        counting.setattr(job, "make_scorer", lambda *_: alive)
        assert place.run("--batch-size", "2") == 0
    assert alive.scored == 7  # of 4 images with 3 batches
    assert place.metrics() == metrics
    with monkeypatch.context() as killing:
        killing.setattr(job, "make_scorer", lambda *_: Dying("vilbert", 5))
        with pytest.raises(Killed):
            place.run("--batch-size", "2", "--fresh")
    capsys.readouterr()
    assert place.run("--batch-size", "3") == 0  # other batches, whose last bits may differ
    assert "belongs to another checkpoint, other pairs or other settings" in capsys.readouterr().err
