"""Reads and writes checkpoints of ViLBERT's release, its baseline, 12-in-1 and mmf."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vlmill.models.convert import names
from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.convert.names import (
    block_links,
    canonical,
    feed_forward_links,
    pretraining_links,
    region_embedding_links,
    score_links,
    text_embedding_links,
    under,
)
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
)
from vlmill.models.vilbert.model import Vilbert
from vlmill.models.vilbert.single_stream import SingleStream
from vlmill.models.vilbert.tasks import (
    Vilbert12in1,
    VilbertClassifier,
    VilbertTasks,
    WeightNormLinear,
)

# The repositories' keys and our fields; absent keys keep our defaults, which equal theirs.
TEXT_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "hidden_act": "act",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_segments",
    "initializer_range": "init_std",
}
FIELDS = TEXT_FIELDS | {
    "v_hidden_size": "visual_width",
    "v_num_hidden_layers": "visual_num_layers",
    "v_num_attention_heads": "visual_num_heads",
    "v_intermediate_size": "visual_intermediate_width",
    "v_hidden_act": "visual_act",
    "v_hidden_dropout_prob": "visual_dropout",
    "v_attention_probs_dropout_prob": "visual_attention_dropout",
    "v_feature_size": "region_width",
    "bi_hidden_size": "co_width",
    "bi_num_attention_heads": "co_num_heads",
    "with_coattention": "co_attention",
    "fusion_method": "fusion",
    "fixed_t_layer": "frozen_text_layers",
    "fixed_v_layer": "frozen_visual_layers",
}
BASELINE_FIELDS = TEXT_FIELDS | {
    "image_feature_size": "region_width",
    "image_target_size": "num_region_classes",
}
UNSUPPORTED = {
    "in_batch_pairs": "make the pairs with Stream.take instead",
    "dynamic_attention": "no released checkpoint has it",
}
NUM_TASKS = 20  # rows of the 12-in-1 release's table, not in its configuration
NUM_VQA_ANSWERS, NUM_GQA_ANSWERS = 3129, 1533  # the 12-in-1 release's, from its code

Config = (
    VilbertConfig
    | SingleStreamConfig
    | VilbertTasksConfig
    | Vilbert12in1Config
    | VilbertClassifierConfig
)
MODELS: dict[type[Any], type[nn.Module]] = {
    VilbertConfig: Vilbert,
    SingleStreamConfig: SingleStream,
    VilbertTasksConfig: VilbertTasks,
    Vilbert12in1Config: Vilbert12in1,
    VilbertClassifierConfig: VilbertClassifier,
}


def configure(keys: Mapping[str, Any]) -> Config:
    """Reads a configuration of one of the four code bases; unknown keys are ignored.

    The model follows from ``arch`` (the class's name) or, without it, from the keys: no sizes of a
    visual stream (the baseline), ``task_specific_tokens`` (12-in-1), ``training_head_type`` (mmf),
    ``num_labels`` (task heads). Raises ValueError for a switch that no released checkpoint uses.
    """
    for key, remedy in UNSUPPORTED.items():
        if keys.get(key):
            raise ValueError(f"{key}={keys[key]!r} is not supported: {remedy}")
    if "hidden_size" not in keys:
        raise ValueError("no hidden_size: expected the configuration JSON that came with the model")
    trunk = _two_streams(keys) if "v_hidden_size" in keys else _baseline(keys)
    arch, mmf_head = str(keys.get("arch", "")), keys.get("training_head_type", "pretraining")
    if isinstance(trunk, VilbertConfig) and "PreTraining" not in arch:
        if "12-in-1" in arch or keys.get("task_specific_tokens"):
            return Vilbert12in1Config(
                trunk=trunk,
                num_answers=keys.get("num_vqa_labels", NUM_VQA_ANSWERS),
                num_gqa_answers=keys.get("num_gqa_labels", NUM_GQA_ANSWERS),
            )
        if mmf_head != "pretraining":
            return VilbertClassifierConfig(
                trunk=trunk,
                num_labels=keys["num_labels"],
                num_pictures=2 if mmf_head == "nlvr2" else 1,
                dropout=trunk.dropout,
            )
    if "VLTasks" in arch or (
        not arch and "training_head_type" not in keys and "num_labels" in keys
    ):
        dropouts = {"dropout_prob": "dropout", "classifier_dropout": "classifier_dropout"}
        return VilbertTasksConfig(
            trunk=trunk, num_answers=keys.get("num_labels", 1), **_fields(keys, dropouts)
        )
    return trunk


def _fields(keys: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: keys[key] for key, field in names.items() if keys.get(key) is not None}


def _two_streams(keys: Mapping[str, Any]) -> VilbertConfig:
    fields = _fields(keys, FIELDS)
    # 12-in-1 and mmf: 0 classes, 1 features, 2 features distinguished from other regions' ones.
    regress = bool(keys.get("predict_feature")) or keys.get("visual_target", 0) in (1, 2)
    if not regress and "v_target_size" in keys:
        fields["num_region_classes"] = keys["v_target_size"]
    if regress and keys.get("v_target_size", 2048) != fields.get("region_width", 2048):
        raise ValueError(
            f"v_target_size={keys.get('v_target_size', 2048)}, v_feature_size="
            f"{fields.get('region_width', 2048)}: they must be equal to regress features"
        )
    for key, stream in (("t_biattention_id", "text"), ("v_biattention_id", "visual")):
        if key in keys:
            fields[f"{stream}_co_layers"] = tuple(keys[key])
    return VilbertConfig(
        **fields,
        regress_features=regress,
        num_tasks=NUM_TASKS if keys.get("task_specific_tokens") else 0,
        max_text_tokens=min(36, fields.get("num_positions", 512)),
        global_region="training_head_type" not in keys,
        keep_unused=True,
    )


def _baseline(keys: Mapping[str, Any]) -> SingleStreamConfig:
    fields = _fields(keys, BASELINE_FIELDS)
    return SingleStreamConfig(**fields, max_text_tokens=min(36, fields.get("num_positions", 512)))


def build(config: Config) -> nn.Module:
    """Builds the model that belongs to a configuration."""
    return MODELS[type(config)](config)


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the released code's names; mmf's are the same after a prefix."""
    if isinstance(model, Vilbert):
        return _vilbert_links(model)
    if isinstance(model, SingleStream):
        return _baseline_links(model)
    assert isinstance(model, VilbertTasks | Vilbert12in1 | VilbertClassifier)
    trunk = [under("trunk", link) for link in links(model.trunk)]
    if isinstance(model, VilbertClassifier):
        return (
            trunk
            + _classifier_links("head", "classifier.0.dense", "classifier.0.LayerNorm")
            + (link_module("head.decoder", "classifier.1"))
        )
    if isinstance(model, VilbertTasks):
        return trunk + score_links() + _weight_norm_links("answer_head", "vil_prediction.main")
    return [
        *trunk,
        *score_links(),
        *_logit_fc_links("answer_head", "vil_prediction"),
        *_logit_fc_links("gqa_head", "vil_prediction_gqa"),
        *_logit_fc_links("two_pictures_head", "vil_binary_prediction"),
        *link_module("entailment_head", "vil_tri_prediction"),
    ]


def _vilbert_links(model: Vilbert) -> list[Link]:
    keymap = [
        *text_embedding_links(),
        *region_embedding_links("region_embedding", "bert.v_embeddings"),
        *link_module("text_pooler.dense", "bert.t_pooler.dense"),
        *link_module("visual_pooler.dense", "bert.v_pooler.dense"),
        *pretraining_links("cls.bi_seq_relationship"),
    ]
    if model.task_table is not None:
        keymap.append(Link("task_table.weight", ("bert.embeddings.task_embeddings.weight",)))
    for n in range(len(model.text_layers)):
        keymap += block_links(f"text_layers.{n}", f"bert.encoder.layer.{n}")
    for n in range(len(model.visual_layers)):
        keymap += block_links(f"visual_layers.{n}", f"bert.encoder.v_layer.{n}")
    for n in range(len(model.co_layers)):
        keymap += _co_layer_links(n)
        for stream in range(len(model.unused[n])):  # type: ignore[arg-type]
            name = f"bert.encoder.c_layer.{n}.biOutput.q_dense{stream + 1}"
            keymap += link_module(f"unused.{n}.{stream}", name)
    return keymap


def _co_layer_links(n: int) -> list[Link]:
    """Links a Co-TRM; number 1 is the regions' stream, 2 the text's, as in ours."""
    module, reference = f"co_layers.{n}", f"bert.encoder.c_layer.{n}"
    keymap: list[Link] = []
    for stream, (order, letter) in enumerate((("first", "v"), ("second", "t"))):
        number = stream + 1
        names = [f"{reference}.biattention.{part}{number}" for part in ("query", "key", "value")]
        keymap += [
            *link_module(f"{module}.attention.{order}_qkv", *names),
            *link_module(f"{module}.outs.{stream}", f"{reference}.biOutput.dense{number}"),
            *link_module(f"{module}.norms.{stream}", f"{reference}.biOutput.LayerNorm{number}"),
            *feed_forward_links(
                f"{module}.feed_forwards.{stream}",
                f"{reference}.{letter}_intermediate",
                f"{reference}.{letter}_output",
            ),
        ]
    return keymap


def _baseline_links(model: SingleStream) -> list[Link]:
    keymap = [
        *text_embedding_links(),
        *region_embedding_links("region_embedding", "bert.image_embeddings"),
        Link("region_type.weight", ("bert.image_embeddings.token_type_embeddings.weight",)),
        *link_module("pooler.dense", "bert.pooler.dense"),
        *pretraining_links("cls.seq_relationship"),
    ]
    for n in range(len(model.layers)):
        keymap += block_links(f"layers.{n}", f"bert.encoder.layer.{n}")
    return keymap


def _weight_norm_links(module: str, reference: str) -> list[Link]:
    parts = {"direction": "weight_v", "length": "weight_g", "bias": "bias"}
    return [
        Link(f"{module}.{n}.{part}", (f"{reference}.{n}.{name}",))
        for n in (0, 3)
        for part, name in parts.items()
    ]


def _logit_fc_links(module: str, reference: str) -> list[Link]:
    head = f"{reference}.logit_fc"
    return _classifier_links(module, f"{head}.0", f"{head}.2") + link_module(
        f"{module}.decoder", f"{head}.3"
    )


def _classifier_links(module: str, dense: str, norm: str) -> list[Link]:
    return link_module(f"{module}.transform.dense", dense) + link_module(
        f"{module}.transform.norm", norm
    )


PREFIXES = ("model.", "bert.")  # one precedes the names in mmf's newer and older files


def prepare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Removes mmf's prefix and renames layer norms' tensors to their current names."""
    for prefix in PREFIXES:
        if any(name.startswith(f"{prefix}bert.") for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return canonical(state)


VILBERT = Family(
    configs=tuple(MODELS), configure=configure, build=build, links=links, prepare=prepare
)

# --- a start from BERT ----------------------------------------------------------------------------

NEW_WEIGHTS = {WeightNormLinear: [("direction", names.PYTORCH), ("length", "the direction's norm")]}


def vilbert_links(model: Vilbert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the text's stream and the word head (arXiv:1908.02265, sec. 3.2, released code).

    The co-attention layers, including their feed-forward parts of the text, and the poolers are
    new.
    """
    return [
        *names.text_embedding_links(),
        *names.layers_from_bert("text_layers", counts=[len(model.text_layers)]),
        *names.mlm_head_links(),
    ]


def single_stream_links(model: SingleStream, state: Mapping[str, Tensor]) -> list[Link]:
    """Links all tensors that have BERT's names in the released code.

    They include the pooler and the matching head, which starts from the next-sentence head, but not
    the regions' own type table.
    """
    return [
        *names.text_embedding_links(),
        *names.layers_from_bert("layers", counts=[len(model.layers)]),
        *link_module("pooler.dense", names.POOLER),
        *names.mlm_head_links(),
        *link_module("match_head", names.NEXT_SENTENCE),
    ]
