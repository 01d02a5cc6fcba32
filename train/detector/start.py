"""Initialises a training: from new layers, an ImageNet ResNet, or a detector of other classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from vlmill.extract.config import saved_folder
from vlmill.extract.detect.checkpoint import read_checkpoint, read_saved
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import config_of_weights
from vlmill.models.detector.published_names import ANCHORS, published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.models.detector.resnet import FrozenBatchNorm
from vlmill.models.vlbert.backbone import CONVENTIONS, NAMES, recognise_backbone, with_statistics
from vlmill.schemas.errors import InputError
from vlmill.train.detector.losses import class_outputs
from vlmill.train.detector.settings import TrainingSettings

PREDICTOR = "roi_heads.box_predictor."
HEADS = ("proposal_generator.rpn_head.", PREDICTOR)
CLASS_ROWS = ("cls_score", "bbox_pred", "cls_embed")  # with a row (or four) for each class
ATTRIBUTE_ROWS = "attr_linear2"
COUNTERS = "num_batches_tracked"


@dataclass(kw_only=True)
class TensorOrigins:
    """Describes the origin of the network's tensors, for the user to read."""

    loaded_names: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)  # rows that were copied by their names

    def lines(self) -> list[str]:
        """Returns the lines to print: the counts, and the names of new tensors."""
        messages = [f"{len(self.loaded_names)} tensors taken, {len(self.new)} new"]
        if self.new:
            messages.append(f"new: {', '.join(sorted(self.new))}")
        messages += [f"{name}: {rows} rows by their names" for name, rows in self.by_name.items()]
        return messages


@dataclass(frozen=True, kw_only=True)
class Names:
    """Holds the names of a detector's classes and attributes; none where they are not known."""

    classes: Sequence[str] = ()
    attributes: Sequence[str] = ()


@torch.no_grad()
def new_model(settings: TrainingSettings) -> FasterRCNN:
    """Builds the network with random weights from the seed: the body as in He et al. 2015, the
    heads as in the recipe's code.
    """
    model = FasterRCNN(settings.detector)
    randomise(model, settings.seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # it learns its own scales
            module.weight.fill_(1.0)
        elif isinstance(module, FrozenBatchNorm) and settings.detector.batch_norm == "frozen":
            continue  # scales that keep the activations of random weights in range
    new_heads(model, settings)
    return model


@torch.no_grad()
def new_heads(model: FasterRCNN, settings: TrainingSettings) -> None:
    """Initialises the heads as the recipe's code does (``new_layers``), from the seed.

    Detectron2: N(0, 0.01), N(0, 0.001) for boxes; MILVLG's attribute head as PyTorch initialises
    its layers, N(0, 1) for the embedding, but N(0, 0.01) for the last one. Caffe: N(0, 0.01).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    caffe = settings.new_layers == "caffe"
    for name, parameter in model.named_parameters():
        if not name.startswith(HEADS):
            continue
        drawn = torch.randn(parameter.shape, generator=generator)
        layer = name.split(".")[-2]
        if name.endswith(".bias"):
            parameter.zero_()
        elif caffe or layer not in ("bbox_pred", "cls_embed", "attr_linear1"):
            parameter.copy_(0.01 * drawn)
        elif layer == "attr_linear1":  # the deviation of PyTorch's uniform numbers
            parameter.copy_(drawn * (3 * parameter.shape[1]) ** -0.5)
        else:
            parameter.copy_(drawn * (0.001 if layer == "bbox_pred" else 1.0))


def start_from(model: FasterRCNN, path: Path, names: Names) -> TensorOrigins:
    """Loads the fitting weights of a ResNet or a detector. Raises InputError for a file of neither.

    From a detector everything except the rows of classes and attributes is copied; these are copied
    by their names if both vocabularies are known.
    """
    folder = saved_folder(path)
    if folder is not None:
        saved = read_saved(folder, "--init")
        saved_names = Names(classes=saved.classes, attributes=saved.attributes)
        return load_detector_weights(model, saved.weights, saved.config, (saved_names, names), path)
    state = read_checkpoint(path, "--init")
    try:
        layout = recognise_backbone(state)
        if layout == "detector":
            config = config_of_weights(state)
    except ValueError as error:
        raise InputError(f"--init {path}: {error}; give a ResNet or a detector") from None
    if layout == "detector":
        return load_detector_weights(model, state, config, (Names(), names), path)
    return load_resnet_weights(model, state, layout, path)


def load_resnet_weights(
    model: FasterRCNN, state: Mapping[str, Tensor], layout: str, path: Path
) -> TensorOrigins:
    """Loads the body of an ImageNet ResNet, whose pixels and strides have to be the network's."""
    require_conventions(model.config, layout, path)
    if layout == "msra":
        state = with_statistics(state)
    body = {
        name: name.removeprefix("backbone.")
        for name in model.backbone.state_dict(prefix="backbone.")
    }
    res5 = model.roi_heads.res5.state_dict(prefix="roi_heads.res5.")  # of a C4 model
    body |= {name: name.removeprefix("roi_heads.") for name in res5}
    published_names = {parameter: NAMES[layout](body_name) for parameter, body_name in body.items()}
    return load_tensors(
        model,
        {parameter: state[name] for parameter, name in published_names.items() if name in state},
        path,
    )


def require_conventions(config: DetectorConfig, layout: str, path: Path) -> None:
    """Raises InputError, with the fields to set, where a ResNet was trained on other pixels."""
    conventions = CONVENTIONS["torchvision" if layout == "torchvision" else "released"]
    expected: dict[str, object] = {
        "stride_in_1x1": conventions.stride_in_1x1,
        "channel_order": conventions.channel_order,
    }
    if layout == "torchvision":  # MSRA's mean is written with more or fewer digits
        expected |= {"pixel_mean": conventions.pixel_mean, "pixel_std": conventions.pixel_std}
    other = {name: value for name, value in expected.items() if getattr(config, name) != value}
    if other:
        fields = [f"detector.{name}={format_value(value)}" for name, value in other.items()]
        raise InputError(
            f"--init {path}: a ResNet of the layout {layout}, which was trained with "
            f"other pixel values or strides than the recipe uses; add {' '.join(fields)}"
        )


def format_value(value: object) -> str:
    """Returns a field's value as written on the command line."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower()


def load_detector_weights(
    model: FasterRCNN,
    state: Mapping[str, Tensor],
    config: DetectorConfig,
    names: tuple[Names, Names],
    path: Path,
) -> TensorOrigins:
    """Loads a detector's body and heads; rows of classes and attributes by their names."""
    model_state = model.state_dict()
    there = {
        name: state[state_name]
        for name in model_state
        if (state_name := published_name(name, config.family)) in state and name != ANCHORS
    }
    same_classes = config.num_classes == model.config.num_classes
    known = bool(names[0].classes and names[1].classes)
    origins_by_name: dict[str, int] = {}
    for name in [n for n in there if n.startswith(PREDICTOR)]:
        layer = name.split(".")[-2]
        rows = None
        if layer in CLASS_ROWS and (known or not same_classes):
            rows = class_rows(names, config, model.config) if known else {}
        elif layer == ATTRIBUTE_ROWS and (
            known or config.num_attribute_outputs != model.config.num_attribute_outputs
        ):
            rows = attribute_rows(names, config, model.config) if known else {}
        if rows is not None:
            merged_rows = merge_rows(model_state[name], there[name], rows, layer)
            if merged_rows is None:
                del there[name]
            else:
                there[name] = merged_rows
                origins_by_name[layer] = len(rows)
    origins = load_tensors(model, there, path)
    origins.by_name = origins_by_name
    return origins


def class_rows(
    names: tuple[Names, Names], old_config: DetectorConfig, new_config: DetectorConfig
) -> dict[int, int]:
    """Returns their class output for each of our classes that both have, background included."""
    pairs = match_names(names[0].classes, names[1].classes)
    pairs.append((old_config.num_classes, new_config.num_classes))
    old, new = (torch.tensor([pair[side] for pair in pairs]) for side in (0, 1))
    return dict(
        zip(
            class_outputs(new, new_config).tolist(),
            class_outputs(old, old_config).tolist(),
            strict=True,
        )
    )


def attribute_rows(
    names: tuple[Names, Names], old_config: DetectorConfig, new_config: DetectorConfig
) -> dict[int, int]:
    """Returns their attribute output for each of our attributes that both have."""
    shifts = [int(config.attribute_background is True) for config in (old_config, new_config)]
    pairs = match_names(names[0].attributes, names[1].attributes)
    return {new + shifts[1]: old + shifts[0] for old, new in pairs}


def match_names(old_names: Sequence[str], new_names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns their number and ours for names that both have, by our first synonym that they
    have.
    """
    numbers_by_name: dict[str, int] = {}
    for number, line in enumerate(old_names):
        for name in line.split(","):
            numbers_by_name.setdefault(name.strip(), number)
    pairs = []
    for number, line in enumerate(new_names):
        known = [
            numbers_by_name[name.strip()]
            for name in line.split(",")
            if name.strip() in numbers_by_name
        ]
        pairs += [(known[0], number)] if known else []
    return pairs


def merge_rows(
    new_tensor: Tensor, old_tensor: Tensor, rows: Mapping[int, int], layer: str
) -> Tensor | None:
    """Returns our tensor with rows of theirs; None without matching rows or for other shapes."""
    width = 4 if layer == "bbox_pred" else 1
    if not rows or new_tensor.shape[1:] != old_tensor.shape[1:]:
        return None
    if width == 4 and (
        len(new_tensor) == 4 or len(old_tensor) == 4
    ):  # one regression for all classes
        return old_tensor if new_tensor.shape == old_tensor.shape else None
    mixed = new_tensor.clone().reshape(-1, width, *new_tensor.shape[1:])
    old_rows = old_tensor.reshape(-1, width, *old_tensor.shape[1:])
    for new, old in rows.items():
        # Without a regression of background, no row of the boxes belongs to it.
        if new < len(mixed) and old < len(old_rows):
            mixed[new] = old_rows[old].to(mixed.dtype)
    return mixed.reshape(new_tensor.shape)


def load_tensors(model: FasterRCNN, tensors: Mapping[str, Tensor], path: Path) -> TensorOrigins:
    """Loads tensors by our names; the others stay new. Raises InputError for a body that lacks
    tensors or differs.
    """
    model_state = {name: t for name, t in model.state_dict().items() if not name.endswith(COUNTERS)}
    fitting = {
        name: t
        for name, t in tensors.items()
        if name in model_state and t.shape == model_state[name].shape
    }
    body = [name for name in model_state if not name.startswith((*HEADS, "proposal_generator."))]
    if lacking := [name for name in body if name not in fitting]:
        first = lacking[0]
        shape = tuple(tensors[first].shape) if first in tensors else "missing"
        raise InputError(
            f"--init {path}: {first} is {shape}, expected {tuple(model_state[first].shape)}"
            f" ({len(lacking)} tensors of the body do not fit); give a ResNet-{model.config.depth} "
            "of the recipe's widths"
        )
    model.load_state_dict(fitting, strict=False)
    heads = [name for name in model_state if name != ANCHORS]
    return TensorOrigins(
        loaded_names=[name for name in heads if name in fitting],
        new=[name for name in heads if name not in fitting],
    )
