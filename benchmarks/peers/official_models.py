"""Runs the official repositories' own models on our batches, for comparison in one run.

Each takes a checkout of the repository, which nobody needs but whoever compares:

=========  =======================================  ========
vilbert    github.com/jiasenlu/vilbert_beta         f0c9a2b
vl-bert    github.com/jackroos/VL-BERT              4373674
interbert  github.com/black4321/InterBERT           7ccabb1
vlmo       github.com/microsoft/unilm, folder vlmo  768a3c8
=========  =======================================  ========

Their code runs unchanged. What they import for downloads, logging and distributed training is
absent here and gets empty stand-ins; none of it takes part in a step. Without apex ViLBERT's and
InterBERT's norms are seven operations each: with ``one_norm`` apex's place is taken by PyTorch's
norm in one, which computes the same.
"""

import argparse
import importlib
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from peers.works import PixelWork, RegionWork, mask_of
from torch import Tensor, nn


@contextmanager
def importing(root: Path, **stand_ins: dict[str, Any]) -> Iterator[None]:
    """Imports from ``root``, with modules of the given names and contents where none are."""
    for name, content in stand_ins.items():
        parts = name.split("__")
        for depth in range(1, len(parts) + 1):
            dotted = ".".join(parts[:depth])
            if dotted not in sys.modules:
                sys.modules[dotted] = types.ModuleType(dotted)
                sys.modules[dotted].__spec__ = ModuleSpec(dotted, None)
        vars(sys.modules[".".join(parts)]).update(content)
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))


DOWNLOADS: dict[str, dict[str, Any]] = {
    "boto3": {},
    "botocore__exceptions": {"ClientError": OSError},
    "tensorboardX": {"SummaryWriter": object},
}


class OneNorm(nn.LayerNorm):
    """PyTorch's norm with the default that these codes rely on; they ask whether a layer is one."""

    def __init__(self, size: int, eps: float = 1e-12) -> None:
        super().__init__(size, eps=eps)


# Under apex's name.
ONE_NORM: dict[str, dict[str, Any]] = {
    "apex__normalization__fused_layer_norm": {"FusedLayerNorm": OneNorm}
}
Step = Callable[[bool], None]
"""One forward pass over the work, with gradients if True."""


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """Forward and, if asked, backward of a loss."""

    def step(backward: bool) -> None:
        model.train(backward)
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(backward):
            total = loss()
            if backward:
                total.backward()  # type: ignore[no-untyped-call]

    return step


def vilbert_code(root: Path, *, one_norm: bool = True) -> tuple[Any, Any]:
    """Imports ViLBERT's networks, and its configuration with six co-attention layers."""
    with importing(root, **DOWNLOADS, **(ONE_NORM if one_norm else {})):
        code = importlib.import_module("vilbert.vilbert")
    return code, code.BertConfig.from_json_file(str(root / "config/bert_base_6layer_6conect.json"))


def interbert_code(root: Path, *, one_norm: bool = True) -> tuple[Any, Any]:
    """Imports InterBERT's networks, and its configuration in the released depth."""
    # The package's __init__ imports the data readers; only its two modules are needed.
    package = types.ModuleType("bertmodel")
    package.__path__ = [str(root / "bertmodel")]
    sys.modules["bertmodel"] = package
    with importing(root, **DOWNLOADS, **(ONE_NORM if one_norm else {})):
        code = importlib.import_module("bertmodel.modules")
    return code, code.BertConfig.from_json_file(
        str(root / "config/bert_base_6layer_interbert.json")
    )


def vilbert(root: Path, work: RegionWork, *, one_norm: bool = False) -> tuple[nn.Module, Step]:
    """Makes the model and the step of ViLBERT with six co-attention layers."""
    code, config = vilbert_code(root, one_norm=one_norm)
    model: nn.Module = code.BertForMultiModalPreTraining(config)
    return model, _two_streams(model, work)


def interbert(root: Path, work: RegionWork, *, one_norm: bool = False) -> tuple[nn.Module, Step]:
    """Makes the model and the step of InterBERT in its released depth."""
    code, config = interbert_code(root, one_norm=one_norm)
    model: nn.Module = code.InterBertForMultiModalPreTraining(config)
    return model, _two_streams(model, work)


def _two_streams(model: nn.Module, work: RegionWork) -> Step:
    batch, width = work.tokens.shape
    fields = {
        "input_ids": work.tokens,
        "image_feat": work.features,
        "image_loc": work.locations,
        "token_type_ids": torch.zeros_like(work.tokens),
        "attention_mask": mask_of(work.text_lengths, width).long(),
        "image_attention_mask": mask_of(work.region_lengths, work.features.shape[1]).long(),
        "masked_lm_labels": work.word_labels,
        "image_label": torch.where(work.masked_regions[:, 1:], 1, -1),
        "image_target": work.targets[:, 1:],
        "next_sentence_label": work.mismatched,
    }
    if "multimodal_mask" in model.forward.__code__.co_varnames:
        fields["multimodal_mask"] = torch.cat(
            [fields["image_attention_mask"], fields["attention_mask"]], dim=1
        )

    def loss() -> Any:
        return sum(part.sum() for part in model(**fields)[:3])

    assert batch == len(work.features)
    return step_of(model, loss)


class Attributes(dict[str, Any]):
    """Is a mapping whose keys are attributes too."""

    __getattr__ = dict.__getitem__

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        for key, value in (values or {}).items():
            self[key] = value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


# Settings, configuration and module of VL-BERT's pretraining on precomputed features.
VL_BERT_PRETRAINING = (
    "pretrain.function.config",
    "cfgs/pretrain/base_prec_withouttextonly_4x16G_fp32.yaml",
    "pretrain.modules.resnet_vlbert_for_pretraining",
)


def vl_bert_code(
    root: Path, settings: str, configuration: str, module: str, tokenizer: object = None
) -> tuple[Any, Attributes]:
    """Imports VL-BERT's ``module`` and its ``settings`` as a file of ``configuration`` has them."""
    stand_ins = DOWNLOADS | {"easydict": {"EasyDict": Attributes}}
    pooling: dict[str, dict[str, Any]] = {
        "roi_pool": {"ROIPool": nn.Identity},
        "roi_align": {"ROIAlign": lambda output_size, spatial_scale: nn.Identity()},
    }
    with importing(root, **stand_ins):
        importlib.import_module("common")
        sys.modules["common.lib.roi_pooling"] = types.ModuleType("roi_pooling")
        for name, content in pooling.items():
            stand_in = types.ModuleType(name)
            vars(stand_in).update(content)
            sys.modules[f"common.lib.roi_pooling.{name}"] = stand_in
        tokens = importlib.import_module("external.pytorch_pretrained_bert.tokenization")
        tokens.BertTokenizer.from_pretrained = classmethod(lambda cls, *a, **k: tokenizer)
        config = importlib.import_module(settings).config
        yaml = importlib.import_module("yaml")
        for part, values in yaml.safe_load((root / configuration).read_text())["NETWORK"].items():
            if isinstance(values, dict):
                config["NETWORK"][part].update(values)
            else:
                config["NETWORK"][part] = values
        return importlib.import_module(module), config


def vl_bert(root: Path, work: RegionWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of VL-BERT base on precomputed features, without text-only
    corpora.
    """
    code, config = vl_bert_code(root, *VL_BERT_PRETRAINING)
    model: nn.Module = code.ResNetVLBERTForPretraining(config)
    real = mask_of(work.text_lengths, work.tokens.shape[1])
    present = mask_of(work.region_lengths, work.features.shape[1])
    boxes = torch.cat([work.locations[..., :4] * 600.0, work.features], dim=-1)
    boxes = torch.where(present[..., None], boxes, -2.0)
    masked = work.masked_regions & present

    def loss() -> Any:
        return model(
            None,
            boxes.clone(),
            torch.full((len(boxes), 4), 600.0),
            torch.where(real, work.tokens.clamp(min=1), 0),
            work.mismatched,
            work.word_labels,
            masked.long(),
            work.targets * masked[..., None],
        )[1]

    return model, step_of(model, loss)


def vlmo(root: Path, work: PixelWork) -> tuple[nn.Module, Step]:
    """Makes the model and the step of VLMo-Base with its three pretraining losses; ``root`` is the
    folder ``vlmo``.
    """
    models: dict[str, Callable[..., nn.Module]] = {}

    class Lightning(nn.Module):
        """Answers what a step asks of the training framework: where it is, and to log."""

        device = torch.device("cpu")

        def save_hyperparameters(self) -> None:
            self.hparams = types.SimpleNamespace(config=sys._getframe(1).f_locals["config"])

        def log(self, *_: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            # Metrics that are logged: plain functions instead of modules that keep sums.
            if name.startswith(("train_", "val_")):
                return lambda *values: values[0]
            return super().__getattr__(name)

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        models[build.__name__] = build
        return build

    def create(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        return models[name](**{k: v for k, v in options.items() if v is not None})

    class DropPath(nn.Module):
        """Applies stochastic depth by sequences."""

        def __init__(self, rate: float | None = None) -> None:
            super().__init__()
            self.rate = rate or 0.0

        def forward(self, x: Tensor) -> Tensor:
            if not self.training or not self.rate:
                return x
            keep = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(1 - self.rate)
            return x * keep / (1 - self.rate)

    # The package's __init__ files pull in the data modules.
    for name in ("vlmo", "vlmo.modules"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    sys.modules["vlmo.modules.vlmo_utils"] = types.ModuleType("vlmo_utils")
    vars(sys.modules["vlmo.modules.vlmo_utils"])["set_metrics"] = lambda module: None
    vars(sys.modules["vlmo.modules"])["vlmo_utils"] = sys.modules["vlmo.modules.vlmo_utils"]
    stand_ins: dict[str, dict[str, Any]] = {
        "pytorch_lightning": {"LightningModule": Lightning},
        "pytorch_lightning__utilities__distributed": {"rank_zero_info": lambda *_: None},
        "einops": {"rearrange": None},
        "timm__models": {"create_model": create},
        "timm__models__layers": {
            "DropPath": DropPath,
            "to_2tuple": lambda x: (x, x),
            "trunc_normal_": nn.init.trunc_normal_,
        },
        "timm__models__registry": {"register_model": register},
    }
    with importing(root, **stand_ins):
        code = importlib.import_module("vlmo.modules.vlmo_module")
        tasks = {"mlm": 1, "itc": 1, "itm": 1, "textmlm": 0, "vqa": 0, "nlvr2": 0, "irtr": 0}
        model: nn.Module = code.VLMo(
            {
                "image_size": work.pixels.shape[-1],
                "model_arch": "vlmo_base_patch16",
                "drop_path_rate": 0.1,
                "vocab_size": 30522,
                "max_text_len": work.tokens.shape[1],
                "max_text_len_of_initckpt": 196,
                "loss_names": tasks,
                "load_path": "",
                "test_only": False,
            }
        )
    # A CPU has no index to be copied to; its name serves.
    torch.Tensor.get_device = lambda self: self.device  # type: ignore[assignment, return-value]
    model.current_tasks = ["mlm", "itc", "itm"]  # type: ignore[assignment]
    distributed = torch.distributed
    if not distributed.is_initialized():
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    batch = {
        "image": [work.pixels],
        "text_ids": work.tokens,
        "text_masks": mask_of(work.text_lengths, work.tokens.shape[1]).long(),
        "text_labels": torch.full_like(work.tokens, -100),
        "text_ids_mlm": work.masked_tokens,
        "text_labels_mlm": work.word_labels,
    }

    def loss() -> Any:
        return sum(value for key, value in model(batch).items() if key.endswith("_loss"))

    return model, step_of(model, loss)


PEERS: dict[str, Callable[..., tuple[nn.Module, Step]]] = {
    "vilbert": vilbert,
    "vl-bert": vl_bert,
    "interbert": interbert,
    "vlmo": vlmo,
}
# Whose norms apex would have computed.
WITH_APEX = ("vilbert", "interbert")


def add_official(parser: argparse.ArgumentParser, known: Collection[str]) -> None:
    """Adds ``--official``: checkouts of the official code of some of the ``known`` models."""

    def checkout(text: str) -> tuple[str, Path]:
        variant, _, folder = text.partition("=")
        if variant not in known or not Path(folder).is_dir():
            raise argparse.ArgumentTypeError(
                f"{text}: expected VARIANT=DIR with a variant of {', '.join(known)} and a "
                "checkout's folder"
            )
        return variant, Path(folder).resolve()

    about = "checkouts of the official code, to measure as well"
    parser.add_argument(
        "--official", nargs="*", type=checkout, default=[], metavar="VARIANT=DIR", help=about
    )
