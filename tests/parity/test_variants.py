"""Comparisons take sizes and options from the set: sets of other ones pass, and fail when moved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import compare
from tests.parity.models_vlmo import stage_of_pairs
from tests.parity.variants import (
    drawn_labels,
    drawn_pairs,
    drawn_texts,
    of_case,
    recorded,
    write_network,
    write_set,
)
from torch import Tensor

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

SETS = {golden.name: golden for golden in read_index(GOLDEN)}
MODEL = {"part": "models", "kind": "model"}


def expect_passed_and_moved_fails(golden: GoldenSet) -> None:
    """It passes as it is, and with the last number of each floating output moved it fails."""
    result: Any = compare(golden)
    assert (result["status"], result["reason"]) == ("passed", "")
    floating = {
        key: tensor.clone()
        for key, tensor in golden.tensors.items()
        if key in result["tensors"] and tensor.is_floating_point() and tensor.numel()
    }
    assert floating
    for tensor in floating.values():
        tensor.view(-1)[-1] += 1.0 + 1e-3 * tensor.abs().max()
    golden.__dict__["tensors"] = {**golden.tensors, **floating}
    again: Any = compare(golden)["tensors"]
    assert [key for key in floating if again[key]["ok"]] == []


def vilbert_config(**changes: Any) -> dict[str, Any]:
    """The committed configuration at other sizes: three heads of 10, four of 6, two of 9."""
    other = {
        "vocab_size": 53,
        "hidden_size": 30,
        "num_attention_heads": 3,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "max_position_embeddings": 15,
        "v_hidden_size": 24,
        "v_num_attention_heads": 4,
        "v_intermediate_size": 20,
        "v_num_hidden_layers": 2,
        "v_feature_size": 17,
        "v_target_size": 11,
        "bi_hidden_size": 18,
        "bi_num_attention_heads": 2,
        "t_biattention_id": [2],
        "v_biattention_id": [0],
        "hidden_act": "relu",
        "v_hidden_act": "swish",
    }
    return {**SETS["vilbert/vilbert_pretrain_paperdepth"].config, **other, **changes}


def interbert_config(**changes: Any) -> dict[str, Any]:
    """The committed configuration at other sizes and depths, for pretraining."""
    other = {
        "vocab_size": 61,
        "hidden_size": 24,
        "v_hidden_size": 24,
        "num_attention_heads": 2,
        "v_num_attention_heads": 3,
        "num_hidden_layers": 2,
        "t_num_hidden_layers": 1,
        "v_num_hidden_layers": 2,
        "intermediate_size": 40,
        "v_intermediate_size": 28,
        "v_feature_size": 13,
        "v_target_size": 9,
        "bi_hidden_size": 20,
        "max_position_embeddings": 19,
        "fusion_method": "sum",
    }
    committed = dict(SETS["interbert/vltasks"].config)
    committed.pop("num_labels")
    return {**committed, **other, **changes}


PRETRAINING = {"vilbert": vilbert_config, "interbert": interbert_config}


@pytest.mark.parametrize("family", PRETRAINING)
@pytest.mark.parametrize("regress", [False, True])
def test_pretraining_of_other_sizes(tmp_path: Path, family: str, regress: bool) -> None:
    """A second case is larger than the first; features are regressed where asked for."""
    torch.manual_seed(3)
    config = PRETRAINING[family](predict_feature=regress)
    if regress:
        config["v_target_size"] = config["v_feature_size"]
    tensors: dict[str, Tensor] = {}
    for case, sizes in {"case0": (3, 7, 4), "case11": (5, 12, 9)}.items():
        tensors |= of_case(case, drawn_pairs(config, sizes) | drawn_labels(config, sizes))
    golden = write_set(tmp_path, f"{family}/other", MODEL | {"family": family}, config, tensors)
    write_network(golden, 5)
    expect_passed_and_moved_fails(recorded(golden))


def test_tasks_of_vilbert_in_any_case_and_with_any_number_of_options(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = vilbert_config(arch="VILBertForVLTasks", num_labels=7)
    sizes = {"case0": (4, 6, 5), "case1": (2, 9, 3), "case2": (6, 8, 4), "case3": (5, 7, 6)}
    tensors: dict[str, Tensor] = {}
    for case, size in sizes.items():
        tensors |= of_case(case, drawn_pairs(config, size))
    one_text = ("input_ids", "token_type_ids", "attention_mask")
    tensors |= {f"case3.in.{name}": tensors[f"case3.in.{name}"][:1] for name in one_text}
    tensors["case0.in.target"] = torch.rand(4, 5, 1)
    tensors["case0.out.select_idx"] = torch.zeros(4, 1).long()
    tensors["case1.in.target"] = torch.rand(2, 7)
    tensors["case2.in.target"] = torch.tensor([2, 0])  # of three options
    tensors["case2.out.probs"] = torch.zeros(2, 3)
    golden = write_set(tmp_path, "vilbert/tasks", MODEL | {"family": "vilbert"}, config, tensors)
    write_network(golden, 6)
    for key in ("case0.out.select_idx", "case2.out.probs"):
        assert key in golden.tensors
    expect_passed_and_moved_fails(recorded(golden))


def test_tasks_of_interbert_with_any_number_of_options(tmp_path: Path) -> None:
    """VCR with three answers, retrieval among five."""
    torch.manual_seed(5)
    config = interbert_config(num_labels=6)
    tensors = of_case("case0", drawn_pairs(config, (6, 8, 4)))
    tensors |= of_case("case1", drawn_pairs(config, (10, 6, 5)))
    tensors |= {"case0.in.target": torch.tensor([1, 2]), "case0.out.vcr_loss": torch.tensor(0.0)}
    tensors["case1.in.target"] = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1]])
    tensors["case1.out.retrieval_loss"] = torch.tensor(0.0)
    entry = MODEL | {"family": "interbert"}
    golden = write_set(tmp_path, "interbert/tasks", entry, config, tensors)
    write_network(golden, 7)
    expect_passed_and_moved_fails(recorded(golden))


def vlmo_config(*losses: str, **changes: Any) -> dict[str, Any]:
    """The committed configuration at other sizes, with fusion experts from the second layer on."""
    other = {
        "embed_dim": 24,
        "num_heads": 3,
        "depth": 3,
        "mlp_ratio": 2,
        "patch_size": 4,
        "image_size": 12,
        "vlffn_start_layer_index": 1,
        "max_text_len": 7,
        "max_text_len_of_initckpt": 9,
        "vocab_size": 41,
        "vqav2_label_size": 6,
        "loss_names": dict.fromkeys(losses, 1),
    }
    return {**SETS["vlmo/nlvr2_rel"].config, **other, **changes}


ABSOLUTE = {
    "use_abs_pos_emb": True,
    "need_relative_position_embed": False,
    "layer_scale": False,
}


@pytest.mark.parametrize("changes", [{}, ABSOLUTE], ids=["relative", "absolute"])
@pytest.mark.parametrize(
    "losses",
    [
        ("itc", "itm", "mlm"),
        ("itc",),
        ("itc", "itm"),
        ("textmlm",),
        ("vqa",),
        ("nlvr2",),
        ("irtr",),
    ],
    ids="+".join,
)
def test_vlmo_of_other_sizes(
    tmp_path: Path, losses: tuple[str, ...], changes: dict[str, Any]
) -> None:
    torch.manual_seed(8)
    config = vlmo_config(*losses, **changes)
    inputs = drawn_texts(config, 4, 7)
    for name in ("image", "image_0", "image_1"):
        inputs[name] = torch.randn(4, 3, 12, 12)
    inputs["itm_image_neg_idx"] = torch.tensor([1, 2, 3, 0])
    inputs["itm_text_neg_idx"] = torch.tensor([3, 0, 1, 2])
    inputs |= {"vqa_targets": torch.rand(4, 6), "answers": torch.tensor([0, 1, 1, 0])}
    entry = MODEL | {"family": "vlmo"}
    golden = write_set(tmp_path, "vlmo/other", entry, config, of_case("case0", inputs))
    write_network(golden, 9)
    expect_passed_and_moved_fails(recorded(golden))


def test_the_stage_of_pairs_is_told_by_names() -> None:
    new = [f"transformer.blocks.{n}.mlp_vl.fc1.weight" for n in (4, 2, 3)]
    new += ["itc_text_proj.fc.weight"]
    golden = GoldenSet(GOLDEN, "vlmo/other", {})
    golden.__dict__["config"] = {"depth": 5, "max_text_len": 20}
    golden.__dict__["values"] = {
        "stage3_from_stage2:newly_initialised": new,
        "stage3_from_stage2:loaded_unchanged": ["mlm_score.bias"],
        "stage3_from_stage2:truncated": [],
    }
    assert stage_of_pairs(golden) == {
        "loss_names": {"itc": 1, "itm": 0, "mlm": 1},
        "vlffn_start_layer_index": 2,
        "max_text_len": 20,
    }


@pytest.mark.parametrize("classes", [0, 7])
@pytest.mark.parametrize("shared", [True, False])
def test_beit_of_other_sizes(tmp_path: Path, classes: int, shared: bool) -> None:
    torch.manual_seed(10)
    config = {
        "embed_dim": 20,
        "num_heads": 2,
        "depth": 2,
        "mlp_ratio": 3,
        "patch_size": 5,
        "img_size": 15,
        "vocab_size": 31,
        "use_shared_rel_pos_bias": shared,
        "use_rel_pos_bias": not shared,
        "num_classes": classes,
    }
    inputs = {
        "image": torch.randn(2, 3, 15, 15),
        "bool_masked_pos": torch.rand(2, 9) < 0.5,
        "visual_tokens": torch.randint(0, 31, (2, 9)),
    }
    entry = MODEL | {"family": "beit"}
    golden = write_set(tmp_path, "vlmo/beit", entry, config, of_case("case2", inputs))
    write_network(golden, 11)
    expect_passed_and_moved_fails(recorded(golden))


@pytest.mark.parametrize(
    ("config", "name", "side"),
    [
        ({"n_hid": 8, "n_blk_per_group": 1, "group_count": 3, "vocab_size": 19}, "0_1", 12),
        (
            {"num_layers": 2, "num_tokens": 23, "codebook_dim": 5, "hidden_dim": 6},
            "normalised",
            16,
        ),
    ],
)
def test_tokenizers_of_other_sizes(
    tmp_path: Path, config: dict[str, Any], name: str, side: int
) -> None:
    torch.manual_seed(12)
    inputs = of_case("case0", {f"image_{name}": torch.rand(3, 3, side, side)})
    entry = MODEL | {"family": "dvae"}
    golden = write_set(tmp_path, "vlmo/dvae", entry, config, inputs)
    write_network(golden, 13)
    expect_passed_and_moved_fails(recorded(golden))


@pytest.mark.parametrize("norm", [True, False])
def test_vlbert_of_other_sizes(tmp_path: Path, norm: bool) -> None:
    torch.manual_seed(14)
    config = dict(SETS["vlbert/visual_linguistic_bert"].config)
    config["vlbert"] = {
        **config["vlbert"],
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 36,
        "visual_size": 24 if norm else 10,
        "visual_ln": norm,
        "vocab_size": 50,
        "max_position_embeddings": 30,
        "with_pooler": norm,
        "position_padding_idx": 1,
    }
    width = config["vlbert"]["visual_size"]
    text, regions = torch.ones(3, 6).bool(), torch.ones(3, 5).bool()
    text[1, 4:], regions[2, 3:] = False, False
    inputs = {
        "text_input_ids": torch.randint(1, 50, (3, 6)) * text,
        "text_token_type_ids": torch.zeros(3, 6).long(),
        "text_visual_embeddings": torch.randn(3, 6, width),
        "text_mask": text,
        "object_vl_embeddings": torch.randn(3, 5, width + 24),
        "object_mask": regions,
    }
    tensors = of_case("case0", inputs)
    if norm:
        tensors["case0.out.pooled_output"] = torch.zeros(3, 24)
    golden = write_set(tmp_path, "vlbert/other", MODEL | {"family": "vl-bert"}, config, tensors)
    write_network(golden, 15)
    expect_passed_and_moved_fails(recorded(golden))


def test_a_setting_that_is_not_supported_is_named(tmp_path: Path) -> None:
    config = vlmo_config("irtr", qkv_bias=False)
    inputs = of_case("case0", drawn_texts(config, 2, 7))
    golden = write_set(tmp_path, "vlmo/other", MODEL | {"family": "vlmo"}, config, inputs)
    save_file({"x": torch.zeros(1)}, golden.weights)
    result: Any = compare(golden)
    assert result["status"] == "failed"
    assert "config.json" in result["reason"] and "qkv_bias=False" in result["reason"]


def test_losses_without_a_comparison_are_named(tmp_path: Path) -> None:
    config = vlmo_config("mlm", "vqa")
    inputs = of_case("case0", drawn_texts(config, 2, 7))
    golden = write_set(tmp_path, "vlmo/other", MODEL | {"family": "vlmo"}, config, inputs)
    write_network(golden, 9)
    result: Any = compare(golden)
    assert result["status"] == "failed" and "loss_names asks for mlm, vqa" in result["reason"]
