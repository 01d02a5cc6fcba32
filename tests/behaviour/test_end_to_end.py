"""VL-BERT with its region network, from images and boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.factories import write_images
from tests.models import bert_files
from torchvision.models import resnet101

from vlmill.models.vlbert.backbone import torchvision_name
from vlmill.models.vlbert.config import MEAN_BGR, RegionCnnConfig
from vlmill.models.vlbert.region_cnn import RegionCnn
from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.vocabulary import SPECIAL, train_vocabulary
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain

if TYPE_CHECKING:
    from tests.factories import Tables

TINY = (
    *("model.model.width=16", "model.model.num_layers=1", "model.model.num_heads=2"),
    *("model.model.intermediate_width=16", "model.model.num_wavelengths=2"),
    *("model.model.num_positions=80", "model.model.num_region_classes=7"),
    *("model.model.region_width=16", "model.cnn.blocks=[1,1,1,1]", "model.cnn.widths=[1,2,3,4]"),
    *("model.cnn.stem_channels=4", "model.cnn.pool_size=2"),
    # Published images start silent, and would teach the region network nothing in two steps.
    *("model.model.visual_scale_text=1", "model.model.visual_scale_region=1"),
    *("optimizer.warmup_steps=0", "optimizer.lr=1e-3"),
)
RUN = ("steps=2", "batch_size=4", "feeding.text_rows=2", "precision=no", "workers=0", "log_every=1")
SIDES = ("feeding.short_side=32", "feeding.long_side=48")
TEXTS = ["a dog waits for the train", "two boats on the river"]


def tiny(*changes: str) -> Recipe:
    return change_recipe(recipe_named("vl-bert-end-to-end"), [*TINY, *RUN, *SIDES, *changes])


def write_rows(tables: Tables) -> str:
    """Twelve pairs and two texts alone; regions of all images, images of all but the last."""
    rows: list[tuple[str | None, str]] = [(f"image-{i}", f"{i} cats in a row") for i in range(12)]
    rows += [(None, text) for text in TEXTS]
    sources = {"source": ["cc"] * 12 + ["books", "wikipedia"]}
    tables.write_pairs(rows, sources)  # type: ignore[arg-type]
    tables.write_regions([f"image-{i}" for i in range(12)])
    return write_images(tables.folder / "images", 11)


def write_bert(folder: Path) -> Path:
    """A published BERT of the sizes of `TINY`."""
    folder.mkdir()
    model = bert_files.tiny(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=80,
    )
    words = [*SPECIAL, *(f"word{i}" for i in range(50 - len(SPECIAL)))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return bert_files.write(model, folder / "pytorch_model.bin", "original")


def write_resnet(path: Path, cnn: RegionCnnConfig) -> Path:
    """A ResNet of these sizes under torchvision's names, with random weights."""
    torch.manual_seed(1)
    state = RegionCnn(cnn).state_dict()
    torch.save({torchvision_name(name): tensor for name, tensor in state.items()}, path)
    return path


def convert(folder: Path, *words: str) -> int:
    bert = folder / "bert"
    checkpoint = bert / "pytorch_model.bin" if bert.is_dir() else write_bert(bert)
    command = ["convert", "--family", "bert", "--checkpoint", str(checkpoint)]
    return main([*command, "--as", "vl-bert-base-end-to-end", *words])


def test_it_trains_on_images_boxes_and_texts(tables: Tables, tmp_path: Path) -> None:
    recipe, start = tiny(), tmp_path / "init"
    resnet = write_resnet(tmp_path / "resnet.pth", recipe.model.cnn)
    fields = [field.removeprefix("model.") for field in TINY if field.startswith("model.")]
    assert convert(tmp_path, "--backbone", str(resnet), "--output", str(start), *fields) == 0
    inputs = Inputs(
        pairs=(images := write_rows(tables)) and tables.pairs,
        regions=tables.regions,
        images=images,
        init=str(start),
    )
    assert "on 13 pairs; 1 rejected" in pretrain(tiny(), inputs, tmp_path / "out")
    (reject,) = read_table(str(tmp_path / "out"), REJECTS).to_pylist()
    assert reject["reason"] == "no_regions"  # of images, as it has regions
    line = read_log(tmp_path / "out" / "log.jsonl")[0]
    assert {"loss/mlm", "loss/text_mlm", "loss/mrce"} <= set(line) and np.isfinite(line["loss"])
    pretrain(tiny("steps=0"), inputs, tmp_path / "start")
    first, last = (load_checkpoint(tmp_path / name).model for name in ("start", "out"))
    changed = {
        name.split(".")[1]
        for (name, a), b in zip(
            first.cnn.named_parameters(prefix="cnn"), last.cnn.parameters(), strict=True
        )
        if not torch.equal(a, b)
    }
    assert changed == {"res3", "res4", "res5"}  # the stem and res2 are constant
    given = torch.load(resnet)
    for name, tensor in first.cnn.state_dict().items():
        assert torch.equal(tensor, given[torchvision_name(name)])
    last_res2 = last.cnn.res2[0].conv1.weight
    assert torch.equal(last_res2, given["layer1.0.conv1.weight"])


def test_random_weights_are_not_kept_constant(
    tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_rows(tables)
    inputs = Inputs(pairs=tables.pairs, regions=tables.regions, images=images)
    with pytest.raises(InputError, match=r"frozen_stages=2: they are never trained.*--backbone"):
        pretrain(tiny(), inputs, tmp_path / "out")
    fields = [field.removeprefix("model.") for field in TINY if field.startswith("model.")]
    assert convert(tmp_path, "--output", str(tmp_path / "start"), *fields) == 2
    assert "the first 2 stages of its region network are never" in capsys.readouterr().err
    free = [*fields, "cnn.frozen_stages=0"]
    assert convert(tmp_path, "--output", str(tmp_path / "start"), *free) == 0


@pytest.mark.nightly
def test_torchvisions_resnet_101_is_trained_on(
    tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole region network, below a small VL-BERT that learns to match."""
    torch.manual_seed(0)
    torch.save(resnet101().state_dict(), tmp_path / "resnet101.pth")
    images, start, out = write_rows(tables), tmp_path / "start", tmp_path / "out"
    small = [f for f in TINY if not f.startswith(("model.cnn.", "model.model.region_width"))]
    heads = ["model.model.pooler=true", "model.model.matching=true"]
    strides = ["model.cnn.stride_in_1x1=false", "model.cnn.pool_size=2"]
    model = [f for f in [*small, *heads, *strides] if f.startswith("model.")]
    fields = [field.removeprefix("model.") for field in model]
    backbone = ["--backbone", str(tmp_path / "resnet101.pth")]
    backbone += ["--backbone-conventions", "torchvision"]
    assert convert(tmp_path, *backbone, "--output", str(start), *fields) == 0
    assert "2 tensors unused" in capsys.readouterr().out  # fc, and nothing else of the ResNet
    flags = ["--pairs", tables.pairs, "--regions", tables.regions, "--images", images]
    run = [*small, *RUN, *SIDES, "objectives.itm=1", "negative_share=0.5", *heads, *strides]
    command = ["pretrain", "vl-bert-end-to-end", *flags, "--init", str(start), *run]
    assert main([*command, "--output", str(out)]) == 0
    loss = [line["loss"] for line in read_log(out / "log.jsonl")]
    assert len(loss) == 2 and np.isfinite(loss).all()
    before, after = load_checkpoint(start).model.cnn, load_checkpoint(out).model.cnn
    assert torch.equal(before.res2[0].conv1.weight, after.res2[0].conv1.weight)
    assert not torch.equal(before.res5[2].conv3.weight, after.res5[2].conv3.weight)


def batches(tables: Tables, images: str, folder: Path, recipe: Recipe) -> PretrainBatches:
    tokenizer, regions = train_vocabulary(TEXTS, 90), RegionReader(tables.regions)
    reader = ImageReader(images)
    prepare_samples(
        folder,
        PreparationInputs(
            pairs=tables.pairs,
            images=regions,
            other_tables=(reader,),
            tokenizer=tokenizer,
            max_tokens=16,
            takes_texts=True,
        ),
    )
    return PretrainBatches(
        samples=folder,
        stage=recipe.stages[0],
        stage_number=0,
        seed=0,
        lexicon=Lexicon.from_tokenizer(tokenizer),
        regions=regions,
        images=reader,
    )


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_and_pixels_are_of_one_image(tables: Tables, tmp_path: Path, flip: float) -> None:
    images = write_rows(tables)
    made = batches(tables, images, tmp_path / "prepared", tiny(f"feeding.flip={flip}"))
    batch = made.assembled(0).to("cpu")
    found = batch.image_regions
    assert found is not None and batch.num_texts == 2 and len(batch.inputs.tokens) == 6
    # The table says 200 x 100; the long side is the bound, and as released it is cut to whole ones.
    assert found.images.shape == (4, 3, 24, 48) and found.sizes.tolist() == [[48, 24]] * 4
    assert found.boxes[0, 0].tolist() == [0, 0, 47, 23]
    number = int(batch_image(made, 0))
    blue, _, red = (found.images[0, :, 0, 0] + torch.tensor(MEAN_BGR)).tolist()
    assert (round(blue), round(red)) == (100, 20 * number)
    row = made.regions[f"image-{number}"]  # type: ignore[index]
    left = row.boxes[0, 0] * 48 / 200
    if flip:
        left = 47 - row.boxes[0, 2] * 48 / 200
    assert found.boxes[0, 1, 0].item() == pytest.approx(max(left, 0), abs=1e-3)
    torch.testing.assert_close(
        found.locations()[0, 1], batch.inputs.region_locations[0, 1], atol=0.02, rtol=0
    )


def batch_image(made: PretrainBatches, place: int) -> str:
    """The number in the name of the image of a pair of batch 0."""
    visit = made.order.batch(0)[place]
    return made.table.image_id(visit.row).removeprefix("image-")
