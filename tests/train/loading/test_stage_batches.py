from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.factories import caption, find_value

from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import read_features
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.order import PairOrder
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import Loading, MixedSource, Stage

if TYPE_CHECKING:
    from tests.factories import Tables


@pytest.fixture
def batches(tables: Tables, tmp_path: Path, stage: Stage) -> PretrainBatches:
    tables.write_pairs(
        [(f"image-{i}", caption(i)) for i in range(10)], {"source": ["cc", "sbu"] * 5}
    )
    tables.write_regions([f"image-{i}" for i in range(10)])
    return prepared(tables, tmp_path, stage)


def prepared(tables: Tables, tmp_path: Path, stage: Stage) -> PretrainBatches:
    """The batches of the tables that were written."""
    tokenizer = train_vocabulary(["a dog runs in the street"], 60)
    reader = RegionReader(tables.regions)
    with ShardWriter(tmp_path, REJECTS, 0, 1) as rejects:
        prepare_samples(
            tmp_path / "prepared",
            PreparationInputs(
                pairs=tables.pairs,
                images=reader,
                tokenizer=tokenizer,
                max_tokens=44,
                takes_texts=True,
            ),
            rejects,
        )
    return PretrainBatches(
        samples=tmp_path / "prepared",
        regions=reader,
        stage=stage,
        stage_number=0,
        seed=0,
        lexicon=Lexicon.from_tokenizer(tokenizer),
    )


def sample(batches: PretrainBatches, place: int) -> Sample:
    assert isinstance(batches.order, PairOrder)
    (rows,) = batches.make_samples([batches.order.visit(place)])
    assert not isinstance(rows, Undecodable)
    (sampled,) = rows
    assert sampled.regions is not None
    return sampled


def assert_equal(one: HostBatch, other: HostBatch) -> None:
    assert one.pair_ids == other.pair_ids
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_batches(
    batches: PretrainBatches, workers: int
) -> None:
    loader = batch_loader(batches, 1, 5, workers=workers)
    made = list(loader)
    assert len(made) == 4
    for index, batch in enumerate(made, start=1):
        assert_equal(batch, batches.assembled(index))


def test_an_epoch_has_every_pair_once(batches: PretrainBatches) -> None:
    ids = [pair_id for index in range(5) for pair_id in batches[index].pair_ids]
    assert len(set(ids[:10])) == len(set(ids[10:])) == 10  # 5 batches of 4 are 2 epochs of 10
    assert ids[:10] != ids[10:]


def test_pairs_of_a_image_share_a_key_and_a_text_alone_has_its_own(
    tables: Tables, tmp_path: Path, stage: Stage
) -> None:
    """Keys go with the image that a pair shows, be it another pair's."""
    images = ["image-0", "image-0", "image-1", "image-2"]
    tables.write_pairs(
        [(name, f"a dog beside {i} cats") for i, name in enumerate(images)]
        + [(None, "a dog runs"), (None, "a dog sits")]  # type: ignore[list-item]
    )
    tables.write_regions(sorted(set(images)))
    made = prepared(tables, tmp_path, stage)
    keys = [made.table.image_key(row) for row in range(6)]
    assert keys[0] == keys[1] and len(set(keys)) == 5
    signed = [key - (1 << 64) if key >> 63 else key for key in keys]
    of_images = dict(zip(images, signed, strict=False))
    for share in (0.0, 1.0):
        pairing = dataclasses.replace(stage, negative_share=share, negative_text_share=0.0)
        batch = dataclasses.replace(made, stage=pairing)[0]
        expected = [of_images[image_id] for image_id in batch.image_ids]
        assert batch.tensors["image_keys"].tolist() == expected
        on_device = read_features(batch, made.regions).to("cpu").image_keys
        assert on_device is not None and on_device.tolist() == expected


def test_masks_differ_between_epochs_and_seeds(batches: PretrainBatches) -> None:
    other_seed = dataclasses.replace(batches, seed=1)
    drawn = [sample(batches, i) for i in range(20)]
    first, second = ({s.pair_id: s for s in half} for half in (drawn[:10], drawn[10:]))

    def masks(of: Sample) -> list[bool]:
        assert of.regions is not None
        return [bool(flag) for flag in of.regions.masks.masked]

    changed = [
        first[p].matching != second[p].matching or masks(first[p]) != masks(second[p])
        for p in first
    ]
    assert sum(changed) >= 8
    assert [sample(other_seed, i).pair_id for i in range(10)] != list(first)


def test_visits_of_one_epoch_differ_and_other_processes_draw_the_same(
    batches: PretrainBatches, stage: Stage, tables: Tables
) -> None:
    thrice = dataclasses.replace(stage, mixture=(MixedSource(source="cc", weight=3.0),))
    mixed = dataclasses.replace(batches, stage=thrice)
    made = [mixed[index] for index in range(8)]  # an epoch of 5 pairs three times and 5 once
    counts = Counter(pair_id for batch in made[:5] for pair_id in batch.pair_ids)
    assert sorted(counts.values()) == [1] * 5 + [3] * 5
    sources = Counter(source for batch in made[:5] for source in batch.sources)
    assert sources == {"cc": 15, "sbu": 5}
    visits = [visit for index in range(5) for visit in mixed.order.batch(index)]
    texts: dict[str, set[tuple[int, ...]]] = {}
    for rows in mixed.make_samples(visits):
        assert not isinstance(rows, Undecodable)
        (sampled,) = rows
        texts.setdefault(sampled.pair_id, set()).add(tuple(sampled.text.tokens.tolist()))
    assert sum(len(variants) > 1 for variants in texts.values()) >= 4
    sent = pickle.loads(pickle.dumps(mixed))
    for index in (7, 0, 3):  # in any order
        assert_equal(sent.assembled(index), mixed.assembled(index))


def test_special_tokens_are_never_masked(batches: PretrainBatches, stage: Stage) -> None:
    everything = dataclasses.replace(stage.masking, words=1.0, word_to_mask=1.0, word_to_random=0)
    masked = dataclasses.replace(batches, stage=dataclasses.replace(stage, masking=everything))
    for place in range(10):
        text = sample(masked, place).text
        assert (text.tokens[0], text.tokens[-1]) == (2, 3)
        assert (text.tokens[1:-1] == 4).all()


def test_parts_of_a_step_hold_the_pairs_of_the_whole(
    batches: PretrainBatches, stage: Stage
) -> None:
    halves = dataclasses.replace(batches, stage=dataclasses.replace(stage, accumulation=2))
    assert halves[0].pair_ids + halves[1].pair_ids == batches[0].pair_ids
    processes = dataclasses.replace(batches, processes=2)
    own = [list(batch_loader(processes, r, 4, workers=0, every=2)) for r in (0, 1)]
    assert own[0][1].pair_ids + own[1][1].pair_ids == batches[1].pair_ids


def test_buckets_and_padding_leave_the_pairs_of_an_epoch(
    batches: PretrainBatches, stage: Stage
) -> None:
    loading = Loading(bucket=5, pad_to=8)
    buckets = dataclasses.replace(batches, stage=dataclasses.replace(stage, loading=loading))
    made = [buckets.assembled(i) for i in range(5)]  # of 4: two epochs of 10
    assert all(batch.tensors["tokens"].shape[1] % 8 == 0 for batch in made)
    assert all(batch.tensors["region_mask"].shape[1] == 8 for batch in made)
    counts = {i: [p for b in made for p in b.pair_ids].count(i) for i in made[0].pair_ids}
    assert set(counts.values()) == {2}
    for batch in made:
        batch.to("cpu").inputs.validate()


def test_features_that_are_not_finite_are_named(batches: PretrainBatches, tables: Tables) -> None:
    path = next(Path(tables.regions).glob("*.parquet"))
    data = bytearray(path.read_bytes())
    assert isinstance(batches.regions, RegionReader)
    _, offset, _ = find_value(batches.regions, "features", 0) or (0, 0, 0)
    data[offset : offset + 2] = b"\x00\xfe"  # -NaN
    path.write_bytes(data)
    made = list(batch_loader(batches, 0, 3, workers=1))
    assert {image_id for batch in made for image_id in batch.not_finite()} == {"image-0"}
    with pytest.raises(InputError, match="image-0: features or boxes are not finite"):
        [batches.assembled(index) for index in range(3)]


def test_an_error_of_a_worker_reaches_who_asks_in_one_line(
    batches: PretrainBatches, tables: Tables
) -> None:
    path = next(Path(tables.regions).glob("*.parquet"))
    data = bytearray(path.read_bytes())
    assert isinstance(batches.regions, RegionReader)
    _, offset, _ = find_value(batches.regions, "features", 0) or (0, 0, 0)
    data[offset - 4 : offset] = b"\xff" * 4  # the length of the value
    path.write_bytes(data)
    sent = dataclasses.replace(batches, regions=RegionReader(tables.regions))
    with pytest.raises(InputError, match="is not at its recorded position") as raised:
        list(batch_loader(sent, 0, 3, workers=1))
    assert "\n" not in str(raised.value)


def test_workers_stay_when_all_processes_are_told_to_end(batches: PretrainBatches) -> None:
    others = multiprocessing.active_children()
    loader = batch_loader(batches, 0, 40, workers=2)
    made = [next(loader) for _ in range(9)]  # of both: a worker sends eight plans at a time
    workers = [child for child in multiprocessing.active_children() if child not in others]
    for worker in workers:
        assert worker.pid is not None
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            os.kill(worker.pid, number)
    made += loader
    assert (len(workers), len(made)) == (2, 40)
    assert_equal(made[-1], batches.assembled(39))
    assert not any(worker.is_alive() for worker in workers)


def test_who_stops_asking_leaves_no_thread(batches: PretrainBatches) -> None:
    loader = batch_loader(batches, 0, 1000, workers=1)
    assert len(next(loader).pair_ids) == 4
    loader.close()
    assert not [t for t in threading.enumerate() if t.name == "batches"]
