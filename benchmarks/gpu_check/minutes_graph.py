"""Measures the limit that a CUDA graph of a step would reach: no launches, no work of the host."""

from collections.abc import Callable

import torch
from benchmarks.gpu_check.minutes_card import mean_seconds
from benchmarks.gpu_check.minutes_steps import Bench, StepCase, StepRun, measure_steps

from vlmill.train.devices.setup import unwrapped

WARM_UP, ROUNDS = 3, 20
CASE = StepCase(
    name="vilbert before graph", variant="vilbert", pairs=256, regional=True, profile=False
)


def measure_graph(bench: Bench) -> None:
    """Records the milliseconds of forward and backward on one batch, replayed as a CUDA graph.

    The optimizer is outside of the graph. On a CPU, which has no graphs, the step runs once.
    """
    run = measure_steps(CASE, bench)
    step = forward_backward(run, bench.setting.device)
    if bench.setting.device.type != "cuda":
        step()
        bench.record.write("vilbert graph", tiny=True)
        return
    replay = captured(step, run.training.step_module)
    seconds = mean_seconds(replay, bench.setting.device, ROUNDS, warm_up=WARM_UP)
    bench.record.write("vilbert graph", forward_backward_ms=round(1e3 * seconds, 2))


def forward_backward(run: StepRun, device: torch.device) -> Callable[[], None]:
    """Returns the work to be captured, on the first batch, which is on the device already."""
    module, accelerator = run.training.step_module, run.training.accelerator
    batch = run.batches[0].to(device)
    shares = torch.ones(len(unwrapped(module).names), device=device)

    def work() -> None:
        with accelerator.autocast():
            loss, _ = module(batch, shares, None)
        loss.backward()

    return work


def captured(work: Callable[[], None], module: torch.nn.Module) -> Callable[[], None]:
    """Captures ``work`` after a warm-up on another stream; returns what replays it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
