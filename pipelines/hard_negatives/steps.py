"""The steps of the job: captions, words, vectors, index, search, shards.

Captions are laid out once, cut into words and counted, and indexed; the index is on the disk as
plain arrays that all workers map. Blocks of captions are searched, and shards written.
"""

from functools import partial

from vlmill.pipelines.hard_negatives.blocks import (
    block_units,
    build_part,
    search_block,
    shard_units,
    write_negatives,
)
from vlmill.pipelines.hard_negatives.captions import stage
from vlmill.pipelines.hard_negatives.finish import finish
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.tokens import refuse_unspaced
from vlmill.pipelines.hard_negatives.vectors import chunk_units, cut_chunk, write_vectors
from vlmill.runtime.units.step import Step, Work, single_unit
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError


def lay_out_captions(plan: Plan, unit: Unit) -> Result:
    """Lays the captions out. Raises InputError if there is none that can be searched."""
    argument = f"--pairs {plan.source.argument}"
    staged = stage(plan.source, plan.captions, plan.rules)
    if not staged.captions:
        raise InputError(f"{argument}: the table is empty; give one with captions")
    refuse_unspaced(staged.unspaced, staged.captions, plan.rules, argument)
    return Result()


def _alone(name: str, work: Work[Plan]) -> Step[Plan]:
    return Step(name=name, units=partial(single_unit, name), work=work)


def part_units(plan: Plan) -> list[Unit]:
    """Returns a unit for each part of the index."""
    return [Unit(name=f"index-{number}", number=number) for number in range(plan.parts)]


def list_steps(plan: Plan) -> list[Step[Plan]]:
    """Returns all steps. A part is searched after those before it: each profits from them."""
    search = [
        Step(
            name=f"search part {part}",
            units=partial(block_units, part),
            work=partial(search_block, part),
            threads=True,
        )
        for part in range(plan.parts)
    ]
    return [
        _alone("captions", lay_out_captions),
        Step(name="words", units=chunk_units, work=cut_chunk),
        _alone("vectors", write_vectors),
        Step(name="index", units=part_units, work=build_part, threads=True),
        *search,
        Step(name="write", units=shard_units, work=write_negatives),
        _alone("finish", finish),
    ]
