"""What each variant is fed, from tables to the model's inputs."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.loading.oracles import mean_after_masking, mean_of_unmasked, without

from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.joining import Indexed
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS, REJECTS
from vlmill.train.loading.features import are_ranked
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.sample import surest_first
from vlmill.train.loading.store.pairs import pair_rows
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import (
    Feeding,
    Masking,
    Optimizer,
    Stage,
    interbert,
    vilbert,
    vlbert,
    vlmo,
)

if TYPE_CHECKING:
    from tests.factories import Tables

NUM_IMAGES, CLASSES = 12, 9
NAMES = [a + b for a in ("dog", "cat", "boat") for b in ("horse", "house", "garden", "near")]
OPTIMIZER = Optimizer(lr=1e-3)
LONG = "a dog runs near a house and a cat sleeps in the garden with a horse and a boat " * 4


def write_regions(folder: str, boxes: int = 40, compression: str = "none") -> RegionReader:
    """Regions with distributions; their features tell the image and the region."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM_IMAGES):
        corners = rng.random((boxes, 2, 2)) * (200, 100)
        probs = rng.dirichlet(np.ones(CLASSES), size=boxes).astype(np.float16)
        features = np.stack([np.full(boxes, number + 1), np.arange(boxes) + 1, np.ones(boxes)], 1)
        rows.append(
            RegionRow(
                image_id=f"image-{number}",
                width=200,
                height=100,
                boxes=np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32),
                features=features.astype(np.float16),
                class_ids=(probs[:, 1:].argmax(1)).astype(np.int16),
                class_probs=probs,
            )
        )
    arrays = region_arrays(dtype="float16", feature_dim=3, class_probs_dim=CLASSES)
    writer = ShardWriter(folder, REGIONS, 0, 1, arrays=arrays, compression=compression)
    with writer:
        for first in range(0, NUM_IMAGES, 5):
            writer.write(encode_regions(rows[first : first + 5], dtype="float16"))
    return RegionReader(folder)


def write_images(folder: Path) -> ImageReader:
    """Images of 40 x 30 pixels, each of one colour but for a corner."""
    rows = []
    for number in range(NUM_IMAGES):
        pixels = np.full((30, 40, 3), 10 * number, np.uint8)
        pixels[:10, :10] = 255
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "PNG")
        empty = dict.fromkeys(IMAGES.schema.names)
        rows.append({**empty, "image_id": f"image-{number}", "bytes": data.getvalue()})
    write_shard(folder, IMAGES, rows)
    return ImageReader(folder)


def make(
    tables: Tables,
    feeding: Feeding,
    masking: Masking,
    *,
    regions: RegionReader | None = None,
    images: ImageReader | None = None,
    texts: int = 0,
    caption: str = LONG,
    **stage: Any,
) -> PretrainBatches:
    """Batches of 4 pairs, of which the last ``texts`` have no image."""
    tables.write_pairs([(f"image-{i}", f"{NAMES[i]} {caption}") for i in range(NUM_IMAGES)])
    rows = [row for batch in pair_rows(tables.pairs) for row in batch]
    for row in rows[NUM_IMAGES - texts :]:
        row["image_id"] = None
    empty = dict.fromkeys(PAIRS.schema.names)
    write_shard(tables.pairs, PAIRS, [{**empty, **row} for row in rows])
    tokenizer = train_vocabulary([LONG], 80)
    indexed: Indexed | None = images if regions is None else regions
    with ShardWriter(tables.folder, REJECTS, 0, 1) as rejects:
        prepare_samples(
            tables.folder / "prepared",
            PreparationInputs(
                pairs=tables.pairs,
                tokenizer=tokenizer,
                max_tokens=feeding.max_tokens or 44,
                images=indexed,
                takes_pairs=feeding.kind != "text",
                takes_texts=feeding.kind == "text" or bool(feeding.text_rows),
            ),
            rejects,
        )
    of_test = Stage(name="x", steps=1, batch_size=4, optimizer=OPTIMIZER)
    return PretrainBatches(
        samples=tables.folder / "prepared",
        stage=dataclasses.replace(of_test, feeding=feeding, masking=masking, **stage),
        stage_number=0,
        seed=0,
        lexicon=Lexicon.from_tokenizer(tokenizer),
        regions=regions,
        images=images,
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_vilbert(tables: Tables, compression: str) -> None:
    regions = write_regions(tables.regions, compression=compression)
    batches = make(
        tables,
        vilbert.vilbert_feeding(),
        vilbert.vilbert_masking(),
        regions=regions,
        negative_text_share=1.0,
    )
    for index in range(3):
        stored = batches.assembled(index)
        batch = stored.to("cpu")
        inputs = batch.inputs.validate()
        assert inputs.tokens.shape == (4, 36) and (inputs.tokens[:, -1] == 3).all()  # [SEP]
        assert inputs.region_features.shape == (4, 37, 3)
        assert inputs.region_locations[:, 0].tolist() == [[0, 0, 1, 1, 1]] * 4
        hidden = stored.tensors["hidden"][:, 1:].numpy()
        for i, pair_id in enumerate(batch.pair_ids):
            # Only captions are replaced: the image is the pair's own.
            number = [row["pair_id"] for b in pair_rows(tables.pairs) for row in b].index(pair_id)
            features = regions.row(number).features
            assert features is not None
            seen = without(features[:36].astype(np.float32), hidden[i])
            np.testing.assert_array_equal(inputs.region_features[i, 1:].numpy(), seen)
            whole = inputs.region_features[i, 0].numpy()
            np.testing.assert_allclose(whole, mean_after_masking(seen), rtol=1e-5)
        assert batch.class_distributions is not None
        assert batch.class_distributions.shape == (len(batch.masked_regions), CLASSES)
        # All pairs are asked, matching or not, never for the full image.
        rows, columns = batch.masked_regions // 37, batch.masked_regions % 37
        assert (columns > 0).all()
        assert torch.equal(batch.feature_targets[:, 1], columns.float())
        assert set(rows.tolist()) == set(range(4))
        best = batch.class_distributions[:, 1:].argmax(1) + 1
        assert torch.equal(batch.class_targets, best)  # counted from the background


def test_vl_bert(tables: Tables) -> None:
    regions = write_regions(tables.regions, boxes=60)
    batches = make(
        tables,
        vlbert.vlbert_feeding(text_rows=3),
        vlbert.vlbert_masking(),
        regions=regions,
        texts=3,
        negative_share=0.0,
    )
    batch = (stored := batches.assembled(0)).to("cpu")
    inputs = batch.inputs
    assert len(batch.pair_ids) == 7 and batch.num_texts == 3 and len(batch.matching) == 4
    tokens, shown = inputs.token_mask.sum(1), inputs.region_mask.sum(1)
    assert (tokens[:4] + shown[:4] == 64).all() and (shown[:4] >= tokens[:4] - 1).all()
    assert (inputs.tokens.gather(1, tokens[:4, None] - 1) == 3).all()
    # Texts alone: 64 pieces without [CLS] and [SEP], from several lines, no region.
    assert tokens[4:].tolist() == [64] * 3 and shown[4:].tolist() == [0] * 3
    assert batch.original_tokens is not None
    assert not torch.isin(batch.original_tokens[4:], torch.tensor([2, 3])).any()
    # The image is the mean of all its regions that are not hidden, those cut off included.
    hidden = stored.tensors["hidden"][:, 1:].numpy()
    assert hidden.shape[1] == 60
    ids = [row["pair_id"] for b in pair_rows(tables.pairs) for row in b]
    for i, pair_id in enumerate(batch.pair_ids[:4]):
        row = regions.row(ids.index(pair_id))
        assert row.features is not None
        features = row.features[surest_first(row)].astype(np.float32)
        whole = mean_of_unmasked(features, features.mean(0), hidden[i])
        np.testing.assert_allclose(inputs.region_features[i, 0].numpy(), whole, rtol=1e-3)
    expected = torch.tensor([0, 0, 199 / 200, 99 / 100, 199 / 200 * 99 / 100])
    torch.testing.assert_close(inputs.region_locations[0, 0], expected)
    assert inputs.region_locations[:4, :, 2].max() <= 199 / 200
    assert inputs.masked_regions is not None and not inputs.masked_regions[:, 0].any()
    # Three texts have six orders: one batch after another may repeat one, not four.
    orders = {batches.assembled(number).pair_ids[4:] for number in range(5)}
    assert len(orders) > 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("most", [100, 20])
def test_vl_bert_keeps_the_surest_regions(tables: Tables, compression: str, most: int) -> None:
    """Boxes, features, classes and distributions of a place are one region's of the table."""
    regions = write_regions(tables.regions, boxes=60, compression=compression)
    feeding = dataclasses.replace(vlbert.vlbert_feeding(), flip=0.0, max_regions=most)
    masking = dataclasses.replace(vlbert.vlbert_masking(), regions=0.6)
    batches = make(tables, feeding, masking, regions=regions, negative_share=0.0)
    ids = [row["pair_id"] for b in pair_rows(tables.pairs) for row in b]
    batch = (stored := batches.assembled(0)).to("cpu")
    inputs, asked = batch.inputs, 0
    assert inputs.masked_regions is not None and batch.class_distributions is not None
    for i, pair_id in enumerate(batch.pair_ids):
        row = regions.row(ids.index(pair_id))
        assert row.features is not None and row.class_probs is not None
        surest = np.argsort(-row.class_probs.astype(np.float64).max(1), kind="stable")[:most]
        assert surest.tolist() != sorted(surest.tolist())
        shown = surest[: int(inputs.region_mask[i].sum()) - 1]
        corners = row.boxes[shown].clip(0, (199, 99, 199, 99)) / (200, 100, 200, 100)
        places = slice(1, 1 + len(shown))
        torch.testing.assert_close(
            inputs.region_locations[i, places, :4], torch.from_numpy(corners).float()
        )
        seen = without(row.features[shown], inputs.masked_regions[i, places].numpy())
        np.testing.assert_array_equal(inputs.region_features[i, places].numpy(), seen)
        numbers = stored.tensors["features"][i, 1 : 1 + len(surest), 1] - 1
        assert numbers.tolist() == surest.tolist()
        width = inputs.region_mask.shape[1]
        at = batch.masked_regions // width == i
        targets = surest[batch.masked_regions[at] % width - 1]
        assert batch.feature_targets[at, 1].tolist() == (targets + 1).tolist()
        probs = row.class_probs[targets].astype(np.float32)
        np.testing.assert_array_equal(batch.class_distributions[at].numpy(), probs)
        assert batch.class_targets[at].tolist() == (probs[:, 1:].argmax(1) + 1).tolist()
        asked += len(targets)
    assert asked


def test_interbert(tables: Tables) -> None:
    regions = write_regions(tables.regions, boxes=20)
    for released in (False, True):
        batches = make(
            tables,
            interbert.interbert_feeding(released=released),
            interbert.interbert_masking(released=released),
            regions=regions,
            negative_share=0.5,
            negative_text_share=1.0,
        )
        made = [batches.assembled(i).to("cpu") for i in range(6)]
        assert {float(v) for batch in made for v in batch.matching} == {0, 1}
        for batch in made:
            batch.inputs.validate()
            assert (batch.class_distributions is None) == (not released)
            rows = batch.masked_regions // batch.inputs.region_mask.shape[1]
            assert (batch.matching[rows] == 1).all()
            # Groups lose their features without exception.
            picked = batch.inputs.region_features.flatten(0, 1)[batch.masked_regions]
            assert not picked.any()
        words = torch.cat([batch.masked_tokens // batch.inputs.tokens.shape[1] for batch in made])
        assert len(words)


def test_vlmo_pairs_texts_and_images(tables: Tables, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    feeding = vlmo.vlmo_feeding(image_size=32)
    batches = make(
        tables, feeding, vlmo.vlmo_masking(), images=images, caption="a dog runs", negative_share=0
    )
    batch = batches.assembled(0).to("cpu")
    plain, masked = batch.pixel_inputs(masked=False), batch.pixel_inputs(masked=True)
    assert plain.pixels.shape == (4, 3, 32, 32) and plain.pixels.dtype == torch.float32
    assert -1 <= float(plain.pixels.min()) < float(plain.pixels.max()) <= 1
    assert not torch.equal(plain.tokens, masked.tokens) or not len(batch.masked_tokens)
    assert batch.inputs.region_mask.shape == (4, 0) and batch.matching.tolist() == [1] * 4
    other = batches.assembled(0).to("cpu")
    assert batch.pixels is not None and other.pixels is not None
    assert torch.equal(batch.pixels, other.pixels)

    alone = make(tables, vlmo.vlmo_text_feeding(), vlmo.vlmo_masking(), caption="a dog runs")
    text = alone.assembled(0).to("cpu")
    assert text.pixels is None and len(text.inputs.tokens) == 4

    images_alone = vlmo.vlmo_images_feeding(image_size=32, token_size=16)
    batch = make(tables, images_alone, vlmo.vlmo_masking(), images=images).assembled(0).to("cpu")
    assert batch.pixels is not None and batch.token_pixels is not None
    assert batch.pixels.shape == (4, 3, 32, 32) and batch.token_pixels.shape == (4, 3, 16, 16)
    assert batch.patch_mask is not None and batch.patch_mask.shape == (4, 2, 2)


def test_where_no_image_can_be_decoded_it_is_said(tables: Tables, tmp_path: Path) -> None:
    rows = [
        {**dict.fromkeys(IMAGES.schema.names), "image_id": f"image-{i}", "bytes": b"none"}
        for i in range(NUM_IMAGES)
    ]
    write_shard(tmp_path / "images", IMAGES, rows)
    images = ImageReader(tmp_path / "images")
    batches = make(tables, vlmo.vlmo_feeding(image_size=32), Masking(), images=images)
    with pytest.raises(InputError, match=r"no image of stage x can be decoded \(image-\d+: no"):
        batches.assembled(0)
    batches.tolerance = Tolerance(images=NUM_IMAGES, share=0.2)
    few = int(0.2 * NUM_IMAGES) + 1
    with pytest.raises(InputError, match=rf"{few} of the run's {NUM_IMAGES} images cannot be"):
        batches.assembled(0)


def test_whole_words_stay_together(tables: Tables) -> None:
    regions = write_regions(tables.regions, boxes=3)
    for rule in ("words", "budget"):
        masking = Masking(word_rule=rule, words=0.5, word_to_mask=1.0, word_to_random=0.0)
        batches = make(tables, Feeding(max_tokens=40), masking, regions=regions, negative_share=0)
        batch = batches.assembled(0).to("cpu")
        assert batch.original_tokens is not None and len(batch.masked_tokens)
        masked = torch.zeros_like(batch.inputs.token_mask).flatten()
        masked[batch.masked_tokens] = True
        masked = masked.view_as(batch.inputs.tokens)
        goes_on = torch.tensor(batches.lexicon.continues)[batch.original_tokens]
        assert goes_on.any()
        left, right = masked[:, :-1], masked[:, 1:]
        assert (left == right)[goes_on[:, 1:] & batch.inputs.token_mask[:, 1:]].all()
        if rule == "budget":
            assert (masked.sum(1) <= 20).all()


def test_whether_a_table_says_how_sure_its_detector_was(tables: Tables) -> None:
    assert are_ranked(write_regions(tables.regions, boxes=3))
    tables.write_regions(["image-0"], boxes=3)
    assert not are_ranked(RegionReader(tables.regions))


def test_hard_labels_where_regions_have_no_distribution(tables: Tables) -> None:
    names = [f"image-{i}" for i in range(NUM_IMAGES)]
    tables.write_regions(names, boxes=8)
    reader = RegionReader(tables.regions)
    batches = make(tables, vilbert.vilbert_feeding(), vilbert.vilbert_masking(), regions=reader)
    batch = batches.assembled(0).to("cpu")
    assert batch.class_distributions is None
    columns = batch.masked_regions % batch.inputs.region_mask.shape[1]
    assert torch.equal(batch.class_targets, (columns - 1) % 7 + 1)
