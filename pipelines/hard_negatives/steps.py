"""The steps of the job over their units of work, on this machine or on Beam.

What one step leaves for the next lies in files, and no record goes through a shuffle: every runner
gives the same bytes. What is there already has no unit, or is left as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmill.pipelines.hard_negatives.blocks import (
    build_part,
    count_captions,
    missing_blocks,
    search_block,
    write_negatives,
)
from vlmill.pipelines.hard_negatives.captions import Staged, stage
from vlmill.pipelines.hard_negatives.finish import finish
from vlmill.pipelines.hard_negatives.plan import Plan, Range
from vlmill.pipelines.hard_negatives.vectors import cut_chunk, write_vectors
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import has_folder
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.pool import open_workers


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: ``work`` leaves the files of each of its units, and returns what was done."""

    name: str
    label: str  # of its numbers, on the screen and in Beam
    work: Callable[[Any], Numbers]
    units: Sequence[Any] = (None,)
    captions: int = 0  # that it goes through, by which its progress is shown; 0 shows none
    in_processes: bool = False  # on this machine, units go to processes; else each has all threads


def staging(plan: Plan) -> list[Step]:
    """Lays the captions out."""
    return [_single("Captions", stage, plan.source, plan.captions, plan.rules)]


def list_steps(plan: Plan, staged: Staged, missing: Sequence[Range]) -> list[Step]:
    """All that follows, as far as it is not there; ``missing`` are shards of negatives."""
    steps = [] if has_vectors(plan) else _vectors(plan, staged)
    if missing:
        steps += _negatives(plan, staged, missing)
    return [*(step for step in steps if step.units), _single("Finish", finish, plan, staged)]


def has_vectors(plan: Plan) -> bool:
    """Whether the captions have become vectors: their words are needed no more."""
    return plan.vocabulary.exists() and has_folder(plan.bags)


def _vectors(plan: Plan, staged: Staged) -> list[Step]:
    """Words, how many captions have each, and the captions' vectors."""
    chunks = [k for k in range(staged.chunks) if not plan.words_path(k).exists()]
    share = len(chunks) / max(staged.chunks, 1)  # chunks are of one size, but for the last
    words = Step(
        name="Words",
        label="words",
        work=partial(cut_chunk, plan),
        units=chunks,
        captions=round(staged.rows * share),
        in_processes=True,
    )
    return [words, _single("Vectors", write_vectors, plan, staged)]


def _negatives(plan: Plan, staged: Staged, missing: Sequence[Range]) -> list[Step]:
    """The index, the lists of each block from each part of it, and the shards."""
    parts = range(plan.parts)
    index = Step(name="Index", label="index", work=partial(build_part, plan), units=parts)
    search = [_search(plan, staged, part) for part in parts]
    write = partial(write_negatives, plan, staged)
    return [index, *search, Step(name="Write", label="negatives", work=write, units=missing)]


def _search(plan: Plan, staged: Staged, part: int) -> Step:
    """Blocks in one part of the index, after the parts before it: each profits from those."""
    blocks = missing_blocks(plan.work, staged.captions, part)
    return Step(
        name=f"Search part {part}",
        label="search",
        work=partial(search_block, plan),
        units=blocks,
        captions=sum(count_captions(block, staged.captions) for _, block in blocks),
    )


def _single(name: str, function: Callable[..., object], *arguments: Any) -> Step:
    """A step of one unit, for which a function is called."""
    return Step(name=name, label=name.lower(), work=partial(_call, function, arguments))


def _call(function: Callable[..., object], arguments: Sequence[Any], _: None) -> Numbers:
    function(*arguments)
    return Numbers()


def run_here(steps: Sequence[Step], workers: int) -> None:
    """Does the steps on this machine: what Beam does elsewhere."""
    for step in steps:
        progress = Progress(
            total=step.captions, unit="caption", label=step.label, visible=step.captions > 0
        )
        processes = workers if step.in_processes else 1
        with progress, open_workers(processes, step.work, __name__) as pool:
            for numbers in pool.map_units(_do, step.units, partial(progress.advance, 0)):
                progress.advance(numbers["captions"])


def _do(work: Callable[[Any], Numbers], unit: Any) -> Numbers:
    return work(unit)
