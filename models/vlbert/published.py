"""Reads and writes VL-BERT's checkpoints (jackroos/VL-BERT) of all its tasks.

`configure` converts their settings to configurations, `links` connects their tensors with ours.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from torch import Tensor, nn

from vlmill.models.convert import names
from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.convert.names import block_links, mlm_head_links
from vlmill.models.detector.config import BLOCKS
from vlmill.models.layers.heads import Pooler
from vlmill.models.vlbert import config as vlbert
from vlmill.models.vlbert.backbone import torchvision_name
from vlmill.models.vlbert.config import NUM_SPECIAL_WORDS
from vlmill.models.vlbert.encoder import VlBertBody
from vlmill.models.vlbert.end_to_end import (
    VlBertEndToEnd,
    VlBertRefcocoEndToEnd,
    VlBertVcrEndToEnd,
    build_end_to_end,
    build_vlbert,
)
from vlmill.models.vlbert.model import VlBert
from vlmill.models.vlbert.region_cnn import RegionCnn
from vlmill.models.vlbert.tasks import VlBertRefcoco, VlBertVcr, VlBertVqa

# Keys of NETWORK.VLBERT and our fields.
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "hidden_act": "act",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_segments",
    "visual_size": "visual_width",
    "visual_region_classes": "num_region_classes",
    "visual_ln": "visual_norm",
    "visual_scale_text_init": "visual_scale_text",
    "visual_scale_object_init": "visual_scale_region",
    "with_pooler": "pooler",
    "word_embedding_frozen": "frozen_words",
    "pos_embedding_frozen": "frozen_positions",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_std",
}
# Keys that have these values in all published models; other values are not supported.
FIXED = {"obj_pos_id_relative": True}
FIXED_NETWORK = {"IMAGE_SEMANTIC": False, "BLIND": False, "NO_OBJ_ATTENTION": False}
FIXED_REGIONS = {"aligned": False, "sampling_ratio": 1, "spatial_scale": 1 / 16}

EXTRACTOR = "image_feature_extractor"
CONV5 = ("roi_head_feature_extractor", "head.0")


def configure(config: Mapping[str, Any]) -> vlbert.TaskConfig | vlbert.VlBertEndToEndConfig:
    """Reads a configuration with the keys of the repository's YAML files.

    ``MODULE`` (or ``class``) names the network: a task's name (``vqa``, ``refcoco``, ``vcr``) comes
    first, as in ``vcr ResNetVLBERT``; without one, ``DATASET.DATASET`` names the task. Keys that
    ``NETWORK.VLBERT`` omits have BERT-base's values. Raises ValueError for unsupported settings.
    """
    network = dict(config.get("NETWORK", config.get("network", {})))
    settings = network.pop("VLBERT", config.get("vlbert", {}))
    name = str(config.get("MODULE", config.get("class", "")))
    if "layer_planes" in config:
        return _narrowed(config)
    for keys, fixed in ((settings, FIXED), (network, FIXED_NETWORK)):
        for key, value in fixed.items():
            if keys.get(key, value) != value:
                raise ValueError(f"{key}={keys[key]!r}: only {value!r} is supported")
    data = config.get("DATASET", {})
    data = data if isinstance(data, Mapping) else {}  # a list for pretraining on several
    task = name.split()[0] if " " in name else str(data.get("DATASET", "")).split("_")[0]
    task = task.lower() if task.lower() in ("vqa", "refcoco", "refcoco+", "vcr") else "pretraining"
    if task in ("vqa", "vcr") and (mode := settings.get("object_word_embed_mode", 2)) != 2:
        raise ValueError(f"object_word_embed_mode={mode!r}: only 2 is supported")  # else unread
    pixels = not network.get("IMAGE_FEAT_PRECOMPUTED", config.get("NETWORK") is None)
    body = _body(settings, network, config, task, name, pixels)
    model = _task(task, body, config, network)
    if not pixels:
        return model
    depth = network.get("IMAGE_NUM_LAYERS", 101)
    if depth not in BLOCKS:
        raise ValueError(
            f"IMAGE_NUM_LAYERS={depth!r}: expected one of {', '.join(map(str, BLOCKS))}"
        )
    cnn = vlbert.RegionCnnConfig(
        blocks=BLOCKS[depth],
        stride_in_1x1=bool(network.get("IMAGE_STRIDE_IN_1x1", True)),
        dilated=bool(network.get("IMAGE_C5_DILATED", True)),
        frozen_stages=max(network.get("IMAGE_FROZEN_BACKBONE_STAGES", (1, 2)), default=0),
    )
    return vlbert.VlBertEndToEndConfig(model=model, cnn=cnn)


def _body(
    settings: Mapping[str, Any],
    network: Mapping[str, Any],
    config: Mapping[str, Any],
    task: str,
    name: str,
    pixels: bool,
) -> vlbert.VlBertConfig:
    fields = {field: settings[key] for key, field in FIELDS.items() if key in settings}
    fields["position_offset"] = settings.get("position_padding_idx", -1) + 1
    if task != "pretraining":
        return vlbert.VlBertConfig(**fields, masked_region="none", text_only=False)
    heads = config.get("heads", ())
    matching = bool(network.get("WITH_REL_LOSS", False)) or "relationship" in heads
    keeps_feature = not (pixels and network.get("MASK_RAW_PIXELS", True))
    return vlbert.VlBertConfig(
        **fields,
        matching=matching,
        masked_words=bool(network.get("WITH_MLM_LOSS", True)),
        masked_classes=bool(network.get("WITH_MVRC_LOSS", True)),
        text_only=name.endswith("Multitask"),
        masked_region="appearance" if keeps_feature else "pixels",
    )


def _task(
    task: str, body: vlbert.VlBertConfig, config: Mapping[str, Any], network: Mapping[str, Any]
) -> vlbert.TaskConfig:
    if task == "vqa":
        if network.get("NO_GROUNDING"):
            raise ValueError("NO_GROUNDING=True: a question's words always have the image's vector")
        size = config.get("DATASET", {}).get("ANSWER_VOCAB_SIZE", 3129)
        return vlbert.VlBertVqaConfig(
            body=body,
            num_answers=int(config.get("answer_vocab_size", size)),
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
            **_classifier(network, "mlm", "1fc", "2fc"),
        )
    if task.startswith("refcoco"):
        return vlbert.VlBertRefcocoConfig(
            body=body, dropout=float(network.get("CLASSIFIER_DROPOUT", 0.0))
        )
    if task == "vcr":
        return vlbert.VlBertVcrConfig(
            body=body,
            dropout=float(network.get("CLASSIFIER_DROPOUT", 0.1)),
            category_dropout=float(network.get("CNN_REG_DROPOUT", 0.0)),
            **_classifier(network, "1fc", "2fc"),
        )
    return body


def _classifier(network: Mapping[str, Any], *kinds: str) -> dict[str, Any]:
    """Reads a task's classifier; the default is the first of ``kinds``."""
    kind = network.get("CLASSIFIER_TYPE", kinds[0])
    if kind not in kinds:
        raise ValueError(f"CLASSIFIER_TYPE={kind!r}: expected one of {', '.join(kinds)}")
    return {"classifier": kind, "classifier_width": network.get("CLASSIFIER_HIDDEN_SIZE", 1024)}


def _narrowed(config: Mapping[str, Any]) -> vlbert.VlBertEndToEndConfig:
    """Configures only the region network, with other widths, and the smallest VL-BERT on top."""
    for key, value in FIXED_REGIONS.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key}={config[key]!r}: only {value!r} is supported")
    rows, columns = config.get("roi_output", (14, 14))
    if rows != columns:
        raise ValueError(f"roi_output={config['roi_output']!r}: expected a square")
    cnn = vlbert.RegionCnnConfig(
        blocks=(*config["layer_blocks"], 3),
        widths=(*config["layer_planes"], config["head_planes"]),
        stem_channels=config["stem_channels"],
        stride_in_1x1=config["stride_in_1x1"],
        dilated=config["c5_dilated"],
        pool_size=rows,
    )
    model = vlbert.VlBertConfig(
        vocab_size=1,
        width=config["final_dim"],
        num_layers=1,
        num_heads=1,
        intermediate_width=1,
        num_positions=3,
        region_width=cnn.feature_width,
        num_region_classes=1,
        masked_region="pixels",
    )
    return vlbert.VlBertEndToEndConfig(model=model, cnn=cnn)


def build(config: vlbert.TaskConfig | vlbert.VlBertEndToEndConfig) -> nn.Module:
    """Builds the model that `configure` describes."""
    if isinstance(config, vlbert.VlBertEndToEndConfig):
        return build_end_to_end(config)
    return build_vlbert(config)


def links(model: nn.Module, prefix: str = "") -> list[Link]:
    """Links any of the models' tensors, ``prefix`` before all our names."""
    if isinstance(model, VlBertEndToEnd):
        return [*_cnn_links(model.cnn), *links(model.model, "model.")]
    if isinstance(model, VlBert):
        return [*_body_links(model, prefix, "vlbert"), *_pretraining_links(model, prefix)]
    if isinstance(model, VlBertVqa):
        return [
            *_body_links(model.body, f"{prefix}body.", "vlbert"),
            *_answer_links(model.config.classifier, prefix),
        ]
    if isinstance(model, VlBertRefcoco):
        return [
            *_body_links(model.body, f"{prefix}body.", "vlbert"),
            *link_module(f"{prefix}head.transform.dense", "final_mlp.0.dense"),
            *link_module(f"{prefix}head.decoder", "final_mlp.2"),
        ]
    assert isinstance(model, VlBertVcr)
    return [
        *_body_links(model.body, f"{prefix}body.", "vlbert._module"),
        *_choice_links(model.config.classifier, prefix),
        *link_module(f"{prefix}category_head.transform.dense", "cnn_loss_reg.0.dense"),
        *link_module(f"{prefix}category_head.decoder", "cnn_loss_reg.2"),
    ]


def _answer_links(classifier: str, prefix: str) -> list[Link]:
    """Links VQA's classifier: numbers are indices into the reference's sequence of layers."""
    if classifier == "1fc":
        return link_module(f"{prefix}head.decoder", "final_mlp.1")
    if classifier == "2fc":
        hidden = link_module(f"{prefix}head.transform.dense", "final_mlp.1")
        return [*hidden, *link_module(f"{prefix}head.decoder", "final_mlp.4")]
    return [
        *link_module(f"{prefix}head.transform.dense", "final_mlp.0.dense"),
        *link_module(f"{prefix}head.transform.norm", "final_mlp.0.LayerNorm"),
        *link_module(f"{prefix}head.decoder", "final_mlp.2"),
    ]


def _choice_links(classifier: str, prefix: str) -> list[Link]:
    """Links VCR's classifier."""
    if classifier == "1fc":
        return link_module(f"{prefix}answer_head", "final_mlp.1")
    hidden = link_module(f"{prefix}answer_hidden.dense", "final_mlp.1")
    return [*hidden, *link_module(f"{prefix}answer_head", "final_mlp.4")]


def _pretraining_links(model: VlBert, prefix: str) -> list[Link]:
    keymap = []
    if model.mlm_head is not None:
        keymap += mlm_head_links(f"{prefix}mlm_head", "vlbert.mlm_head.predictions")
    if model.class_head is not None:
        keymap += link_module(
            f"{prefix}class_head.transform.dense", "vlbert.mvrc_head.transform.dense"
        )
        keymap += link_module(f"{prefix}class_head.decoder", "vlbert.mvrc_head.region_cls_pred")
    if model.match_head is not None:
        keymap += link_module(
            f"{prefix}match_head", "vlbert.relationsip_head.caption_image_relationship"
        )  # spelled so
    return keymap


def _body_links(body: VlBertBody, prefix: str, encoder_name: str) -> list[Link]:
    """Links the body; ``encoder_name`` is the encoder's name in the reference."""
    tables = {
        "text_embedding.word": "word_embeddings",
        "text_embedding.position": "position_embeddings",
        "text_embedding.segment": "token_type_embeddings",
        "special_words": "special_word_embeddings",
        "end_token": "end_embedding",
    }
    single = {
        "region_token": "object_linguistic_embeddings",
        "masked_feature": "object_mask_visual_embedding",
        "masked_token": "object_mask_word_embedding",
        "text_only_vector": "aux_text_visual_embedding",
    }
    table_names = {o: f"{encoder_name}.{t}" for o, t in tables.items()} | single
    decoder = (f"{encoder_name}.mlm_head.predictions.decoder.weight",)
    has_decoder = isinstance(body, VlBert) and body.mlm_head is not None
    keymap = [
        Link(
            f"{prefix}{name}.weight",
            (f"{reference}.weight",),
            also=decoder if name == "text_embedding.word" and has_decoder else (),
        )
        for name, reference in table_names.items()
        if getattr(body, name.split(".")[0]) is not None
    ]
    keymap += link_module(f"{prefix}text_embedding.norm", f"{encoder_name}.embedding_LayerNorm")
    keymap += link_module(f"{prefix}region_vectors.projection", f"{EXTRACTOR}.obj_downsample.1")
    for name, kind in (("text_visual", "text"), ("region_visual", "object")):
        visual = getattr(body, name)
        if visual.projection is not None:
            keymap += link_module(f"{prefix}{name}.projection", f"{encoder_name}.visual_1x1_{kind}")
        if visual.norm is not None:
            keymap += link_module(f"{prefix}{name}.norm", f"{encoder_name}.visual_ln_{kind}")
        else:
            keymap.append(Link(f"{prefix}{name}.scale", (f"{encoder_name}.visual_scale_{kind}",)))
    for number in range(len(body.layers)):
        keymap += block_links(f"{prefix}layers.{number}", f"{encoder_name}.encoder.layer.{number}")
    if body.config.pooler:
        keymap += link_module(f"{prefix}pooler.dense", f"{encoder_name}.pooler.dense")
    return keymap


def _cnn_links(cnn: RegionCnn) -> list[Link]:
    """Links the region network to torchvision's names; the reference has two names for conv5."""
    keymap = []
    for name in cnn.state_dict():
        reference = torchvision_name(name)
        if reference.startswith("layer4."):
            block = reference.removeprefix("layer4.")
            first, again = (f"{EXTRACTOR}.{head}.{block}" for head in CONV5)
            keymap.append(Link(f"cnn.{name}", (first,), also=(again,)))
        else:
            keymap.append(Link(f"cnn.{name}", (f"{EXTRACTOR}.backbone.{reference}",)))
    return keymap


def prepare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds the prefixes of the full network if a part was saved separately."""
    if "word_embeddings.weight" in state:
        return {f"vlbert.{name}": tensor for name, tensor in state.items()}
    if "backbone.conv1.weight" in state:
        return {f"{EXTRACTOR}.{name}": tensor for name, tensor in state.items()}
    return state


VLBERT = Family(
    configs=(*get_args(vlbert.TaskConfig), vlbert.VlBertEndToEndConfig),
    configure=configure,
    build=build,
    links=links,
    prepare=prepare,
)

# --- a start from BERT ----------------------------------------------------------------------------

FIRST_WORDS = f"{names.WORDS}[:{NUM_SPECIAL_WORDS}]"
REPEATED = f"{names.SEGMENTS} x "
XAVIER = "Xavier's uniform distribution"
NEW_WEIGHTS = {
    VlBertBody: [("region_vectors.projection.*", names.PYTORCH)],
    VlBert: [("region_vectors.projection.*", names.PYTORCH)],
    VlBertEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertRefcocoEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertVcrEndToEnd: [("cnn.*", names.PYTORCH)],
    VlBertVqa: [("head.*", XAVIER)],
    VlBertRefcoco: [("head.*", XAVIER)],
    VlBertVcr: [("answer_*", XAVIER), ("category_head.*", XAVIER)],
}


def derive_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors that VL-BERT's code derives from BERT's, under descriptive names.

    They are the first rows of the word table, and RoBERTa's only segment repeated.
    """
    tensors = {FIRST_WORDS: state[names.WORDS][:NUM_SPECIAL_WORDS]} if names.WORDS in state else {}
    segments = state.get(names.SEGMENTS)
    if segments is not None and len(segments) == 1:
        tensors |= {f"{REPEATED}{count}": segments.expand(count, -1) for count in (2, 3)}
    return tensors


def body_links(body: VlBertBody, state: Mapping[str, Tensor]) -> list[Link]:
    """Links text embeddings with two of three segments, layers, and the pooler if used.

    The tensors of regions, [END] and segment C are new (arXiv:1908.08530, sec. 3.4, released code).
    RoBERTa's one segment serves for A and B, and in a task's model for C.
    """
    rows = 3 if type(body) is VlBertBody and f"{REPEATED}3" in state else 2
    fills_table = rows == body.config.num_segments
    keymap = names.text_embedding_links(segment_rows=None if fills_table else rows)
    if f"{REPEATED}{rows}" in state:
        keymap = [
            replace(link, references=(f"{REPEATED}{rows}",))
            if names.SEGMENTS in link.references
            else link
            for link in keymap
        ]
    return [
        *keymap,
        *names.layers_from_bert("layers", counts=[len(body.layers)]),
        *(link_module("pooler.dense", names.POOLER) if isinstance(body.pooler, Pooler) else []),
        *([Link("special_words.weight", (FIRST_WORDS,))] if body.special_words else []),
    ]


def vlbert_links(model: VlBert, state: Mapping[str, Tensor]) -> list[Link]:
    """Links the body, the word head, and for matching the next-sentence head."""
    return [
        *body_links(model, state),
        *(names.mlm_head_links() if model.mlm_head is not None else []),
        *(link_module("match_head", names.NEXT_SENTENCE) if model.match_head is not None else []),
    ]
