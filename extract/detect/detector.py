"""Opens detectors with random or loaded weights, and computes their fingerprints."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vlmill.extract.config import saved_folder
from vlmill.extract.detect.checkpoint import CAFFEMODEL, read_checkpoint, read_saved
from vlmill.extract.detect.config_file import ConfigFile, read_config_file
from vlmill.extract.detect.names import NO_NAMES, DetectorNames, known_names, own_names
from vlmill.extract.image_level.networks import FullImages
from vlmill.extract.weights import resolve_weights
from vlmill.models.convert.foreign import describe_foreign
from vlmill.models.detector.config import ARCHITECTURES, DEFAULT_ARCH, DetectorConfig, as_grid
from vlmill.models.detector.faster_rcnn import DetectorNetwork, FasterRCNN
from vlmill.models.detector.fused_stages import fuse_stages
from vlmill.models.detector.keys import WrongKey
from vlmill.models.detector.published import (
    config_of_weights,
    find_later_heads,
    fit_configuration,
    load_published,
)
from vlmill.models.detector.random_weights import randomise
from vlmill.models.detector.resnet import fold_norms
from vlmill.schemas.errors import InputError

DESCRIBED_BY = {"res5": "res5", "fc1": "the first linear layer", "fc2": "the second linear layer"}
# Fields of a configuration that version 0.1.0 lacked.
ADDED_FIELDS = frozenset(
    (
        *("groups", "fpn_channels", "fc_channels", "truncated_sides", "size_divisibility"),
        *("last_stage", "deformable_stages", "nms_offset", "decoded_offset", "clipped_to"),
        *("map_nms_top", "regions", "feature_layer", "level_eps", "attribute_boxes"),
        *("given_scale", "clips_written", "candidate_share", "pair_order", "background_counts"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Detector:
    """Holds a network in evaluation mode on its device, and its identification."""

    model: DetectorNetwork
    fingerprint: str
    weights: str  # the file's name, or "random weights, seed S"
    device: torch.device
    # The metadata's record of the configuration file, if there was one.
    config_record: Mapping[str, str] = field(default_factory=dict)
    global_networks: FullImages | None = None  # networks that encode full images
    names: DetectorNames = NO_NAMES
    left_out: tuple[str, ...] = ()  # heads of the file that regions do not use

    @property
    def identity(self) -> tuple[str, ...]:
        """Returns the fingerprint, and the digests of the additional networks."""
        networks = () if self.global_networks is None else self.global_networks.networks
        return (self.fingerprint, *(network.digest for network in networks))

    @property
    def summary(self) -> str:
        """Returns the family, the ResNet and the sizes of the outputs, in one line for people."""
        config = self.model.config
        body = f"ResNeXt-{config.depth} of {config.groups} groups"
        parts = [
            f"{self.weights}: a detector of the family {config.family}",
            body if config.groups > 1 else f"ResNet-{config.depth}",
            f"{config.feature_size} features of {DESCRIBED_BY[config.feature_layer]}",
        ]
        if config.regions == "grid":
            return ", ".join([*parts[:2], f"{config.feature_size} features of each cell of C5"])
        parts.append(f"{config.num_classes} classes")
        if config.num_attributes:
            parts.append(f"{config.num_attributes} attributes")
        parts += [f"the {head} is not used" for head in self.left_out]
        return ", ".join(parts)


def open_detector(
    config: DetectorConfig | None,
    weights: str | Path | None,
    *,
    config_file: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    changes: Mapping[str, Any] | None = None,
    grid: bool = False,
    folded: bool = True,
) -> Detector:
    """Builds a detector with a file's weights, or with random ones.

    ``config_file`` is another project's configuration and replaces ``config``. Without both, the
    layout of the weights gives the conventions and their shapes the sizes, with ``changes`` to
    single fields; without weights too, it is the default architecture. ``grid`` makes the cells of
    res5 over the full image the regions. ``folded`` moves normalisations into convolutions, which
    is faster and rounds differently; without it the arithmetic is the published code's, operation
    by operation. Raises InputError for a file that cannot be read or does not fit, and for a device
    that is not available.
    """
    target = usable_device(device)
    if weights is not None:
        files = resolve_weights(weights)
        weights = files.weights
        if config is None and config_file is None:
            config_file = files.config
    configured = None if config_file is None else read_config_file(config_file)
    if grid and config is not None:
        config = as_grid(config)
    if weights is None:
        if configured is not None:
            config = configured.configuration(grid=grid).config
        if config is None:
            config = as_grid(ARCHITECTURES[DEFAULT_ARCH]) if grid else ARCHITECTURES[DEFAULT_ARCH]
        model = FasterRCNN(dataclasses.replace(config, **changes or {}))
        randomise(model, seed)
        source = f"random weights, seed {seed}"
        loaded = LoadedDetector(model=model)
    else:
        loaded = load_detector(configured or config, Path(weights), changes or {}, grid=grid)
        model, source = loaded.model, Path(weights).name
    model.requires_grad_(False).eval()
    fingerprint = compute_fingerprint(model)
    model = model.to(target)
    if folded:
        fold_norms(model)
        fuse_stages(model)
        # Channels last with folded norms: 3.5 times less CPU time for the tiny network, 1.6 for
        # the backbone of R-101.
        model = model.to(memory_format=torch.channels_last)
    return Detector(
        model=model,
        fingerprint=fingerprint,
        weights=source,
        device=target,
        config_record={} if configured is None else configured.record(),
        names=loaded.names,
        left_out=loaded.left_out,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedDetector:
    """Holds the network of a file, its names, and the omitted heads."""

    model: FasterRCNN
    names: DetectorNames = NO_NAMES
    left_out: tuple[str, ...] = ()


def load_detector(
    config: DetectorConfig | ConfigFile | None,
    path: Path,
    changes: Mapping[str, Any],
    *,
    grid: bool = False,
) -> LoadedDetector:
    """Loads the network of a file, configured by a configuration file or by the weights."""
    folder = saved_folder(path)
    if folder is not None:
        if config is not None:
            raise InputError(
                f"--weights {path}: a trained detector records its configuration; remove --arch "
                "and --config"
            )
        saved = read_saved(folder)
        spec = as_grid(saved.inference) if grid else saved.inference
        model = FasterRCNN(dataclasses.replace(spec, **changes))
        load_published(model, saved.weights)
        return LoadedDetector(model=model, names=own_names(saved.classes, saved.attributes))
    configuration = config.configuration(grid=grid) if isinstance(config, ConfigFile) else None
    state = read_checkpoint(path)
    remedy = "give no --arch to take sizes and conventions from the file"
    try:
        if configuration is not None:
            remedy = "give the configuration that they were trained with"
            spec = fit_configuration(configuration, state)
        elif config is None:
            remedy = "give a published detector, or the --arch or --config that it was trained with"
            layout = "caffe" if path.suffix == CAFFEMODEL else None  # read with milvlg's names
            spec = config_of_weights(state, layout=layout, grid=grid, **changes)
        else:
            assert isinstance(config, DetectorConfig)
            spec = config
        model = FasterRCNN(dataclasses.replace(spec, **changes))
        load_published(model, state)
    except WrongKey as error:
        assert isinstance(config, ConfigFile)
        raise config.make_error(error, f"give the configuration of --weights {path}") from None
    except ValueError as error:
        foreign = describe_foreign(state)
        raise InputError(f"--weights {path}: {error}{foreign or f'; {remedy}'}") from None
    left_out = () if grid else find_later_heads(state)
    return LoadedDetector(model=model, names=known_names(model.config), left_out=left_out)


def usable_device(name: str) -> torch.device:
    """Returns the device ``name`` after a test computation."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name}: {reason}; give cpu, or an available device") from None
    return device


def identifying_fields(config: DetectorConfig) -> dict[str, Any]:
    """Returns the fields of a configuration for the fingerprint.

    Fields that later versions added are included only if they differ from the earlier behaviour, so
    a detector keeps the fingerprint of its tables.
    """
    before = dataclasses.asdict(DetectorConfig())
    return {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in ADDED_FIELDS or value != before[name]
    }


def compute_fingerprint(model: DetectorNetwork) -> str:
    """Returns 32 hexadecimal digits over the conventions and every number of the weights."""
    digest = hashlib.sha256()
    digest.update(json.dumps(identifying_fields(model.config), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
