"""Trains a detector on the generated world, and a model on the regions that it detects.

A detector is trained on the world's images and tight boxes (colour and shape as classes, textures
as attributes), its regions of all images are extracted, and ImageBERT's small recipe is trained
and ranked twice: on the regions that the world gives, and on the detector's. Prints lines of JSON:
the detector's mean average precision and recall of proposals on held-out scenes, of whose
combinations training shows none, and R@1 both ways with each kind of regions beside a matcher of
colours alone, and last the detector's beside that of the given regions in the same run.
The short form ends long before either has learned much: it shows that the circle closes.

    python benchmarks/detector_world.py
    python benchmarks/detector_world.py --full --output build/detector-world-full

A finished part is not repeated, a killed one continues. One thread; on a GPU where there is one.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from proof.arms import Arm
from proof.runs import DIRECTIONS, Figures, Job
from proof.runs import run as trained_and_ranked
from proof.summary import retrieval_lines
from proof.tables import ArmTables, WorldTables
from shell import add_counts, add_output, parse_form, print_lines, result_line
from worlds import World, write_boxes

from vlmill.extract import cli as extract_rois
from vlmill.runtime.console.command import Parser, run_command
from vlmill.schemas.errors import InputError
from vlmill.train.detector.command import read_settings
from vlmill.train.detector.job import TrainJob
from vlmill.train.detector.run import train
from vlmill.train.detector.saving import METRICS
from vlmill.train.detector.settings import TrainingSettings, for_classes
from vlmill.train.detector.start import Names

RECIPE = "imagebert-small"
GIVEN, DETECTED = "given", "detected"
SHORT = {"pairs": 300, "held_out": 50, "detector_steps": 20, "steps": 40, "validation": 20}
FULL = {"pairs": 6_000, "held_out": 500, "detector_steps": 2_000, "steps": None, "validation": 500}
# Of the held-out scenes; a detector has seen other scenes of the same things.
MEASURES = ("vg/map", "vg/weighted_map", "proposals/recall36", "attributes/accuracy")
MAX_BOXES = 10  # of an image, as the world gives up to eight
# Of the best class: shapes of one colour share a thing's score. At 0.2 an eighth of the things get
# no region, at 0.05 one of 200, and a tenth of the regions are strays.
THRESHOLD = "0.05"


def detector_settings(world: World, steps: int, validation: int) -> TrainingSettings:
    """Returns the small recipe for images of the world's size; the rate falls twice, late."""
    side = world.side
    sizes = [f"short_sides=[{side}]", f"long_side={side}"]
    sizes += [f"detector.short_side={side}", f"detector.long_side={side}"]
    fields = [
        *(*sizes, f"steps={steps}", f"solver.drops=[{steps * 4 // 5},{steps * 19 // 20}]"),
        *(f"solver.warmup={min(50, steps // 2)}", "detector.anchor_scales=[1.0,2.0,4.0]"),
        *("validation_split=test", f"validation_pictures={validation}", "trackers=[]"),
    ]
    settings = read_settings("small", None, fields)
    return for_classes(settings, len(world.kinds), len(world.textures))


def train_detector(tables: WorldTables, steps: int, validation: int) -> Path:
    """Trains the detector, or what is left of it; its folder."""
    world, output = tables.world, tables.folder / "detector"
    boxes = tables.folder / "boxes"
    write_boxes(boxes, world, pairs=tables.pairs, held_out=tables.held_out)
    job = TrainJob(
        boxes=str(boxes),
        images=str(tables.plain),
        output=output,
        settings=detector_settings(world, steps, validation),
        names=Names(classes=world.kinds, attributes=world.textures),
    )
    print(train(job), file=sys.stderr)
    return output


def detect(tables: WorldTables, detector: Path) -> Path:
    """Extracts the detector's regions of all images, or what is left of them; their folder."""
    output = tables.folder / "regions"
    sizes = ["--short-side", str(tables.world.side), "--long-side", str(tables.world.side)]
    chosen = ["--threshold", THRESHOLD, "--min-boxes", "2", "--max-boxes", str(MAX_BOXES)]
    stored = ["--class-probs", "full", "--global-feature"]
    command = ["run", str(tables.plain), "--weights", str(detector), "--output", str(output)]
    with redirect_stdout(sys.stderr):  # lines of JSON alone go to the other
        status = extract_rois.command([*command, *sizes, *chosen, *stored])
    if status:
        raise InputError(f"--output {output}: no image has regions, see above")
    return output


def job_of(tables: WorldTables, name: str, regions: Path, seed: int, steps: int | None) -> Job:
    """Returns the small recipe's run on these regions."""
    plain = str(tables.plain)
    return Job(
        arm=Arm(recipe=RECIPE, name=name),
        seed=seed,
        tables=ArmTables(pairs=plain, regions=str(regions), images=plain),
        pairs=tables.pairs,
        held_out=tables.held_out,
        output=tables.folder,
        world=tables.world,
        steps=steps,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def detector_lines(metrics: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """Returns what the detector measures on held-out scenes."""
    return [
        result_line(
            f"detector_world/detector/{name}", metrics[name], "share", limit=1.0, steps=steps
        )
        for name in MEASURES
        if name in metrics
    ]


def beside(figures: dict[str, Figures]) -> list[dict[str, Any]]:
    """Returns R@1 with the detector's regions beside that with the given ones."""
    lines = []
    for direction in DIRECTIONS:
        ours, given = (figures[name][f"{direction}/r1"] for name in (DETECTED, GIVEN))
        lines.append(
            result_line(
                f"detector_world/{direction}/r1",
                ours,
                "share",
                peer="given regions",
                peer_value=given,
                ratio=ours / given if given else None,
            )
        )
    return lines


def run(arguments: Sequence[str]) -> int:
    """Closes the circle and prints the lines."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    if min(args.pairs, args.held_out, args.detector_steps, args.validation) < 2:
        raise InputError("expected --pairs, --held-out, --detector-steps and --validation from 2")
    torch.set_num_threads(1)
    tables = WorldTables(folder=args.output, pairs=args.pairs, held_out=args.held_out)
    oracles = tables.oracles()
    tables.write((Arm(recipe=RECIPE),), {"oracles": oracles})
    detector = train_detector(tables, args.detector_steps, args.validation)
    metrics = json.loads((detector / METRICS).read_text(encoding="utf-8"))
    lines = detector_lines(metrics, args.detector_steps)
    places = {GIVEN: tables.plain, DETECTED: detect(tables, detector)}
    figures: dict[str, Figures] = {}
    for name, regions in places.items():
        figures[name] = trained_and_ranked(job_of(tables, name, regions, args.seed, args.steps))
        lines += retrieval_lines(figures[name], oracles)
    print_lines([*lines, *beside(figures)])
    return 0


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/detector_world.py", description=__doc__)
    add_output(p, "build/detector-world")
    add_counts(
        p,
        pairs="pairs to train on",
        held_out="pairs to rank",
        detector_steps="training steps of the detector, of 8 images",
        validation="held-out scenes on which the detector is measured",
        steps="training steps of the recipe",
    )
    add_counts(p, seed=(0, "seed of the recipe"))
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
