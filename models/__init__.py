"""Defines the networks: the transformer core, the variants based on it, and the detector.

Each paper has a folder with its row, configuration, model, tasks and published names: ``bert``,
``vilbert``, ``vlbert``, ``imagebert``, ``interbert``, ``vlmo`` and ``beit``. They are built from
``layers`` (``layers/cpu`` and ``layers/gpu`` compute the same numbers faster on these devices;
``probes`` checks whether kernels can be compiled, and which private functions of PyTorch work),
read ``inputs`` and return ``outputs``. ``positions`` marks which positions are real;
``config_checks`` refuses invalid configurations. ``rows`` defines the fields of a row, and
``registry`` lists models and sizes. ``detector`` is the Faster R-CNN; ``published`` loads and
exports checkpoints, which ``convert`` reads and writes; ``from_bert`` and ``from_beit`` (also from
a ViT) start a variant from another's weights. Read ``inputs``, ``layers/blocks`` and then
``imagebert/model``. Names that need torch are imported on first use.
"""

from typing import TYPE_CHECKING

from vlmill.models.registry import MODELS, PRESETS, VARIANTS, preset
from vlmill.models.rows import Variant

if TYPE_CHECKING:
    from vlmill.models.inputs import PixelInputs, VLInputs
    from vlmill.models.published import export_reference, load_reference, read_reference

__all__ = [
    "MODELS",
    "PRESETS",
    "VARIANTS",
    "PixelInputs",
    "VLInputs",
    "Variant",
    "export_reference",
    "load_reference",
    "preset",
    "read_reference",
]

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        """Imports a name that needs torch on first use. Importing the package does not import
        torch.
        """
        if name in ("PixelInputs", "VLInputs"):
            from vlmill.models import inputs as home
        elif name.endswith("_reference") and name in __all__:
            from vlmill.models import published as home
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(home, name)
