"""Measures time and memory of a detector's training step, compared with Detectron2's.

Both take the step of Detectron2's recipe for COCO (C4, frozen stem and res2) from the same weights
on the same images of noise with seven boxes each, and draw the same examples: forward, backward,
and the optimiser's update. Each side has a process of its own; they take turns, so that a busy
spell meets both. ``ratio`` is ours over theirs; the bar is 1.2. Where Detectron2 is missing
(docs/install.md) the peer is a detector of torchvision's parts of the same sizes, which is said: it
draws for itself, and its proposals differ.

    python benchmarks/train_detector.py
    python benchmarks/train_detector.py --full

On a GPU, at the published batch: `make gpu-check PARTS=train-detector`.
"""

import sys
from collections.abc import Sequence
from functools import partial

from peers.detectron2_step import Work, makers
from peers.own_process import Apart, Timing, measure
from shell import add_counts, parse_form, print_lines, result_line

from vlmill.runtime.console.command import Parser, make_options, run_command
from vlmill.schemas.errors import InputError

SHORT = {"depth": 50, "images": 1, "height": 240, "width": 320, "regions": 64, "rounds": 1}
FULL = {"depth": 101, "images": 2, "height": 480, "width": 640, "regions": 128, "rounds": 3}
BAR = 1.2


def lines_of(work: Work, timings: dict[str, Timing]) -> list[dict[str, object]]:
    """Returns the lines of seconds and memory."""
    ours = timings["ours"]
    peer = next((name for name in timings if name != "ours"), None)
    about = {
        "pictures": work.images,
        "size": [work.width, work.height],
        "regions": work.regions,
        "depth": work.depth,
    }
    lines = []
    for what, unit in (("cpu_s", "CPU s"), ("wall_s", "s"), ("peak_bytes", "bytes")):
        value = float(getattr(ours, what))
        theirs = None if peer is None else float(getattr(timings[peer], what))
        lines.append(
            result_line(
                f"train_detector/{what}",
                value,
                unit,
                peer=peer,
                ratio=value / theirs if theirs else None,
                peer_value=theirs,
                **({"bar": BAR} if what != "peak_bytes" else {}),
                **about,
            )
        )
    return lines


def run(arguments: Sequence[str]) -> int:
    """Takes the steps and prints the lines."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    if min(args.images, args.regions, args.rounds) < 1 or min(args.height, args.width) < 32:
        raise InputError("expected --images, --regions, --rounds from 1, --height, --width from 32")
    work = make_options(Work, args)
    sides = makers(work)
    if "detectron2" not in sides:
        print(
            "Detectron2 cannot be imported (docs/install.md): the peer is "
            f"{next((name for name in sides if name != 'ours'), 'none')}",
            file=sys.stderr,
        )
    processes = {name: Apart(make) for name, make in sides.items()}
    works = {name: partial(one.step, True) for name, one in processes.items()}
    timings = measure(works, args.rounds)
    for one in processes.values():
        one.close()
    print_lines(lines_of(work, timings))
    return 0


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/train_detector.py", description=__doc__)
    p.add_argument("--depth", type=int, choices=(50, 101), help="layers of the ResNet")
    add_counts(
        p,
        images="images per step",
        height="height of each image in pixels",
        width="width of each image in pixels",
        regions="sampled regions per image",
        rounds="steps to measure after the first one",
    )
    p.add_argument("--narrow", action="store_true", help="use an eighth of the channels, for tests")
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
