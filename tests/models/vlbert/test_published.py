"""VL-BERT's published checkpoints: their configurations, prefixes, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.vlbert.cases import changed, lively, random_batch, tiny_config, tiny_model
from tests.models.vlbert.test_end_to_end import tiny_end_to_end

from vlmill.models.convert.keymap import CheckpointMismatch
from vlmill.models.published import FAMILIES, export_reference, load_reference, read_reference
from vlmill.models.vlbert.config import (
    VlBertConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
    vlbert_base,
    vlbert_base_end_to_end,
    vlbert_for_task,
    vlbert_large,
    vlbert_large_end_to_end,
)
from vlmill.models.vlbert.model import VlBert

configure, build = FAMILIES["vl-bert"].configure, FAMILIES["vl-bert"].build
MULTITASK = "ResNetVLBERTForPretrainingMultitask"
BASE = {"hidden_size": 768, "visual_size": 768, "with_pooler": False, "visual_ln": True}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "visual_size": 1024,
}
TASK = vlbert_for_task(vlbert_base(visual_width=768))
TINY_TASK = vlbert_for_task(tiny_config())
TINY_POOLED = vlbert_for_task(tiny_config(), pooler=True)


def published(settings: dict[str, Any], **network: Any) -> dict[str, Any]:
    """As the repository's YAML files, read."""
    return {"NETWORK": {"VLBERT": settings, "IMAGE_FROZEN_BACKBONE_STAGES": [1, 2], **network}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"MODULE": MULTITASK, **published(BASE, IMAGE_FEAT_PRECOMPUTED=True)},
            vlbert_base(visual_width=768),
        ),
        (
            {
                "MODULE": "ResNetVLBERTForPretraining",
                **published(BASE, IMAGE_FEAT_PRECOMPUTED=True),
            },
            vlbert_base(visual_width=768, text_only=False),
        ),
        (
            {"MODULE": MULTITASK, "DATASET": [{}, {}], **published(LARGE)},
            vlbert_large_end_to_end(model=vlbert_large(visual_width=1024, masked_region="pixels")),
        ),
        (
            {"MODULE": MULTITASK, **published(BASE, MASK_RAW_PIXELS=False)},
            vlbert_base_end_to_end(model=vlbert_base(visual_width=768)),
        ),
        (
            {
                "MODULE": "ResNetVLBERT",
                "DATASET": {"DATASET": "vqa", "ANSWER_VOCAB_SIZE": 3129},
                **published(BASE, IMAGE_FEAT_PRECOMPUTED=True),
            },
            VlBertVqaConfig(body=TASK),
        ),
        (
            {"MODULE": "ResNetVLBERT", "DATASET": {"DATASET": "refcoco+"}, **published(BASE)},
            VlBertEndToEndConfig(model=VlBertRefcocoConfig(body=TASK)),
        ),
        (
            {
                "MODULE": "ResNetVLBERT",
                "DATASET": {"DATASET": "vcr"},
                **published(BASE | {"with_pooler": True}),
            },
            VlBertEndToEndConfig(
                model=VlBertVcrConfig(
                    body=vlbert_for_task(vlbert_base(visual_width=768), pooler=True)
                )
            ),
        ),
    ],
)
def test_published_configurations(config: dict[str, Any], expected: Any) -> None:
    assert configure(config) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"class": "vcr ResNetVLBERT", "vlbert": {"object_word_embed_mode": 1}},
            "object_word_embed_mode=1: only 2 is",
        ),
        (published({"type_vocab_size": 2}), "num_segments=2: expected 3 or more"),
        (published({"hidden_act": "tanh"}), "no activation 'tanh'"),
        (published({}, IMAGE_SEMANTIC=True), "IMAGE_SEMANTIC=True"),
        (published({}, IMAGE_NUM_LAYERS=18), "IMAGE_NUM_LAYERS=18: expected one of 50, 101"),
        (
            {"class": "vqa ResNetVLBERT", "network": {"CLASSIFIER_TYPE": "3fc"}},
            "CLASSIFIER_TYPE='3fc': expected one of mlm, 1fc, 2fc",
        ),
        (
            {
                "class": "vcr ResNetVLBERT",
                "vlbert": {"with_pooler": True},
                "network": {"CLASSIFIER_TYPE": "mlm"},
            },
            "CLASSIFIER_TYPE='mlm': expected one of 1fc, 2fc",
        ),
    ],
)
def test_what_no_published_model_is_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(config)


def test_only_two_tasks_read_how_a_region_gets_its_token() -> None:
    asked = configure(published({"object_word_embed_mode": 3}, IMAGE_FEAT_PRECOMPUTED=True))
    assert asked == vlbert_base(text_only=False)


def test_a_longer_segment_table_comes_back() -> None:
    settings = {"type_vocab_size": 5, "hidden_act": "swish"}
    asked = configure(published(settings, IMAGE_FEAT_PRECOMPUTED=True))
    assert asked == vlbert_base(text_only=False, num_segments=5, act="swish")
    model = tiny_model(num_segments=5)
    state = export_reference("vl-bert", model)
    assert state["vlbert.token_type_embeddings.weight"].shape == (5, 24)
    loaded = load_reference("vl-bert", state, model.config)
    batch = changed(random_batch(), segments=torch.full((3, 6), 4))
    assert torch.equal(loaded.eval()(batch).text, model(batch).text)


def test_a_trained_tensor_without_a_place_is_not_dropped_in_silence() -> None:
    model = tiny_model(masked_region="vector")
    assert model.masked_vector is not None
    with pytest.raises(ValueError, match=r"no key for masked_vector\.weight; exclude them"):
        export_reference("vl-bert", model)
    state = export_reference("vl-bert", model, without=["masked_vector.weight"])
    assert state.keys() == export_reference("vl-bert", tiny_model(masked_region="none")).keys()


def test_losses_that_are_off_have_no_head() -> None:
    network = {"WITH_MLM_LOSS": False, "WITH_MVRC_LOSS": False, "IMAGE_FEAT_PRECOMPUTED": True}
    asked = configure({"class": MULTITASK, "network": network})
    assert asked == vlbert_base(masked_words=False, masked_classes=False)
    model = tiny_model(masked_words=False, masked_classes=False)
    state = export_reference("vl-bert", model)
    heads = ("vlbert.mlm_head", "vlbert.mvrc_head", "object_mask_word_embedding")
    assert not [name for name in state if name.startswith(heads)]
    assert "object_mask_visual_embedding.weight" in state
    loaded = load_reference("vl-bert", state, model.config)
    assert isinstance(loaded, VlBert)
    for head, logits in (
        ("masked_words", loaded.mlm_logits),
        ("masked_classes", loaded.region_class_logits),
    ):
        with pytest.raises(ValueError, match=f"was built with {head}=False"):
            logits(torch.zeros(1, 24))


@pytest.mark.parametrize(
    "config",
    [
        VlBertVqaConfig(body=TINY_TASK, num_answers=9, classifier="1fc"),
        VlBertVqaConfig(body=TINY_TASK, num_answers=9, classifier="2fc", classifier_width=5),
        VlBertVcrConfig(body=TINY_POOLED, classifier="2fc", classifier_width=5),
    ],
)
def test_classifiers_of_one_and_two_layers_come_back(config: Any) -> None:
    task = "vqa" if isinstance(config, VlBertVqaConfig) else "vcr"
    network = {
        "CLASSIFIER_TYPE": config.classifier,
        "CLASSIFIER_HIDDEN_SIZE": config.classifier_width,
        "IMAGE_FEAT_PRECOMPUTED": True,
    }
    settings = {"with_pooler": task == "vcr"}
    asked = configure({"class": f"{task} ResNetVLBERT", "network": network, "vlbert": settings})
    assert asked.classifier == config.classifier
    assert asked.classifier_width == config.classifier_width
    model = lively(build(config))
    state = export_reference("vl-bert", model)
    last = "final_mlp.4.weight" if config.classifier == "2fc" else "final_mlp.1.weight"
    assert state[last].shape[0] == (9 if task == "vqa" else 1)
    loaded = load_reference("vl-bert", state, config).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_a_file_of_a_training_run_in_half_precision(tmp_path: Path) -> None:
    """As the repository saves: optimiser beside it, a prefix on every name, 16 bits."""
    model = tiny_model()
    state = export_reference("vl-bert", model)
    path = tmp_path / "vl-bert-0009.model"
    halves = {f"module.{name}": tensor.half() for name, tensor in state.items()}
    torch.save({"state_dict": halves, "optimizer": {"step": 7}}, path)
    loaded, table = read_reference("vl-bert", path, model.config)
    assert not table.missing and not table.unexpected
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, model.state_dict()[name].half().float())


def test_a_configuration_of_another_size_is_refused_with_both_shapes() -> None:
    model = tiny_model()
    state = export_reference("vl-bert", model)
    config = VlBertConfig(**(vars(model.config) | {"vocab_size": 51}))
    with pytest.raises(CheckpointMismatch, match=r"word.weight is \[51, 24\] here, \[50, 24\]"):
        load_reference("vl-bert", state, config)


def test_pixels_and_regions_go_through_the_same_door() -> None:
    model = tiny_end_to_end()
    loaded = load_reference("vl-bert", export_reference("vl-bert", model), model.config)
    assert all(
        torch.equal(tensor, loaded.state_dict()[name])
        for name, tensor in model.state_dict().items()
    )
