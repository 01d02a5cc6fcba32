"""Lists the networks that can encode full images, without loading one."""

from collections.abc import Sequence
from pathlib import Path

from vlmill.schemas.errors import InputError

# The width of the vector before the classifier. ImageBERT (arXiv:2001.07966, sec. 5.3) takes
# "DenseNet, ResNet, GoogleNet" without their depths; these are the choice made here.
NETWORKS = {"densenet121": 1024, "resnet152": 2048, "googlenet": 1024}


def parse_network_names(text: str, files: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the networks of ``--global-cnn``.

    Raises InputError for an unknown or repeated name, if the numbers of files and networks differ,
    and for a missing file.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in NETWORKS:
            raise InputError(f"--global-cnn {name}: no such network; give {', '.join(NETWORKS)}")
    if len(set(names)) < len(names):
        raise InputError(f"--global-cnn {text}: a network is named twice; name each once")
    if files is not None and len(files) != len(names):
        raise InputError(
            f"--global-weights: {len(files)} files for {len(names)} networks; give one for each of "
            f"{','.join(names)}, in this order"
        )
    for name, file in zip(names, files or (), strict=False):
        if not Path(file).is_file():
            raise InputError(f"--global-weights {file}: no such file; give torchvision's {name}")
    return names
