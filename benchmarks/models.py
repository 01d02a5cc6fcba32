"""Speed of ImageBERT at base size on this CPU, beside the rate of a matrix product of the same run.

Prints a line of JSON for the forward pass (evaluation, matching head) and one for forward and
backward (training with dropout, all four heads at masked positions, no optimiser). ``limit`` is
what the rate of a 2048 x 768 x 3072 float32 product, measured in turn with the model, would give
for the model's useful operations. ``peer`` is PyTorch's own encoder of the same size, without
embeddings and heads. The fractions by CPU seconds hold on a busy machine too.

    python benchmarks/models.py --batch-size 8 --rounds 3
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

# Waiting threads must sleep: spinning ones count as CPU time and take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn

from vlmill.models import VLInputs
from vlmill.models.imagebert import ImageBert, ImageBertConfig, imagebert_base

NUM_TOKENS, NUM_REGIONS = 20, 100
MASKED_TOKENS, MASKED_REGIONS = 3, 15  # of each pair: 15 percent
GEMMS, GEMM_FLOPS = 16, 2 * 2048 * 768 * 3072


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Medians of wall and CPU seconds."""

    wall_s: float
    cpu_s: float


def encoder_flops(config: ImageBertConfig) -> float:
    """Operations of the layers for one pair, forward; a multiply-add counts as two."""
    length, width = NUM_TOKENS + NUM_REGIONS, config.width
    products = 4 * width * width + 2 * width * config.intermediate_width
    return config.num_layers * length * (2 * products + 4 * length * width)


def region_flops(config: ImageBertConfig) -> float:
    """Operations of the projection of one pair's regions."""
    return 2 * NUM_REGIONS * (config.region_width + 5) * config.width


def head_flops(config: ImageBertConfig) -> float:
    """Operations of the four heads at one pair's masked positions."""
    words = MASKED_TOKENS * (config.width + config.vocab_size)
    regions = MASKED_REGIONS * (config.num_region_classes + config.region_width)
    return 2 * config.width * (words + regions + 1)


def random_inputs(config: ImageBertConfig, batch_size: int) -> VLInputs:
    """A batch without padding, so that all operations are useful."""
    return VLInputs(
        tokens=torch.randint(0, config.vocab_size, (batch_size, NUM_TOKENS)),
        token_mask=torch.ones(batch_size, NUM_TOKENS, dtype=torch.bool),
        region_features=torch.randn(batch_size, NUM_REGIONS, config.region_width),
        region_locations=torch.rand(batch_size, NUM_REGIONS, 5),
        region_mask=torch.ones(batch_size, NUM_REGIONS, dtype=torch.bool),
    )


def forward(model: ImageBert, inputs: VLInputs) -> Tensor:
    """The matching score, as retrieval needs it."""
    model.eval()
    with torch.inference_mode():
        return model.match_logit(model(inputs).pooled)


def forward_backward(model: ImageBert, inputs: VLInputs) -> None:
    """All four heads at masked positions, a loss each, and the gradients."""
    model.train()
    model.zero_grad(set_to_none=True)
    output = model(inputs)
    words = output.text[:, 1 : 1 + MASKED_TOKENS].flatten(0, 1)
    regions = output.regions[:, :MASKED_REGIONS].flatten(0, 1)
    labels = torch.zeros(len(words), dtype=torch.int64)
    classes = torch.zeros(len(regions), dtype=torch.int64)
    loss = (
        nn.functional.cross_entropy(model.mlm_logits(words), labels)
        + nn.functional.cross_entropy(model.region_class_logits(regions), classes)
        + model.region_features(regions).square().mean()
        + nn.functional.softplus(model.match_logit(output.pooled)).mean()
    )
    loss.backward()  # type: ignore[no-untyped-call]


def peer_encoder(config: ImageBertConfig) -> nn.TransformerEncoder:
    """PyTorch's encoder of the same size."""
    layer = nn.TransformerEncoderLayer(
        config.width,
        config.num_heads,
        dim_feedforward=config.intermediate_width,
        dropout=config.dropout,
        activation="gelu",
        batch_first=True,
    )
    return nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)


def run_peer(encoder: nn.TransformerEncoder, hidden: Tensor, backward: bool) -> None:
    """One pass of the peer over embedded positions."""
    padding = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    encoder.train(backward)
    with torch.set_grad_enabled(backward):
        output = encoder(hidden, src_key_padding_mask=padding)
        if backward:
            encoder.zero_grad(set_to_none=True)
            output.square().mean().backward()


def time_once(work: Callable[[], object]) -> Timing:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Timing(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def measure(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time the works in turn, so that a busy spell meets all; the first round is warm-up."""
    timings: dict[str, list[Timing]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            timing = time_once(work)
            if number:
                timings[name].append(timing)
    return {
        name: Timing(wall_s=median(t.wall_s for t in ts), cpu_s=median(t.cpu_s for t in ts))
        for name, ts in timings.items()
    }


def record(name: str, batch: int, flops: float, found: dict[str, Timing]) -> dict[str, object]:
    """The line of a case whose sample takes ``flops`` useful operations."""
    gemm, ours = found["gemm"], found["ours"]
    limit = GEMMS * GEMM_FLOPS / gemm.wall_s
    limit_cpu = GEMMS * GEMM_FLOPS / gemm.cpu_s
    return {
        "name": f"imagebert_base_{name}",
        "value": round(batch / ours.wall_s, 3),
        "unit": "samples/s",
        "peer": round(batch / found["peer"].wall_s, 3),
        "ratio": round(found["peer"].wall_s / ours.wall_s, 3),
        "limit": round(limit / flops, 3),
        "fraction_of_limit": round(batch * flops / ours.wall_s / limit, 3),
        "fraction_of_limit_by_cpu_seconds": round(batch * flops / ours.cpu_s / limit_cpu, 3),
        "gemm_gflops": round(limit / 1e9, 1),
        "gflop_per_sample": round(flops / 1e9, 2),
        "batch_size": batch,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    config, batch = imagebert_base(), options.batch_size
    model, inputs = ImageBert(config), random_inputs(config, batch)
    encoder = peer_encoder(config)
    hidden = torch.randn(batch, NUM_TOKENS + NUM_REGIONS, config.width)
    left, right = torch.randn(2048, 768), torch.randn(768, 3072)
    layers, regions = encoder_flops(config), region_flops(config)

    def gemm() -> None:
        for _ in range(GEMMS):
            left @ right

    forward_works: dict[str, Callable[[], object]] = {
        "gemm": gemm,
        "ours": lambda: forward(model, inputs),
        "peer": lambda: run_peer(encoder, hidden, backward=False),
    }
    found = measure(forward_works, options.rounds)
    flops = layers + regions + 2 * config.width
    print(json.dumps(record("forward", batch, flops, found)), flush=True)
    training_works: dict[str, Callable[[], object]] = {
        "gemm": gemm,
        "ours": lambda: forward_backward(model, inputs),
        "peer": lambda: run_peer(encoder, hidden, backward=True),
    }
    found = measure(training_works, options.rounds)
    # Backward is twice the forward, but for the regions' projection: its input needs no gradient.
    flops = 3 * (layers + head_flops(config)) + 2 * regions
    print(json.dumps(record("forward_backward", batch, flops, found)), flush=True)


if __name__ == "__main__":
    main()
