"""Estimates a search's cost from the first captions; time grows with N^1.5 for N captions."""

import tempfile
from pathlib import Path

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import Bags, Part, map_arrays, save
from vlmill.pipelines.hard_negatives.blocks import search_range
from vlmill.pipelines.hard_negatives.captions import stage
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source, batches
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.tokens import make_tokenizer
from vlmill.pipelines.hard_negatives.vectors import build_vocabulary, count_chunk, load_bags
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate

SAMPLE_CAPTIONS = 20_000
STEP = 500  # captions between two readings of the clock
GROWTH = 0.5  # exponent of a query's time in the number of captions: 0.48 measured
ID_BYTES = 36  # of a pair's id: 32 digits, and four bytes for its length
COSINE_BYTES = 4


def output_bytes(num_pairs: int, top: int) -> int:
    """Returns the largest size of the negatives of a number of pairs, each with ``top`` of them."""
    return num_pairs * (ID_BYTES + min(top, num_pairs) * (ID_BYTES + COSINE_BYTES))


def count_rows(source: Source) -> int:
    """Reads the input and returns its number of rows."""
    return sum(batch.num_rows for batch in batches(source))


def measure(source: Source, rules: NegativeRules) -> Rate:
    """Returns the rate of one thread on the first captions, searched among these alone."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        bags, part = prepare(source, work, rules, SAMPLE_CAPTIONS)
        num = bags.members.size
        kernel_rules = Rules(rules.top, rules.below.numerator, rules.below.denominator)
        floors = np.zeros(num)
        if num:  # compiled, or loaded, before the clock starts
            search_range(bags, part, kernel_rules, 0, 1, floors[:1], 1)
        spans = ((k, min(k + STEP, num)) for k in range(0, num, STEP))
        searched = (
            (b - a, search_range(bags, part, kernel_rules, a, b, floors[a:b], 1)) for a, b in spans
        )
        return measure_rate(searched, "captions", weight=lambda one: one[0])


def prepare(
    source: Source, work: Path, rules: NegativeRules, limit: int | None = None
) -> tuple[Bags, Part]:
    """Returns bags and the full index of a source's first captions, mapped from ``work``."""
    staged = stage(source, work / "captions", rules, limit)
    for chunk in range(staged.chunks):
        count_chunk(work / "captions", work / "words", chunk, make_tokenizer(rules))
    vocabulary = build_vocabulary(work / "words", staged.captions)
    bags = load_bags(work, staged, vocabulary, rules)
    save(work / "bags", bags)
    save(work / "part-0", build_index(bags))
    return map_arrays(work / "bags", Bags), map_arrays(work / "part-0", Part)


def estimate_cost(num_pairs: int, top: int, rate: Rate) -> Estimate:
    """Returns the cost of all pairs: with four times as many, each query takes twice as long."""
    times = max(1.0, num_pairs / SAMPLE_CAPTIONS)
    seconds = rate.seconds_for(num_pairs * times**GROWTH)
    note = "time of one thread; divide by the number of --workers"
    if times > 1:
        note += (
            f"; the rate is measured on {SAMPLE_CAPTIONS:,} captions and falls with their number"
        )
    return Estimate(
        inputs={"--pairs": f"{num_pairs:,} pairs"},
        max_bytes=output_bytes(num_pairs, top),
        seconds=seconds,
        rate=rate,
        note=note,
    )
