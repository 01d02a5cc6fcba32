"""BERT is pretrained on the captions, continued, and is what the models on regions start from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.factories import Tables, caption
from tests.models.bert_files import transformers

from vlmill.inference.show.folder import read_folder
from vlmill.inference.show.lines import summary_lines
from vlmill.models.convert.keymap import export_state
from vlmill.models.from_bert import BERT_SOURCES
from vlmill.models.published import FAMILIES, export_reference
from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.objectives.pretraining import text_losses
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.inputs import Inputs, open_sources
from vlmill.train.run.job import open_runner, pretrain
from vlmill.train.run.model import refuse_random_constants
from vlmill.train.run.preparing import prepare

TINY = ("width=16", "num_heads=2", "intermediate_width=32")
RUN = ("steps=2", "batch_size=4", "log_every=1", "masking.words=0.5", "vocabulary_size=80")
STARTED = ("vilbert-small", "vl-bert-small", "imagebert-small", "interbert-small")


def tiny(name: str, *changes: str) -> Recipe:
    """The small recipe, smaller."""
    sizes = (f"model.{field}" for field in TINY)
    return change_recipe(recipe_named(name), [*RUN, *sizes, *changes])


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Tables, and a BERT that has learned from their captions for two steps."""
    folder = tmp_path_factory.mktemp("captions")
    inputs = Tables(folder).write()
    said = pretrain(tiny("bert-small"), Inputs(pairs=inputs.pairs), folder / "bert")
    assert "bert-small: 2 steps on 12 pairs" in said
    return dataclasses.replace(inputs, init=str(folder / "bert"))


def test_captions_and_texts_alone_are_what_it_reads(tables: Tables, tmp_path: Path) -> None:
    rows = [(f"image-{i}", caption(i)) for i in range(6)]
    tables.write_pairs([*rows, *((None, caption(i)) for i in range(6, 10))])  # type: ignore[list-item]
    recipe = tiny("bert-small")
    assert "on 10 pairs" in pretrain(recipe, Inputs(pairs=tables.pairs), tmp_path / "bert")
    assert all(line["loss"] > 1 for line in read_log(tmp_path / "bert" / "log.jsonl"))
    loaded = load_checkpoint(tmp_path / "bert")
    assert loaded.variant == "bert" and loaded.feeding == recipe.stages[0].feeding


def test_it_goes_on_from_its_own_checkpoint_and_from_nothing_else(
    captions: Inputs, tmp_path: Path
) -> None:
    again = dataclasses.replace(captions, regions=None)
    pretrain(tiny("bert-small", "steps=0"), again, tmp_path / "again")
    lines = summary_lines(read_folder(tmp_path / "again"))
    assert any("--init" in line for line in lines) and not any("evaluate" in x for x in lines)
    before, after = load_checkpoint(str(captions.init)), load_checkpoint(tmp_path / "again")
    assert after.config == before.config
    assert after.tokenizer.to_str() == before.tokenizer.to_str()
    state = before.model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in after.model.state_dict().items())
    pretrain(tiny("imagebert-small", "steps=0"), captions, tmp_path / "imagebert")
    other = dataclasses.replace(again, init=str(tmp_path / "imagebert"))
    with pytest.raises(InputError, match="--init is an imagebert, the recipe's is bert"):
        pretrain(tiny("bert-small"), other, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", STARTED)
def test_a_region_model_starts_from_it(
    name: str, captions: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(tiny(name, "steps=0"), captions, tmp_path / "start")
    said = capsys.readouterr().err
    assert "parameters are BERT's" in said and "new, because --init has no weights" in said
    assert "no detector fingerprint" not in said
    start, source = load_checkpoint(tmp_path / "start"), load_checkpoint(str(captions.init))
    assert start.tokenizer.to_str() == source.tokenizer.to_str()
    theirs, ours = export_reference("bert", source.model), start.model.state_dict()
    links = BERT_SOURCES[type(start.model)](start.model, theirs)
    exported = export_state(ours, links)
    taken = exported.keys() & theirs.keys()
    assert len(taken) > 40
    assert all(torch.equal(exported[key], theirs[key]) for key in taken)
    assert "2 steps on 12 pairs" in pretrain(tiny(name), captions, tmp_path / "out")


def test_other_heads_are_refused_before_anything_is_written(
    captions: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"model.num_heads=4: --init .*/bert has 2; leave it"):
        pretrain(tiny("imagebert-small", "model.num_heads=4"), captions, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="the checkpoint has its own vocabulary; remove --vocab"):
        both = dataclasses.replace(captions, vocab="vocab.txt")
        pretrain(tiny("imagebert-small"), both, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert-small", "objectives.itm=1", "itm=1: a bert learns only text_mlm; set it to 0"),
        ("bert-small", "feeding.kind=regions", "a bert reads only text; set it to text"),
        ("vlmo-images-base", "objectives.mlm=1", "a beit learns only mim"),
    ],
)
def test_what_it_has_no_head_for_is_refused(name: str, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        change_recipe(recipe_named(name), [change])


def test_region_networks_are_not_started_by_it(captions: Inputs) -> None:
    """What VL-BERT never trains of its region network BERT does not have."""
    bert = load_checkpoint(str(captions.init))
    with pytest.raises(InputError, match=r"model.cnn.frozen_stages=2: they are never trained"):
        refuse_random_constants(recipe_named("vl-bert-end-to-end"), bert)


def test_loss_and_gradients_are_those_of_transformers(captions: Inputs, tmp_path: Path) -> None:
    """A batch of the recipe, against BertForMaskedLM with the checkpoint's exported weights."""
    library = transformers()
    recipe = tiny("bert-small", "model.dropout=0")
    sources = open_sources(dataclasses.replace(captions, regions=None), recipe)
    prepared = prepare(recipe, sources, tmp_path / "out", {}, fresh=False)
    assert prepared is not None
    runner = open_runner(
        recipe, sources, tmp_path / "out", prepared.tokenizer, make_accelerator(recipe)
    )
    batch = next(runner.learning.training_parts(runner.stages[0], 0)).to("cpu")
    ours, config = runner.model, runner.recipe.model
    theirs = library.BertForMaskedLM(
        library.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_width,
            max_position_embeddings=config.num_positions,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    missing, unexpected = theirs.load_state_dict(export_reference("bert", ours), strict=False)
    assert not missing
    assert all(name.startswith(("bert.pooler", "cls.seq_relationship")) for name in unexpected)
    labels = torch.full_like(batch.inputs.tokens, -100)
    labels.view(-1)[batch.masked_tokens] = batch.token_targets
    mask = batch.inputs.token_mask.long()
    expected = theirs(batch.inputs.tokens, mask, labels=labels)
    loss = text_losses(ours, batch, recipe.stages[0].objectives)["text_mlm"]  # type: ignore[arg-type]
    torch.testing.assert_close(loss, expected.loss, atol=1e-6, rtol=1e-6)
    expected.loss.backward()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    exported = export_state(gradients, FAMILIES["bert"].links(ours))
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(exported[name], parameter.grad, atol=2e-6, rtol=1e-4)
