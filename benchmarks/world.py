"""Generates a world with known boxes, and computes bounds for matchers that see a part of it.

    python benchmarks/world.py --output /tmp/world --full --seed 0

writes pairs, images, regions, boxes.jsonl and world.json to one folder, and contact.html with
samples; training pairs have the split `train`, held-out ones `test`, and what a test caption states
is stated of no training image. Prints a line of JSON for each oracle: R@1 where ties count
against the matcher, and its mean over all orders of ties.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from shell import add_counts, add_output, parse_form, print_lines, result_line
from worlds import MOST, Detector, World, make_scenes, oracles, write_world

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.console.report import Section, html_table, image_cards, image_uri, write_page
from vlmill.runtime.files.outputs import State
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, PAIRS

DIRECTIONS = ("image_retrieval", "text_retrieval")
MAX_SHOWN = 48
SHORT = {"pairs": 2_000, "held_out": 500}
FULL = {"pairs": 6_000, "held_out": 500}


def oracle_lines(
    metrics_by_view: dict[str, dict[str, float]], pairs: int
) -> list[dict[str, object]]:
    """Returns a line for each view and direction: R@1 beside that of who sees everything."""
    lines = []
    for view, metrics in metrics_by_view.items():
        for direction in DIRECTIONS:
            metric = f"{direction}/r1"
            expected, limit = metrics[f"{metric}_expected"], metrics_by_view["everything"][metric]
            line = result_line(
                f"world/{view}/{metric}",
                metrics[metric],
                "share",
                peer="any order of ties",
                ratio=metrics[metric] / expected if expected else None,
                limit=limit,
                fraction_of_limit=metrics[metric] / limit if limit else None,
                expected=expected,
                pairs=pairs,
            )
            lines.append(line)
    return lines


def contact_sheet(folder: Path, lines: Sequence[dict[str, object]]) -> None:
    """``contact.html``: the oracles, and images of both splits with their captions."""
    rows: dict[str, dict[str, str]] = {}
    for batch in iter_batches(folder, PAIRS, columns=["image_id", "text", "split"]):
        rows |= {row["image_id"]: row for row in batch.to_pylist()}
    cards: dict[str, list[dict[str, str]]] = {"test": [], "train": []}
    for batch in iter_batches(folder, IMAGES, columns=["image_id", "bytes"], batch_rows=64):
        for image_id, content in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            row = rows[image_id]
            if len(cards[row["split"]]) < MAX_SHOWN:
                uri = image_uri(content, "image/png")
                cards[row["split"]].append({"uri": uri, "text": row["text"], "about": image_id})
    table = [[line["name"], line["value"], line["expected"]] for line in lines]
    sections = [
        Section(title="Oracles", body=html_table(["oracle", "R@1", "expected"], table)),
        *(Section(title=split, body=image_cards(some)) for split, some in cards.items()),
    ]
    write_page(folder / "contact.html", "A generated world", sections)


def run(arguments: Sequence[str]) -> int:
    """Writes the world and prints the oracles."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    if not 1 <= args.captions <= MOST:
        raise InputError(f"--captions {args.captions}: expected 1 to {MOST}, which every scene has")
    if args.pairs < 0 or args.held_out < 2:
        raise InputError("--pairs from 0, --held-out from 2: a retrieval needs two candidates")
    world = World(seed=args.seed)
    metrics_by_view = oracles(world, make_scenes(world, "test", args.held_out))
    detector = Detector(extra_boxes=args.extra_boxes, class_error=args.class_error)
    state = write_world(
        args.output,
        world,
        pairs=args.pairs,
        held_out=args.held_out,
        each=args.captions,
        detector=detector,
        known={"oracles": metrics_by_view},
    )
    lines = oracle_lines(metrics_by_view, args.held_out)
    if state is not State.FINISHED:
        contact_sheet(args.output, lines)
    print_lines(lines)
    return 0


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/world.py", description=__doc__)
    add_output(p, "build/world")
    add_counts(
        p,
        pairs="pairs to train on",
        held_out="pairs to evaluate on",
        captions=(1, "captions of each training image; there are as many times fewer images"),
        seed=(0, "seed of the generated world"),
        extra_boxes=(1, "additional, shifted boxes of each object"),
    )
    p.add_argument(
        "--class-error",
        type=float,
        default=0.05,
        metavar="P",
        help="fraction of wrong classes (default: 0.05)",
    )
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
