"""Sets up how a model is computed: its devices, processes, compilation and kept activations."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from vlmill.models.detector.resnet import Bottleneck, PreActivationBottleneck
from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.blocks import CoAttentionBlock, PostNormBlock
from vlmill.models.layers.experts import PreNormBlock
from vlmill.models.layers.operators import LayerNorm
from vlmill.models.probes import can_compile
from vlmill.runtime.console.process_group import open_accelerator
from vlmill.schemas.errors import InputError
from vlmill.train.settings.spec import RunSettings

BLOCKS = (
    *(PostNormBlock, CoAttentionBlock, PreNormBlock),
    *(Bottleneck, PreActivationBottleneck),
)
DIVIDED = "_divided_step"  # the attribute of a sharded model that holds its `DividedStep`
GRAPHS_OF_BLOCKS = 32  # VLMo has 14
COMPUTED_IN = {"bf16": torch.bfloat16, "fp16": torch.float16}  # float32 where it is neither


def make_accelerator(recipe: RunSettings) -> Accelerator:
    """Returns the accelerator with its device and precision; under a launcher, also its processes.

    Raises InputError for batches that cannot be split evenly.
    """
    if recipe.precision == "fp16" and not torch.accelerator.is_available():
        raise InputError("precision=fp16 needs a GPU; add precision=no (or bf16) on this machine")
    accelerator = open_accelerator(recipe.precision)
    on_one_gpu = accelerator.device.type == "cuda" and accelerator.num_processes == 1
    if recipe.cuda_graph and not on_one_gpu:
        raise InputError(
            f"cuda_graph=true needs one process with a GPU; this run has "
            f"{accelerator.num_processes} with {accelerator.device.type}; set cuda_graph=false"
        )
    for number, stage in enumerate(recipe.stages):
        parts = stage.accumulation * accelerator.num_processes
        if stage.batch_size % parts:
            raise InputError(
                f"stages.{number}.batch_size={stage.batch_size} is not a multiple of accumulation="
                f"{stage.accumulation} times {accelerator.num_processes} processes; "
                "change one of them"
            )
        if stage.feeding.text_rows % parts:
            raise InputError(
                f"stages.{number}.feeding.text_rows={stage.feeding.text_rows} is not a multiple of "
                f"accumulation times processes, {parts}; change one of them"
            )
    return accelerator


def wrap_module(module: nn.Module, accelerator: Accelerator, *, shard: bool) -> nn.Module:
    """Returns ``module`` on the device, for all processes: whole in each, or sharded.

    Sharded layers are gathered in their compute precision, half the number of bytes, and take their
    inputs in it; their gradients are added in float32. Parameters outside of layers (tables, heads,
    the contrast's scale) stay in float32, as without sharding. Scalars (that scale) cannot be
    sharded: each process has them, and a step averages their gradients (`sync_gradients`).
    ``module`` has the ``model`` of all of a run's stages.
    """
    processes, device = accelerator.num_processes, accelerator.device
    if processes == 1 or not shard:
        prepared: nn.Module = accelerator.prepare(module)
        return prepared
    module.to(device)
    model: Any = module.model
    divided: DividedStep | None = vars(model).get(DIVIDED)
    if divided is not None:
        divided.step = module
        return divided
    mesh = init_device_mesh(device.type, (processes,))
    policy = MixedPrecisionPolicy(
        param_dtype=COMPUTED_IN.get(accelerator.mixed_precision),
        reduce_dtype=torch.float32,
    )
    for part in module.modules():
        if isinstance(part, BLOCKS):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    divided = DividedStep(module)
    fully_shard(divided, mesh=mesh, ignored_params=set(list_scalars(module)))
    vars(model)[DIVIDED] = divided  # not as a submodule: the model would contain itself
    return divided


class DividedStep(nn.Module):
    """Runs the current stage's step: FSDP allows a model one outermost module for all stages."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, *arguments: Any) -> Any:
        """Computes the step."""
        return self.step(*arguments)


def list_scalars(module: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters that cannot be sharded."""
    return [parameter for parameter in module.parameters() if not parameter.ndim]


def unwrap_step(module: nn.Module) -> Any:
    """Returns the step inside the wrappers for several processes and compilation."""
    inside = getattr(module, "_orig_mod", module)  # of a compiled one
    if isinstance(inside, DividedStep):
        return inside.step
    return inside.module if isinstance(inside, DistributedDataParallel) else inside


def _keep_equal_sizes_apart() -> None:
    """Makes the compiler distinguish sizes that are equal by chance in the first batch.

    The setting is in a private module: without it a batch with different sizes costs another graph.
    """
    with suppress(ImportError, AttributeError):
        from torch.fx.experimental import _config

        _config.use_duck_shape = False


def _allow_graphs(count: int) -> None:
    """Raises the compiler's limit of graphs for one function to at least ``count``.

    The setting is in a private module: without it blocks above the compiler's own limit (8) run
    uncompiled.
    """
    with suppress(ImportError, AttributeError):
        from torch._dynamo import config

        config.recompile_limit = max(config.recompile_limit, count)


def compile_step(module: nn.Module) -> nn.Module:
    """Returns a step that torch.compile translates, once for batches of all sizes.

    Sizes that are equal by chance in the first batch (the numbers of tokens and regions) stay two
    sizes.
    """
    _keep_equal_sizes_apart()
    translated: nn.Module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
    return translated


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compiles each block of the model in place, once for batches of all sizes.

    Blocks of one type and size share a graph, so that the first step takes seconds instead of
    minutes. They share code with blocks of other sizes and, in VLMo, of other routes; the
    compiler's limit of graphs is raised for these. ``options`` are torch.compile's.
    """
    _keep_equal_sizes_apart()
    _allow_graphs(GRAPHS_OF_BLOCKS)
    for part in model.modules():
        if isinstance(part, BLOCKS):
            part.compile(dynamic=True, **options)


def use_attention_kernel(model: nn.Module, device: torch.device) -> None:
    """Computes attention with a learned bias by custom kernels, where these can be compiled for the
    device.
    """
    if device.type != "cuda" or not can_compile("attention with relative positions"):
        return
    for part in model.modules():
        if isinstance(part, SelfAttention):
            part.bias_kernel = True


def use_residual_kernel(model: nn.Module, device: torch.device) -> None:
    """Computes the gradients of residual sums with layer scale by a custom kernel, where it can be
    compiled for the device.
    """
    if device.type != "cuda" or not can_compile("residual sums with layer scale"):
        return
    for part in model.modules():
        if isinstance(part, PreNormBlock):
            part.residual_kernel = True


def use_half_norms(model: nn.Module) -> None:
    """Makes layer norms return half precision under autocast.

    The residual stream of layers that end with a norm (BERT's) has half precision too; VLMo's stays
    in float32.
    """
    for part in model.modules():
        if isinstance(part, LayerNorm):
            part.gives_half = True


def recompute_activations(model: nn.Module) -> None:
    """Makes every layer compute its activations again in the backward pass."""
    for part in model.modules():
        if isinstance(part, BLOCKS):
            part.forward = _with_recomputation(part.forward)  # type: ignore[method-assign]


def _with_recomputation(forward: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, forward, use_reentrant=False)


def device_named(name: str) -> torch.device:
    """Returns the device that ``--device`` names. Raises InputError for one that cannot be used."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: expected cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError(f"--device {name}: PyTorch sees {count} such devices; use --device cpu")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name} cannot be used ({reason}); use --device cpu") from None
    return device
