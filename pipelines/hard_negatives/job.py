"""Runs the job of hard negatives: python -m vlmill.pipelines.hard_negatives --help

With a runner, Beam's workers do all work: no result passes through this process. Results in
``work`` of a killed run are reused; ``work`` is deleted when the run has finished. The cost is
estimated from the first captions: time grows with N^1.5 for N captions.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vlmill.pipelines.hard_negatives.arrays import Bags, Part, map_arrays, save
from vlmill.pipelines.hard_negatives.blocks import search_range
from vlmill.pipelines.hard_negatives.captions import JOB, stage
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source, batches
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.steps import list_steps
from vlmill.pipelines.hard_negatives.tokens import make_tokenizer
from vlmill.pipelines.hard_negatives.vectors import build_vocabulary, count_chunk, load_bags
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate, print_estimate
from vlmill.runtime.files.atomic import has_folder, remove_leftovers
from vlmill.runtime.files.outputs import State, prepare_output, remove_output
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import NEGATIVES

SAMPLE_CAPTIONS = 20_000
STEP = 500  # captions between two readings of the clock
GROWTH = 0.5  # exponent of a query's time in the number of captions: 0.48 measured
ID_BYTES = 36  # of a pair's id: 32 digits, and four bytes for its length
COSINE_BYTES = 4


def run(
    args: argparse.Namespace, source: Source, rules: NegativeRules, beam_flags: Sequence[str]
) -> int:
    """Runs the steps that have no finished block or shard, and writes the manifest."""
    run_steps = select_runner(
        beam_flags,
        workers=args.workers,
        module=__name__,
        paths={"--pairs": args.pairs, "--output": str(args.output)},
        share=args.part,
    )
    source.require()
    if args.dry_run:
        rate = measure(source, rules)
        return print_estimate(estimate_cost(count_rows(source), rules.top, rate), args.output)
    entry = source.input()
    settings = {
        "top": rules.top,
        "below": str(rules.below),
        "tokenizer": rules.tokenizer,
        "token_pattern": rules.pattern,
        "columns": source.columns(),
        "document_parts": args.document_parts,
        "pairs_per_shard": args.pairs_per_shard,
        "pairs_digest": entry.digest,
    }
    plan = Plan(
        source=source,
        rules=rules,
        output=to_path(args.output),
        settings=settings,
        shard_captions=args.pairs_per_shard,
        parts=args.document_parts,
        threads=args.workers,
        images=args.images,
        inputs=[entry],
    )
    shared = args.part is not None
    state = prepare_output(plan.output, job=JOB, settings=settings, fresh=args.fresh, shared=shared)
    if state is not State.FINISHED:
        for folder in () if shared else (plan.work, plan.words):
            remove_leftovers(folder)
        with _refusing(plan):
            run_steps(plan, list_steps(plan))
    with end_job(plan.output, args.part) as is_last:
        if is_last:
            remove_tree(plan.work)
            _say(plan, state)
    return 0


@contextmanager
def _refusing(plan: Plan) -> Iterator[None]:
    """Deletes the results for refused captions, so that a corrected command can start.

    If vectors exist, the results are kept, because the refused input is a different one.
    """
    try:
        yield
    except InputError:
        if not has_folder(plan.bags):
            remove_output(plan.output)
        raise


def _say(plan: Plan, state: State) -> None:
    done = "finished before" if state is State.FINISHED else "done"
    captions, lists = read_json(plan.output / "funnel.json")
    print_reading_hint(plan.output, NEGATIVES.name)
    notes = [format_rejects(captions["rejects"])]
    notes.append(f"{lists['without_negatives']} without negatives")
    notes.append(f"{lists['short_lists']} with fewer than {plan.rules.top}")
    if captions["unspaced"]:
        notes.append(f"{captions['unspaced']} in a script that the tokenizer does not segment")
    print(f"{done}: negatives of {lists['in']} pairs, {', '.join(notes)}: {plan.output}")


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
