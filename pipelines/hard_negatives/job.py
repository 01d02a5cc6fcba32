"""Hard negatives of image-text pairs: python -m vlmill.pipelines.hard_negatives --help

Captions are laid out once, cut into words and counted, and indexed; the index lies on the disk as
plain arrays that all workers map. Blocks of captions are searched, and shards written. With a
runner all of it is done by Beam's workers: nothing of the result passes through this process. What
lies in ``work`` of a killed run is not made again; it goes when the run has finished.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from vlmill.pipelines.hard_negatives.blocks import read_staged
from vlmill.pipelines.hard_negatives.captions import JOB, Staged
from vlmill.pipelines.hard_negatives.cost import count_rows, estimate_cost, measure
from vlmill.pipelines.hard_negatives.plan import Plan, Range
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source
from vlmill.pipelines.hard_negatives.steps import Step, list_steps, run_here, staging
from vlmill.pipelines.hard_negatives.tokens import refuse_unspaced
from vlmill.pipelines.launch.loading import quiet_beam_import
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import print_estimate
from vlmill.runtime.files.atomic import has_folder, remove_leftovers
from vlmill.runtime.files.outputs import State, prepare_output, remove_output
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import rejects_said
from vlmill.schemas.tables import NEGATIVES


def run(
    args: argparse.Namespace, source: Source, rules: NegativeRules, beam_flags: Sequence[str]
) -> int:
    """Searches what no finished block or shard holds, and writes the manifest."""
    run_steps = select_runner(args, beam_flags)
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
    state = prepare_output(plan.output, job=JOB, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        for folder in (plan.work, plan.words):
            remove_leftovers(folder)
        with _refusing(plan):
            staged = _stage(plan, run_steps)
            run_steps(list_steps(plan, staged, _missing(plan, staged)))
    remove_tree(plan.work)
    _say(plan, state)
    return 0


def select_runner(
    args: argparse.Namespace, beam_flags: Sequence[str]
) -> Callable[[Sequence[Step]], None]:
    """Returns what does steps: processes of this machine, or the runner that flags name.

    Raises InputError for flags that no runner takes.
    """
    if not beam_flags:
        return lambda steps: run_here(steps, args.workers)
    # Beam takes seconds to load.
    with quiet_beam_import():
        from vlmill.pipelines.hard_negatives.on_beam import run_beam
        from vlmill.pipelines.launch.clusters import require_for_cluster
        from vlmill.pipelines.launch.options import beam_options

    options = beam_options(beam_flags, __name__)
    require_for_cluster(options, {"--pairs": args.pairs, "--output": str(args.output)})
    return partial(run_beam, options)


@contextmanager
def _refusing(plan: Plan) -> Iterator[None]:
    """Deletes what was made of captions that are refused, so that a corrected command can begin.

    Once they are vectors, what is refused is another input: the work on them stays.
    """
    try:
        yield
    except InputError:
        if not has_folder(plan.bags):
            remove_output(plan.output)
        raise


def _stage(plan: Plan, run_steps: Callable[[Sequence[Step]], None]) -> Staged:
    """Lays the captions out. Raises InputError if there is none that can be searched."""
    argument = f"--pairs {plan.source.argument}"
    if (counts := read_staged(plan.work)) is None:
        run_steps(staging(plan))
        counts = read_staged(plan.work)
    assert counts is not None
    staged = Staged(**counts)
    if not staged.captions:
        raise InputError(f"{argument}: the table is empty; give one with captions")
    refuse_unspaced(staged.unspaced, staged.captions, plan.rules, argument)
    return staged


def _missing(plan: Plan, staged: Staged) -> list[Range]:
    """The shards of negatives that are not there yet."""
    ranges = plan.ranges(staged)
    missing = [each for each in ranges if not plan.shard(each[0], staged).exists()]
    if len(missing) < len(ranges):
        print(f"continuing: {len(ranges) - len(missing)} shards are there", file=sys.stderr)
    return missing


def _say(plan: Plan, state: State) -> None:
    done = "finished before" if state is State.FINISHED else "done"
    captions, lists = read_json(plan.output / "funnel.json")
    print_reading_hint(plan.output, NEGATIVES.name)
    notes = [rejects_said(captions["rejects"])]
    notes.append(f"{lists['without_negatives']} without negatives")
    notes.append(f"{lists['short_lists']} with fewer than {plan.rules.top}")
    if captions["unspaced"]:
        notes.append(f"{captions['unspaced']} of a script that the tokenizer does not cut")
    print(f"{done}: negatives of {lists['in']} pairs, {', '.join(notes)}: {plan.output}")
