"""VLMo's contrast over two processes: the only recording that needs several."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from tests.parity.golden import GoldenSet
from tests.parity.results import Results
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from vlmill.models.inputs import PixelInputs
from vlmill.models.published import load_reference
from vlmill.models.vlmo.model import Vlmo
from vlmill.models.vlmo.published import links
from vlmill.train.objectives.contrast import contrast_and_matching
from vlmill.train.objectives.losses import mean_cross_entropy


def two_ranks(golden: GoldenSet, results: Results) -> None:
    """The set ``vlmo/two_ranks``: each process alone, and all pairs in one."""
    world = golden.config["world_size"]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        spawn(rank, args=(golden, folder, port), nprocs=world)  # type: ignore[no-untyped-call]
        for number in range(world):
            ours = load_file(Path(folder) / f"{number}.safetensors")
            compare(golden, results, f"out.rank{number}", ours)
    compare(golden, results, "out.single_process", outputs(golden, 0, 1, None))


def compare(golden: GoldenSet, results: Results, prefix: str, ours: dict[str, Tensor]) -> None:
    """Recorded are some of the gradients, and of one process alone fewer outputs."""
    for name, value in ours.items():
        if f"{prefix}.{name}" in golden.tensors:
            results.check(f"{prefix}.{name}", value)


def rank(number: int, golden: GoldenSet, folder: str, port: int) -> None:
    """One process."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world = golden.config["world_size"]
    dist.init_process_group("gloo", rank=number, world_size=world)
    drawn = [golden.tensors[f"out.rank{number}.{kind}_neg_idx"] for kind in ("image", "text")]
    ours = outputs(golden, number, world, lambda *weights: (drawn[0], drawn[1]))
    save_file(ours, Path(folder) / f"{number}.safetensors")
    dist.destroy_process_group()


def outputs(
    golden: GoldenSet, number: int, world: int, draw: Callable[..., tuple[Tensor, Tensor]] | None
) -> dict[str, Tensor]:
    """Of the pairs of process ``number``; gradients do not flow to other processes' vectors."""
    model: Any = load_reference("vlmo", golden.weights, golden.config)
    assert isinstance(model, Vlmo)
    total = len(golden.tensors["in.image"])
    own = slice(number * total // world, (number + 1) * total // world)
    inputs = PixelInputs(
        tokens=golden.tensors["in.text_ids"][own],
        token_mask=golden.tensors["in.text_masks"][own].bool(),
        pixels=golden.tensors["in.image"][own],
    )
    diagonal = torch.arange(len(inputs.tokens))
    taken = draw or (lambda *weights: (diagonal, diagonal))
    made = contrast_and_matching(model, inputs, None, taken, exact=False)
    contrast, matching = made.contrast, made.match_logits
    contrast.loss.backward()  # type: ignore[no-untyped-call]
    for_texts, for_images = contrast.weights(len(inputs.tokens))
    gradients = {
        f"itc_grad.{link.references[0]}": model.get_parameter(link.name).grad
        for link in links(model)
    }
    return {
        "i2t_logits": contrast.scores.detach(),
        "t2i_logits": contrast.scores.detach().T.contiguous(),
        "weights_t2i": for_texts,
        "weights_i2t": for_images,
        "itc_loss": contrast.loss.detach(),
        "itm_logits": matching.detach(),
        "itm_loss": mean_cross_entropy(matching, made.match_classes).detach(),
    } | {name: grad for name, grad in gradients.items() if grad is not None}
