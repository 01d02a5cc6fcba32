"""Measures a detector's training step at the published batch size, and Detectron2's.

A step is forward, backward and the optimiser's update of Detectron2's recipe for COCO (R101-C4,
512 regions of an image), in float32 and with the forward pass in bfloat16.
"""

import importlib
from dataclasses import replace
from typing import Any

from benchmarks.gpu_check.measuring import Setting, peak_memory_gb, reset_peak_memory, timed

BAR = 1.2  # times Detectron2's
ROUNDS = 5
WARM_UP = 2


def run(setting: Setting) -> dict[str, Any]:
    """Returns images a second in bfloat16; seconds and memory by side and precision."""
    # By its name: the scripts beside it import it without the folder.
    peers = importlib.import_module("benchmarks.peers.detectron2_step")
    work = peers.Work(
        depth=101, images=8, height=800, width=1088, regions=512, device=setting.device.type
    )
    if setting.tiny:
        work = replace(work, depth=50, images=1, height=64, width=80, regions=8, narrow=True)
    makers = {"ours": peers.our_step}
    if peers.is_there():
        makers["detectron2"] = peers.their_step
    sides = {
        f"{name}-{precision}": step_of(make, replace(work, precision=precision), setting)
        for precision in ("float32", "bfloat16")
        for name, make in makers.items()
    }
    ours = sides["ours-bfloat16"]["step_s"]
    theirs = sides["detectron2-bfloat16"]["step_s"] if "detectron2" in makers else None
    assert ours is not None
    return {
        "value": work.images / ours,
        "unit": "images/s",
        "peer": "detectron2" if theirs else None,  # None: it cannot be imported here
        "ratio": ours / theirs if theirs else None,
        "bar": BAR,
        "pictures": work.images,
        "sides": sides,
    }


def step_of(make: Any, work: Any, setting: Setting) -> dict[str, float | None]:
    """Returns the median seconds of a step, and the most memory that it took."""
    reset_peak_memory(setting.device)
    _, step = make(work)
    rounds = 1 if setting.tiny else ROUNDS
    seconds = timed(lambda: step(True), setting.device, rounds, warm_up=WARM_UP)
    return {"step_s": seconds, "peak_memory_gb": peak_memory_gb(setting.device)}
