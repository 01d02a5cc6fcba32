"""A run trains on what it should: never on held-out pairs, and its checkpoint says on what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.factories import caption

from vlmill.runtime.files.reading import read_table
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run import loop
from vlmill.train.run.dry_run import estimate_run
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.saving import HELD_OUT, PREPARED

if TYPE_CHECKING:
    from tests.factories import Tables


def write(tables: Tables, splits: Sequence[str | None], per_image: int = 1) -> list[str]:
    """A caption for each split, ``per_image`` of one image after the other; their ids."""
    rows = [(f"image-{i // per_image}", caption(i)) for i in range(len(splits))]
    ids = tables.write_pairs(rows, {"split": splits})
    tables.write_regions(list(dict.fromkeys(image for image, _ in rows)))
    return ids


def inputs_of(tables: Tables, **more: Any) -> Inputs:
    return Inputs(pairs=tables.pairs, regions=tables.regions, **more)


def left_out(output: Path) -> list[str]:
    return [row["key"] for row in read_table(str(output), REJECTS).to_pylist()]


def keys(ids: Sequence[str]) -> list[int]:
    return sorted(key64(one) for one in ids)


def short(recipe: Recipe, *changes: str) -> Recipe:
    return change_recipe(recipe, ["steps=1", *changes])


def test_held_out_pairs_are_not_trained_on_whatever_the_case(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = write(tables, ["train", None, "Test", "testA", "validation", "VAL", "restval", "Train"])
    pretrain(short(recipe), inputs_of(tables), tmp_path / "out")
    assert left_out(tmp_path / "out") == ids[2:6]
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.trained_on is not None and loaded.trained_on.complete
    assert loaded.trained_on.pairs.tolist() == keys([*ids[:2], *ids[6:]])
    said = capsys.readouterr().err
    assert "leaves out Test (1), testA (1)" in said and "validation VAL (1), validation (1)" in said


def test_an_unknown_split_stops_the_run_before_it_begins(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    write(tables, ["train", "tset"])
    with pytest.raises(InputError, match="'tset' is neither trained on nor held out"):
        pretrain(recipe, inputs_of(tables), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_named_split_is_trained_on(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    ids = write(tables, ["train", "val", "val", "minival", "test"])
    changes = ["train_splits=[train,val]", "validation_splits=[minival]", "validate_every=1"]
    pretrain(short(recipe, *changes), inputs_of(tables), tmp_path / "out")
    assert left_out(tmp_path / "out") == ids[3:]
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.trained_on is not None
    assert loaded.trained_on.pairs.tolist() == keys(ids[:3])
    assert loaded.training.validation_loss is not None


def test_pairs_that_cannot_be_validated_on_are_counted_by_reason(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("image-0", caption(0)), ("image-1", caption(1)), ("image-1", ""), ("gone", "a dog")]
    tables.write_regions(["image-0", "image-1"])
    tables.write_pairs(rows, {"split": ["train", "val", "val", "val"]})
    pretrain(short(recipe, "validate_every=1"), inputs_of(tables), tmp_path / "out")
    line = "validates on 1 pair of 1 image; the others cannot be used: 1 no_text, 1 no_regions\n"
    assert line in capsys.readouterr().err


def test_no_pair_is_in_splits_of_both_kinds_and_images_that_are_are_said(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("image-0", caption(0)), ("image-1", caption(1))]
    tables.write_regions(["image-0", "image-1"])
    more = [rows[1], ("image-1", caption(2))]
    ids = tables.write_pairs([*more, *rows], {"split": ["val", "val", "train", "train"]})
    pretrain(short(recipe, "validate_every=1"), inputs_of(tables), tmp_path / "out")
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.trained_on is not None
    assert loaded.trained_on.pairs.tolist() == keys(ids[2:3])  # the other is validated on
    said = capsys.readouterr().err
    assert "validates on 2 pairs of 1 image" in said and "trained on with" not in said
    tables.write_pairs(
        [*more, rows[0], ("image-1", caption(3))], {"split": ["val", "val", "train", "train"]}
    )
    pretrain(short(recipe, "validate_every=1"), inputs_of(tables), tmp_path / "other")
    assert "1 of the 1 images that are validated on are trained on" in capsys.readouterr().err


def drawn(tables: Tables, recipe: Recipe, output: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Images of training and of validation, as prepared for a run that dies at its first step."""
    with monkeypatch.context() as patch:

        def dying(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(loop, "train_step", dying)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, inputs_of(tables), output)
    prepared = [SampleTable.open(output / name) for name in (PREPARED, HELD_OUT)]
    return [[table.image_id(row) for row in range(len(table))] for table in prepared]


def test_without_a_validation_split_some_images_are_held_out_for_every_seed(
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tables, [None] * 87 + ["test"] * 3, per_image=3)
    validating = short(recipe, "validate_every=1")
    learnt, measured = drawn(tables, validating, tmp_path / "one", monkeypatch)
    assert len(set(measured)) == 2 and len(measured) == 6  # of 29 images, with all captions
    assert not set(learnt) & set(measured) and len(learnt) == 81
    ranked = sorted({*learnt, *measured}, key=key64)
    assert set(measured) == set(ranked[:2])
    said = capsys.readouterr().err
    assert "validates on 6 pairs of 2 images; without a validation split" in said
    again = drawn(tables, change_recipe(validating, ["seed=7"]), tmp_path / "two", monkeypatch)
    assert again == [learnt, measured]
    # The run that was killed goes on with the same pairs, and its checkpoint leaves them out.
    pretrain(validating, inputs_of(tables), tmp_path / "one")
    loaded = load_checkpoint(tmp_path / "one")
    assert loaded.trained_on is not None
    assert loaded.trained_on.images.tolist() == keys(sorted(set(learnt)))
    words = set(loaded.tokenizer.get_vocab())
    pretrain(short(recipe), inputs_of(tables), tmp_path / "all")
    assert len(left_out(tmp_path / "all")) == 3  # a recipe that never validates trains on all
    assert words != set(load_checkpoint(tmp_path / "all").tokenizer.get_vocab())


def test_what_was_rejected_was_not_trained_on(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    rows = [(f"image-{i}", caption(i)) for i in range(6)]
    ids = tables.write_pairs(rows)
    tables.write_regions(["image-0", "image-1", "image-2"], empty=("image-2",))
    pretrain(short(recipe), inputs_of(tables), tmp_path / "out")
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.trained_on is not None
    assert loaded.trained_on.pairs.tolist() == keys(ids[:2])
    assert loaded.trained_on.images.tolist() == keys(["image-0", "image-1"])


def test_a_share_is_the_same_pairs_for_every_seed_and_all_that_is_trained_on(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = write(tables, ["train"] * 30 + ["val"] * 4, per_image=2)
    loaded = []
    for seed in (0, 1):
        changes = ["steps=null", "epochs=1", "share=0.5", f"seed={seed}", "validate_every=100"]
        pretrain(change_recipe(recipe, changes), inputs_of(tables), tmp_path / str(seed))
        loaded.append(load_checkpoint(tmp_path / str(seed)))
    first, second = (checkpoint.trained_on for checkpoint in loaded)
    assert first is not None and second is not None
    assert first.pairs.tolist() == second.pairs.tolist()
    assert set(first.pairs.tolist()) < set(keys(ids[:30]))
    assert loaded[0].training.step == -(-len(first.pairs) // 4)  # an epoch of what is visited
    assert loaded[0].training.validation_loss is not None
    count = len(first.pairs)
    assert f"stage pairs: share=0.5 visits {count} of 30 pairs" in capsys.readouterr().err
    said = pretrain(
        short(recipe, "share=0.5", "max_pairs=4"), inputs_of(tables), tmp_path / "fewer"
    )
    assert "1 steps on 4 of 30 pairs; 4 rejected" in said
    assert "share=0.5 max_pairs=4 visits 4 of 30 pairs" in capsys.readouterr().err
    half = estimate_run(short(recipe, "share=0.5"), inputs_of(tables)).inputs
    assert half["stage pairs"] == f"visits {count} of 30 pairs"
    fewer = load_checkpoint(tmp_path / "fewer").trained_on
    assert fewer is not None and len(fewer.pairs) == 4
    assert set(fewer.pairs.tolist()) < set(first.pairs.tolist())
    with pytest.raises(InputError, match=r"stages\.0\.share=1e-09 leaves no pair"):
        pretrain(short(recipe, "share=1e-9"), inputs_of(tables), tmp_path / "none")


def test_a_stage_counts_from_its_first_step_and_a_run_carries_on_what_it_began_with(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    rows = [(f"image-{i}", caption(i)) for i in range(4)]
    ids = tables.write_pairs(rows, {"source": ["a", "a", "b", "b"]})
    tables.write_regions([image for image, _ in rows])
    first = short(recipe, "sources=[a]", "save_every=1").stages[0]
    second = dataclasses.replace(first, name="second", sources=("b",))
    both = dataclasses.replace(recipe, stages=(first, second))
    pretrain(both, inputs_of(tables), tmp_path / "both")
    by_step = {}
    for step, folder in saved_steps(tmp_path / "both").items():
        trained_on = load_checkpoint(folder).trained_on
        assert trained_on is not None
        by_step[step] = trained_on.pairs.tolist()
    assert by_step == {1: keys(ids[:2]), 2: keys(ids)}
    further = tables.write_pairs([("image-0", "A dog runs on the river")])
    start = inputs_of(tables, init=str(tmp_path / "both"))
    pretrain(short(recipe), start, tmp_path / "on")
    loaded = load_checkpoint(tmp_path / "on")
    assert loaded.trained_on is not None and loaded.trained_on.complete
    assert loaded.trained_on.pairs.tolist() == keys([*ids, *further])
    for name in ("trained_pairs.npy", "trained_images.npy"):
        assert np.load(tmp_path / "on" / name).dtype == np.uint64
