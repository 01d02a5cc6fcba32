"""The image tokenizer is read, checked and learned from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from tests.factories import write_dvae, write_images

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer
from vlmill.models.published import export_reference
from vlmill.models.vlmo.model import Vlmo
from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.images.tokenizer import read_image_tokenizer
from vlmill.train.loading.vocabulary import SPECIAL
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run import dry_run, loop
from vlmill.train.run.dry_run import estimate_run
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.step import train_step

if TYPE_CHECKING:
    from tests.factories import Tables

TINY = ["model.width=16", "model.num_layers=2", "model.num_heads=2", "model.intermediate_width=32"]
RUN = ["steps=2", "batch_size=4", "log_every=1", "precision=no", "workers=0", "model.image_size=64"]
IMAGES = ["feeding.image_size=64", "feeding.token_size=32"]


def test_either_tokenizer_is_recognised(tmp_path: Path) -> None:
    found = read_image_tokenizer(write_dvae(tmp_path))
    assert (found.num_tokens, found.stride) == (12, 8)
    pixels = torch.rand(2, 3, 16, 16)
    ids = found.reader(torch.device("cpu"))(pixels)
    assert ids.shape == (2, 2, 2)
    assert torch.equal(ids, found.model.tokens(2 * pixels - 1))
    dalle = DalleTokenizer(DalleConfig(num_tokens=9, width=8))
    state = {name: weight.clone() for name, weight in export_reference("dvae", dalle).items()}
    published, converted = tmp_path / "dalle.safetensors", tmp_path / "converted.safetensors"
    save_file(state, published)
    arguments = f"convert --family dvae --checkpoint {published} --output {converted}"
    assert main(arguments.split()) == 0
    for file in (published, converted):
        read = read_image_tokenizer(file)
        assert (read.num_tokens, read.stride) == (9, 8)
        assert torch.equal(read.reader(torch.device("cpu"))(pixels), dalle.eval().tokens(pixels))


def test_another_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"picture_tokenizer=.*no tokenizer of images; give"):
        read_image_tokenizer(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="no such checkpoint file"):
        read_image_tokenizer(tmp_path / "missing.safetensors")


def images_recipe(*changes: str, size: str = "base") -> Recipe:
    return change_recipe(recipe_named(f"vlmo-images-{size}"), [*TINY, *RUN, *IMAGES, *changes])


def test_images_without_a_tokenizer_or_of_another_size(tables: Tables, tmp_path: Path) -> None:
    pairs = tables.write().pairs
    inputs = Inputs(pairs=pairs, images=write_images(tmp_path / "images", 12))
    with pytest.raises(InputError, match="picture_tokenizer is missing: vlmo-images-base"):
        pretrain(images_recipe(), inputs, tmp_path / "out")
    file = f"picture_tokenizer={write_dvae(tmp_path)}"
    with pytest.raises(
        InputError, match=r"token_size=64 gives 8 .* has 4 patches per " r"side; set it to 32"
    ):
        pretrain(images_recipe(file, "feeding.token_size=64"), inputs, tmp_path / "out")


def test_images_without_pairs_are_visited_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted, held out, continued after a kill and estimated as pairs are."""
    inputs = Inputs(pairs=None, images=write_images(tmp_path / "images", 12))
    changes = (f"picture_tokenizer={write_dvae(tmp_path)}", "save_every=1", "validate_every=2")
    recipe = images_recipe(*changes)
    assert "2 steps on 11 pairs; 1 rejected (1 held_out)" in pretrain(
        recipe, inputs, tmp_path / "one"
    )
    said = capsys.readouterr().err
    assert "validates on 1 pair of 1 image" in said and "by the hash of their ids" in said
    whole = load_checkpoint(tmp_path / "one")
    assert whole.trained_on is not None
    assert (len(whole.trained_on.pairs), len(whole.trained_on.images)) == (0, 11)
    assert whole.tokenizer.get_vocab_size() == len(SPECIAL)

    def killed(*_: object) -> dict[str, float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(
            loop, "train_step", lambda at, *a: (killed if at == 2 else train_step)(at, *a)
        )
        pretrain(recipe, inputs, tmp_path / "two")
    pretrain(recipe, inputs, tmp_path / "two")
    state = load_checkpoint(tmp_path / "two").model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in whole.model.state_dict().items())

    monkeypatch.setattr(dry_run, "SECONDS_MEASURED", 0.01)
    estimate = estimate_run(recipe, inputs)
    assert estimate.inputs == {"--images": "12 images", "steps": "2"}


def test_other_recipes_need_pairs(tmp_path: Path) -> None:
    inputs = Inputs(pairs=None, images=write_images(tmp_path / "images", 2))
    with pytest.raises(InputError, match="--pairs is missing: vlmo-small learns from texts"):
        pretrain(recipe_named("vlmo-small"), inputs, tmp_path / "out")


# The paper's positions are those of other tests of VLMo; its stages differ in nothing else.
@pytest.mark.parametrize("size", ["base", pytest.param("base-paper", marks=pytest.mark.nightly)])
def test_vlmo_learns_in_three_stages(size: str, tables: Tables, tmp_path: Path) -> None:
    """Images, of which one has no caption; texts alone; pairs: each from the one before."""
    tables.write()
    rows = [(f"image-{i}", f"a dog and {i} cats" if i else "") for i in range(12)]
    tables.write_pairs(rows)
    inputs = Inputs(pairs=tables.pairs, images=write_images(tmp_path / "images", 12))
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    first = images_recipe(f"picture_tokenizer={write_dvae(tmp_path)}", size=size)
    assert "on 12 pairs" in pretrain(first, inputs, one)
    losses = [line["loss/mim"] for line in read_log(one / "log.jsonl")]
    assert losses[0] == pytest.approx(torch.tensor(12.0).log().item(), rel=0.2)
    beit = load_checkpoint(one)
    assert beit.config.num_visual_tokens == 12

    texts = change_recipe(
        recipe_named(f"vlmo-texts-{size}"),
        [*TINY, *RUN, "model.first_vl_layer=2", "optimizer.warmup_steps=0", "masking.words=0.5"],
    )
    said = pretrain(texts, Inputs(pairs=tables.pairs, init=str(one)), two)
    assert "on 11 pairs" in said
    assert max(line["loss/text_mlm"] for line in read_log(two / "log.jsonl")) > 2
    read = load_checkpoint(two)
    state, before = read.model.state_dict(), beit.model.state_dict()
    assert read.tokenizer.get_vocab_size() == read.config.vocab_size
    patches = [f"patch_embedding.{name}" for name in ("projection.weight", "position")]
    for name in patches[: 2 if size.endswith("-paper") else 1]:
        assert torch.equal(state[f"encoder.{name}"], before[name])  # and stayed frozen

    pairs = change_recipe(recipe_named(f"vlmo-{size}"), [*TINY, *RUN, "model.first_vl_layer=1"])
    pairs = change_recipe(pairs, ["sources=[]", "feeding.image_size=64"])
    pretrain(pairs, dataclasses.replace(inputs, init=str(two)), three)
    last = load_checkpoint(three)
    assert isinstance(last.model, Vlmo) and last.config.max_text_tokens == 40
    assert last.tokenizer.to_str() == read.tokenizer.to_str()
    assert set(read_log(three / "log.jsonl")[0]) >= {"loss/mlm", "loss/itc", "loss/itm"}
