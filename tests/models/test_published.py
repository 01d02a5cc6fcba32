"""Checkpoints of ViLBERT's and InterBERT's code bases: names, prefixes, configurations, trips."""

from typing import Any

import pytest
import torch
from tests.models.interbert.test_model import TINY as TINY_INTERBERT
from tests.models.pair_cases import enlarge, random_pairs
from tests.models.vilbert.test_model import BASELINE, TINY
from torch import Tensor, nn

from vlmill.models.interbert.config import InterBertConfig, InterBertTasksConfig, interbert_released
from vlmill.models.interbert.model import InterBert, InterBertTasks
from vlmill.models.published import (
    FAMILIES,
    CheckpointMismatch,
    export_reference,
    load_reference,
    read_reference,
)
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
    vilbert_base,
    vilbert_released,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import Vilbert12in1, VilbertClassifier, VilbertTasks

RELEASED = VilbertConfig(**(TINY | {"keep_unused": True}))
WITH_TASKS = VilbertConfig(**(TINY | {"keep_unused": True, "num_tasks": 20}))
INTERBERT = InterBertConfig(**TINY_INTERBERT)


def exported(family: str, model: nn.Module) -> dict[str, Tensor]:
    """A made-up checkpoint of random weights in the reference's layout."""
    return export_reference(family, enlarge(model))


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("vilbert", Vilbert(RELEASED)),
        ("vilbert", SingleStream(SingleStreamConfig(**BASELINE))),
        ("vilbert", VilbertTasks(VilbertTasksConfig(trunk=RELEASED, num_answers=9))),
        ("vilbert", Vilbert12in1(Vilbert12in1Config(trunk=WITH_TASKS, num_answers=9))),
        ("vilbert", VilbertClassifier(VilbertClassifierConfig(trunk=RELEASED, num_labels=3))),
        ("interbert", InterBert(INTERBERT)),
        ("interbert", InterBertTasks(InterBertTasksConfig(trunk=INTERBERT))),
    ],
)
def test_out_and_in_again_is_the_same(family: str, model: Any) -> None:
    state = exported(family, model)
    read, table = read_reference(family, state, model.config)
    assert not table.missing and not table.unexpected
    ours, theirs = model.state_dict(), read.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = export_reference(family, read)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.parametrize(("num_co_layers", "tensors"), [(2, 325), (4, 429), (6, 533), (8, 637)])
def test_published_files_of_vilbert_have_so_many_tensors(num_co_layers: int, tensors: int) -> None:
    with torch.device("meta"):
        model = Vilbert(vilbert_released(num_co_layers))
    assert len(export_reference("vilbert", model)) == tensors


def test_published_files_of_interbert_have_so_many_tensors() -> None:
    with torch.device("meta"):
        models = (
            InterBert(interbert_released()),
            InterBertTasks(InterBertTasksConfig(trunk=interbert_released())),
        )
    assert [len(export_reference("interbert", model)) for model in models] == [317, 325]


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "bert."])
def test_prefixes_met_in_the_wild(prefix: str) -> None:
    model = VilbertClassifier(VilbertClassifierConfig(trunk=RELEASED, num_labels=3))
    state = {f"{prefix}{k}": v for k, v in exported("vilbert", model).items()}
    read = load_reference("vilbert", {"model": state}, model.config)
    inputs = random_pairs()
    assert torch.equal(read(inputs).pooled, model(inputs).pooled)


def test_old_names_of_layer_norms() -> None:
    model = Vilbert(RELEASED)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in exported("vilbert", model).items()
    }
    assert not read_reference("vilbert", renamed, RELEASED)[1].missing


def test_what_nothing_reads_may_be_dropped_on_loading() -> None:
    """It is listed, and an export lacks it."""
    state = exported("vilbert", Vilbert(RELEASED))
    read, table = read_reference("vilbert", state, VilbertConfig(**TINY))
    assert len(table.unexpected) == 8 and all("q_dense" in name for name in table.unexpected)
    assert set(state) - set(export_reference("vilbert", read)) == set(table.unexpected)


JSON: dict[str, Any] = {
    "hidden_size": 768,
    "v_hidden_size": 1024,
    "v_target_size": 1601,
    "v_feature_size": 2048,
    "t_biattention_id": [6, 7, 8, 9, 10, 11],
    "v_biattention_id": [0, 1, 2, 3, 4, 5],
    "pooling_method": "mul",
    "intra_gate": False,
}


def configured(family: str, **keys: Any) -> Any:
    return FAMILIES[family].configure(keys)


def test_the_released_configuration_is_the_preset() -> None:
    assert configured("vilbert", **JSON) == vilbert_released()
    assert vilbert_released() == vilbert_base(keep_unused=True)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({}, VilbertConfig),
        ({"num_labels": 3129}, VilbertTasksConfig),
        ({"arch": "VILBertForVLTasks"}, VilbertTasksConfig),
        ({"task_specific_tokens": True}, Vilbert12in1Config),
        ({"arch": "BertForMultiModalPreTraining (12-in-1)"}, VilbertConfig),
        ({"training_head_type": "pretraining", "num_labels": 2}, VilbertConfig),
        ({"training_head_type": "vqa2", "num_labels": 3129}, VilbertClassifierConfig),
    ],
)
def test_the_configuration_says_which_model_it_is(keys: dict[str, Any], kind: type) -> None:
    assert type(configured("vilbert", **JSON, **keys)) is kind


def test_mmf_has_no_row_for_the_full_image_and_two_images_for_nlvr2() -> None:
    config = configured("vilbert", **JSON, training_head_type="nlvr2", num_labels=2)
    assert not config.trunk.global_region and config.num_pictures == 2


def test_without_a_visual_stream_it_is_the_baseline() -> None:
    assert configured("vilbert", hidden_size=768) == SingleStreamConfig()
    assert isinstance(
        configured("vilbert", hidden_size=768, num_labels=3129).trunk, SingleStreamConfig
    )


@pytest.mark.parametrize("target", [{"predict_feature": True}, {"visual_target": 1}])
def test_regression_takes_features(target: dict[str, Any]) -> None:
    keys = JSON | target
    assert configured("vilbert", **(keys | {"v_target_size": 2048})).regress_features
    with pytest.raises(ValueError, match="v_target_size=1601, v_feature_size=2048"):
        configured("vilbert", **keys)


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("vilbert", {}, "no hidden_size"),
        ("vilbert", JSON | {"in_batch_pairs": True}, "in_batch_pairs=True is not supported"),
        ("vilbert", JSON | {"dynamic_attention": True}, "dynamic_attention=True is not"),
        ("interbert", {"hidden_size": 768}, "no num_attention_heads"),
        (
            "interbert",
            {
                "hidden_size": 768,
                "num_attention_heads": 12,
                "v_num_attention_heads": 12,
                "predict_feature": True,
                "v_target_size": 1601,
                "v_feature_size": 2048,
            },
            "v_target_size=1601, v_feature_size=2048",
        ),
        ("vl-bert", {"vlbert": {"type_vocab_size": 2}}, "num_segments=2: expected 3 or more"),
        ("vl-bert", {"network": {"NO_OBJ_ATTENTION": True}}, "NO_OBJ_ATTENTION=True: only False"),
        (
            "vl-bert",
            {"class": "vqa ResNetVLBERT", "network": {"NO_GROUNDING": True}},
            "NO_GROUNDING=True: a question's words",
        ),
        (
            "beit",
            {"embed_dim": 768, "use_rel_pos_bias": True, "use_shared_rel_pos_bias": True},
            "set only one of the two",
        ),
        (
            "interbert",
            {
                "hidden_size": 768,
                "v_hidden_size": 1024,
                "num_attention_heads": 12,
                "v_num_attention_heads": 8,
            },
            "v_hidden_size=1024, hidden_size=768",
        ),
    ],
)
def test_configurations_that_cannot_be_loaded(
    family: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FAMILIES[family].configure(keys)


def test_interberts_configuration_is_the_released_preset() -> None:
    keys = {"hidden_size": 768, "num_attention_heads": 12, "v_num_attention_heads": 8}
    assert configured("interbert", **keys) == interbert_released()
    assert configured("interbert", **keys, num_labels=1).num_answers == 1


def test_a_configuration_of_other_sizes_is_refused_with_both_shapes() -> None:
    state = exported("interbert", InterBert(INTERBERT))
    other = InterBertConfig(**(TINY_INTERBERT | {"pooled_width": 21}))
    with pytest.raises(CheckpointMismatch, match=r"\[21, 24\] here, \[20, 24\] in the checkpoint"):
        load_reference("interbert", state, other)
