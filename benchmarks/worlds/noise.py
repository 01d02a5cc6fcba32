"""Moves captions of a world's pairs to other images: noise as the web has it, and a control that
nothing can be learned from.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import PAIRS

JOB = "world-noise"
NOISY = "world-noisy"  # the source of pairs that may have another image's caption


def with_moved_captions(
    rows: Sequence[dict[str, Any]], share: float, seed: int
) -> list[dict[str, Any]]:
    """Returns pairs of which a ``share`` give their captions to each other: none of these keeps its
    own.

    The rest, and a single one that finds no other, stay as they are.
    """
    rng = np.random.default_rng([seed, 2])
    chosen = rng.permutation(len(rows))[: round(share * len(rows))].tolist()
    moved = [dict(row) for row in rows]
    for at, giver in zip(chosen, [*chosen[1:], *chosen[:1]], strict=True):
        text = rows[giver]["text"]
        moved[at] |= {"text": text, "pair_id": compute_pair_id(moved[at]["image_id"], text)}
    return moved


def write_noisy_pairs(
    folder: Path, pairs: str | Path, *, first: int = 0, share: float, seed: int = 0
) -> State:
    """Writes the pairs of a world, those of split ``train`` from number ``first`` on with moved
    captions.

    If ``first`` is above 0 the noisy ones get the source :data:`NOISY`, so that stages can tell
    them apart. Held-out pairs stay as they are. Returns what the folder held: a finished one with
    the same settings is left as it is.
    """
    settings = {"pairs": str(pairs), "first": first, "share": share, "seed": seed}
    state = prepare_output(folder, job=JOB, settings=settings)
    if state is State.FINISHED:
        return state
    rows = read_table(pairs, PAIRS, flag="--pairs").to_pylist()
    train = [row for row in rows if row["split"] == "train"]
    noisy = with_moved_captions(train[first:], share, seed)
    if first:
        noisy = [{**row, "source": NOISY} for row in noisy]
    held_out = [row for row in rows if row["split"] != "train"]
    shard = write_shard(folder, PAIRS, [*train[:first], *noisy, *held_out], producer={"job": JOB})
    write_manifest(folder, [shard], job=JOB, settings=settings)
    return state
