from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from vlmill.models import VLInputs
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.shards import ShardWriter
from vlmill.schemas.tables import REJECTS
from vlmill.train.batches import PretrainBatches, batch_loader
from vlmill.train.collate import PretrainBatch
from vlmill.train.data import prepare_samples, region_facts
from vlmill.train.recipes import Stage
from vlmill.train.vocabulary import train_vocabulary

if TYPE_CHECKING:
    from tests.train.conftest import Tables


@pytest.fixture
def batches(tables: Tables, tmp_path: Path, stage: Stage) -> PretrainBatches:
    tables.write(10)
    with ShardWriter(tmp_path, REJECTS, 0, 1) as rejects:
        prepare_samples(
            tmp_path,
            pairs=tables.pairs,
            regions=RegionReader(tables.regions),
            facts=region_facts(tables.regions),
            negatives=None,
            tokenizer=train_vocabulary(["a dog runs in the street"], 60),
            max_tokens=44,
            rejects=rejects,
        )
    return PretrainBatches(
        samples=tmp_path,
        regions=tables.regions,
        stage=stage,
        stage_number=0,
        seed=0,
        mask_id=4,
        vocab_size=60,
    )


def assert_equal(one: PretrainBatch, other: PretrainBatch) -> None:
    for field in dataclasses.fields(PretrainBatch):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, VLInputs):
            for name in ("tokens", "token_mask", "region_features", "region_mask"):
                assert torch.equal(getattr(a, name), getattr(b, name)), name
        else:
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, field.name


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_batches(
    batches: PretrainBatches, workers: int
) -> None:
    loader = batch_loader(batches, 1, 5, workers=workers, pin_memory=False)
    made = list(loader)
    assert len(made) == 4
    for index, batch in enumerate(made, start=1):
        assert_equal(batch, batches[index])


def test_an_epoch_has_every_pair_once(batches: PretrainBatches) -> None:
    ids = [pair_id for index in range(5) for pair_id in batches[index].pair_ids]
    assert len(set(ids[:10])) == len(set(ids[10:])) == 10  # 5 batches of 4 are 2 epochs of 10
    assert ids[:10] != ids[10:]


def test_masks_differ_between_epochs_and_seeds(batches: PretrainBatches) -> None:
    other_seed = dataclasses.replace(batches, seed=1)
    places = {i: batches.sample(i).pair_id for i in range(20)}
    first = {pair: batches.sample(i) for i, pair in places.items() if i < 10}
    second = {pair: batches.sample(i) for i, pair in places.items() if i >= 10}
    changed = [
        first[p].matching != second[p].matching
        or first[p].region_masks.masked.tolist() != second[p].region_masks.masked.tolist()
        for p in first
    ]
    assert sum(changed) >= 8
    assert [other_seed.sample(i).pair_id for i in range(10)] != list(first)


def test_special_tokens_are_never_masked(batches: PretrainBatches, stage: Stage) -> None:
    everything = dataclasses.replace(stage.masking, words=1.0, word_to_mask=1.0, word_to_random=0)
    masked = dataclasses.replace(batches, stage=dataclasses.replace(stage, masking=everything))
    for place in range(10):
        tokens = masked.sample(place).tokens
        assert (tokens.tokens[0], tokens.tokens[-1]) == (2, 3)
        assert (tokens.tokens[1:-1] == 4).all()


def test_parts_of_a_step_hold_the_pairs_of_the_whole(
    batches: PretrainBatches, stage: Stage
) -> None:
    halves = dataclasses.replace(batches, stage=dataclasses.replace(stage, accumulation=2))
    assert halves[0].pair_ids + halves[1].pair_ids == batches[0].pair_ids
