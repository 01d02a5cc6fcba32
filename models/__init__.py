"""This folder holds networks: the transformer core, the variants on it, and the detector.

Each paper has a folder with its configuration, model, tasks and published names: ``bert``,
``vilbert``, ``vlbert``, ``imagebert``, ``interbert``, ``vlmo`` and ``beit``. They are built from
``layers`` (``layers/cpu`` and ``layers/gpu`` hold the same numbers faster there; ``gpu_compiler``
says whether kernels can be compiled), read ``inputs`` and give ``outputs``; ``positions`` says
which of them are real; ``checks`` and ``config_checks`` refuse what does not fit; ``probes`` finds
out which private functions of PyTorch work. ``registry`` names models and sizes. ``detector`` is
the Faster R-CNN; ``published`` loads and exports checkpoints, which ``convert`` reads and writes;
``from_bert``, ``from_beit`` and ``from_vit`` start a variant from another's weights. Read
``inputs``, ``layers/blocks`` and then ``imagebert/model``.
What this page offers is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlmill.models.beit.config import BeitConfig
    from vlmill.models.beit.model import Beit
    from vlmill.models.bert.config import BertConfig
    from vlmill.models.bert.model import Bert
    from vlmill.models.imagebert.config import ImageBertConfig
    from vlmill.models.imagebert.model import ImageBert
    from vlmill.models.inputs import PixelInputs, VLInputs
    from vlmill.models.interbert.config import InterBertConfig
    from vlmill.models.interbert.model import InterBert
    from vlmill.models.published import export_reference, load_reference, read_reference
    from vlmill.models.registry import MODELS, PRESETS, VARIANTS, Variant, preset
    from vlmill.models.vilbert.config import SingleStreamConfig, VilbertConfig
    from vlmill.models.vilbert.model import Vilbert
    from vlmill.models.vilbert.single_stream import SingleStream
    from vlmill.models.vlbert.config import VlBertConfig, VlBertEndToEndConfig
    from vlmill.models.vlbert.end_to_end import VlBertEndToEnd
    from vlmill.models.vlbert.model import VlBert
    from vlmill.models.vlmo.config import VlmoConfig
    from vlmill.models.vlmo.model import Vlmo

_HOMES = {
    "MODELS": "registry",
    "PRESETS": "registry",
    "VARIANTS": "registry",
    "Beit": "beit.model",
    "BeitConfig": "beit.config",
    "Bert": "bert.model",
    "BertConfig": "bert.config",
    "ImageBert": "imagebert.model",
    "ImageBertConfig": "imagebert.config",
    "InterBert": "interbert.model",
    "InterBertConfig": "interbert.config",
    "PixelInputs": "inputs",
    "SingleStream": "vilbert.single_stream",
    "SingleStreamConfig": "vilbert.config",
    "VLInputs": "inputs",
    "Variant": "registry",
    "Vilbert": "vilbert.model",
    "VilbertConfig": "vilbert.config",
    "VlBert": "vlbert.model",
    "VlBertConfig": "vlbert.config",
    "VlBertEndToEnd": "vlbert.end_to_end",
    "VlBertEndToEndConfig": "vlbert.config",
    "Vlmo": "vlmo.model",
    "VlmoConfig": "vlmo.config",
    "export_reference": "published",
    "load_reference": "published",
    "preset": "registry",
    "read_reference": "published",
}

__all__ = [
    "MODELS",
    "PRESETS",
    "VARIANTS",
    "Beit",
    "BeitConfig",
    "Bert",
    "BertConfig",
    "ImageBert",
    "ImageBertConfig",
    "InterBert",
    "InterBertConfig",
    "PixelInputs",
    "SingleStream",
    "SingleStreamConfig",
    "VLInputs",
    "Variant",
    "Vilbert",
    "VilbertConfig",
    "VlBert",
    "VlBertConfig",
    "VlBertEndToEnd",
    "VlBertEndToEndConfig",
    "Vlmo",
    "VlmoConfig",
    "export_reference",
    "load_reference",
    "preset",
    "read_reference",
]

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for; the package alone loads no torch."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
