"""``train-vl convert``: there and back, models that start from BERT, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.factories import write_images
from tests.models.bert_files import tiny, write

from vlmill.inference.convert import command
from vlmill.inference.convert.starts import STARTS
from vlmill.models import VARIANTS, preset, registry
from vlmill.models.published import FAMILIES, export_reference, load_reference
from vlmill.models.registry import FAMILY_NAMES
from vlmill.runtime.settings.plain_fields import override, to_yaml
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer
from vlmill.train.recipes import Recipe

if TYPE_CHECKING:
    from tests.factories import Tables

VOCABULARY = [*SPECIAL, *(f"word{i}" for i in range(50 - len(SPECIAL)))]
# What is not BERT's, at the sizes of `tiny` and of the tables.
FIELDS = [
    *("width=24", "num_layers=2", "num_heads=4", "intermediate_width=48", "num_positions=12"),
    *("max_text_tokens=10", "visual_position_id=10", "region_width=16", "num_region_classes=7"),
]

SIZES_OF_VIT = [
    *("width=16", "num_heads=2", "num_layers=2", "intermediate_width=32", "image_size=32"),
    "layer_scale=null",
]


def test_every_family_can_be_asked_for() -> None:
    assert list(FAMILY_NAMES) == sorted(FAMILIES)
    assert set(registry.STARTS) == set(STARTS) >= set(registry.EXPERT_STARTS)
    assert set(command.SOURCES) == {*FAMILIES, *STARTS}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder as BERT is published: weights, configuration and vocabulary."""
    folder = tmp_path / "published"
    folder.mkdir()
    model = tiny()
    write(model, folder / "pytorch_model.bin", "original")
    (folder / "bert_config.json").write_text(json.dumps(model.config.to_dict()))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    return folder


def convert(checkpoint: Path, *words: str, family: str = "bert") -> int:
    return main(["convert", "--family", family, "--checkpoint", str(checkpoint), *words])


def test_there_and_back(published: Path, tmp_path: Path, capsys: Any) -> None:
    assert convert(published, "--output", str(tmp_path / "ours")) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/ours: bert, 38 parameters loaded, 0 new, 0 tensors unused\n"
    )
    loaded = load_checkpoint(tmp_path / "ours")
    assert (loaded.variant, loaded.config.width) == ("bert", 24)
    assert loaded.tokenizer.token_to_id("word0") == 5
    back = tmp_path / "back.safetensors"
    assert convert(tmp_path / "ours", "--to", "reference", "--output", str(back)) == 0
    state, written = tiny().state_dict(), load_file(back)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("family", "preset_name"),
    [
        ("interbert", "interbert-small"),
        ("vilbert", "vilbert-small"),
        ("vilbert", "vilbert-single-stream"),
        ("vl-bert", "vl-bert-small"),
        ("vl-bert", "vl-bert-base-end-to-end"),
        ("vlmo", "vlmo-small"),
    ],
)
def test_every_variant_there_and_back(family: str, preset_name: str, tmp_path: Path) -> None:
    small = ["num_layers=2", "width=16", "num_heads=2", "intermediate_width=16", "num_positions=12"]
    fields = {
        "interbert-small": [f for f in [*small, "visual_num_heads=2"] if "num_layers" not in f],
        "vilbert-small": ["visual_width=16", "visual_num_heads=2", "co_width=16", "co_num_heads=2"],
        "vilbert-single-stream": [*small, "max_text_tokens=12"],
        "vl-bert-small": small,
        "vl-bert-base-end-to-end": [
            *(f"model.{f}" for f in [*small, "vocab_size=50"]),
            "cnn.blocks=[1, 1, 1, 1]",
        ],
        "vlmo-small": [],
    }[preset_name]
    words = [*fields] if "end-to-end" in preset_name else [*fields, "vocab_size=50"]
    if preset_name == "interbert-small":
        words.append("max_text_tokens=12")
    config = override(preset(preset_name), words)
    torch.manual_seed(0)
    model = next(v for v in VARIANTS.values() if v.config is type(config)).model(config)
    state = {name: t.clone() for name, t in export_reference(family, model).items()}
    save_file(state, tmp_path / "published.safetensors")
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    ours, back = tmp_path / "ours", tmp_path / "back.safetensors"
    arguments = ["--config", preset_name, *words, "--output", str(ours)]
    assert convert(tmp_path / "published.safetensors", *arguments, family=family) == 0
    loaded = load_checkpoint(ours)
    assert loaded.config == config
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in loaded.model.state_dict().items())
    assert convert(ours, "--to", "reference", "--output", str(back), family=family) == 0
    written = load_file(back)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())


def test_what_their_layout_has_no_place_for_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["width=16", "num_heads=2", "num_layers=1", "intermediate_width=16", "vocab_size=50"]
    config = override(preset("vl-bert-base-paper"), [*sizes, "num_wavelengths=2"])
    record = TrainingRecord(recipe="tiny", stage="", step=1, num_pairs=1)
    save_checkpoint(
        tmp_path / "ours",
        VARIANTS["vl-bert"].model(config),
        CheckpointRecord(
            variant="vl-bert",
            tokenizer=bert_tokenizer({word: i for i, word in enumerate(VOCABULARY)}),
            training=record,
        ),
    )
    back = tmp_path / "back.safetensors"
    words = ("--to", "reference", "--output", str(back))
    assert convert(tmp_path / "ours", *words, family="vl-bert") == 2
    said = "the layout of vl-bert has no key for masked_vector.weight; exclude them by name"
    assert said in capsys.readouterr().err and not back.exists()
    without = ("--omit", "masked_vector.weight")
    assert convert(tmp_path / "ours", *words, *without, family="vl-bert") == 0
    assert not [name for name in load_file(back) if "mask_visual" in name]
    old = ("--without", without[1])  # the name of the flag in 0.1
    assert convert(tmp_path / "ours", *old, "--output", str(back), family="vl-bert") == 2
    assert "--omit masked_vector.weight: add --to reference" in capsys.readouterr().err


def test_vlmo_starts_from_beit(tmp_path: Path, capsys: Any) -> None:
    sizes = ["width=16", "num_heads=2", "num_layers=2", "intermediate_width=32", "image_size=32"]
    beit = VARIANTS["beit"].model(override(preset("beit-base"), sizes))
    state = {name: t.clone() for name, t in export_reference("beit", beit).items()}
    save_file(state, tmp_path / "beit.safetensors")
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    fields = [*sizes, "patch_size=16", "first_vl_layer=1", "max_text_tokens=8"]
    words = ["--as", "vlmo-base", *fields, "--output", str(tmp_path / "start"), "--explain"]
    assert convert(tmp_path / "beit.safetensors", *words, family="beit") == 0
    out = capsys.readouterr().out
    assert "encoder.layers.0.experts.image.up.weight" in out
    assert not [line for line in out.splitlines() if line.startswith("unused: blocks.")]
    loaded = load_checkpoint(tmp_path / "start")
    assert (loaded.variant, loaded.config.vocab_size) == ("vlmo", 50)
    theirs = state["blocks.1.mlp.fc1.weight"]
    experts = loaded.model.encoder.layers[1].experts
    assert torch.equal(experts["image"].up.weight, theirs)
    assert not torch.equal(experts["text"].up.weight, theirs)
    assert convert(tmp_path / "beit.safetensors", *words, "experts=all", family="beit") == 0
    experts = load_checkpoint(tmp_path / "start").model.encoder.layers[1].experts
    assert all(torch.equal(experts[name].up.weight, theirs) for name in ("text", "image", "vl"))
    capsys.readouterr()
    assert convert(tmp_path / "beit.safetensors", "--as", "imagebert-base", *words[-3:]) == 2
    assert "1 of BERT's tensors have other shapes" in capsys.readouterr().err


def test_vlmo_starts_from_a_vit(tables: Tables, tmp_path: Path, capsys: Any) -> None:
    """In the layout of DeiT, whose head of classes has no place; recipes without parts go on."""
    beit = VARIANTS["beit"].model(override(preset("beit-base"), SIZES_OF_VIT))
    state = {name: t.clone() for name, t in export_reference("beit", beit).items()}
    for layer in range(2):
        for part in ("q_bias", "v_bias"):
            del state[f"blocks.{layer}.attn.{part}"]
        state[f"blocks.{layer}.attn.qkv.bias"] = torch.arange(48.0)
    unlike = ("lm_head", "mask_token", "rel_pos")
    state = {name: t for name, t in state.items() if not name.startswith(unlike)}
    state |= {"pos_embed": torch.randn(1, 5, 16), "head.weight": torch.randn(3, 16)}
    torch.save({"model": state}, tmp_path / "deit.pth")
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    fields = [*SIZES_OF_VIT[:-1], "first_vl_layer=1", "max_text_tokens=8", "experts=all"]
    words = ["--as", "vlmo-base-paper", *fields, "--output", str(tmp_path / "start"), "--explain"]
    assert convert(tmp_path / "deit.pth", *words, family="vit") == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("unused")] == [
        "unused: head.weight"
    ]
    encoder = load_checkpoint(tmp_path / "start").model.encoder
    assert torch.equal(encoder.patch_embedding.position, state["pos_embed"])
    assert torch.equal(encoder.layers[0].attention.value_bias, torch.arange(32.0, 48.0))
    theirs = state["blocks.1.mlp.fc1.weight"]
    assert torch.equal(encoder.layers[1].experts["vl"].up.weight, theirs)
    tables.write()
    recipe = ["pretrain", "vlmo-vit-without-vl-experts", "--init", str(tmp_path / "start")]
    recipe += ["--pairs", tables.pairs, "--images", write_images(tmp_path / "images", 12)]
    sizes = [f"model.{field}" for field in [*SIZES_OF_VIT[:-1], "first_vl_layer=2"]]
    run = ["precision=no", "workers=0", "steps=1", "batch_size=4", "sources=[]"]
    run += [*sizes, "model.max_text_tokens=8", "feeding.max_tokens=8", "feeding.image_size=32"]
    assert main([*recipe, *run, "optimizer.lr=0.000001", "--output", str(tmp_path / "out")]) == 0
    last = load_checkpoint(tmp_path / "out").model.encoder.layers[1].experts
    assert set(last) == {"text", "image"} and torch.allclose(last["text"].up.weight, theirs)
    other = ["pretrain", "vlmo-vit-standard", *recipe[2:], *run, "--output", str(tmp_path / "no")]
    assert main(other) == 2
    assert "model.modality_experts=False: --init" in capsys.readouterr().err


def vit_state() -> dict[str, torch.Tensor]:
    """A ViT of `SIZES_OF_VIT`, as timm names it."""
    beit = VARIANTS["beit"].model(override(preset("beit-base"), SIZES_OF_VIT))
    unlike = ("lm_head", "mask_token", "rel_pos")
    state = {
        name: tensor.clone()
        for name, tensor in export_reference("beit", beit).items()
        if not name.startswith(unlike) and not name.endswith(("q_bias", "v_bias"))
    }
    biases = {f"blocks.{layer}.attn.qkv.bias": torch.arange(48.0) for layer in range(2)}
    return state | biases | {"pos_embed": torch.randn(1, 5, 16)}


def test_what_a_vit_has_besides_is_named(tmp_path: Path, capsys: Any) -> None:
    def told(status: int, more: dict[str, torch.Tensor], *fields: str) -> str:
        save_file(vit_state() | more, tmp_path / "vit.safetensors")
        words = [*SIZES_OF_VIT[:-1], "first_vl_layer=1", "max_text_tokens=8", *fields]
        arguments = ["--as", "vlmo-base-paper", *words, "--explain"]
        assert convert(tmp_path / "vit.safetensors", *arguments, family="vit") == status
        error: str = capsys.readouterr().err
        return error

    assert told(0, {}) == ""
    registers = {"reg_token": torch.ones(1, 4, 16), "pos_embed": torch.ones(1, 4, 16)}
    assert "reg_token is unused: VLMo has no register tokens" in told(0, registers)
    scales = {f"blocks.{n}.ls{i}.gamma": torch.ones(16) for n in range(2) for i in (1, 2)}
    assert "blocks.0.ls1.gamma: the checkpoint's layers have scales" in told(2, scales)
    assert told(0, scales, "layer_scale=0.1") == ""
    told_new = told(0, {}, "layer_scale=0.1")
    assert "as the checkpoint has no blocks.0-1.gamma_1, blocks.0-1.gamma_2: encoder" in told_new
    relative = told(0, {}, "relative_positions=true", "absolute_positions=false")
    assert "pos_embed is unused: the model has no absolute positions" in relative
    assert "norm_pre.weight does not exist in VLMo" in told(2, {"norm_pre.weight": torch.ones(16)})
    deeper = {"blocks.2.norm1.weight": torch.ones(16), "blocks.3.norm1.weight": torch.ones(16)}
    assert "has 4 layers, the model takes 2: layers 2 to 3 (from 0) are unused" in told(0, deeper)


@pytest.mark.parametrize(
    ("family", "words", "message"),
    [
        ("vit", [], "--family vit: vlmill has no ViT; start a VLMo with --as PRESET"),
        ("vit", ["--as", "imagebert-base"], "ImageBert does not start from ViT; VLMo does"),
        ("beit", ["--as", "vlmo-base", "experts=text"], "experts=text: expected image or all"),
        ("beit", ["experts=all"], "experts=all: only with --family beit or vit, and --as"),
        ("bert", ["--as", "vilbert-small", "experts=all"], "only with --family beit or vit"),
    ],
)
def test_starts_that_cannot_be(
    family: str, words: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    save_file({"cls_token": torch.zeros(1, 1, 16)}, tmp_path / "vit.safetensors")
    arguments = [*words, "--output", str(tmp_path / "out.safetensors")]
    assert convert(tmp_path / "vit.safetensors", *arguments, family=family) == 2
    assert message in capsys.readouterr().err


def test_a_configuration_may_be_yaml(published: Path, tmp_path: Path) -> None:
    config = json.loads((published / "bert_config.json").read_text())
    (tmp_path / "bert.yaml").write_text(yaml.safe_dump(config))
    words = ("--config", str(tmp_path / "bert.yaml"), "--output", str(tmp_path / "ours"))
    assert convert(published, *words) == 0


def test_a_checkpoint_of_ours_tells_the_sizes(published: Path, tmp_path: Path, capsys: Any) -> None:
    """What was exported has no configuration beside it; the checkpoint that it came from has."""
    ours, again, back = tmp_path / "ours", tmp_path / "again", tmp_path / "back.safetensors"
    assert convert(published, "--output", str(ours)) == 0
    assert convert(ours, "--to", "reference", "--output", str(back)) == 0
    vocabulary = ("--vocab", str(ours / "vocab.txt"), "--output", str(again))
    assert convert(back, "--config", str(ours), *vocabulary) == 0
    assert load_checkpoint(again).config == load_checkpoint(ours).config
    (ours / "checkpoint.json").write_text("{}")
    assert convert(back, "--config", str(ours), *vocabulary) == 2
    assert f"--config {ours} is damaged" in capsys.readouterr().err


def test_models_without_words_have_weights_alone(tmp_path: Path, capsys: Any) -> None:
    sizes = ["width=16", "num_heads=2", "num_layers=1", "intermediate_width=32", "image_size=32"]
    beit = VARIANTS["beit"].model(override(preset("beit-base"), sizes))
    state = {name: t.clone() for name, t in export_reference("beit", beit).items()}
    save_file(state, tmp_path / "beit.safetensors")
    words = ["--config", "beit-base", *sizes, "--output"]
    ours = tmp_path / "ours.safetensors"
    assert convert(tmp_path / "beit.safetensors", *words, str(ours), family="beit") == 0
    assert load_file(ours).keys() == beit.state_dict().keys()
    assert convert(tmp_path / "beit.safetensors", *words, str(tmp_path / "x"), family="beit") == 2
    told = "give the vocab.txt of the texts to come, or --output FILE.safetensors"
    assert told in capsys.readouterr().err


def test_weights_alone_and_the_official_layout_as_safetensors(
    published: Path, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    assert convert(published, "--output", str(ours)) == 0
    assert convert(published, "--output", str(theirs), "--to", "reference") == 0
    model = load_reference("bert", theirs, published / "bert_config.json")
    weights = load_file(ours)
    assert all(torch.equal(weights[name], t) for name, t in model.state_dict().items())


def test_the_same_arguments_write_the_same_bytes(published: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        words = ("--as", "imagebert-base", *FIELDS, "--output", str(tmp_path / name))
        assert convert(published, *words) == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["checkpoint.json", "model.safetensors", "vocab.txt"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_lineage_names_the_published_files(
    published: Path, tmp_path: Path, capsys: Any
) -> None:
    assert convert(published, "--output", str(tmp_path / "ours")) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "ours"), "--lineage"]) == 0
    told = capsys.readouterr().out
    assert "pytorch_model.bin: ok" in told and "vocab.txt: ok" in told
    with (published / "pytorch_model.bin").open("ab") as file:
        file.write(b"more")
    assert main(["show", str(tmp_path / "ours"), "--lineage"]) == 1
    assert "pytorch_model.bin: changed" in capsys.readouterr().out


def test_pretraining_goes_on_from_what_was_started_from_bert(
    published: Path, tmp_path: Path, tables: Tables, recipe: Recipe, capsys: Any
) -> None:
    start = tmp_path / "start"
    words = ("--as", "imagebert-base", *FIELDS, "--output", str(start))
    assert convert(published, *words) == 0
    loaded = load_checkpoint(start)
    assert (loaded.variant, loaded.config.vocab_size) == ("imagebert", 50)
    table = tiny().bert.embeddings.word_embeddings.weight
    assert torch.equal(loaded.model.text_embedding.word.weight, table)
    tables.write()
    of_that_model = dataclasses.replace(recipe, model=loaded.config)
    (tmp_path / "tiny.yaml").write_text(to_yaml(of_that_model))
    arguments = ["pretrain", "--config", str(tmp_path / "tiny.yaml"), "--pairs", tables.pairs]
    arguments += ["--regions", tables.regions, "--init", str(start), "steps=1"]
    assert main([*arguments, "--output", str(tmp_path / "run")]) == 0
    assert "tiny: 1 steps on 12 pairs" in capsys.readouterr().out


def test_explain_lists_every_parameter_and_writes_nothing(
    published: Path, tmp_path: Path, capsys: Any
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert convert(published, "--as", "imagebert-base", *FIELDS, "--explain") == 0
    lines = capsys.readouterr().out.splitlines()
    origins = {line.split()[0]: line.split("]")[-1].strip() for line in lines[:-5]}
    assert origins["text_embedding.norm.weight"] == "bert.embeddings.LayerNorm.weight"
    assert origins["match_head.weight"] == "new: N(0, 0.02^2)"
    assert lines[-5:] == [
        "unused: bert.pooler.dense.bias",
        "unused: bert.pooler.dense.weight",
        "unused: cls.seq_relationship.bias",
        "unused: cls.seq_relationship.weight",
        "34 parameters loaded, 12 new, 4 tensors unused",
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--output is missing; give it, or --explain"),
        (
            ["--explain", "width=3"],
            "width=3: fields are changed with --as PRESET or --config P",
        ),
        (
            ["--explain", "--as", "imagebert-huge"],
            "--as imagebert-huge: no such preset; did you mean 'imagebert-base'?",
        ),
        (["--explain", "--as", "imagebert-base", "width"], "width: expected field=value"),
        (["--explain", "--as", "imagebert-base", "widht=3"], "widht: unknown field; did you mean"),
        (["--explain", "--as", "imagebert-base", "width=70"], "width=70 is not a multiple"),
        (
            ["--explain", "--as", "imagebert-base"],
            "other shapes than the model's; build it with the sizes of that BERT (",
        ),
        (["--output", "x.bin", "--to", "reference"], "--to reference writes one FILE.safetensors"),
        (["--output", "/dev/null"], "--output /dev/null is a file"),
        (["--output", "/"], "--output / has other files; give a new folder"),
        (["--explain", "--config", "none.json"], "--config none.json cannot be read as JSON"),
        (["--output", "o", "--vocab", "none.txt"], "--vocab none.txt cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], message: str, published: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert(published, *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


def test_files_that_do_not_fit_are_told(published: Path, tmp_path: Path, capsys: Any) -> None:
    def fails(
        message: str, checkpoint: Path = published, *words: str, family: str = "bert"
    ) -> None:
        output = ("--output", str(tmp_path / "ours"))
        assert convert(checkpoint, *(words or output), family=family) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error

    fails("no such file", tmp_path / "nowhere")
    fails("has no weights, its folder published has", tmp_path)
    config = json.loads((published / "bert_config.json").read_text())
    (published / "bert_config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    fails("(mlm_head.bias is [60] here, [50] in the file); --explain lists all")
    (published / "bert_config.json").write_text(json.dumps(config | {"hidden_size": 23}))
    fails("bert_config.json: width=23 is not a multiple of num_heads=4")
    (published / "bert_config.json").write_text("[]")
    fails("bert_config.json has no fields")
    (published / "bert_config.json").unlink()
    fails("--config: none was given and")
    (published / "config.json").write_text(json.dumps(config))
    (published / "vocab.txt").write_text("".join(f"{word}\n" for word in SPECIAL))
    fails("has 5 tokens, the checkpoint 50")
    (published / "vocab.txt").unlink()
    fails("--vocab: none was given and")
    (published / "pytorch_model.bin").write_bytes(b"no weights")
    fails("is not a safetensors file, a PyTorch file or")


def test_retrieval_needs_a_matching_head(
    published: Path, tmp_path: Path, tables: Tables, capsys: Any
) -> None:
    tables.write()
    arguments = ["--pairs", tables.pairs, "--regions", tables.regions, "--output"]
    assert convert(published, "--output", str(tmp_path / "bert")) == 0
    words = ["--as", "vl-bert-base", *FIELDS[:5], "region_width=16"]
    assert convert(published, *words, "--output", str(tmp_path / "vl-bert")) == 0
    for variant in ("bert", "vl-bert"):
        checkpoint = ["evaluate", "retrieval", "--checkpoint", str(tmp_path / variant)]
        assert main([*checkpoint, *arguments, str(tmp_path / "report")]) == 2
        assert f"is a {variant} without a matching or contrastive head" in capsys.readouterr().err


def test_ours_is_exported_by_its_own_family_only(
    published: Path, tmp_path: Path, capsys: Any
) -> None:
    start = tmp_path / "start"
    words = ("--as", "imagebert-base", *FIELDS, "--output", str(start))
    assert convert(published, *words) == 0
    assert convert(start, "--output", str(tmp_path / "again")) == 2
    assert "is already in vlmill's format; add --to reference" in capsys.readouterr().err
    out = str(tmp_path / "x.safetensors")
    assert convert(start, "--to", "reference", "--output", out) == 2
    assert "is of imagebert; it has no official layout" in capsys.readouterr().err


def test_a_table_with_more_rows_than_tokens_converts(
    published: Path, tmp_path: Path, capsys: Any
) -> None:
    (published / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY[:45]))
    (published / "added_tokens.json").write_text(json.dumps({"[DEC]": 46}))
    for words in ([], ["--as", "imagebert-base", *FIELDS]):
        output = tmp_path / f"ours{len(words)}"
        assert convert(published, *words, "--output", str(output)) == 0
        told = capsys.readouterr().err
        assert "has 47 tokens, the checkpoint's table 50 rows; the 3 at its end" in told
        loaded = load_checkpoint(output)
        assert loaded.tokenizer.get_vocab_size() == loaded.config.vocab_size == 50
        assert loaded.tokenizer.encode("word1 [DEC]").ids == [2, 6, 46, 3]
        assert (output / "vocab.txt").read_text().splitlines()[45:] == [
            *("[unused0]", "[DEC]", "[unused1]", "[unused2]", "[unused3]")
        ]
    (published / "added_tokens.json").write_text(json.dumps({"[DEC]": 50}))
    assert convert(published, "--output", str(tmp_path / "more")) == 2
    assert "--vocab has 51 tokens, the checkpoint 50" in capsys.readouterr().err


def test_a_run_keeps_how_texts_are_prepared(
    published: Path, tmp_path: Path, tables: Tables, recipe: Recipe
) -> None:
    (published / "tokenizer_config.json").write_text(json.dumps({"strip_accents": False}))
    start, run = tmp_path / "start", tmp_path / "run"
    assert convert(published, "--as", "imagebert-base", *FIELDS, "--output", str(start)) == 0
    tables.write()
    of_that_model = dataclasses.replace(recipe, model=load_checkpoint(start).config)
    (tmp_path / "tiny.yaml").write_text(to_yaml(of_that_model))
    arguments = ["pretrain", "--config", str(tmp_path / "tiny.yaml"), "--pairs", tables.pairs]
    arguments += ["--regions", tables.regions, "--init", str(start), "steps=1"]
    assert main([*arguments, "--output", str(run)]) == 0
    for folder in (start, run, run / "checkpoints" / "step-00000001"):
        assert load_checkpoint(folder).tokenizer.normalizer.strip_accents is False
    # The same command goes on from it, and a vocabulary beside its settings is one to train with.
    assert main([*arguments, "--output", str(run)]) == 0
    arguments[-3:-1] = ["--vocab", str(run / "vocab.txt")]
    assert main([*arguments, "--output", str(tmp_path / "second")]) == 0
    second = load_checkpoint(tmp_path / "second")
    assert second.tokenizer.normalizer.strip_accents is False


def test_what_shapes_do_not_tell_is_compared(published: Path, tmp_path: Path, capsys: Any) -> None:
    """With other heads or another activation the same tensors would mean something else."""
    words = ["--as", "imagebert-base", *FIELDS, "--explain"]
    config = json.loads((published / "bert_config.json").read_text())
    assert convert(published, *words, "num_heads=2") == 2
    told = "bert_config.json: num_attention_heads=4, the new model has 2; add num_heads=4"
    assert told in capsys.readouterr().err
    (tmp_path / "other.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    assert convert(published, *words, "--config", str(tmp_path / "other.json")) == 2
    assert "other.json: hidden_act=relu, the new model has gelu" in capsys.readouterr().err


def test_arguments_without_effect_are_named(published: Path, tmp_path: Path, capsys: Any) -> None:
    ours, back = tmp_path / "ours", str(tmp_path / "back.safetensors")
    assert convert(published, "--output", str(ours)) == 0
    capsys.readouterr()
    export = ("--to", "reference", "--output", back)
    vocabulary = str(published / "vocab.txt")
    for words in (["--vocab", vocabulary], ["--config", vocabulary], ["--explain"]):
        assert convert(ours, *export, *words) == 2
        assert f"{words[0]}: {ours} is vlmill's own checkpoint" in capsys.readouterr().err
    assert convert(published, "--output", str(tmp_path / "x"), "--seed", "3") == 2
    assert "--seed 3: only new weights are random" in capsys.readouterr().err
    assert convert(published, "--vocab", vocabulary, "--output", back) == 0
    assert f"--vocab {vocabulary} has no effect" in capsys.readouterr().err


def test_the_only_file_of_weights_in_a_folder_is_read(
    published: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(published, folder)
    (folder / "pytorch_model.bin").rename(folder / "mine.bin")
    torch.save({"lr": 1}, folder / "training_args.bin")
    assert convert(folder, "--explain") == 0
    for name, remedy in (
        ("adapter_model.safetensors", "holds an adapter (LoRA) only; merge it"),
        ("model-00001-of-00002.safetensors", "no .index.json of them"),
        ("checkpoint-500/model.safetensors", "its folder checkpoint-500 has"),
        ("README.md", "has no file of weights"),
    ):
        other = tmp_path / name.partition(".")[0].replace("/", "-")
        (other / name).parent.mkdir(parents=True)
        (other / name).write_bytes(b"")
        capsys.readouterr()
        assert convert(other, "--explain") == 2
        assert remedy in capsys.readouterr().err
