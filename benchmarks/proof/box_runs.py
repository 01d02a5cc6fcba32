"""Prepares the tables of tasks with boxes, and formats their figures."""

from collections.abc import Sequence
from typing import Any

from proof.box_arms import CHANCE, FIGURES
from proof.task_arms import BLIND, MARGIN
from shell import result_line

from vlmill.train.settings.parts import Feeding

Line = dict[str, Any]
SPLIT = "test"


def box_inputs(tables: Any, feeding: Feeding) -> dict[str, str | None]:
    """The tables that a run with this feeding reads: examples with boxes, images, regions."""
    reads = {
        "regions": feeding.reads_regions and feeding.boxes != "annotated",
        "annotated_regions": feeding.reads_regions and feeding.boxes != "detected",
        "images": feeding.reads_images,
    }
    folders = {
        "regions": tables.regions,
        "annotated_regions": tables.boxes,
        "images": tables.images,
    }
    return {name: folders[name] if read else None for name, read in reads.items()}


def box_lines(line: Line, blind: Line | None) -> Sequence[Line]:
    """Each figure beside the blind model's, which is shown where boxes are; ``learned`` says
    whether it was beaten by the margin that is wanted. With one that chance is known of, that too.
    """
    settings, lines = line["settings"], []
    for name in FIGURES[settings["task"]]:
        value = line["metrics"][name]
        more: Line = {"examples": line["metrics"].get(f"{name}_n")}
        more |= {"chance": CHANCE[settings["task"]]}
        more |= {key: settings[key] for key in ("seed", "steps", "pairs", "held_out")}
        more |= {key: line[key] for key in ("cpu_minutes", "device")}
        told = f"learning_tasks/{line['name']}/{name.replace(f'/{SPLIT}', '')}"
        if blind is None or settings["name"] == BLIND:
            lines.append(result_line(told, value, "share", **more))
            continue
        alone = blind["metrics"][name]
        lines.append(
            result_line(
                told,
                value,
                "share",
                peer="a model that sees no image",
                peer_value=alone,
                ratio=value / alone if alone else None,
                margin=value - alone,
                margin_wanted=MARGIN,
                learned=value - alone >= MARGIN,
                limit=1.0,
                fraction_of_limit=value,
                **more,
            )
        )
    return lines
