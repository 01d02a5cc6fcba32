"""BERT checkpoints as `transformers` writes them, in every layout met in the wild."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

LAYOUTS = ("hugging-face", "original", "without-prefix", "original-without-prefix")
NORMS = re.compile(r"(LayerNorm|layer_norm)\.(weight|bias)$")


def transformers() -> Any:
    """The library, or a reason to skip."""
    return pytest.importorskip("transformers", reason="transformers is in the extra `test`")


@cache
def published(**sizes: Any) -> Any:
    """`transformers`' BertForPreTraining of these sizes (BertConfig()'s where none are given).

    Made once: whoever asks again gets the same model, and must not change it.
    """
    library = transformers()
    torch.manual_seed(0)
    return library.BertForPreTraining(library.BertConfig(**sizes)).eval()


def large() -> Any:
    """`transformers`' BertForPreTraining of BERT-large's sizes, 1.3 GB, not kept."""
    library = transformers()
    torch.manual_seed(0)
    config = library.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return library.BertForPreTraining(config).eval()


def tiny(**changes: Any) -> Any:
    """A small one whose every parameter acts."""
    sizes = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 12,
    }
    model = copy.deepcopy(published(**(sizes | changes)))
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def in_layout(state: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """The same tensors under the names of another layout."""
    if "original" in layout:
        old = {"weight": "gamma", "bias": "beta"}
        state = {NORMS.sub(lambda m: f"LayerNorm.{old[m[2]]}", k): v for k, v in state.items()}
    if "without-prefix" in layout:
        inner = {k: v for k, v in state.items() if k.startswith("bert.")}
        state = {name.removeprefix("bert."): tensor for name, tensor in inner.items()}
    return state


def write(model: Any, path: Path, layout: str) -> Path:
    """A file of ``model``'s weights, by ``path``'s suffix ``.bin`` or ``.safetensors``."""
    state = {k: v.contiguous() for k, v in in_layout(model.state_dict(), layout).items()}
    if path.suffix == ".safetensors":  # which holds no tensor twice
        seen: set[int] = set()
        unique = {k: v for k, v in state.items() if not is_seen(v, seen)}
        save_file(unique, path)
    else:
        torch.save(state, path)
    return path


def is_seen(tensor: Tensor, seen: set[int]) -> bool:
    """Whether a tensor with the same memory came before."""
    known = tensor.data_ptr() in seen
    seen.add(tensor.data_ptr())
    return known
