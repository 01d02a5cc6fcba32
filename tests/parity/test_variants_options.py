"""Comparisons follow the options under which a set was recorded, and the types of its inputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parity.golden import GoldenSet
from tests.parity.handlers import compare
from tests.parity.models_vlbert_tasks import choice_loss
from tests.parity.test_variants import (
    MODEL,
    expect_passed_and_moved_fails,
    vilbert_config,
    vlmo_config,
)
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
from torch.nn import functional as F

from vlmill.models.published import FAMILIES

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

TEXTS = ("input_ids", "token_type_ids", "attention_mask")


def pretraining_set(tmp_path: Path, tensors: dict[str, Tensor], **changes: Any) -> GoldenSet:
    """A set of ViLBERT's pretraining with our outputs beside its inputs.

    What a user's network refuses, a comparison may have another way for: it comes afterwards.
    """
    entry = MODEL | {"family": "vilbert"}
    pairing = {key: changes.pop(key) for key in ("in_batch_pairs",) if key in changes}
    config = vilbert_config(**changes)
    write_network(write_set(tmp_path, "vilbert/other", entry, config, tensors), 21)
    return recorded(write_set(tmp_path, "vilbert/other", entry, config | pairing, tensors))


def test_each_text_with_each_image(tmp_path: Path) -> None:
    """Row i * B + j is text i with image j, as if the pairs had been written out."""
    torch.manual_seed(22)
    inputs = drawn_pairs(vilbert_config(), (3, 6, 4))
    golden = pretraining_set(tmp_path, of_case("case0", inputs), in_batch_pairs=True)
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    pairs = {name: t[every[:, int(name not in TEXTS)]] for name, t in inputs.items()}
    written_out = pretraining_set(tmp_path / "pairs", of_case("case0", pairs))
    key = "case0.out.seq_relationship_score"
    torch.testing.assert_close(golden.tensors[key], written_out.tensors[key])
    expect_passed_and_moved_fails(golden)


def test_one_text_for_all_images_in_pretraining(tmp_path: Path) -> None:
    torch.manual_seed(23)
    inputs = drawn_pairs(vilbert_config(), (4, 6, 5))
    inputs |= {name: inputs[name][:1] for name in TEXTS}
    golden = pretraining_set(tmp_path, of_case("case0", inputs), fast_mode=True)
    assert len(golden.tensors["case0.out.seq_relationship_score"]) == 4
    expect_passed_and_moved_fails(golden)


@pytest.mark.parametrize("regress", [False, True])
def test_without_a_label_the_losses_are_the_reference_s(tmp_path: Path, regress: bool) -> None:
    """Means over nothing are recorded as NaN, and squared errors of nothing as 0."""
    torch.manual_seed(24)
    sizes = (2, 6, 4)
    config = vilbert_config(predict_feature=regress)
    config["v_target_size"] = config["v_feature_size"] if regress else 11
    inputs = drawn_pairs(config, sizes) | drawn_labels(config, sizes)
    labels = ("masked_lm_labels", "image_label")
    inputs |= {name: torch.full_like(inputs[name], -1) for name in labels}
    changes = {key: config[key] for key in ("predict_feature", "v_target_size")}
    golden = pretraining_set(tmp_path, of_case("case0", inputs), **changes)
    assert golden.tensors["case0.out.masked_lm_loss"].isnan().all()
    region_loss = golden.tensors["case0.out.masked_img_loss"]
    assert region_loss.eq(0).all() if regress else region_loss.isnan().all()
    result: Any = compare(golden)
    assert (result["status"], result["reason"]) == ("passed", "")


def test_integers_of_any_size_and_masks_of_any_type(tmp_path: Path) -> None:
    torch.manual_seed(25)
    sizes = (3, 6, 4)
    inputs = drawn_pairs(vilbert_config(), sizes) | drawn_labels(vilbert_config(), sizes)
    narrow = {k: t.int() if t.dtype == torch.int64 else t for k, t in inputs.items()}
    narrow["attention_mask"] = narrow["attention_mask"].bool()
    narrow["image_attention_mask"] = narrow["image_attention_mask"].float()
    wide = pretraining_set(tmp_path / "wide", of_case("case0", inputs))
    golden = pretraining_set(tmp_path / "narrow", of_case("case0", narrow))
    assert torch.equal(
        golden.tensors["case0.out.prediction_scores_t"],
        wide.tensors["case0.out.prediction_scores_t"],
    )
    expect_passed_and_moved_fails(golden)


@pytest.mark.parametrize("task_tokens", [True, False])
def test_12_in_1_with_an_odd_number_of_rows(tmp_path: Path, task_tokens: bool) -> None:
    """Rows that are no pairs are scored by the matching head; features instead of classes."""
    torch.manual_seed(26)
    config = vilbert_config(
        arch="VILBertForVLTasks (12-in-1)",
        task_specific_tokens=task_tokens,
        visual_target=1,
        v_target_size=17,
    )
    tensors = of_case("case0", drawn_pairs(config, (3, 6, 4)))
    tensors |= of_case("case1", drawn_pairs(config, (4, 6, 4)))
    for case, rows in (("case0", 3), ("case1", 4)) if task_tokens else ():
        tensors[f"{case}.in.task_ids"] = torch.arange(rows)[:, None]
    golden = write_set(tmp_path, "vilbert/12", MODEL | {"family": "vilbert"}, config, tensors)
    write_network(golden, 27)
    golden = recorded(golden)
    assert len(golden.tensors["case0.out.vil_binary_prediction"]) == 3
    assert len(golden.tensors["case1.out.vil_binary_prediction"]) == 2
    expect_passed_and_moved_fails(golden)


def test_choices_by_hand() -> None:
    """The right choice counts thrice, and the whole (3 + 1) / (2 * 3) times."""
    logits, right = torch.tensor([[0.5, -1.0]]), torch.tensor([1])
    right_one, wrong_one = F.softplus(torch.tensor(1.0)), F.softplus(torch.tensor(0.5))
    switches = {"CLASSIFIER_SIGMOID": True, "CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT": 3.0}
    expected = (3 * right_one + wrong_one) / 2 * 4 / 6
    torch.testing.assert_close(choice_loss(switches, logits, right), expected)
    softmax = choice_loss({"CLASSIFIER_SIGMOID": False}, logits, right)
    torch.testing.assert_close(softmax, F.softplus(torch.tensor(1.5)))


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_vlmo_s_texts_have_positions_of_one_kind(relative: bool, absolute: bool) -> None:
    """Absolute ones wherever there are no relative ones, whatever the images have."""
    changes = {"need_relative_position_embed": relative, "use_abs_pos_emb": absolute}
    family = FAMILIES["vlmo"]
    model: Any = family.build(family.configure(vlmo_config("textmlm", **changes)))
    model.eval()
    alike = model.encoder.embed_text(torch.tensor([[7, 7, 7]]))[0]
    assert torch.equal(alike[0], alike[1]) == relative


@pytest.mark.parametrize(
    ("changes", "width", "message"),
    [
        ({"vlffn_start_layer_index": 0}, 7, "vlffn_start_layer_index is 0"),
        ({}, 5, "case0.in.text_ids is 5 wide, max_text_len 7"),
    ],
)
def test_what_vlmo_s_reference_does_otherwise_is_said(
    tmp_path: Path, changes: dict[str, int], width: int, message: str
) -> None:
    config = vlmo_config("itc", **changes)
    texts = drawn_texts(config, 2, width) | {"image": torch.rand(2, 3, 12, 12)}
    tensors = of_case("case0", texts)
    golden = write_set(tmp_path, "vlmo/other", MODEL | {"family": "vlmo"}, config, tensors)
    write_network(golden, 30)
    result: Any = compare(golden)
    assert result["status"] == "failed" and message in result["reason"]
