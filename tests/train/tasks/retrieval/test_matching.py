"""Scores of all pairs equal those of one pair at a time, fed as training feeds it."""

from __future__ import annotations

import dataclasses
import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.tasks.retrieval.cases import (
    CLASSES,
    FEATURES,
    MATCHED,
    RANKED,
    SIDE,
    lexicon,
    tiny_model,
    unmasked_batches,
)

from vlmill.models import PixelInputs
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, REGIONS
from vlmill.train.loading.images.crop import evaluation_image
from vlmill.train.loading.masking.words import select_tokens
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.sample import kept_lengths
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer, encode_texts
from vlmill.train.tasks.retrieval import matching as retrieval_scores
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages, text_batches
from vlmill.train.tasks.retrieval.matching import cut_texts, make_scorer, match_scores
from vlmill.train.tasks.retrieval.vectors import (
    Shortlists,
    image_vectors,
    rerank_scores,
    shortlist,
    text_vectors,
)

if TYPE_CHECKING:
    from tests.factories import Tables

CPU = torch.device("cpu")
WORDS = ("a", "dog", "cat", "red", "runs", "sleeps", "tree", "house")
TOKENIZER = bert_tokenizer({word: i for i, word in enumerate((*SPECIAL, *WORDS))})
VOCABULARY = TOKENIZER.get_vocab_size()
TEXTS = [
    "dog",
    "a red cat sleeps",
    "a dog runs",
    "tree",
    "a a a cat cat cat red red house",
    "house a",
]
BOXES = (1, 7, 3, 5)  # of each image
NAN = np.float16(np.nan).tobytes()
NAMES = [f"image-{i}" for i in range(len(BOXES))]


def write_regions(folder: str, *, spoil: str | None = None) -> RegionReader:
    """Images of 1 to 7 regions, the surest last; the last one of ``spoil`` has a NaN."""
    rng, rows = np.random.default_rng(0), []
    for name, count in zip(NAMES, BOXES, strict=True):
        corners = rng.random((count, 2, 2)) * (200, 100)
        rows.append(
            RegionRow(
                image_id=name,
                width=200,
                height=100,
                boxes=np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32),
                features=rng.random((count, FEATURES)).astype(np.float16),
                class_ids=np.arange(count) % CLASSES,
                class_scores=np.linspace(0.1, 0.9, count, dtype=np.float32),
            )
        )
    table = encode_regions(rows, dtype="float16").to_pylist()
    for row in table:
        if row["image_id"] == spoil:
            row["features"] = row["features"][:-2] + NAN
    write_shard(
        folder,
        REGIONS,
        table,
        arrays=region_arrays(dtype="float16", feature_dim=FEATURES),
    )
    return RegionReader(folder)


def write_images(folder: Path, *, spoil: str | None = None) -> ImageReader:
    rng, rows = np.random.default_rng(0), []
    for name in NAMES:
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(data, "PNG")
        spoilt = name == spoil
        content = b"no picture" if spoilt else data.getvalue()
        rows.append({**dict.fromkeys(IMAGES.schema.names), "image_id": name, "bytes": content})
    write_shard(folder, IMAGES, rows)
    return ImageReader(folder)


def scores_one_by_one(tables: Tables, name: str, model: Any) -> Any:
    """Each pair through training's input path and the whole model."""
    feeding = RANKED[name].feeding
    ids = tables.write_pairs([(image, text) for image in NAMES for text in TEXTS])
    regions = RegionReader(tables.regions)
    folder = tables.folder / "prepared"
    prepare_samples(
        folder,
        PreparationInputs(
            pairs=tables.pairs,
            images=regions,
            tokenizer=TOKENIZER,
            max_tokens=feeding.max_tokens or 8,
        ),
    )
    make = partial(PretrainBatches, lexicon=lexicon(VOCABULARY), regions=regions, longest=8)
    batches = unmasked_batches(folder, feeding, make)
    scores = np.full(len(ids), np.nan)
    for index in range(len(ids)):
        batch = batches.assembled(index).to("cpu")
        with torch.no_grad():
            logit = RANKED[name].logit(model, model(batch.inputs).pooled)
        scores[ids.index(batch.pair_ids[0])] = float(logit)
    return scores.reshape(len(NAMES), len(TEXTS))


def all_scores(name: str, model: Any, reader: RegionReader, batch_size: int, **more: Any) -> Any:
    feeding = RANKED[name].feeding
    return match_scores(
        make_scorer(model, feeding.max_elements),
        encode_texts(TOKENIZER, TEXTS, feeding.max_tokens or 8).tokens,
        NAMES,
        RegionImages(reader, feeding),
        device=CPU,
        batch_size=batch_size,
        **more,
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in MATCHED), ("vilbert", {"co_attention": False})],
)
def test_scores_equal_one_pair_at_a_time(
    name: str, changes: dict[str, Any], tables: Tables
) -> None:
    reader, model = write_regions(tables.regions), tiny_model(name, VOCABULARY, **changes)
    expected = scores_one_by_one(tables, name, model)
    assert expected.std() > 1e-2  # that a mistake would show
    for batch_size in (1, 4, 100):
        told: list[int] = []
        scores = all_scores(name, model, reader, batch_size, advance=told.append)
        np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=1e-5)
        assert scores.dtype == np.float32
        assert sum(told) == expected.size and max(told) <= batch_size


def test_texts_are_read_in_parts_where_they_are_many(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, model = write_regions(tables.regions), tiny_model("vilbert", VOCABULARY)
    whole = all_scores("vilbert", model, reader, 2)
    monkeypatch.setattr(retrieval_scores, "TOKENS_KEPT", 20)
    np.testing.assert_allclose(all_scores("vilbert", model, reader, 2), whole, atol=1e-6)


@pytest.mark.parametrize("name", MATCHED)
def test_only_the_chosen_pairs_are_scored(name: str, tables: Tables) -> None:
    reader, model = write_regions(tables.regions), tiny_model(name, VOCABULARY)
    whole = all_scores(name, model, reader, 4)
    chosen = np.random.default_rng(0).random(whole.shape) < 0.4
    chosen[1] = False
    some = all_scores(name, model, reader, 4, chosen=chosen)
    np.testing.assert_allclose(some[chosen], whole[chosen], atol=1e-5, rtol=1e-5)
    assert (some[~chosen] == -np.inf).all()


def test_nothing_to_score_is_an_empty_matrix(tables: Tables) -> None:
    images = RegionImages(write_regions(tables.regions), RANKED["vilbert"].feeding)
    scorer = make_scorer(tiny_model("vilbert", VOCABULARY))
    texts = encode_texts(TOKENIZER, TEXTS, 7).tokens
    for columns, ids in ((texts, []), ([], NAMES), ([], [])):
        scores = match_scores(scorer, columns, ids, images, device=CPU, batch_size=2)
        assert scores.shape == (len(ids), len(columns))


@pytest.mark.parametrize("regions", [1, 3, 9])
def test_texts_beside_regions_are_cut_as_in_training(regions: int) -> None:
    rng = np.random.default_rng(0)
    texts = [np.append(rng.integers(5, 90, n - 1), 3) for n in (2, 3, 5, 8, 8, 12)]
    (batch,) = text_batches(texts, 10, CPU)
    tokens, mask, shown = cut_texts(batch, regions, 10)
    for row, column in enumerate(batch.columns.tolist()):
        words, kept = kept_lengths(len(texts[column]), regions, 10)
        wanted = texts[column][select_tokens(len(texts[column]), words)]
        np.testing.assert_array_equal(tokens[row][mask[row]], wanted)
        assert shown[row].sum() == kept and shown[row][:kept].all()
    assert tokens.shape == mask.shape


def test_regions_that_cannot_be_used_are_named(tables: Tables) -> None:
    feeding = RANKED["vilbert"].feeding
    images = RegionImages(write_regions(tables.regions, spoil="image-2"), feeding)
    found = [images.fault(name) for name in NAMES]
    assert found == [None, None, Reason.NOT_FINITE, None]
    assert images.missing(["image-0", "elsewhere"]) == {"elsewhere": Reason.NO_REGIONS}
    # Of its seven regions the model is fed five.
    images = RegionImages(write_regions(tables.regions, spoil="image-1"), feeding)
    assert images.fault("image-1") is None
    # It is fed the last one where the surest come first.
    surest = dataclasses.replace(feeding, region_order="confidence")
    images = RegionImages(RegionReader(tables.regions), surest)
    assert images.fault("image-1") == Reason.NOT_FINITE


def vlmo_inputs(folder: Path, **changes: Any) -> tuple[Any, PixelImages, Any, ImageReader]:
    reader = write_images(folder)
    feeding = RANKED["vlmo"].feeding
    texts = encode_texts(TOKENIZER, TEXTS, feeding.max_tokens or 8).tokens
    return tiny_model("vlmo", VOCABULARY, **changes), PixelImages(reader, feeding), texts, reader


def normalised(reader: ImageReader, name: str) -> torch.Tensor:
    pixels = torch.from_numpy(evaluation_image(reader[name], name, SIDE))[None]
    return pixels.float() / 127.5 - 1


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_vlmos_matching_scores_equal_one_pair_at_a_time(tmp_path: Path, batch_size: int) -> None:
    model, images, texts, reader = vlmo_inputs(tmp_path)
    scores = match_scores(
        make_scorer(model), texts, NAMES, images, device=CPU, batch_size=batch_size
    )
    for row, name in enumerate(NAMES):
        for column, text in enumerate(texts):
            tokens = torch.from_numpy(text)[None]
            mask = torch.ones(tokens.shape, dtype=torch.bool)
            inputs = PixelInputs(tokens=tokens, token_mask=mask, pixels=normalised(reader, name))
            with torch.no_grad():
                logit = float(model.match_logit(model(inputs).pooled))
            assert scores[row, column] == pytest.approx(logit, abs=1e-5)
    assert scores.std() > 1e-2


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_vlmos_vectors_equal_those_of_one_at_a_time(tmp_path: Path, batch_size: int) -> None:
    model, images, texts, reader = vlmo_inputs(tmp_path)
    of_texts = text_vectors(model, texts, device=CPU, batch_size=batch_size)
    found = image_vectors(model, NAMES, images, device=CPU, batch_size=batch_size)
    of_images = found.stack(NAMES)
    assert not found.faults
    with torch.no_grad():
        for row, text in zip(of_texts, texts, strict=True):
            tokens = torch.from_numpy(text)[None]
            own = model.text_vectors(tokens, torch.ones(tokens.shape, dtype=torch.bool))
            np.testing.assert_allclose(row, own[0], atol=1e-6)
        for row, name in zip(of_images, NAMES, strict=True):
            own = model.image_vectors(normalised(reader, name))
            np.testing.assert_allclose(row, own[0], atol=1e-6)
    assert (of_images @ of_texts.T).std() > 1e-2


def test_images_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    images = PixelImages(write_images(tmp_path, spoil="image-2"), RANKED["vlmo"].feeding)
    model = tiny_model("vlmo", VOCABULARY)
    found = image_vectors(model, NAMES, images, device=CPU, batch_size=3)
    assert found.faults == {"image-2": Reason.UNREADABLE_IMAGE}
    assert sorted(found.vectors) == ["image-0", "image-1", "image-3"]
    assert images.fault("image-2") is Reason.UNREADABLE_IMAGE
    assert images.fault("image-0") is None
    assert images.missing(["image-0", "elsewhere"]) == {"elsewhere": Reason.NO_IMAGE}


def test_shortlists_by_hand() -> None:
    scores = np.array([[0.9, 0.1, 0.3], [0.8, 0.1, 0.2]], np.float32)
    assert shortlist(scores, 2).tolist() == [[True, False, True]] * 2
    listed = Shortlists.from_scores(scores, 1)
    assert listed.by_text.tolist() == [[True, True, True], [False, False, False]]
    assert listed.by_image.tolist() == [[True, False, False], [True, False, False]]
    logits = np.array([[-5, -6, -7], [4, -np.inf, -np.inf]], np.float32)
    ranked = rerank_scores(scores, listed, logits)
    assert ranked.by_text[0].tolist() == [-5, -6, -7]
    assert (ranked.by_text[1] < -900_000).all() and (np.diff(ranked.by_text[1]) != 0).all()
    assert ranked.by_image[:, 0].tolist() == [-5, 4]
    for row in ranked.by_image:  # behind the shortlist, in the order that they had
        assert row[0] > row[2] > row[1]


def test_a_shortlist_of_all_ranks_by_the_matching_head_alone(tmp_path: Path) -> None:
    model, images, texts, _ = vlmo_inputs(tmp_path)
    scores = np.random.default_rng(0).random((len(NAMES), len(texts))).astype(np.float32)
    logits = match_scores(make_scorer(model), texts, NAMES, images, device=CPU, batch_size=5)
    ranked = rerank_scores(scores, Shortlists.from_scores(scores, 100), logits)
    np.testing.assert_array_equal(ranked.by_text, logits)
    np.testing.assert_array_equal(ranked.by_image, logits)
