"""Lists the parts by name, and how they are dealt out to several calls."""

from collections.abc import Mapping
from dataclasses import dataclass

LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """Names a function ``module:name`` of a Setting that gives the result's fields.

    It is named, not imported: what one part needs may be missing where another one runs.
    """

    run: str
    # Expected on an H100, process start included; of what is compiled more than two minutes are
    # known not to do for ViLBERT.
    seconds: int


HERE = "benchmarks.gpu_check"
VARIANTS = ("vilbert", "vl-bert", "interbert", "imagebert", "vlmo")
# Of a training step: grid and packed rows beside each other, then each of them compiled.
STEP_SECONDS = {"": 50, "-compiled": 120, "-compiled-packed": 120}
STEPS = {
    f"steps-{variant}{form}": Part(
        run=f"{HERE}.steps:{(variant + form).replace('-', '_')}", seconds=seconds
    )
    for variant in VARIANTS
    for form, seconds in STEP_SECONDS.items()
}
PARTS: Mapping[str, Part] = {
    "tests": Part(run=f"{HERE}.marked_tests:marked", seconds=40),
    "extract-exact": Part(run=f"{HERE}.extraction:exact", seconds=100),
    "extract-fast": Part(run=f"{HERE}.extraction:fast", seconds=45),
    "extract-kernels": Part(run=f"{HERE}.extraction:kernels", seconds=30),
    **STEPS,
    "bf16": Part(run=f"{HERE}.precision:run", seconds=25),
    "loader": Part(run=f"{HERE}.loading:run", seconds=60),
    "train-detector": Part(run=f"{HERE}.detector_training:run", seconds=20),
    "resume": Part(run=f"{HERE}.resume:run", seconds=105),
}


def share_of(parts: Mapping[str, Part], number: int, total: int) -> list[str]:
    """Returns the names of the ``number``-th of ``total`` shares, which take about equally long.

    The longest are dealt out first, each to the share that has the least.
    """
    shares: list[list[str]] = [[] for _ in range(total)]
    for name in sorted(parts, key=lambda name: (-parts[name].seconds, name)):
        min(shares, key=lambda share: sum(parts[part].seconds for part in share)).append(name)
    return [name for name in parts if name in shares[number - 1]]
