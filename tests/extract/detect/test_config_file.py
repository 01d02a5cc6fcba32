"""Configuration files with their bases, and the network that weights and keys agree on."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vlmill.extract.cli import command
from vlmill.extract.detect.config_file import read_config_file
from vlmill.extract.detect.detector import open_detector
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import ANCHORS, published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.console.command import run_command
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError

# A C4 model of someone's own: RoIAlign, other anchors, one regression for all classes.
OWN = """
MODEL:
  RESNETS: {DEPTH: 50, STEM_OUT_CHANNELS: 4, RES2_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 2}
  ROI_HEADS: {NUM_CLASSES: 6}
  ROI_BOX_HEAD:
    POOLER_TYPE: ROIAlign
    POOLER_SAMPLING_RATIO: 2
    CLS_AGNOSTIC_BBOX_REG: True
  ANCHOR_GENERATOR: {SIZES: [[24, 48]], OFFSET: 0.5}
  RPN: {POST_NMS_TOPK_TEST: 20}
INPUT: {MIN_SIZE_TEST: 96, MAX_SIZE_TEST: 160}
"""
PORT = """
MODEL:
  META_ARCHITECTURE: GeneralizedBUARCNN
  BACKBONE: {NAME: build_bua_resnet_backbone}
  PROPOSAL_GENERATOR: {NAME: BUARPN, MIN_SIZE: 4}
  RPN: {HEAD_NAME: StandardBUARPNHead}
  ROI_HEADS: {NAME: BUACaffeRes5ROIHeads, NUM_CLASSES: 7}
  ROI_BOX_HEAD: {POOLER_TYPE: ROIPool, BBOX_REG_WEIGHTS: [1.0, 1.0, 1.0, 1.0]}
  ANCHOR_GENERATOR: {SIZES: [[4, 8]]}
  RESNETS: {NORM: BN, RES5_DILATION: 2, STEM_OUT_CHANNELS: 4, RES2_OUT_CHANNELS: 8,
            WIDTH_PER_GROUP: 2}
  BUA: {ATTRIBUTE_ON: True, ATTRIBUTE: {NUM_CLASSES: 5}, RPN: {CONV_OUT_CHANNELS: 9}}
"""


def written(folder: Path, text: str, name: str = "c.yaml") -> Path:
    """A configuration file."""
    (folder / name).write_text(text)
    return folder / name


def weights_of(config: DetectorConfig, path: Path, *, anchors: bool = False) -> Path:
    """Random weights as the family publishes them."""
    model = FasterRCNN(config)
    randomise(model, 1)
    state = {published_name(k, config.family): v for k, v in model.state_dict().items()}
    if not anchors:
        del state[ANCHORS]
    save_file(state, path)
    return path


def own_model(folder: Path, text: str = OWN) -> tuple[Path, Path]:
    """A configuration and weights that fit it."""
    path = written(folder, text)
    config = read_config_file(path).configuration().config
    return path, weights_of(config, folder / "w.safetensors")


def test_a_file_counts_over_its_bases(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    written(tmp_path, "MODEL: {RPN: {NMS_THRESH: 0.6}, MASK_ON: False}\nVERSION: 2", "base.yaml")
    written(tmp_path, "_BASE_: ../base.yaml\nMODEL: {RPN: {NMS_THRESH: 0.5}}", "zoo/mid.yml")
    path = written(tmp_path, "_BASE_: [base.yaml, zoo/mid.yml]\nMODEL:\n  RESNETS: {DEPTH: 101}")
    file = read_config_file(path)
    config = file.configuration().config
    assert (config.rpn_nms_threshold, config.depth) == (0.5, 101)
    assert file.locations["MODEL.MASK_ON"] == f"{tmp_path}/zoo/../base.yaml:1"
    assert file.locations["MODEL.RESNETS.DEPTH"] == f"{path}:3"
    before = file.digest
    written(tmp_path, "MODEL: {RPN: {NMS_THRESH: 0.6}, MASK_ON: False}", "base.yaml")
    assert read_config_file(path).digest != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_BASE_: c.yaml", r"_BASE_ refers to itself \(c.yaml -> c.yaml\)"),
        ("_BASE_: none.yaml", r"none.yaml: no such .yaml file \(_BASE_ of .*c.yaml\)"),
        ("_BASE_: /etc/passwd", "/etc/passwd: no such .yaml file"),
        ("_BASE_: https://host/x.yaml", "c.yaml:1: _BASE_ is 'https://host/x.yaml'; expected"),
        ("_BASE_: 3", "_BASE_ is 3; expected the path of a file"),
        ("_BASE_: " + "x" * 4000 + ".yaml", "cannot be read|no such .yaml file"),
        ("- 1", "has no keys"),
        ("", "has no keys"),
        ("MODEL: {A: 1\n", r"c.yaml:\d: invalid YAML"),
        ("MODEL: &m [!!python/name:os.system ]", "the tag '!!python/name:os.system'"),
        ("MODEL:\n  RPN: {NMS_THRESH: 2}", "c.yaml:2: MODEL.RPN.NMS_THRESH is 2; expected a numb"),
        ("MODEL: {RPN: 3}", "c.yaml:1: MODEL.RPN is 3; expected a key"),
        ("MODEL: {RPN: }", "MODEL.RPN is None"),
        ("learning_rate: 3", "is not a detector configuration"),
        (PORT.replace("GeneralizedBUARCNN", "GeneralizedRCNN"), "the port's Caffe mode"),
        (
            "MODEL: {BUA: {CAFFE: True}}",
            r"c.yaml \(which does not set it\): " r"MODEL.META_ARCHITECTURE",
        ),
    ],
)
def test_a_bad_file_is_one_line_and_nothing_is_written(
    text: str,
    message: str,
    tmp_path: Path,
    jpeg: Callable[[int], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    path = written(tmp_path, text)
    arguments = ["run", str(tmp_path / "a.jpg"), "--output", str(tmp_path / "o")]
    status = run_command(command, [*arguments, "--config", str(path)])
    error = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and not (tmp_path / "o").exists()
    assert error.startswith("error: --config ") and re.search(message, error), error


def test_too_many_bases_and_bytes(tmp_path: Path) -> None:
    for number in range(20):
        written(tmp_path, f"_BASE_: {number + 1}.yaml", f"{number}.yaml")
    with pytest.raises(InputError, match="over 16 files through _BASE_"):
        read_config_file(tmp_path / "0.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 19))
    with pytest.raises(InputError, match="over 262144 bytes"):
        read_config_file(tmp_path / "big.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(InputError, match="cannot be read"):
        read_config_file(tmp_path / "latin.yaml")


def test_the_command_runs_a_model_of_someones_own(
    tmp_path: Path, jpeg: Callable[[int], bytes]
) -> None:
    """The output says with which configuration it was made."""
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    path, weights = own_model(tmp_path)
    arguments = ["run", str(tmp_path / "a.jpg"), "--output", str(tmp_path / "o")]
    arguments += ["--max-boxes", "9", "--weights", str(weights), "--config", str(path)]
    assert command(arguments) == 0
    producer = RegionReader(tmp_path / "o").producer
    assert producer["config"] == "c.yaml"
    assert producer["config_sha256"] == read_config_file(path).digest
    assert producer["detector"]["pooling"] == "align-legacy"
    assert producer["detector"]["anchor_offset"] == 0.5
    with pytest.raises(InputError, match="--arch r50: --config already defines it"):
        command([*arguments, "--fresh", "--arch", "r50"])


def test_the_ports_anchors_are_those_of_its_weights(tmp_path: Path) -> None:
    path = written(tmp_path, PORT)
    config = read_config_file(path).configuration().config
    assert config.anchor_layout == "legacy" and config.anchor_scales == (4.0, 8.0)
    plain = open_detector(None, weights_of(config, tmp_path / "w.pt.safetensors"), config_file=path)
    assert plain.model.config.cell_anchors is None
    model = FasterRCNN(config)
    randomise(model, 1)
    state = {published_name(k, config.family): v for k, v in model.state_dict().items()}
    state[ANCHORS] = state[ANCHORS] + 0.25
    save_file(state, tmp_path / "moved.safetensors")
    moved = open_detector(None, tmp_path / "moved.safetensors", config_file=path).model
    assert isinstance(moved, FasterRCNN) and moved.config.cell_anchors is not None
    own = moved.proposal_generator.anchor_generator.cell_anchors.get_buffer("0")
    assert torch.equal(own, state[ANCHORS])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NUM_CLASSES: 6", "NUM_CLASSES: 80", "NUM_CLASSES is 80; expected num_classes 6, as"),
        ("DEPTH: 50", "DEPTH: 101", "DEPTH is 101; expected depth 50"),
        ("AGNOSTIC_BBOX_REG: True", "AGNOSTIC_BBOX_REG: False", "expected 1 regressed boxes"),
        ("[[24, 48]]", "[[24, 48, 96]]", "SIZES is .*; expected 6 anchors"),
        ("WIDTH_PER_GROUP: 2", "WIDTH_PER_GROUP: 4", "WIDTH_PER_GROUP is 4; expected res2_width 2"),
        ("RPN: {", "RPN: {CONV_DIMS: [7], ", "CONV_DIMS is .*; expected rpn_channels 32"),
    ],
)
def test_sizes_that_contradict_the_weights(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path, weights = own_model(tmp_path)
    written(tmp_path, OWN.replace(old, new))
    with pytest.raises(InputError, match=rf"^--config \S*c.yaml:\d+: MODEL.*{message}.*--weights "):
        open_detector(None, weights, config_file=path)


def test_weights_that_carry_other_anchors_or_pixels_than_detectron2s_keys(tmp_path: Path) -> None:
    path, _ = own_model(tmp_path)
    config = read_config_file(path).configuration().config
    good = weights_of(config, tmp_path / "good.safetensors", anchors=True)
    assert open_detector(None, good, config_file=path).model.config.cell_anchors is None
    written(tmp_path, OWN.replace("[[24, 48]]", "[[24, 49]]"))
    with pytest.raises(InputError, match=r"SIZES is .*; expected the anchors of the weights"):
        open_detector(None, good, config_file=path)
    model = FasterRCNN(config)
    randomise(model, 1)
    state = model.state_dict() | {"pixel_mean": torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)}
    save_file(state, tmp_path / "old.safetensors")
    written(tmp_path, OWN)
    with pytest.raises(InputError, match=r"PIXEL_MEAN is .*; expected .1.0, 2.0, 3.0., as"):
        open_detector(None, tmp_path / "old.safetensors", config_file=path)


def test_attributes_that_the_weights_lack_and_another_resnet(tmp_path: Path) -> None:
    path = written(tmp_path, PORT)
    config = read_config_file(path).configuration().config
    weights = weights_of(config, tmp_path / "w.safetensors")
    written(tmp_path, PORT.replace("ATTRIBUTE_ON: True", "ATTRIBUTE_ON: False"))
    with pytest.raises(InputError, match="NUM_CLASSES is 5; expected num_attributes 4"):
        open_detector(None, weights, config_file=path)
    written(tmp_path, PORT.replace("BUA: {", "BUA: {RESNET_VERSION: 2, "))
    with pytest.raises(InputError, match="RESNET_VERSION is 2; expected the other"):
        open_detector(None, weights, config_file=path)
