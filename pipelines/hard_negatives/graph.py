"""The pipelines of the job: what Beam's workers do, and in which order.

How many captions there are is known when they are laid out, and with it all units of the steps that
follow. These are one pipeline, as a cluster takes ten seconds or more to begin one: a step awaits
all of the step before as a side input, in which nothing is.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsList

from vlmill.pipelines.hard_negatives.blocks import (
    BuildPart,
    Once,
    SearchBlock,
    WriteNegatives,
    captions_of,
    missing_blocks,
)
from vlmill.pipelines.hard_negatives.captions import Staged, stage
from vlmill.pipelines.hard_negatives.finish import finish
from vlmill.pipelines.hard_negatives.plan import Plan, Range
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.vectors import CountWords, WriteVocabulary, write_bags
from vlmill.schemas.files.atomic import has_folder


def build_staging(p: beam.Pipeline, plan: Plan) -> None:
    """Builds the layout of the captions."""
    step = Once(stage, plan.source, plan.captions, plan.rules)
    _ = _start(p) | "Captions" >> beam.ParDo(step)


def build(p: beam.Pipeline, plan: Plan, staged: Staged, missing: Sequence[Range]) -> None:
    """Builds all that follows, as far as it is not there; ``missing`` are shards of negatives."""
    start = _start(p)
    done = start if has_vectors(plan) else _vectors(start, plan, staged)
    if missing:
        done = _negatives(start, done, plan, staged, missing)
    _after(done, start, "Finish", Once(finish, plan, staged))


def has_vectors(plan: Plan) -> bool:
    """Whether the captions have become vectors: their words are needed no more."""
    return plan.vocabulary.exists() and has_folder(plan.bags)


def _vectors(start: Any, plan: Plan, staged: Staged) -> Any:
    """Words, how many captions have each, and the captions' vectors."""
    count = CountWords(plan.captions, plan.words, plan.rules)
    write = WriteVocabulary(plan.output, staged.captions, plan.producer)
    vectors = Once(write_bags, plan.work, staged, plan.vocabulary, plan.rules)
    words = (
        _spread(start, "chunks", range(staged.chunks))
        | "Take chunks" >> beam.FlatMap(_members)
        | "Words" >> beam.ParDo(count)
        | "Captions of a word" >> beam.CombinePerKey(sum)
    )
    written = start | "Vocabulary" >> beam.ParDo(write, AsList(words))
    return written | "Bags" >> beam.ParDo(vectors)


def _negatives(start: Any, done: Any, plan: Plan, staged: Staged, missing: Sequence[Range]) -> Any:
    """The index, the lists of each block from each part of it, and the shards."""
    parts = _spread(start, "parts", range(plan.parts))
    done = _after(done, parts, "Index", BuildPart(plan.work, plan.parts))
    top, below = plan.rules.top, plan.rules.below
    rules = Rules(top, below.numerator, below.denominator)
    for part in range(plan.parts):  # one after another: each profits from those before it
        blocks = missing_blocks(plan.work, staged.captions, part)
        if blocks:
            captions = sum(captions_of(block, staged.captions) for _, block in blocks)
            search = SearchBlock(plan.work, rules, plan.threads, captions)
            units = _spread(start, f"blocks of part {part}", blocks)
            done = _after(done, units, f"Search part {part}", search)
    total = len(plan.ranges(staged))
    write = WriteNegatives(plan.work, plan.output, total, plan.parts, top, plan.producer)
    return _after(done, _spread(start, "shards", missing), "Write", write)


def _start(p: beam.Pipeline) -> Any:
    """One element, where the pipeline begins."""
    return p | "Start" >> beam.Create([None], reshuffle=False)


def _spread(start: Any, name: str, units: Sequence[Any]) -> Any:
    """Units on all workers, (number, [unit]): a group for each spreads them.

    They are taken out of it by the step itself: one that awaits another begins a stage, for which a
    cluster starts its workers.
    """
    return (
        start
        | f"List {name}" >> beam.FlatMap(_numbered, list(units))
        | f"Spread {name}" >> beam.GroupByKey()
    )


def _numbered(_: None, units: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(units))


def _members(numbered: tuple[int, Iterable[Any]]) -> list[Any]:
    return list(numbered[1])


def _after(done: Any, units: Any, name: str, step: beam.DoFn) -> Any:
    """Applies a step to units when all of ``done`` is."""
    return units | name >> beam.ParDo(step, AsIter(done))
