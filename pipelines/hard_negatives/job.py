"""Runs the job of hard negatives: python -m vlmill.pipelines.hard_negatives --help

With a runner, Beam's workers do all work: no result passes through this process. Results in
``work`` of a killed run are reused; ``work`` is deleted when the run has finished.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vlmill.pipelines.hard_negatives.captions import JOB
from vlmill.pipelines.hard_negatives.cost import count_rows, estimate_cost, measure
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source
from vlmill.pipelines.hard_negatives.steps import list_steps
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.files.atomic import has_folder, remove_leftovers
from vlmill.runtime.files.outputs import State, prepare_output, remove_output
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import NEGATIVES


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
